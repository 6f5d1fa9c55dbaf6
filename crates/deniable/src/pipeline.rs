//! The way of a closed stripe to the medium: it becomes ciphertext, is written in its turn, and synced on schedule. With
//! threads each of the three is done by one, and stripes wait between them; without, whoever closes a stripe does all.

use crate::checkpoint::Checkpoint;
use crate::core::{Core, FailOnPanic};
use crate::keys::{domain, seal_slot, stripe_key};
use crate::log::{Flying, Head};
use crate::summary::{self, PublicPart, ROOTS_AT};
use lacuna_core::{BLOCK_SIZE, Result};
use lacuna_levels::SALT_LEN;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

/// Closed stripes that may wait to be encrypted before whoever fills the next one waits.
pub(crate) const MOST_CLOSED: usize = 8;
/// Encrypted stripes that may wait for the medium.
pub(crate) const MOST_ENCRYPTED: usize = 4;
/// Syncs that may be due: a stripe further on waits for the sync itself.
pub(crate) const MOST_DUE: usize = 2;

/// A stripe that takes nothing more from the public.
pub(crate) struct Closed {
    pub(crate) flying: Arc<Flying>,
    /// What the hidden levels have in the stripe that it carries on.
    pub(crate) carried: Vec<Head>,
    pub(crate) salt: [u8; SALT_LEN],
    /// Its tags are still missing.
    pub(crate) part: PublicPart,
}

/// A stripe as it will lie on the medium.
pub(crate) struct Encrypted {
    seq: u64,
    bytes: Vec<u8>,
}

/// Where closed stripes go.
#[derive(Clone, Default)]
enum Way {
    /// To the medium at once.
    #[default]
    Direct,
    /// To the threads.
    Threads(SyncSender<Closed>),
    /// Nowhere: the threads have been told that there are no more.
    Ended,
}

/// What the pipeline keeps between stripes.
#[derive(Default)]
pub(crate) struct Pipeline {
    way: Mutex<Way>,
    /// Buffers for ciphertext that nobody uses.
    buffers: Mutex<Vec<Vec<u8>>>,
}

impl Core {
    /// From now on closed stripes go there.
    pub(crate) fn attach(&self, to_encrypt: SyncSender<Closed>) {
        *self.pipeline.way.lock().unwrap_or_else(PoisonError::into_inner) = Way::Threads(to_encrypt);
    }

    /// No more stripes will be closed: the threads end when they have done what waits.
    pub(crate) fn end(&self) {
        *self.pipeline.way.lock().unwrap_or_else(PoisonError::into_inner) = Way::Ended;
    }

    /// Sends a closed stripe to the medium: by the threads, or at once if there are none. Waits while many are on their
    /// way.
    pub(crate) fn send(&self, closed: Closed) -> Result<()> {
        let way = self.pipeline.way.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match way {
            Way::Threads(to_encrypt) => to_encrypt.send(closed).map_err(|_| self.health.refusal()),
            Way::Ended => Err(self.health.refusal()),
            Way::Direct => {
                let encrypted = self.encrypt(closed)?;
                let seq = encrypted.seq;
                self.put(encrypted)?;
                if self.log.params.is_sync_due(seq) { self.sync_to(seq) } else { Ok(()) }
            }
        }
    }

    /// The work of the encrypting thread, until there is nothing more to come.
    pub(crate) fn encrypt_stripes(&self, closed: Receiver<Closed>, to_write: SyncSender<Encrypted>) {
        let _guard = FailOnPanic(self);
        for closed in closed {
            match self.health.check().and_then(|()| self.encrypt(closed)) {
                // Only a writing thread that has failed takes no more.
                Ok(encrypted) => drop(to_write.send(encrypted)),
                Err(e) => return drop(self.fail(e)),
            }
        }
    }

    /// The work of the writing thread.
    pub(crate) fn write_stripes(&self, encrypted: Receiver<Encrypted>, to_sync: SyncSender<u64>) {
        let _guard = FailOnPanic(self);
        for encrypted in encrypted {
            let seq = encrypted.seq;
            if let Err(e) = self.health.check().and_then(|()| self.put(encrypted)) {
                return drop(self.fail(e));
            }
            if self.log.params.is_sync_due(seq) {
                // Only a syncing thread that has failed takes no more.
                let _failed = to_sync.send(seq);
            }
        }
    }

    /// The work of the syncing thread, which is ahead of the writing one's need.
    pub(crate) fn sync_stripes(&self, due: Receiver<u64>) {
        let _guard = FailOnPanic(self);
        for seq in due {
            if let Err(e) = self.sync_to(seq) {
                return drop(self.fail(e));
            }
        }
    }

    fn buffer(&self) -> Vec<u8> {
        let spare = self.pipeline.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.unwrap_or_else(|| vec![0; self.log.params.stripe_len()])
    }

    fn encrypt(&self, closed: Closed) -> Result<Encrypted> {
        let Closed { flying, carried, salt, mut part } = closed;
        let params = &self.log.params;
        let mut bytes = self.buffer();
        let key = stripe_key(&self.log.keys[0], &salt)?;
        let (summary, slots) = bytes.split_at_mut(BLOCK_SIZE);
        let (public, hidden) = slots.split_at_mut(params.public_slots() * BLOCK_SIZE);
        let mut hidden_part = [0; BLOCK_SIZE];
        let hidden_part = &mut hidden_part[..summary::public_at(params.hidden_slots()) - ROOTS_AT];
        self.fill_hidden(&flying, &carried, &salt, hidden, hidden_part)?;
        let blocks = flying.public.blocks.chunks_exact(BLOCK_SIZE).zip(public.chunks_exact_mut(BLOCK_SIZE));
        for ((slot, (entry, tag)), (src, dst)) in part.entries.iter_mut().enumerate().zip(blocks) {
            *tag = seal_slot(&key, part.seq, slot, entry.pack(), src, dst);
        }
        summary::seal(&key, &salt, &key.digest(domain::DIGEST, hidden), hidden_part, &part, summary);
        Ok(Encrypted { seq: part.seq, bytes })
    }

    /// Writes one stripe: the atomic `PD_write` of the paper (Algorithm 4), one write to the medium.
    fn put(&self, Encrypted { seq, bytes }: Encrypted) -> Result<()> {
        let params = &self.log.params;
        // The stripe that lies here was carried on by one a gap earlier, which must be durable first; and the summary
        // says what else is.
        let synced = params.synced_before(seq);
        self.sync_to(synced)?;
        // Between two stripes, always the same two: the order of writes is no matter of speed (deniability contract).
        if params.is_checkpoint_due(seq) {
            self.write_checkpoint(synced, false)?;
        }
        self.log.medium.write_at(params.offset(seq), &bytes)?;
        self.log.land(seq);
        self.pipeline.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        self.counters.stripes.fetch_add(1, Ordering::Relaxed);
        self.tell_progress();
        Ok(())
    }

    /// Writes down that stripe `seq` is durable.
    pub(crate) fn write_checkpoint(&self, seq: u64, closed: bool) -> Result<()> {
        let checkpoint = Checkpoint { seq, closed };
        checkpoint.write(&*self.log.medium, &self.log.params, &self.log.keys[0], &*self.public_random)
    }
}
