//! The way of a closed stripe to the medium: it becomes ciphertext, is written in its turn, and synced on schedule. With
//! threads one encrypts and writes, and one syncs; without, the thread that closes a stripe does all.

use crate::checkpoint::Checkpoint;
use crate::core::{Core, LOOK_AGAIN};
use crate::hidden::HiddenPart;
use crate::keys::{domain, seal_slot, stripe_key};
use crate::log::InFlight;
use crate::summary::{self, PublicPart, ROOTS_AT};
use lacuna_core::{BLOCK_SIZE, FailStop, OnPanic, Result, defect};
use lacuna_levels::SALT_LEN;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Closed stripes that may be in flight before no more is closed.
const MOST_IN_FLIGHT: u64 = 16;
/// How many are left when a thread that waits for room is woken: to wake it for each would cost more.
const ROOM_AT: u64 = MOST_IN_FLIGHT / 2;
/// Syncs that may be due: a stripe further on waits for the sync itself.
pub(crate) const MOST_DUE: usize = 2;

/// A stripe that takes nothing more from the public.
pub(crate) struct Closed {
    pub(crate) in_flight: Arc<InFlight>,
    /// What the hidden part of its summary says.
    pub(crate) hidden: HiddenPart,
    pub(crate) salt: [u8; SALT_LEN],
    /// The salt of the checkpoint that is due before it, if one is.
    pub(crate) checkpoint: Option<[u8; SALT_LEN]>,
    /// Its tags are still missing.
    pub(crate) part: PublicPart,
}

/// A stripe as it will lie on the medium.
pub(crate) struct Encrypted {
    seq: u64,
    /// What its summary calls durable.
    claimed: u64,
    checkpoint: Option<[u8; SALT_LEN]>,
    bytes: Vec<u8>,
}

/// Where closed stripes go.
#[derive(Clone, Default)]
enum Way {
    /// To the medium at once.
    #[default]
    Direct,
    /// To the threads.
    Threads(Sender<Closed>),
    /// Nowhere: the threads have been told that there are no more.
    Ended,
}

/// What the pipeline keeps between stripes.
#[derive(Default)]
pub(crate) struct Pipeline {
    way: Mutex<Way>,
    /// Buffers for ciphertext that nobody uses.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Closed stripes that are not on the medium yet.
    in_flight: Mutex<u64>,
    moved: Condvar,
}

impl Pipeline {
    fn in_flight(&self) -> MutexGuard<'_, u64> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another stripe may be closed.
    pub(crate) fn has_room(&self) -> bool {
        *self.in_flight() < MOST_IN_FLIGHT
    }

    /// Waits until another stripe may be closed.
    pub(crate) fn wait_room(&self, health: &FailStop) -> Result<()> {
        let mut in_flight = self.in_flight();
        while *in_flight > ROOM_AT {
            health.check()?;
            in_flight =
                self.moved.wait_timeout(in_flight, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Wakes all that wait for room, after a failure.
    pub(crate) fn wake_all(&self) {
        self.moved.notify_all();
    }
}

impl Core {
    /// From now on closed stripes go there.
    pub(crate) fn attach(&self, to_encrypt: Sender<Closed>) {
        *self.pipeline.way.lock().unwrap_or_else(PoisonError::into_inner) = Way::Threads(to_encrypt);
    }

    /// No more stripes will be closed: the threads end when they have done what is pending.
    pub(crate) fn end(&self) {
        *self.pipeline.way.lock().unwrap_or_else(PoisonError::into_inner) = Way::Ended;
    }

    /// Sends a closed stripe to the medium: by the threads, or at once if there are none. With threads it does not wait:
    /// [`Pipeline::has_room`] says before whether there is room.
    pub(crate) fn send(&self, closed: Closed) -> Result<()> {
        *self.pipeline.in_flight() += 1;
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

    /// The work of the thread that encrypts and writes, until there is nothing more to come.
    pub(crate) fn write_stripes(&self, closed: Receiver<Closed>, to_sync: SyncSender<u64>) {
        let _guard = OnPanic::new(|| drop(self.fail(defect())));
        for closed in closed {
            let seq = closed.part.seq;
            let written =
                self.health.check().and_then(|()| self.encrypt(closed)).and_then(|stripe| self.put(stripe));
            if let Err(e) = written {
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
        let _guard = OnPanic::new(|| drop(self.fail(defect())));
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
        let Closed { in_flight, hidden: says, salt, checkpoint, mut part } = closed;
        let params = &self.log.params;
        let mut bytes = self.buffer();
        let key = stripe_key(&self.log.keys[0], &salt)?;
        let (summary, slots) = bytes.split_at_mut(BLOCK_SIZE);
        let (public, hidden) = slots.split_at_mut(params.public_slots() * BLOCK_SIZE);
        let mut hidden_part = [0; BLOCK_SIZE];
        let hidden_part = &mut hidden_part[..summary::public_at(params.hidden_slots()) - ROOTS_AT];
        self.encrypt_hidden(&in_flight, &says, &salt, hidden, hidden_part)?;
        let blocks =
            in_flight.public.blocks.chunks_exact(BLOCK_SIZE).zip(public.chunks_exact_mut(BLOCK_SIZE));
        for ((slot, (entry, tag)), (src, dst)) in part.entries.iter_mut().enumerate().zip(blocks) {
            *tag = seal_slot(&key, part.seq, slot, entry.pack(), src, dst);
        }
        summary::seal(&key, &salt, &key.digest(domain::DIGEST, hidden), hidden_part, &part, summary);
        Ok(Encrypted { seq: part.seq, claimed: part.synced, checkpoint, bytes })
    }

    /// Writes one stripe: the atomic `PD_write` of the paper (Algorithm 4), one write to the medium.
    fn put(&self, Encrypted { seq, claimed, checkpoint, bytes }: Encrypted) -> Result<()> {
        let params = &self.log.params;
        // The stripe that lies here was carried on by one a gap earlier, which must be durable first; and what the summary
        // calls durable must be.
        let synced = params.synced_before(seq);
        self.sync_to(claimed.max(synced))?;
        // Between two stripes, always the same two: the order of writes is no matter of speed (deniability contract).
        if let Some(salt) = checkpoint {
            let durable = if seq == self.opened_at + 1 { self.opened_at } else { synced };
            self.write_checkpoint(durable, false, &salt)?;
        }
        self.log.medium.write_at(params.offset(seq), &bytes)?;
        self.log.complete(seq);
        self.pipeline.buffers.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        self.counters.stripes.fetch_add(1, Ordering::Relaxed);
        let mut in_flight = self.pipeline.in_flight();
        *in_flight -= 1;
        if *in_flight == ROOM_AT {
            self.pipeline.moved.notify_all();
        }
        drop(in_flight);
        self.tell_progress();
        Ok(())
    }

    /// Writes down that stripe `seq` is durable.
    pub(crate) fn write_checkpoint(&self, seq: u64, closed: bool, salt: &[u8; SALT_LEN]) -> Result<()> {
        let checkpoint = Checkpoint { seq, closed };
        checkpoint.write(&*self.log.medium, &self.log.params, &self.log.keys[0], salt)
    }
}
