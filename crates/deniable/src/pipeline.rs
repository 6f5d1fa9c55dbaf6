//! The way of a closed stripe to the medium: it becomes ciphertext, is written in its turn, and synced on schedule. With
//! threads one encrypts and writes, and one syncs; without, the thread that closes a stripe does all.
//!
//! Invariants: stripes are written in the order of their numbers, each when all is durable that it overwrites the last copy
//! of or calls durable. Checkpoints are written between stripes that the schedule names.

use crate::checkpoint::Checkpoint;
use crate::closed::{Closed, Encrypted};
use crate::health::{Health, LOOK_AGAIN, Wake};
use crate::keys::{LevelKeys, Salt};
use crate::log::Log;
use crate::params::Params;
use crate::place::Seq;
use crate::progress::Progress;
use lacuna_core::Result;
use lacuna_crypto::RandomSource;
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};

/// Closed stripes that may be in flight before no more is closed.
const MOST_IN_FLIGHT: u64 = 16;
/// How many are left when a thread that waits for room is woken: to wake it for each would cost more.
const ROOM_AT: u64 = MOST_IN_FLIGHT / 2;
/// Syncs that may be due: a stripe further on waits for the sync itself.
pub(crate) const MOST_DUE: usize = 2;

/// Where closed stripes go.
enum Way {
    /// To the medium at once.
    Direct,
    /// To the threads.
    Threads(Sender<Closed>),
    /// Nowhere: the threads have been told that there are no more.
    Ended,
}

/// The pipeline of an open disk.
pub(crate) struct Pipeline {
    log: Arc<Log>,
    progress: Arc<Progress>,
    medium: Arc<dyn Medium>,
    health: Arc<Health>,
    /// For what no key of an open level shows.
    filler: Arc<dyn RandomSource>,
    /// The end of the log when the disk was opened.
    opened_at: Seq,
    way: Mutex<Way>,
    /// Buffers for ciphertext that nobody uses.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Closed stripes that are not on the medium yet.
    in_flight: Mutex<u64>,
    moved: Condvar,
    stripes: AtomicU64,
}

impl Pipeline {
    /// For a log that ended at `opened_at`.
    pub(crate) fn new(
        log: Arc<Log>,
        progress: Arc<Progress>,
        medium: Arc<dyn Medium>,
        health: Arc<Health>,
        filler: Arc<dyn RandomSource>,
        opened_at: Seq,
    ) -> Arc<Pipeline> {
        let pipeline = Arc::new(Pipeline {
            log,
            progress,
            medium,
            health,
            filler,
            opened_at,
            way: Mutex::new(Way::Direct),
            buffers: Mutex::default(),
            in_flight: Mutex::default(),
            moved: Condvar::new(),
            stripes: AtomicU64::new(0),
        });
        pipeline.health.watch(&pipeline);
        pipeline
    }

    pub(crate) fn params(&self) -> &Params {
        self.log.params()
    }

    pub(crate) fn keys(&self) -> &LevelKeys {
        self.log.keys()
    }

    /// Stripes written since the disk was opened.
    pub(crate) fn stripes(&self) -> u64 {
        self.stripes.load(Ordering::Relaxed)
    }

    /// Waits until another stripe may be closed.
    pub(crate) fn wait_room(&self) -> Result<()> {
        let mut in_flight = self.in_flight.lock();
        if *in_flight < MOST_IN_FLIGHT {
            return Ok(());
        }
        while *in_flight > ROOM_AT {
            self.health.check()?;
            self.moved.wait_for(&mut in_flight, LOOK_AGAIN);
        }
        Ok(())
    }

    /// From now on closed stripes go there.
    pub(crate) fn attach(&self, to_encrypt: Sender<Closed>) {
        *self.way.lock() = Way::Threads(to_encrypt);
    }

    /// No more stripes will be closed: the threads end when they have done what is pending.
    pub(crate) fn end(&self) {
        *self.way.lock() = Way::Ended;
    }

