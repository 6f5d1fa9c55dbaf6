//! Wake-ups between the background threads and the writers that wait for commits.
//!
//! Invariant: a request is noted under the lock before its condition variable is notified, so that
//! no wake-up is lost.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

/// The requests of writers and the ends of commits.
#[derive(Default)]
pub(crate) struct Signals {
    state: Mutex<SignalState>,
    worker: Condvar,
    checkpointer: Condvar,
    writers: Condvar,
}

#[derive(Default)]
struct SignalState {
    wanted: WorkRequest,
    checkpoint_wanted: bool,
    stopping: bool,
    /// Counts commits, so that a writer notices the end of its commit.
    commits: u64,
}

/// The requests that wake the thread that commits.
#[derive(Default)]
pub(crate) struct WorkRequest {
    /// A writer asked for a commit.
    pub(crate) commit: bool,
    /// A writer waits for a spare slot.
    pub(crate) spare: bool,
}

impl Signals {
    /// Asks the background thread for a commit.
    pub(crate) fn wake_worker(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.wanted.commit, true) {
            self.worker.notify_one();
        }
    }

    /// Asks for a checkpoint.
    pub(crate) fn wake_checkpointer(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.checkpoint_wanted, true) {
            self.checkpointer.notify_one();
        }
    }

    /// Waits until a checkpoint is wanted. False if the thread has to end.
    pub(crate) fn wait_for_checkpoint(&self) -> bool {
        let mut state = self.state.lock();
        while !state.checkpoint_wanted && !state.stopping {
            self.checkpointer.wait(&mut state);
        }
        state.checkpoint_wanted = false;
        !state.stopping
    }

    /// Notes the end of a commit.
    pub(crate) fn wake_writers(&self) {
        self.state.lock().commits += 1;
        self.writers.notify_all();
    }

    /// Ends the background threads.
    pub(crate) fn stop(&self) {
        self.state.lock().stopping = true;
        self.worker.notify_one();
        self.checkpointer.notify_one();
        self.writers.notify_all();
    }

    /// Whether the background threads are ending or have ended.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stopping
    }

    /// Waits for the next commit to end. `spare`: whether the writer needs a spare slot.
    pub(crate) fn wait_for_commit(&self, spare: bool) {
        let mut state = self.state.lock();
        let round = state.commits;
        state.wanted.commit = true;
        state.wanted.spare |= spare;
        self.worker.notify_one();
        while state.commits == round && !state.stopping {
            self.writers.wait(&mut state);
        }
    }

    /// Waits for a request, at most for `idle`. `None` if the thread has to end.
    pub(crate) fn next_request(&self, idle: Duration) -> Option<WorkRequest> {
        let mut state = self.state.lock();
        if !state.wanted.commit && !state.stopping {
            self.worker.wait_for(&mut state, idle);
        }
        let wanted = std::mem::take(&mut state.wanted);
        (!state.stopping).then_some(wanted)
    }
}
