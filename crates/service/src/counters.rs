//! The counters of a disk, for people who ask while the disk may be stuck: it can hold its locks while it waits for its
//! medium, above all when it is being closed, and that is when people ask.

use lacuna_core::{ByteDisk, StatusItem};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the disk has for its answer.
const LIMIT: Duration = Duration::from_secs(1);

/// The counters of a disk, or of its levels.
pub struct Counters {
    levels: Vec<ByteDisk>,
    /// An answer that was not there in time; nothing more is asked until it is.
    late: Mutex<Option<Receiver<Vec<StatusItem>>>>,
}

impl Counters {
    /// Of these levels.
    pub fn of(levels: Vec<ByteDisk>) -> Self {
        Counters { levels, late: Mutex::default() }
    }

    /// What the disk says, or said when it was last asked in vain; nothing if it does not answer now.
    pub fn now(&self) -> Vec<StatusItem> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
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
    use lacuna_core::{BlockAddr, Disk, Extent, Result, Status};
    use std::sync::Arc;

    /// A disk that holds its counters back while its lock is held.
    struct Stuck(Mutex<()>);

    impl Disk for Stuck {
        fn blocks(&self) -> u64 {
            1
        }
        fn read(&self, _: BlockAddr, _: &mut [u8]) -> Result<()> {
            unreachable!()
        }
        fn write(&self, _: BlockAddr, _: &[u8]) -> Result<()> {
            unreachable!()
        }
        fn discard(&self, _: BlockAddr, _: u64) -> Result<()> {
            unreachable!()
        }
        fn flush(&self) -> Result<()> {
            unreachable!()
        }
        fn extents(&self, _: BlockAddr, _: u64) -> Result<Vec<Extent>> {
            unreachable!()
        }
        fn status(&self) -> Status {
            let _held = self.0.lock().unwrap();
            Status { items: vec![StatusItem { name: "dirty", value: 7, unit: "bytes" }] }
        }
        fn close(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_is_stuck_keeps_nobody_waiting() {
        let disk = Arc::new(Stuck(Mutex::new(())));
        let counters = Counters::of(vec![ByteDisk::new(Arc::clone(&disk) as Arc<dyn Disk>)]);
        assert_eq!(counters.now()[0].value, 7);
        let held = disk.0.lock().unwrap();
        assert!(counters.now().is_empty() && counters.now().is_empty());
        drop(held);
        assert_eq!(counters.now()[0].value, 7);
    }
}
