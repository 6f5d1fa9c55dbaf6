//! A medium with a failing sync behind a cache like that of Linux. The pages that this sync should
//! have written count as clean after it: one caller gets the error, later syncs do nothing and
//! succeed, and reads return cached data that the medium does not hold, until the cache is dropped.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent, check_range, pieces};
use lacuna_sim::PAGE_SIZE;
use lacuna_sim::versions::{DiskModel, fill};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// The duration of the failing sync. By its end, other threads that need a sync wait for it.
const FAILURE_DELAY: Duration = Duration::from_millis(20);

/// The medium with its cache.
pub struct FailingSyncMedium {
    medium: Arc<dyn Medium>,
    state: Mutex<FailingSyncState>,
}

#[derive(Default)]
struct FailingSyncState {
    /// The number of syncs up to the failing one.
    syncs_until_failure: Option<u64>,
    failed: bool,
    syncs_after: u64,
    cache: BTreeMap<u64, CachedPage>,
}

/// A cached page of the medium.
struct CachedPage {
    bytes: Box<[u8]>,
    /// Whether the next sync writes it.
    dirty: bool,
}

impl FailingSyncState {
    /// Applies `change` to a range of the cache, page by page. `change` gets the piece and its
    /// offset in the range.
    fn change_pages(
        &mut self,
        medium: &dyn Medium,
        range: Range<u64>,
        mut change: impl FnMut(&mut [u8], usize),
    ) -> Result<()> {
        check_range(range.start, range.end - range.start, medium.len())?;
        for (number, within, at) in pieces(range.start, range.end - range.start, PAGE_SIZE) {
            let page = match self.cache.entry(number) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(place) => {
                    let start = number * PAGE_SIZE;
                    let len = (medium.len() - start).min(PAGE_SIZE) as usize;
                    let mut bytes = vec![0; len].into_boxed_slice();
                    medium.read_at(start, &mut bytes)?;
                    place.insert(CachedPage { bytes, dirty: false })
                }
            };
            change(&mut page.bytes[within], at.start);
            page.dirty = true;
        }
        Ok(())
    }

    /// Writes the dirty pages to the medium.
    fn write_back(&mut self, medium: &dyn Medium) -> Result<()> {
        for (number, page) in self.cache.iter_mut().filter(|(_, page)| page.dirty) {
            medium.write_at(number * PAGE_SIZE, &page.bytes)?;
            page.dirty = false;
        }
        Ok(())
    }
}

impl FailingSyncMedium {
    /// Wraps a medium with an empty cache. Syncs succeed.
    pub fn new(medium: Arc<dyn Medium>) -> Self {
        FailingSyncMedium { medium, state: Mutex::default() }
    }

    /// Makes the `nth` further sync fail; 0 disables this.
    pub fn fail_sync(&self, nth: u64) {
        self.state().syncs_until_failure = Some(nth);
    }

    /// The number of syncs after the failed one. Their callers wrongly believe that the data is
    /// durable.
    pub fn syncs_after(&self) -> u64 {
        self.state().syncs_after
    }

    /// Cuts the power: the cache is lost, with its dirty and clean pages.
    pub fn cut_power(&self) {
        self.state().cache.clear();
    }

    fn state(&self) -> MutexGuard<'_, FailingSyncState> {
        self.state.lock()
    }
}

/// Runs clients that each write and flush a block of their own until the disk refuses.
pub fn flush_until_refused(disk: &dyn Disk, clients: u64) {
    std::thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let mut block = [0; BLOCK_SIZE];
                fill(client, 1, &mut block);
                while disk.write(BlockAddr(client), &block).and_then(|()| disk.flush()).is_ok() {}
            });
        }
    });
}

/// The number of blocks of each level that [`check_reopen_after_failed_sync`] uses.
const USED_BLOCKS: u64 = 24;

/// Makes the `nth` sync fail under a disk in use, or with `closing` under a disk that is being
/// closed. Then opens the disk again without a reboot, uses it, cuts the power, and opens it once
/// more. Flushed data must read correctly each time. `open` returns the levels of the disk on
/// `failing`, with the threads that their flushes need.
pub fn check_reopen_after_failed_sync(
    failing: &FailingSyncMedium,
    nth: u64,
    closing: bool,
    open: &dyn Fn() -> Result<Vec<Arc<dyn Disk>>>,
) -> std::result::Result<(), String> {
    let mut levels = open().map_err(|e| e.to_string())?;
    let mut models: Vec<DiskModel> =
        (0..levels.len()).map(|level| DiskModel::new(format!("level {level}"), USED_BLOCKS)).collect();
    let mut stamp = 0;
    let mut work = |levels: &[Arc<dyn Disk>], models: &mut [DiskModel], flushes: u64| -> Result<()> {
        for _ in 0..flushes {
            for (level, model) in levels.iter().zip(models.iter_mut()) {
                stamp += 1;
                let (first, count) = (stamp * 7 % USED_BLOCKS, 1 + stamp % 3);
                for block in (first..first + count).map(|block| block % USED_BLOCKS) {
                    let mut data = [0; BLOCK_SIZE];
                    fill(block, stamp, &mut data);
                    model.add_version(block, 1, stamp);
                    level.write(BlockAddr(block), &data)?;
                }
                level.flush()?;
                model.record_flush();
            }
        }
        Ok(())
    };
    work(&levels, &mut models, 6).map_err(|e| e.to_string())?;
    failing.fail_sync(nth);
    if closing {
        // The close may make fewer syncs than `nth`.
        let _failed = levels.iter().try_for_each(|level| level.close());
    } else if work(&levels, &mut models, 1000).is_ok() {
        return Err("no flush noticed that a sync failed".into());
    }
    failing.fail_sync(0);
    for cut in [false, true] {
        drop(levels);
        if cut {
            failing.cut_power();
        }
        let when = if cut { "after the power cut" } else { "after the failed sync" };
        let violation = |e: &dyn std::fmt::Display| format!("{when}: {e}");
        levels = open().map_err(|e| violation(&e))?;
        for (level, model) in levels.iter().zip(models.iter_mut()) {
            model.check_after_cut(&**level).map_err(|e| violation(&e))?;
        }
        // Only a little, so that the new writes do not hide a fault.
        work(&levels, &mut models, 1).map_err(|e| violation(&e))?;
    }
    Ok(())
}

