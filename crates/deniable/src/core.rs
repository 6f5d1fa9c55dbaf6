//! The heart of an open disk: closed stripes become ciphertext, reach the medium in order, and are synced on schedule.

use crate::checkpoint::Checkpoint;
use crate::hidden::{Hidden, no_cover};
use crate::keys::{SALT_LEN, StripeKey};
use crate::log::{Flying, Log};
use crate::public::Public;
use crate::summary::{self, PublicPart, ROOTS_AT};
use lacuna_core::{BLOCK_SIZE, Error, Kind, Result};
use lacuna_crypto::RandomSource;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stripes that may be on their way to the medium before whoever fills the next one waits.
const MOST_FLYING: usize = 8;

/// A stripe that takes nothing more from the public.
pub(crate) struct Closed {
    pub(crate) flying: Arc<Flying>,
    pub(crate) salt: [u8; SALT_LEN],
    /// Its tags are still missing.
    pub(crate) part: PublicPart,
}

/// Encrypted stripes that may wait for the medium.
const MOST_ENCRYPTED: usize = 2;

/// Stripes between whoever closes them, the thread that encrypts them and the one that writes them.
#[derive(Default)]
struct Pipe {
    closed: VecDeque<Closed>,
    encrypted: VecDeque<(u64, Vec<u8>)>,
    /// Buffers for ciphertext that nobody uses.
    buffers: Vec<Vec<u8>>,
    /// Whether the encrypting thread has ended.
    last_encrypted: bool,
    /// The last stripe for which the schedule wants a sync and a checkpoint.
    check_in: u64,
    /// The last for which both are done.
    checked_in: u64,
    /// Whether the writing thread has ended.
    last_written: bool,
    ended: bool,
}

/// Counts for `status`.
#[derive(Default)]
pub(crate) struct Counters {
    /// Blocks that front ends wrote to level 0.
    pub(crate) public_blocks: AtomicU64,
    /// Stripes written since the disk was opened.
    pub(crate) stripes: AtomicU64,
    /// Those of them that the paced cover closed.
    pub(crate) refreshes: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

/// What all threads of an open disk share.
pub(crate) struct Core {
    pub(crate) log: Log,
    /// Of what everybody with the key of level 0 can see, and of nothing else.
    pub(crate) public_random: Arc<dyn RandomSource>,
    /// Of what only deeper keys could tell from ciphertext.
    pub(crate) filler: Arc<dyn RandomSource>,
    public: Mutex<Public>,
    hidden: Mutex<Hidden>,
    /// A stripe passed by, or something failed.
    pub(crate) hidden_moved: Condvar,
    /// Bytes that may wait for hidden slots.
    pub(crate) most_waiting: u64,
    /// How long to wait for cover that nobody promised.
    cover_timeout: Duration,
    background: bool,
    pub(crate) read_only: bool,
    pipe: Mutex<Pipe>,
    pipe_moved: Condvar,
    durable: AtomicU64,
    syncing: Mutex<()>,
    /// Stripes were written or made durable, or something failed.
    progress: (Mutex<()>, Condvar),
    pub(crate) counters: Counters,
    failed: Mutex<Option<Error>>,
    alive: AtomicBool,
}

/// What a core is made of.
pub(crate) struct Parts {
    pub(crate) log: Log,
    pub(crate) public_random: Arc<dyn RandomSource>,
    pub(crate) filler: Arc<dyn RandomSource>,
    pub(crate) public: Public,
    pub(crate) hidden: Hidden,
    pub(crate) most_waiting: u64,
    pub(crate) cover_timeout: Duration,
    pub(crate) background: bool,
    pub(crate) read_only: bool,
    /// The end of the log, durable.
    pub(crate) head: u64,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Core {
        parts.log.land(parts.head);
        Core {
            log: parts.log,
            public_random: parts.public_random,
            filler: parts.filler,
            public: Mutex::new(parts.public),
            hidden: Mutex::new(parts.hidden),
            hidden_moved: Condvar::new(),
            most_waiting: parts.most_waiting,
            cover_timeout: parts.cover_timeout,
            background: parts.background && !parts.read_only,
            read_only: parts.read_only,
            pipe: Mutex::default(),
            pipe_moved: Condvar::new(),
            durable: AtomicU64::new(parts.head),
            syncing: Mutex::new(()),
            progress: (Mutex::new(()), Condvar::new()),
            counters: Counters::default(),
            failed: Mutex::new(None),
            alive: AtomicBool::new(true),
        }
    }

    pub(crate) fn public(&self) -> MutexGuard<'_, Public> {
        self.public.lock().unwrap_or_else(|poisoned| {
            self.fail(defect());
            poisoned.into_inner()
        })
    }

