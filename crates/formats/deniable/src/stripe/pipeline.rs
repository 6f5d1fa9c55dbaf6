//! Encrypts closed stripes, writes them in order and syncs them on schedule. On a disk with threads
//! one thread encrypts, one writes and one syncs, so that no processor waits for the medium;
//! otherwise the thread that closes a stripe does all of it.
//!
//! Invariants: stripes are written in the order of their numbers. A stripe is written only when the
//! copies of the blocks that it overwrites, and the stripe that it calls durable, are durable.
//! Checkpoints are written between stripes that the schedule fixes. A stripe that the medium
//! refuses keeps its place: nothing else is written before the same bytes are.
//!
//! Deniability contract: the time of the next try to write a refused stripe follows from public
//! operations, the paced clock and the medium.

use crate::health::{Health, RECHECK_INTERVAL, Wake};
use crate::keys::{LevelKeys, Salt};
use crate::log::Log;
use crate::log::checkpoint::Checkpoint;
use crate::log::progress::LogProgress;
use crate::params::Params;
use crate::place::StripeSeq;
use crate::stripe::closed_stripe::{ClosedStripe, EncryptedStripe};
use lacuna_contracts::{Error, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::Medium;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender};

/// The most closed stripes in flight: closing another one waits.
const MAX_IN_FLIGHT: u64 = 16;
/// Stripes in flight at which a thread that waits for room is woken: waking it for each stripe
/// would cost more.
const WAKE_AT: u64 = MAX_IN_FLIGHT / 2;
/// The most encrypted stripes that may be queued. This many hide that writes take unequal times;
/// more would only take memory.
pub(crate) const MAX_QUEUED_STRIPES: usize = 4;
/// The most syncs that may be queued. A stripe after those waits for the sync itself.
pub(crate) const MAX_QUEUED_SYNCS: usize = 2;

/// The destination of closed stripes.
enum StripeSink {
    /// The medium, at once.
    Direct,
    /// The threads.
    Threads(Sender<ClosedStripe>),
    /// None: the threads were told that no more stripes come.
    Ended,
}

/// The pipeline of an open disk.
pub(crate) struct Pipeline {
    log: Arc<Log>,
    progress: Arc<LogProgress>,
    medium: Arc<dyn Medium>,
    health: Arc<Health>,
    /// Random bytes for everything that no key of an open level opens.
    filler: Arc<dyn RandomSource>,
    /// The end of the log when the disk was opened.
    opened_at: StripeSeq,
    sink: Mutex<StripeSink>,
    /// Without threads: the closed stripe that the medium refused.
    refused: Mutex<Option<EncryptedStripe>>,
    /// Unused buffers for ciphertext.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Closed stripes that are not on the medium yet.
    in_flight: Mutex<u64>,
    has_room: Condvar,
    stripes: AtomicU64,
}

