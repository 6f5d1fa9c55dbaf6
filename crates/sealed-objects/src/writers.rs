//! The background threads that write the cache out, and keep the version table not far behind.

use super::disk::Core;
use super::schedule::THREADS;
use lacuna_core::{Error, Kind, OnPanic, Result, defect};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the version table is written at most while the disk is in use.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// The threads of one disk.
pub(crate) struct Writers(Vec<JoinHandle<()>>);

impl Writers {
    pub(crate) fn start(core: &Arc<Core>) -> Result<Writers> {
        let mut writers = Writers(vec![]);
        for _ in 0..THREADS {
            let its = core.clone();
            let thread = std::thread::Builder::new().name("lacuna-objects".into()).spawn(move || run(&its));
            match thread {
                Ok(thread) => writers.0.push(thread),
                Err(e) => {
                    core.schedule.stop();
                    writers.join();
                    return Err(Error::io("cannot start the background threads of the disk", &e));
                }
            }
        }
        Ok(writers)
    }

    /// Waits for threads that were told to stop.
    pub(crate) fn join(self) {
        for thread in self.0 {
            // A panic there has already printed itself, and the disk is closed by its owner in any case.
            let _ = thread.join();
        }
    }
}

fn run(core: &Core) {
    let _guard = OnPanic::new(|| drop(core.fail(defect())));
    while let Some(segment) = core.schedule.next(|| core.is_filling()) {
        // The failure, if any, is kept in the core; writers and the closer report it.
        let _ = core.write_segment(segment);
        let _ = core.checkpoint_if_due();
    }
}

impl Core {
    /// Writes the version table if that was not done for a while.
    fn checkpoint_if_due(&self) -> Result<()> {
        let Some(version_table) = &self.version_table else { return Ok(()) };
        let (now, every) = (self.schedule.now().as_millis() as u64, CHECKPOINT_EVERY.as_millis() as u64);
        let last = self.checkpointed.load(Ordering::Acquire);
        let mine = now >= last + every
            && self.checkpointed.compare_exchange(last, now, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if !mine {
            return Ok(());
        }
        match version_table.checkpoint() {
            // The pages stay changed, and are written when there is room.
            Err(e) if e.kind() == Kind::NoSpace => Ok(()),
            written => written.map_err(|e| self.fail(e)),
        }
    }
}