    pub(crate) fn hidden(&self) -> MutexGuard<'_, Hidden> {
        self.hidden.lock().unwrap_or_else(|poisoned| {
            self.fail(defect());
            poisoned.into_inner()
        })
    }

    /// Enters fail-stop for good and gives the error back.
    pub(crate) fn fail(&self, e: Error) -> Error {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| e.clone());
        self.alive.store(false, Ordering::Release);
        // Nobody is between looking and waiting.
        drop(self.pipe.lock().unwrap_or_else(PoisonError::into_inner));
        self.pipe_moved.notify_all();
        self.hidden_moved.notify_all();
        self.tell_progress();
        e
    }

    /// [`Core::fail`], unless the error leaves everything as it was.
    pub(crate) fn fail_unless_full(&self, e: Error) -> Error {
        if matches!(e.kind(), Kind::NoSpace | Kind::FailStop) { e } else { self.fail(e) }
    }

    /// The standing refusal after a failure on the write path.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.alive.load(Ordering::Acquire) {
            return Ok(());
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let cause = failed.as_ref().map_or_else(|| "the disk is closed".into(), Error::to_string);
        Err(Error::new(Kind::FailStop, "the disk takes no more writes since an earlier failure")
            .found(cause)
            .expected("a medium that takes every write")
            .remedy("mend the medium, close the disk and open it again; what was flushed is safe"))
    }

    /// Sends a closed stripe to the medium: by the writing thread, or at once if there is none. Waits while many are on
    /// their way.
    pub(crate) fn send(&self, closed: Closed) -> Result<()> {
        if !self.background {
            let seq = closed.flying.seq;
            let mut buffer = self.buffer();
            self.encrypt(closed, &mut buffer)?;
            return self.put(seq, buffer);
        }
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        while pipe.closed.len() >= MOST_FLYING {
            self.check_alive()?;
            pipe = self.pipe_moved.wait(pipe).unwrap_or_else(PoisonError::into_inner);
        }
        pipe.closed.push_back(closed);
        drop(pipe);
        self.pipe_moved.notify_all();
        Ok(())
    }

    fn buffer(&self) -> Vec<u8> {
        let spare = self.pipe.lock().unwrap_or_else(PoisonError::into_inner).buffers.pop();
        spare.unwrap_or_else(|| vec![0; self.log.params.stripe_len()])
    }

    /// The work of the encrypting thread: until [`Core::end`].
    pub(crate) fn encrypt_stripes(&self) {
        let _guard = FailOnPanic(self);
        while let Some(closed) = self.next_closed() {
            let seq = closed.flying.seq;
            let mut buffer = self.buffer();
            if let Err(e) = self.check_alive().and_then(|()| self.encrypt(closed, &mut buffer)) {
                self.fail(e);
                break;
            }
            let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
            while pipe.encrypted.len() >= MOST_ENCRYPTED && self.alive.load(Ordering::Acquire) {
                pipe = self.pipe_moved.wait(pipe).unwrap_or_else(PoisonError::into_inner);
            }
            pipe.encrypted.push_back((seq, buffer));
            drop(pipe);
            self.pipe_moved.notify_all();
        }
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).last_encrypted = true;
        self.pipe_moved.notify_all();
    }

    /// The work of the writing thread: until the encrypting one has ended.
    pub(crate) fn write_stripes(&self) {
        let _guard = FailOnPanic(self);
        while let Some((seq, buffer)) = self.next_encrypted() {
            if let Err(e) = self.check_alive().and_then(|()| self.put(seq, buffer)) {
                self.fail(e);
                break;
            }
        }
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).last_written = true;
        self.pipe_moved.notify_all();
    }

    fn next_encrypted(&self) -> Option<(u64, Vec<u8>)> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(next) = pipe.encrypted.pop_front() {
                self.pipe_moved.notify_all();
                return Some(next);
            }
            if pipe.last_encrypted || !self.alive.load(Ordering::Acquire) {
                return None;
            }
            pipe = self.pipe_moved.wait(pipe).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn next_closed(&self) -> Option<Closed> {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(closed) = pipe.closed.pop_front() {
                self.pipe_moved.notify_all();
                return Some(closed);
            }
            if pipe.ended || !self.alive.load(Ordering::Acquire) {
                return None;
            }
            pipe = self.pipe_moved.wait(pipe).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No more stripes will be closed.
    pub(crate) fn end(&self) {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.pipe_moved.notify_all();
    }

    /// Writes one stripe: the atomic `PD_write` of the paper (Algorithm 4), one write to the medium.
    fn put(&self, seq: u64, buffer: Vec<u8>) -> Result<()> {
        let params = &self.log.params;
        // The stripe that lies here was carried on by one a gap earlier, which must be durable first; and the summary
        // says what else is.
        self.sync_to(params.synced_before(seq))?;
        self.log.medium.write_at(params.offset(seq), &buffer)?;
        self.log.land(seq);
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner).buffers.push(buffer);
        self.counters.stripes.fetch_add(1, Ordering::Relaxed);
        self.tell_progress();
        if seq.is_multiple_of(u64::from(params.gap) / 2) {
            if !self.background {
                return self.check_in(seq, false);
            }
            // Each gets its own: how many checkpoints there are is no matter of speed (deniability contract).
            self.wait_checked_in();
            self.pipe.lock().unwrap_or_else(PoisonError::into_inner).check_in = seq;
            self.pipe_moved.notify_all();
        }
        Ok(())
    }

    /// Waits until every scheduled checkpoint so far is written, or nothing more is.
    pub(crate) fn wait_checked_in(&self) {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        while pipe.checked_in < pipe.check_in && self.alive.load(Ordering::Acquire) {
            pipe = self.pipe_moved.wait(pipe).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Syncs as the schedule has it, and says so in a checkpoint.
    pub(crate) fn check_in(&self, seq: u64, closed: bool) -> Result<()> {
        self.sync_to(seq)?;
        let checkpoint = Checkpoint { seq, closed };
        checkpoint.write(&*self.log.medium, &self.log.params, &self.log.keys[0], &*self.public_random)
    }

    /// The work of the syncing thread: until the writing one has ended.
    pub(crate) fn sync_stripes(&self) {
        let _guard = FailOnPanic(self);
        loop {
            let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
            while pipe.check_in <= pipe.checked_in {
                if pipe.last_written || !self.alive.load(Ordering::Acquire) {
                    return;
                }
                pipe = self.pipe_moved.wait(pipe).unwrap_or_else(PoisonError::into_inner);
            }
            let seq = pipe.check_in;
            drop(pipe);
            if let Err(e) = self.check_in(seq, false) {
                self.fail(e);
                return;
            }
            self.pipe.lock().unwrap_or_else(PoisonError::into_inner).checked_in = seq;
            self.pipe_moved.notify_all();
        }
    }

    fn encrypt(&self, closed: Closed, out: &mut [u8]) -> Result<()> {
        let Closed { flying, salt, mut part } = closed;
        let params = &self.log.params;
        let key = StripeKey::derive(&self.log.keys[0], &salt)?;
        let (summary, slots) = out.split_at_mut(BLOCK_SIZE);
        let (public, hidden) = slots.split_at_mut(params.public_slots() * BLOCK_SIZE);
        let mut hidden_part = [0; BLOCK_SIZE];
        let hidden_part = &mut hidden_part[..summary::public_at(params.hidden_slots()) - ROOTS_AT];
        self.fill_hidden(&flying, &salt, hidden, hidden_part)?;
        let blocks = flying.public.blocks.chunks_exact(BLOCK_SIZE).zip(public.chunks_exact_mut(BLOCK_SIZE));
        for ((slot, (entry, tag)), (src, dst)) in part.entries.iter_mut().enumerate().zip(blocks) {
            *tag = key.seal_slot(part.seq, slot, entry.pack(), src, dst);
        }
        summary::seal(&key, &salt, &key.digest(hidden), hidden_part, &part, summary);
        Ok(())
    }

    /// The last stripe known to be durable.
    pub(crate) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Makes stripe `seq`, which is on the medium, and all before it durable.
    pub(crate) fn sync_to(&self, seq: u64) -> Result<()> {
        if self.durable() >= seq {
            return Ok(());
        }
        let syncing = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.durable() >= seq {
            return Ok(());
        }
        let written = self.log.written();
        self.log.medium.sync().map_err(|e| self.fail(e))?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.store(written, Ordering::Release);
        drop(syncing);
        self.tell_progress();
        Ok(())
    }

    fn tell_progress(&self) {
        drop(self.progress.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.progress.1.notify_all();
    }

    /// Waits until stripe `seq` is on the medium.
    pub(crate) fn wait_written(&self, seq: u64) -> Result<()> {
        let mut guard = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.log.written() < seq {
            self.check_alive()?;
            guard = self.progress.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Waits until others have made stripe `seq` durable.
    pub(crate) fn wait_durable(&self, seq: u64) -> Result<()> {
        let deadline = self.cover_deadline();
        let mut guard = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.durable() < seq {
            self.check_alive()?;
            let left =
                deadline.map_or(Duration::from_secs(1), |d| d.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(no_cover("cannot flush the hidden level", 0));
            }
            guard = self.progress.1.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Until when something hidden may wait. With paced cover it need not give up.
    pub(crate) fn cover_deadline(&self) -> Option<Instant> {
        match (self.background, self.log.params.cover_millis) {
            (false, _) => Some(Instant::now()),
            (true, 0) => Some(Instant::now() + self.cover_timeout),
            (true, _) => None,
        }
    }
}

/// Fails the disk when its thread panics: nobody shall wait for a thread that is gone.
struct FailOnPanic<'a>(&'a Core);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(defect());
        }
    }
}

fn defect() -> Error {
    Error::new(Kind::Other, "a write was cut short by a defect of lacuna (a panic)")
}
