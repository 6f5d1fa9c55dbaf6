//! The timer of automatic commits.

use crate::commits::group_commit::GroupCommit;
use crate::options::VaultLog;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// A thread that commits periodically until it is dropped.
pub(crate) struct CommitTimer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl CommitTimer {
    pub(crate) fn start(
        commits: Arc<GroupCommit>,
        period: Duration,
        log: VaultLog,
    ) -> std::io::Result<CommitTimer> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let seen = stop.clone();
        let thread = std::thread::Builder::new().name("lacuna-commit".into()).spawn(move || {
            let mut is_logged = false;
            while !wait(&seen, period) {
                let failed = if commits.has_changes() { commits.commit().err() } else { continue };
                if let Some(e) = failed.as_ref().filter(|_| !is_logged) {
                    log(&format!("cannot commit: {e}"));
                }
                is_logged = failed.is_some();
            }
        })?;
        Ok(CommitTimer { stop, thread: Some(thread) })
    }
}

/// Waits for the period to pass. Returns whether the timer must stop.
fn wait((stopped, changed): &(Mutex<bool>, Condvar), period: Duration) -> bool {
    let mut stopped = stopped.lock();
    if !*stopped {
        changed.wait_for(&mut stopped, period);
    }
    *stopped
}

impl Drop for CommitTimer {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported there.
            let _ended = thread.join();
        }
    }
}
