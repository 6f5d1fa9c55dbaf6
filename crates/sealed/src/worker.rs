//! The background thread that commits before writers have to wait, and the signals between it and them.

use crate::commit::Scope;
use crate::disk::Core;
use lacuna_core::{Error, OnPanic, Result, defect};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the disk must be left alone, twice in a row, before what is in memory alone is committed unasked.
const IDLE: Duration = Duration::from_secs(2);

/// Who waits for what.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<State>,
    worker: Condvar,
    writers: Condvar,
}

#[derive(Default)]
struct State {
    wanted: bool,
    spare_wanted: bool,
    stopping: bool,
    /// Counts commits, so that a writer notices the one it waited for.
    rounds: u64,
}

impl Signals {
    pub(crate) fn wake_worker(&self) {
        let mut state = self.state();
        if !state.wanted {
            state.wanted = true;
            self.worker.notify_one();
        }
    }

    pub(crate) fn wake_writers(&self) {
        self.state().rounds += 1;
        self.writers.notify_all();
    }

    pub(crate) fn stop(&self) {
        self.state().stopping = true;
        self.worker.notify_one();
    }

    fn stopping(&self) -> bool {
        self.state().stopping
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next commit to end.
    fn wait_round(&self, spare: bool) {
        let mut state = self.state();
        let round = state.rounds;
        state.wanted = true;
        state.spare_wanted |= spare;
        self.worker.notify_one();
        while state.rounds == round && !state.stopping {
            state = self.writers.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Core {
    /// After a write: starts or awaits a commit when too much is in memory alone.
    pub(crate) fn keep_within_limits(&self) -> Result<()> {
        // Writes acknowledged before a failure are saved by `last_stand`; later ones are refused here.
        self.check_alive()?;
        if self.is_work_due() {
            if !self.background {
                let mut c = self.committer();
                self.commit(&mut c, Scope::Ready)?;
                return self.upkeep(&mut c);
            }
            self.signals.wake_worker();
        }
        while self.background && self.cache.dirty_bytes() > self.limits.dirty && !self.signals.stopping() {
            self.check_alive()?;
            self.signals.wait_round(false);
        }
        Ok(())
    }

    /// Waits for a commit that ends copy-on-write segments.
    pub(crate) fn wait_for_spare(&self) -> Result<()> {
        if self.background {
            self.check_alive()?;
            self.signals.wait_round(true);
        } else {
            self.commit(&mut self.committer(), Scope::All)?;
        }
        self.check_alive()
    }

    fn is_work_due(&self) -> bool {
        if self.cache.dirty_bytes() > self.limits.dirty_low {
            return true;
        }
        if self.cow_segments.len() <= self.params.spare as usize / 4 {
            return false;
        }
        let (full, void) = self.cow_segments.ready();
        full > self.params.spare as usize / 4 || void > 64
    }

    /// One turn of the background thread.
    fn work(&self, idle: bool, spare_wanted: bool) -> Result<()> {
        let mut c = self.committer();
        self.check_alive()?;
        let nothing_ready = self.cow_segments.ready() == (0, 0);
        if idle || (spare_wanted && nothing_ready) {
            if self.cache.dirty_bytes() > 0 || self.cow_segments.len() > 0 {
                self.commit(&mut c, Scope::All)?;
            }
        } else {
            self.commit(&mut c, Scope::Ready)?;
        }
        if self.medium_full.is_so() {
            if idle {
                // Somebody else may have freed space.
                self.medium_full.note_discard();
            }
        } else if c.bytes_to_destage > self.limits.to_destage || (idle && c.bytes_to_destage > 0) {
            self.destage(&mut c).map_err(|e| self.fail(e))?;
        }
        self.upkeep(&mut c)
    }
}

/// The background thread of one disk.
pub(crate) struct Worker(JoinHandle<()>);

impl Worker {
    pub(crate) fn start(core: Arc<Core>) -> Result<Worker> {
        std::thread::Builder::new()
            .name("lacuna-commit".into())
            .spawn(move || run(&core))
            .map(Worker)
            .map_err(|e| Error::io("cannot start the background thread of the disk", &e))
    }

    pub(crate) fn join(self) {
        // A panic there has already printed itself, and the disk is closed by its owner in any case.
        let _ = self.0.join();
    }
}

fn run(core: &Core) {
    let _guard = OnPanic::new(|| {
        core.fail(defect());
        core.signals.stop();
    });
    let mut quiet_before = false;
    loop {
        let (wanted, spare_wanted) = {
            let mut state = core.signals.state();
            if !state.wanted && !state.stopping {
                state =
                    core.signals.worker.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.stopping {
                break;
            }
            (std::mem::take(&mut state.wanted), std::mem::take(&mut state.spare_wanted))
        };
        // Idle is a whole quiet interval after another, so that a stream that pauses is not cut up.
        let idle = !wanted && quiet_before;
        quiet_before = !wanted;
        if core.failure().is_some() {
            core.last_stand(&mut core.committer());
        } else if wanted || idle {
            // The failure, if any, is kept in the core; writers and the closer report it.
            let _ = core.work(idle, spare_wanted);
        }
        core.signals.wake_writers();
    }
    core.signals.wake_writers();
}
