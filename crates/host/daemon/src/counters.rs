//! Reads the counters of a disk without blocking on it. A disk can hold its locks while it waits
//! for its medium, above all while it is being closed, and that is when users ask for its status.

use crate::status::StatusSource;
use lacuna_contracts::StatusItem;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long to wait for the counters.
const LIMIT: Duration = Duration::from_secs(1);

/// The counters of a disk, or of its levels.
pub struct Counters {
    levels: Vec<Arc<dyn StatusSource>>,
    /// A query that timed out. No further query is made until this one is answered.
    late: Mutex<Option<Receiver<Vec<StatusItem>>>>,
}

impl Counters {
    /// The counters of these levels.
    pub fn of<S: StatusSource>(levels: Vec<S>) -> Self {
        Self::shared(levels.into_iter().map(|level| Arc::new(level) as Arc<dyn StatusSource>).collect())
    }

    pub(crate) fn shared(levels: Vec<Arc<dyn StatusSource>>) -> Self {
        Counters { levels, late: Mutex::default() }
    }

    /// The counters now. If an earlier query timed out, returns its answer as soon as there is one;
    /// empty if the disk does not answer in time.
    pub fn now(&self) -> Vec<StatusItem> {
        let mut late = self.late.lock();
        let Some(answer) = late.take().or_else(|| self.ask()) else { return Vec::new() };
        match answer.recv_timeout(LIMIT) {
            Ok(items) => items,
            Err(RecvTimeoutError::Timeout) => {
                *late = Some(answer);
                Vec::new()
            }
            Err(RecvTimeoutError::Disconnected) => Vec::new(),
        }
    }

    fn ask(&self) -> Option<Receiver<Vec<StatusItem>>> {
        let (answer, answered) = channel();
        let levels = self.levels.clone();
        let ask = move || {
            let items = levels.iter().flat_map(|level| level.status().items).collect();
            drop(levels);
            let _ = answer.send(items);
        };
        std::thread::Builder::new().name("lacuna-counters".into()).spawn(ask).ok().map(|_| answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::{ByteDisk, Status};
    use lacuna_testkit::StatusOnlyDisk;

    #[test]
    fn a_blocked_disk_gives_no_counters_and_delays_no_client() {
        // The disk blocks in `status` while this lock is held.
        let lock = Arc::new(Mutex::new(()));
        let of_disk = Arc::clone(&lock);
        let status = move || {
            let _held = of_disk.lock();
            Status { items: vec![StatusItem::new("dirty", 7, "bytes")] }
        };
        let disk = StatusOnlyDisk(status, || Ok(()));
        let counters = Counters::of(vec![ByteDisk::new(Arc::new(disk))]);
        assert_eq!(counters.now()[0].value, 7);
        let held = lock.lock();
        assert!(counters.now().is_empty() && counters.now().is_empty());
        drop(held);
        assert_eq!(counters.now()[0].value, 7);
    }
}
