//! The background threads that write the cache back, and keep the version table not far behind.

use crate::cache::Cache;
use crate::schedule::{Schedule, THREADS};
use crate::version_table::VersionTable;
use crate::write_back::WriteBack;
use lacuna_contracts::{Clock, Error, OnPanic, Result, SystemClock, defect};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the version table is written at most while the disk is in use.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// The threads of one disk. They stop when this is dropped.
pub(crate) struct Writers {
    schedule: Arc<Schedule>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What each of the threads does.
struct WriterLoop {
    cache: Arc<Cache>,
    schedule: Arc<Schedule>,
    back: Arc<WriteBack>,
    version_table: Option<Arc<VersionTable>>,
    clock: SystemClock,
    /// When the version table was written last.
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

    /// Stops the threads and waits until they have.
    pub(crate) fn stop(&self) {
        self.schedule.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic there has already printed itself, and the disk is closed by its owner in any
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
            // A failure is kept by the fail-stop: the next write, flush or close reports it.
            let _ = self.back.write_segment(segment);
            self.checkpoint_if_due();
        }
    }

    /// Writes the version table if that was not done for a while.
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
            // After a refusal the pages stay changed, and are written later. Anything else stops
            // the disk, which keeps the error.
            self.back.fail_unless_refused(e);
        }
    }
}