impl Medium for FailingSyncMedium {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let state = self.state();
        self.medium.read(batch)?;
        for extent in batch {
            for (number, within, at) in pieces(extent.offset, extent.buf.len() as u64, PAGE_SIZE) {
                if let Some(page) = state.cache.get(&number) {
                    extent.buf[at].copy_from_slice(&page.bytes[within]);
                }
            }
        }
        Ok(())
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut state = self.state();
        batch.iter().try_for_each(|extent| {
            let range = extent.offset..extent.offset + extent.data.len() as u64;
            state.change_pages(&*self.medium, range, |piece, at| {
                piece.copy_from_slice(&extent.data[at..at + piece.len()]);
            })
        })
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state();
        state.syncs_after += u64::from(state.failed);
        let fails = state.syncs_until_failure == Some(1);
        state.syncs_until_failure =
            state.syncs_until_failure.filter(|_| !fails).map(|left| left.saturating_sub(1));
        state.failed |= fails;
        if !fails {
            state.write_back(&*self.medium)?;
            drop(state);
            return self.medium.sync();
        }
        state.cache.values_mut().for_each(|page| page.dirty = false);
        drop(state);
        std::thread::sleep(FAILURE_DELAY);
        Err(Error::new(Kind::Io, "sync of the medium").found("pages that could not be written"))
    }

    fn forget_cached(&self) -> Result<()> {
        let mut state = self.state();
        state.write_back(&*self.medium)?;
        state.cache.clear();
        self.medium.forget_cached()
    }

    fn forget_cached_outside(&self, kept: Range<u64>) -> Result<()> {
        let mut state = self.state();
        state.write_back(&*self.medium)?;
        let stays = |number: u64| number * PAGE_SIZE >= kept.start && (number + 1) * PAGE_SIZE <= kept.end;
        state.cache.retain(|number, _| stays(*number));
        self.medium.forget_cached_outside(kept)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.state().change_pages(&*self.medium, offset..offset + len, |piece, _| piece.fill(0))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let mut state = self.state();
        state.write_back(&*self.medium)?;
        state.cache.clear();
        self.medium.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    #[test]
    fn pages_lost_by_a_failed_sync_read_until_the_cache_is_dropped() {
        let below = Arc::new(MemoryMedium::new(10_000));
        let medium = FailingSyncMedium::new(below.clone());
        let byte = |at: u64| {
            let mut byte = [0];
            medium.read_at(at, &mut byte).unwrap();
            byte[0]
        };
        medium.write_at(4000, &[1; 200]).unwrap();
        assert!(byte(4000) == 1 && below.snapshot()[4000] == 0);
        medium.sync().unwrap();
        assert_eq!(below.snapshot()[4000..4200], [1; 200]);
        medium.fail_sync(2);
        medium.write_at(9_990, &[2; 10]).unwrap();
        medium.sync().unwrap();
        medium.write_at(4100, &[3; 200]).unwrap();
        assert!(medium.sync().is_err() && medium.sync().is_ok());
        assert_eq!((byte(4100), byte(9_999), medium.syncs_after()), (3, 2, 1));
        // Written after the failure, so not lost by it.
        medium.write_at(0, &[4]).unwrap();
        medium.forget_cached().unwrap();
        assert_eq!((byte(4100), byte(4250), byte(9_999), byte(0)), (1, 0, 2, 4));
        // Pages outside of a kept range go.
        medium.fail_sync(1);
        medium.write_at(0, &[6]).unwrap();
        medium.write_at(4100, &[7]).unwrap();
        assert!(medium.sync().is_err());
        medium.forget_cached_outside(4096..8192).unwrap();
        assert_eq!((byte(0), byte(4100)), (4, 7));
        medium.forget_cached().unwrap();
        assert_eq!(byte(4100), 1);
        medium.write_at(0, &[5]).unwrap();
        medium.cut_power();
        assert_eq!(byte(0), 4);
        assert!(medium.write_at(9_999, &[0; 2]).is_err());
    }
}