impl Pipeline {
    /// The pipeline of a log that ended at `opened_at`.
    pub(crate) fn new(
        log: Arc<Log>,
        progress: Arc<LogProgress>,
        medium: Arc<dyn Medium>,
        health: Arc<Health>,
        filler: Arc<dyn RandomSource>,
        opened_at: StripeSeq,
    ) -> Arc<Pipeline> {
        let pipeline = Arc::new(Pipeline {
            log,
            progress,
            medium,
            health,
            filler,
            opened_at,
            sink: Mutex::new(StripeSink::Direct),
            refused: Mutex::default(),
            buffers: Mutex::default(),
            in_flight: Mutex::default(),
            has_room: Condvar::new(),
            stripes: AtomicU64::new(0),
        });
        pipeline.health.register(&pipeline);
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

    /// Waits until another stripe may be closed. The caller may then close one without another
    /// wait.
    ///
    /// Errors: the reason why the medium refuses stripes, if no more of them may be in flight.
    pub(crate) fn wait_for_room(&self) -> Result<()> {
        self.retry_refused()?;
        if *self.in_flight.lock() < MAX_IN_FLIGHT {
            return Ok(());
        }
        self.progress.request_retry();
        let mut in_flight = self.in_flight.lock();
        while *in_flight > WAKE_AT {
            self.health.check()?;
            self.progress.check_refused()?;
            self.has_room.wait_for(&mut in_flight, RECHECK_INTERVAL);
        }
        Ok(())
    }

    /// Directs closed stripes to the threads.
    pub(crate) fn send_to_threads(&self, to_encrypt: Sender<ClosedStripe>) {
        *self.sink.lock() = StripeSink::Threads(to_encrypt);
    }

    /// Ends the input: no more stripes will be closed. The threads end after the pending ones.
    pub(crate) fn end(&self) {
        *self.sink.lock() = StripeSink::Ended;
        self.progress.request_retry();
    }

    fn is_ended(&self) -> bool {
        matches!(*self.sink.lock(), StripeSink::Ended)
    }

    /// Sends a closed stripe to the medium: through the threads, or at once if there are none. With
    /// threads it does not wait: call [`Pipeline::wait_for_room`] before closing a stripe.
    pub(crate) fn send(&self, closed: ClosedStripe) -> Result<()> {
        self.health.check()?;
        *self.in_flight.lock() += 1;
        match &*self.sink.lock() {
            StripeSink::Threads(to_encrypt) => {
                return to_encrypt.send(closed).map_err(|_| self.health.refusal());
            }
            StripeSink::Ended => return Err(self.health.refusal()),
            StripeSink::Direct => {}
        }
        *self.refused.lock() = Some(self.encrypt_into_spare(closed)?);
        // The stripe is closed whatever the medium answers. A caller that waits for it, or closes
        // the next one, gets the refusal.
        self.retry_refused().or_else(|e| if e.kind().is_refusal() { Ok(()) } else { Err(e) })
    }

    /// Writes the held stripe, if there is one: it was just closed, or the medium refused it
    /// before.
    fn retry_refused(&self) -> Result<()> {
        let mut held = self.refused.lock();
        let Some(encrypted) = &mut *held else { return Ok(()) };
        let seq = encrypted.seq;
        match self.write_stripe(encrypted) {
            // A refused stripe stays held. Any other error is fail-stop.
            Err(e) if e.kind().is_refusal() => return Err(e),
            Err(e) => return Err(self.health.fail(e)),
            Ok(()) => *held = None,
        }
        if self.params().is_sync_due(seq) { self.progress.sync_to(seq) } else { Ok(()) }
    }

    /// The work of the thread that encrypts, until no more stripes come.
    pub(crate) fn encrypt_stripes(
        &self,
        closed: &Receiver<ClosedStripe>,
        to_write: &SyncSender<EncryptedStripe>,
    ) {
        let _guard = self.health.fail_on_panic();
        for closed in closed {
            let encrypted = match self.health.check().and_then(|()| self.encrypt_into_spare(closed)) {
                Ok(encrypted) => encrypted,
                Err(e) => return drop(self.health.fail(e)),
            };
            if to_write.send(encrypted).is_err() {
                // The channel is closed only if the writing thread failed.
                return;
            }
        }
    }

    /// The work of the thread that writes, until no more stripes come.
    pub(crate) fn write_stripes(
        &self,
        encrypted: &Receiver<EncryptedStripe>,
        to_sync: &SyncSender<StripeSeq>,
    ) {
        let _guard = self.health.fail_on_panic();
        for encrypted in encrypted {
            match self.health.check().and_then(|()| self.write(encrypted)) {
                Ok(seq) if self.params().is_sync_due(seq) => {
                    // The channel is closed only if the syncing thread failed.
                    let _failed = to_sync.send(seq);
                }
                Ok(_) => {}
                Err(e) => return drop(self.health.fail(e)),
            }
        }
    }

    /// The work of the syncing thread, which syncs before the writing thread needs it.
    pub(crate) fn sync_stripes(&self, due: &Receiver<StripeSeq>) {
        let _guard = self.health.fail_on_panic();
        for seq in due {
            if let Err(e) = self.progress.sync_to(seq) {
                return drop(self.health.fail(e));
            }
        }
    }

    /// Writes a stripe, however often the medium refuses it. Returns its number.
    fn write(&self, mut encrypted: EncryptedStripe) -> Result<StripeSeq> {
        while let Err(e) = self.write_stripe(&mut encrypted) {
            if !e.kind().is_refusal() || self.is_ended() {
                return Err(e);
            }
            self.wait_to_retry(e)?;
        }
        Ok(encrypted.seq)
    }

    /// Reports to waiting threads that the medium refused a stripe, and waits for the time of the
    /// next try.
    fn wait_to_retry(&self, refused: Error) -> Result<()> {
        self.progress.note_refused(refused);
        drop(self.in_flight.lock());
        self.has_room.notify_all();
        self.progress.wait_to_retry();
        self.health.check()
    }

    /// Encrypts a stripe into the buffer of an earlier one, or into a new one.
    fn encrypt_into_spare(&self, closed: ClosedStripe) -> Result<EncryptedStripe> {
        let params = self.params();
        let spare = self.buffers.lock().pop();
        let buffer = spare.unwrap_or_else(|| vec![0; params.stripe_len()]);
        closed.encrypt(params, self.log.keys(), &*self.filler, buffer)
    }

    /// Writes one stripe: the atomic `PD_write` of the paper (Algorithm 4), as one write to the
    /// medium. It may be called again after a refusal.
    fn write_stripe(&self, stripe: &mut EncryptedStripe) -> Result<()> {
        let (params, seq) = (self.params(), stripe.seq);
        // Two things must be durable first: the copy, a gap earlier, of the stripe that is
        // overwritten here, and the stripe that the summary calls durable.
        let synced = params.synced_before(seq);
        self.progress.sync_to(stripe.claimed.max(synced))?;
        // The checkpoint always lies between the same two stripes: the order of writes must not
        // depend on speed (deniability contract).
        if let Some(salt) = &stripe.checkpoint {
            let durable = if self.is_first(seq) { self.opened_at } else { synced };
            self.write_checkpoint(durable, false, salt)?;
            stripe.checkpoint = None;
        }
        self.medium.write_at(params.offset(seq), &stripe.bytes)?;
        self.stripes.fetch_add(1, Ordering::Relaxed);
        self.log.complete(seq);
        self.buffers.lock().push(std::mem::take(&mut stripe.bytes));
        let mut in_flight = self.in_flight.lock();
        *in_flight -= 1;
        if *in_flight == WAKE_AT {
            self.has_room.notify_all();
        }
        Ok(())
    }

    fn is_first(&self, seq: StripeSeq) -> bool {
        seq == self.opened_at.next()
    }

    /// Whether a checkpoint is due before stripe `seq`. The one before the first stripe of a
    /// session revokes the mark that the disk is closed.
    pub(crate) fn is_checkpoint_due(&self, seq: StripeSeq) -> bool {
        self.params().is_checkpoint_due(seq) || self.is_first(seq)
    }

    /// Waits until stripe `seq`, which was sent, is on the medium, and makes it and all before it
    /// durable.
    ///
    /// Errors: the reason why the medium refuses that stripe or an earlier one, after another try.
    /// The stripes stay in flight.
    pub(crate) fn make_durable(&self, seq: StripeSeq) -> Result<()> {
        self.retry_refused()?;
        self.progress.request_retry();
        self.progress.wait_written(seq)?;
        self.progress.sync_to(seq)
    }

    /// Writes a checkpoint that marks the disk as closed after stripe `last`, which holds nothing
    /// new and is durable.
    pub(crate) fn mark_closed(&self, last: StripeSeq, salt: &Salt) -> Result<()> {
        self.write_checkpoint(last, true, salt)?;
        self.progress.sync_all()
    }

    /// Writes a checkpoint that calls stripe `seq` durable.
    fn write_checkpoint(&self, seq: StripeSeq, closed: bool, salt: &Salt) -> Result<()> {
        let checkpoint = Checkpoint { seq, closed };
        checkpoint.write(&*self.medium, self.params(), self.log.keys(), salt)
    }
}

impl Wake for Pipeline {
    fn wake(&self) {
        self.has_room.notify_all();
    }
}
