//! When to purge unasked: after a time, or as soon as so much was deleted (paper 003, section 5).

use crate::keys::Keys;
use crate::writer::Writer;
use lacuna_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread looks, by the machine's time. What is due is decided by the clock of the disk.
const LOOK: Duration = Duration::from_secs(1);

/// When to purge unasked. A purge that was cut is finished when the disk is opened, whatever stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The longest that anything deleted stays recoverable while the disk is open, and how long an acknowledged write stays in
    /// memory alone: a purge is due so long after the oldest deletion that it is for. It begins within a second.
    pub period: Duration,
    /// Deleted keys that are not borne any longer: with one more, a purge is due at once. It begins within a second.
    pub most_recoverable: u64,
}

impl Default for Policy {
    /// Every 15 minutes.
    fn default() -> Policy {
        Policy { period: Duration::from_secs(15 * 60), most_recoverable: u64::MAX }
    }
}

/// The thread that purges.
pub(crate) struct PurgeThread {
    stopping: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl PurgeThread {
    pub(crate) fn start(writer: Arc<Writer>, keys: Arc<Keys>, policy: Policy) -> Result<PurgeThread> {
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        let signal = stopping.clone();
        let thread = std::thread::Builder::new()
            .name("lacuna-purge".into())
            .spawn(move || run(&writer, &keys, policy, &signal))
            .map_err(|e| Error::io("cannot start the thread that purges", &e))?;
        Ok(PurgeThread { stopping, thread })
    }

    pub(crate) fn stop(self) {
        *self.stopping.0.lock() = true;
        self.stopping.1.notify_all();
        // A panic there has ended the disk and printed itself.
        let _ = self.thread.join();
    }
}

fn run(writer: &Writer, keys: &Keys, policy: Policy, stopping: &(Mutex<bool>, Condvar)) {
    while !is_stopped(stopping, LOOK.min(policy.period)) {
        let by_period = writer.waiting().is_some_and(|waiting| waiting >= policy.period);
        let by_threshold = keys.recoverable().most > policy.most_recoverable;
        // A failure ends all writing, and the next call says so.
        if (by_period || by_threshold) && writer.forget().is_err() {
            return;
        }
    }
}

/// Waits, and says whether to stop.
fn is_stopped(stopping: &(Mutex<bool>, Condvar), look: Duration) -> bool {
    let mut stop = stopping.0.lock();
    if !*stop {
        stopping.1.wait_for(&mut stop, look);
    }
    *stop
}
