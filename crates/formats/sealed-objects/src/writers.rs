//! The background threads that write the cache back and checkpoint the version table.

use crate::cache::Cache;
use crate::schedule::{Schedule, THREADS};
use crate::version_table::VersionTable;
use crate::write_back::WriteBack;
use lacuna_contracts::{Clock, Error, OnPanic, Result, SystemClock, defect};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The shortest interval between checkpoints of the version table while the disk is in use.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// The threads of one disk. They stop when this value is dropped.
pub(crate) struct Writers {
    schedule: Arc<Schedule>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The loop of each thread.
struct WriterLoop {
    cache: Arc<Cache>,
    schedule: Arc<Schedule>,
    back: Arc<WriteBack>,
    version_table: Option<Arc<VersionTable>>,
    clock: SystemClock,
    /// The time of the last checkpoint.
    checkpointed: Mutex<Duration>,
}

impl Writers {
    pub(crate) fn start(
        cache: Arc<Cache>,
        schedule: Arc<Schedule>,
        back: Arc<WriteBack>,
        version_table: Option<Arc<VersionTable>>,
    ) -> Result<Writers> {
        let writers = Writers { schedule: schedule.clone(), threads: Mutex::default() };
        let clock = SystemClock;
        let checkpointed = Mutex::new(clock.now());
        let work = Arc::new(WriterLoop { cache, schedule, back, version_table, clock, checkpointed });
        for _ in 0..THREADS {
            let work = work.clone();
            let thread = std::thread::Builder::new().name("lacuna-objects".into()).spawn(move || work.run());
            let thread =
                thread.map_err(|e| Error::io("cannot start the background threads of the disk", &e))?;
            writers.threads.lock().push(thread);
        }
        Ok(writers)
    }

    /// Stops the threads and waits for them.
    pub(crate) fn stop(&self) {
        self.schedule.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic in a thread has already been printed, and the owner closes the disk in any
            // case.
            let _ = thread.join();
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.stop();
    }
}

impl WriterLoop {
    fn run(&self) {
        let _guard = OnPanic::new(|| drop(self.back.fail(defect())));
        while let Some(segment) = self.schedule.next(|| self.cache.is_filling()) {
            // The fail-stop records a failure: the next write, flush or close reports it.
            let _ = self.back.write_segment(segment);
            self.checkpoint_if_due();
        }
    }

    /// Writes the version table if the last checkpoint is old enough.
    fn checkpoint_if_due(&self) {
        let Some(version_table) = &self.version_table else { return };
        {
            let mut last = self.checkpointed.lock();
            let now = self.clock.now();
            if now < *last + CHECKPOINT_EVERY {
                return;
            }
            *last = now;
        }
        if let Err(e) = version_table.checkpoint() {
            // After a refusal the pages stay dirty and are written later. On any other error:
            // fail-stop, which records the error.
            self.back.fail_unless_refused(e);
        }
    }
}
