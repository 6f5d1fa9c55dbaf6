//! The background threads that write the cache back and checkpoint the version table.

use crate::versions::table::VersionTable;
use crate::writing::dirty_cache::DirtyCache;
use crate::writing::write_back::WriteBack;
use crate::writing::write_queue::{THREADS, WriteQueue};
use lacuna_contracts::{Clock, Error, OnPanic, Result, SystemClock, panic_error};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The shortest interval between checkpoints of the version table while the disk is in use.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// The threads of one disk. They stop when this value is dropped.
pub(crate) struct WriteThreads {
    queue: Arc<WriteQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The loop of each thread.
struct WriteLoop {
    cache: Arc<DirtyCache>,
    queue: Arc<WriteQueue>,
    write_back: Arc<WriteBack>,
    version_table: Option<Arc<VersionTable>>,
    clock: SystemClock,
    /// The time of the last checkpoint.
    last_checkpoint: Mutex<Duration>,
}

impl WriteThreads {
    pub(crate) fn start(
        cache: Arc<DirtyCache>,
        schedule: Arc<WriteQueue>,
        back: Arc<WriteBack>,
        version_table: Option<Arc<VersionTable>>,
    ) -> Result<WriteThreads> {
        let writers = WriteThreads { queue: schedule.clone(), threads: Mutex::default() };
        let clock = SystemClock;
        let checkpointed = Mutex::new(clock.now());
        let work = Arc::new(WriteLoop {
            cache,
            queue: schedule,
            write_back: back,
            version_table,
            clock,
            last_checkpoint: checkpointed,
        });
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
        self.queue.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic in a thread has already been printed, and the owner closes the disk in any
            // case.
            let _ = thread.join();
        }
    }
}

impl Drop for WriteThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

impl WriteLoop {
    fn run(&self) {
        let _guard = OnPanic::new(|| drop(self.write_back.fail(panic_error())));
        while let Some(segment) = self.queue.next(|| self.cache.is_filling()) {
            // The fail-stop records a failure: the next write, flush or close reports it.
            let _ = self.write_back.write_segment(segment);
            self.checkpoint_if_due();
        }
    }

    /// Writes the version table if the last checkpoint is old enough.
    fn checkpoint_if_due(&self) {
        let Some(version_table) = &self.version_table else { return };
        {
            let mut last = self.last_checkpoint.lock();
            let now = self.clock.now();
            if now < *last + CHECKPOINT_EVERY {
                return;
            }
            *last = now;
        }
        if let Err(e) = version_table.checkpoint() {
            // After a refusal the pages stay dirty and are written later. On any other error:
            // fail-stop, which records the error.
            self.write_back.fail_unless_refused(e);
        }
    }
}
