//! The lowest mounted level of a disk with levels. Closing it also closes the levels that are open
//! and not mounted.
//!
//! Deniability contract: level 0 is closed last, and not before the cover of a closing has settled.
//! Otherwise the number of its flushes, which the medium shows, and the time after the cover would
//! depend on deeper levels.

use crate::verbs::serve::background;
use crate::verbs::serve::closing::MOUNTED_ALONE;
use crate::verbs::serve::settling::Settling;
use lacuna_mount::ServerLog;
use lacuna_storage::{BlockAddr, Disk, Extent, OpenDisk, Pace, Result, Status, StatusItem};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The open levels of a disk that are not mounted, by number.
#[derive(Clone)]
pub(crate) struct UnmountedLevels(Arc<Mutex<BTreeMap<u64, Arc<dyn Disk>>>>);

impl UnmountedLevels {
    /// All open levels of a disk, starting at level 0.
    pub(crate) fn of(levels: &[Arc<dyn Disk>]) -> Self {
        let levels = (0..).zip(levels.iter().cloned()).collect();
        UnmountedLevels(Arc::new(Mutex::new(levels)))
    }

    /// Removes a level that its mount closes, even if mounting fails.
    pub(crate) fn remove(&self, number: u64) {
        self.0.lock().remove(&number);
    }
}

/// The lowest mounted level.
pub(crate) struct LowestLevel {
    pub number: u64,
    pub level: Arc<dyn Disk>,
    /// The disk, until it is closed.
    pub disk: Weak<OpenDisk>,
    pub unmounted: UnmountedLevels,
    pub settling: Arc<Settling>,
    /// Receives all failures of closing after the first.
    pub log: ServerLog,
}

impl Disk for LowestLevel {
    fn blocks(&self) -> u64 {
        self.level.blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.level.read(first, buf)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.level.write(first, data)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.level.discard(first, count)
    }

    fn flush(&self) -> Result<()> {
        self.level.flush()
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.level.extents(first, count)
    }

    fn purge(&self) -> Result<Status> {
        self.level.purge()
    }

    fn status(&self) -> Status {
        let mut status = self.level.status();
        if self.number > 0 {
            status.items.push(StatusItem::new(MOUNTED_ALONE, 1, ""));
        }
        status
    }

    /// Closes the levels that are not mounted, too: the deepest first, level 0 last.
    fn close(&self) -> Result<()> {
        let mut unmounted = std::mem::take(&mut *self.unmounted.0.lock());
        let level_0 = unmounted.remove(&0);
        if level_0.is_some() {
            self.settling.wait();
            if let Some(disk) = self.disk.upgrade() {
                // After a plain umount. Closing level 0 would write the same cover, and reports a
                // failure.
                let _told = disk.cover_closing(Pace::Immediate);
                // Pending data has had its cover: closing the level must wait for no more.
                disk.give_up(self.number, true);
            }
        }
        let hidden = unmounted.values().rev();
        let in_order = hidden.chain([&self.level]).chain(&level_0);
        let mut closed = Ok(());
        for level in in_order {
            closed = background::combine(closed, level.close(), &self.log);
        }
        closed
    }

    fn is_read_only(&self) -> bool {
        self.level.is_read_only()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_storage::{Error, Kind};
    use lacuna_testkit::StatusOnlyDisk;
    use std::time::{Duration, Instant};

    type Closings = Arc<Mutex<Vec<u64>>>;

    /// A level that records when it is closed. Closing level 3 fails.
    fn recorded(number: u64, closings: &Closings) -> Arc<dyn Disk> {
        let status = move || Status { items: vec![StatusItem::new("level", number, "level")] };
        let closings = Arc::clone(closings);
        let close = move || {
            closings.lock().push(number);
            if number == 3 { Err(Error::new(Kind::NoCover, "lost")) } else { Ok(()) }
        };
        Arc::new(StatusOnlyDisk(status, close))
    }

    /// The lowest mounted level of four, with `mounted` as the mounted levels.
    fn lowest(mounted: &[u64], closings: &Closings) -> LowestLevel {
        let levels: Vec<Arc<dyn Disk>> = (0..4).map(|number| recorded(number, closings)).collect();
        let unmounted = UnmountedLevels::of(&levels);
        mounted.iter().for_each(|number| unmounted.remove(*number));
        let number = mounted[0];
        LowestLevel {
            number,
            level: Arc::clone(&levels[number as usize]),
            disk: Weak::new(),
            unmounted,
            settling: Arc::default(),
            log: Arc::new(|_| {}),
        }
    }

    #[test]
    fn levels_that_are_not_mounted_are_closed_with_the_lowest_mounted_one_and_level_0_last() {
        for (mounted, order) in [
            (&[0][..], &[3, 2, 1, 0][..]),
            (&[0, 1][..], &[3, 2, 0][..]),
            (&[0, 1, 2, 3][..], &[0][..]),
            (&[1][..], &[3, 2, 1, 0][..]),
            (&[3][..], &[2, 1, 3, 0][..]),
        ] {
            let closings = Closings::default();
            let closed = lowest(mounted, &closings).close();
            assert_eq!(*closings.lock(), order, "{mounted:?}");
            assert_eq!(closed.is_err(), order.contains(&3), "{mounted:?}");
        }
    }

    #[test]
    fn a_level_0_that_is_not_mounted_stays_open_until_the_cover_has_settled() {
        let closings = Closings::default();
        let level = lowest(&[1], &closings);
        let until = Instant::now() + Duration::from_millis(50);
        level.settling.begin().settles_at(until);
        level.close().unwrap_err();
        assert!(Instant::now() >= until && closings.lock().last() == Some(&0));
    }

    #[test]
    fn a_level_that_is_mounted_alone_says_so() {
        let says = |mounted: &[u64]| {
            let items = lowest(mounted, &Closings::default()).status().items;
            items.iter().any(|item| item.name == MOUNTED_ALONE && item.value == 1)
        };
        assert!(says(&[1]) && !says(&[0]) && !says(&[0, 1]));
    }
}