    /// Sends a closed stripe to the medium: by the threads, or at once if there are none. With threads it does not wait:
    /// [`Pipeline::wait_room`] is called before a stripe is closed.
    pub(crate) fn send(&self, closed: Closed) -> Result<()> {
        self.health.check()?;
        *self.in_flight.lock() += 1;
        match &*self.way.lock() {
            Way::Threads(to_encrypt) => return to_encrypt.send(closed).map_err(|_| self.health.refusal()),
            Way::Ended => return Err(self.health.refusal()),
            Way::Direct => {}
        }
        let seq = self.write(closed)?;
        if self.params().is_sync_due(seq) { self.progress.sync_to(seq) } else { Ok(()) }
    }

    /// The work of the thread that encrypts and writes, until there is nothing more to come.
    pub(crate) fn write_stripes(&self, closed: &Receiver<Closed>, to_sync: &SyncSender<Seq>) {
        let _guard = self.health.fail_on_panic();
        for closed in closed {
            match self.health.check().and_then(|()| self.write(closed)) {
                Ok(seq) if self.params().is_sync_due(seq) => {
                    // Only a syncing thread that has failed takes no more.
                    let _failed = to_sync.send(seq);
                }
                Ok(_) => {}
                Err(e) => return drop(self.health.fail(e)),
            }
        }
    }

    /// The work of the syncing thread, which is ahead of the writing one's need.
    pub(crate) fn sync_stripes(&self, due: &Receiver<Seq>) {
        let _guard = self.health.fail_on_panic();
        for seq in due {
            if let Err(e) = self.progress.sync_to(seq) {
                return drop(self.health.fail(e));
            }
        }
    }

    /// Encrypts and writes a stripe. Gives its number.
    fn write(&self, closed: Closed) -> Result<Seq> {
        let params = self.params();
        let spare = self.buffers.lock().pop();
        let buffer = spare.unwrap_or_else(|| vec![0; params.stripe_len()]);
        let encrypted = closed.encrypt(params, self.log.keys(), &*self.filler, buffer)?;
        let seq = encrypted.seq;
        self.put(encrypted)?;
        Ok(seq)
    }

    /// Writes one stripe: the atomic `PD_write` of the paper (Algorithm 4), one write to the medium.
    fn put(&self, Encrypted { seq, claimed, checkpoint, bytes }: Encrypted) -> Result<()> {
        let params = self.params();
        // The stripe that lies here was carried on by one a gap earlier, which must be durable first; and what the summary
        // calls durable must be.
        let synced = params.synced_before(seq);
        self.progress.sync_to(claimed.max(synced))?;
        // Between two stripes, always the same two: the order of writes is no matter of speed (deniability contract).
        if let Some(salt) = checkpoint {
            let durable = if self.is_first(seq) { self.opened_at } else { synced };
            self.write_checkpoint(durable, false, &salt)?;
        }
        self.medium.write_at(params.offset(seq), &bytes)?;
        self.stripes.fetch_add(1, Ordering::Relaxed);
        self.log.complete(seq);
        self.buffers.lock().push(bytes);
        let mut in_flight = self.in_flight.lock();
        *in_flight -= 1;
        if *in_flight == ROOM_AT {
            self.moved.notify_all();
        }
        Ok(())
    }

    fn is_first(&self, seq: Seq) -> bool {
        seq == self.opened_at.next()
    }

    /// Whether a checkpoint is due before stripe `seq`. The first stripe of a session takes back that the disk was closed.
    pub(crate) fn is_checkpoint_due(&self, seq: Seq) -> bool {
        self.params().is_checkpoint_due(seq) || self.is_first(seq)
    }

    /// Waits until stripe `seq`, which was sent, is on the medium, and makes it and all before it durable.
    pub(crate) fn settle(&self, seq: Seq) -> Result<()> {
        self.progress.wait_written(seq)?;
        self.progress.sync_to(seq)
    }

    /// Says in a checkpoint that the disk is closed after stripe `last`, which holds nothing new and is durable.
    pub(crate) fn finish(&self, last: Seq, salt: &Salt) -> Result<()> {
        self.write_checkpoint(last, true, salt)?;
        self.progress.sync_all()
    }

    /// Writes down that stripe `seq` is durable.
    fn write_checkpoint(&self, seq: Seq, closed: bool, salt: &Salt) -> Result<()> {
        let checkpoint = Checkpoint { seq, closed };
        checkpoint.write(&*self.medium, self.params(), self.log.keys(), salt)
    }
}

impl Wake for Pipeline {
    fn wake(&self) {
        self.moved.notify_all();
    }
}
