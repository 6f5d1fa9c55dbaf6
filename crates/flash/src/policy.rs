//! When to purge unasked: after a time, or as soon as so much was deleted (paper 003, section 5).

use crate::keys::Keys;
use crate::writer::Writer;
use lacuna_core::{Error, Result};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread looks whether too much was deleted.
const LOOK: Duration = Duration::from_secs(1);

/// When to purge unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The longest that anything deleted stays recoverable while the disk is open.
    pub period: Duration,
    /// Deleted blocks that are not borne any longer.
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
    let mut last = Instant::now();
    loop {
        {
            let mut stop = stopping.0.lock();
            if !*stop {
                stopping.1.wait_for(&mut stop, LOOK.min(policy.period));
            }
            if *stop {
                return;
            }
        }
        let recoverable = keys.recoverable();
        let due = last.elapsed() >= policy.period && recoverable > 0;
        if due || recoverable > policy.most_recoverable || writer.is_purge_due() {
            // A failure ends all writing, and the next call says so.
            if writer.purge().is_err() {
                return;
            }
            last = Instant::now();
        }
    }
}
