//! What the threads and clients of an open disk share: its levels, how far the log has come, and whether it failed.

use crate::carrier::Carrier;
use crate::hidden::Echo;
use crate::log::Log;
use crate::pipeline::Pipeline;
use crate::public::Public;
use lacuna_core::{Error, FailStop, Kind, Result, defect};
use lacuna_levels::{HiddenLevels, Mode, OpenOptions, Randomness, SALT_LEN, Wait, no_sync};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest wait for progress without a look at whether the disk failed.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
    pub(crate) random: Randomness,
    /// Held by the one operation that changes level 0 now, also while it waits for the medium.
    pub(crate) turn: Mutex<()>,
    public: Mutex<Public>,
    pub(crate) hidden: HiddenLevels,
    /// What the hidden slots of the last stripe hold.
    pub(crate) hidden_echo: Mutex<Echo>,
    pub(crate) mode: Mode,
    /// The end of the log when the disk was opened.
    pub(crate) opened_at: u64,
    pub(crate) pipeline: Pipeline,
    pub(crate) carrier: Carrier,
    durable: AtomicU64,
    syncing: Mutex<()>,
    /// Stripes were written or made durable, or something failed.
    progress: (Mutex<()>, Condvar),
    pub(crate) counters: Counters,
    pub(crate) health: FailStop,
}

impl Core {
    /// Of a disk whose log ends at `head` and is durable.
    pub(crate) fn new(
        log: Log,
        public: Public,
        hidden: (HiddenLevels, Echo),
        head: u64,
        options: &OpenOptions,
    ) -> Core {
        log.complete(head);
        Core {
            log,
            random: options.random.clone(),
            turn: Mutex::new(()),
            public: Mutex::new(public),
            hidden: hidden.0,
            hidden_echo: Mutex::new(hidden.1),
            mode: Mode::of(options),
            opened_at: head,
            pipeline: Pipeline::default(),
            carrier: Carrier::default(),
            durable: AtomicU64::new(head),
            syncing: Mutex::new(()),
            progress: (Mutex::new(()), Condvar::new()),
            counters: Counters::default(),
            health: FailStop::default(),
        }
    }

    pub(crate) fn public(&self) -> MutexGuard<'_, Public> {
        self.public.lock().unwrap_or_else(|poisoned| {
            self.fail(defect());
            poisoned.into_inner()
        })
    }

    /// Enters fail-stop for good, wakes everybody and gives the error back.
    pub(crate) fn fail(&self, e: Error) -> Error {
        let e = self.health.fail(e);
        self.hidden.wake_all();
        self.pipeline.wake_all();
        self.carrier.end();
        self.tell_progress();
        e
    }

    /// [`Core::fail`], unless the error leaves everything as it was.
    pub(crate) fn fail_unless_full(&self, e: Error) -> Error {
        if matches!(e.kind(), Kind::NoSpace | Kind::FailStop) { e } else { self.fail(e) }
    }

    /// A salt for a stripe or a checkpoint. Drawn in the order of operations, never by a thread of the disk: the same public
    /// randomness gives the same trace.
    pub(crate) fn draw_salt(&self) -> [u8; SALT_LEN] {
        let mut salt = [0; SALT_LEN];
        self.random.public.fill(&mut salt);
        salt
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
        if written < seq {
            return Err(self.fail(defect()));
        }
        self.sync_held(&syncing)?;
        self.durable.store(written, Ordering::Release);
        drop(syncing);
        self.tell_progress();
        Ok(())
    }

    /// Makes everything durable that was written so far, whatever it is.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.sync_held(&self.syncing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Syncs, unless something has failed: after a sync that did, the next one may say that all is well, for the system
    /// has dropped what it could not write.
    fn sync_held(&self, _syncing: &MutexGuard<'_, ()>) -> Result<()> {
        self.health.check()?;
        self.log.medium.sync().map_err(|e| self.fail(e))?;
        self.counters.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Wakes the threads that wait for the log to go on.
    pub(crate) fn tell_progress(&self) {
        drop(self.progress.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.progress.1.notify_all();
    }

    /// Waits until the log has come as far as that.
    pub(crate) fn wait_progress(&self, done: impl Fn(&Core) -> bool) -> Result<()> {
        let mut guard = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        while !done(self) {
            self.health.check()?;
            // What failed among the hidden levels does not tell of progress.
            let waited = self.progress.1.wait_timeout(guard, LOOK_AGAIN);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Waits until others have made stripe `seq` durable.
    pub(crate) fn wait_durable(&self, seq: u64) -> Result<()> {
        let Some(deadline) = self.cover().patience.map(|patience| Instant::now() + patience) else {
            return self.wait_progress(|core| core.durable() >= seq);
        };
        let mut guard = self.progress.0.lock().unwrap_or_else(PoisonError::into_inner);
        while self.durable() < seq {
            self.health.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(no_sync());
            }
            guard = self.progress.1.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// How something hidden waits for cover.
    pub(crate) fn cover(&self) -> Wait<'_> {
        self.mode.wait(&self.health, self.log.params.cover_millis)
    }
}
