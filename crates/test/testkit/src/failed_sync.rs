//! A medium behind a cache like that of Linux, one of whose syncs fails. The pages that this sync
//! should have written count as written from then on: one caller hears of it, later syncs do
//! nothing and succeed, and reads give what the medium does not hold, until the cache is dropped.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent, check_range, pieces};
use lacuna_sim::PAGE_SIZE;
use lacuna_sim::versions::{Model, fill};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// So long the sync takes that fails: other threads that want one wait for it by then.
const FAILS_AFTER: Duration = Duration::from_millis(20);

/// The medium.
pub struct FailedSync {
    medium: Arc<dyn Medium>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Syncs until the one that fails.
    left: Option<u64>,
    failed: bool,
    after: u64,
    cache: BTreeMap<u64, Page>,
}

/// A page of the medium in the cache.
struct Page {
    bytes: Box<[u8]>,
    /// Whether the next sync writes it.
    dirty: bool,
}

impl State {
    /// Applies `change` to a range of the cache, page by page; it is given the piece, and where
    /// that begins in the range.
    fn change(
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
                    place.insert(Page { bytes, dirty: false })
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

impl FailedSync {
    /// A medium with an empty cache before it, whose syncs succeed.
    pub fn new(medium: Arc<dyn Medium>) -> Self {
        FailedSync { medium, state: Mutex::default() }
    }

    /// The `nth` sync from now on fails; with 0, none.
    pub fn fail_sync(&self, nth: u64) {
        self.state().left = Some(nth);
    }

    /// Syncs that were made after the one that failed: a caller of one believes what is not true.
    pub fn syncs_after(&self) -> u64 {
        self.state().after
    }

    /// Cuts the power: what the cache holds is gone, written or not.
    pub fn cut_power(&self) {
        self.state().cache.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Clients that write and flush, each a block of its own, until they are refused.
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

/// Blocks of each level that [`reopens_from_the_medium`] works with.
const WORKED: u64 = 24;

/// Fails the `nth` sync under a working disk, or with `closing` one that is being closed. Opens the
/// disk again in the same session of the system, goes on working, cuts the power, and opens it once
/// more. What was flushed must read as it was flushed each time. `open` gives the levels of the
/// disk on `failing`, with whatever threads make their flushes end.
pub fn reopens_from_the_medium(
    failing: &FailedSync,
    nth: u64,
    closing: bool,
    open: &dyn Fn() -> Result<Vec<Arc<dyn Disk>>>,
) -> std::result::Result<(), String> {
    let mut levels = open().map_err(|e| e.to_string())?;
    let mut models: Vec<Model> =
        (0..levels.len()).map(|level| Model::new(format!("level {level}"), WORKED)).collect();
    let mut stamp = 0;
    let mut work = |levels: &[Arc<dyn Disk>], models: &mut [Model], flushes: u64| -> Result<()> {
        for _ in 0..flushes {
            for (level, model) in levels.iter().zip(models.iter_mut()) {
                stamp += 1;
                let (first, count) = (stamp * 7 % WORKED, 1 + stamp % 3);
                for block in (first..first + count).map(|block| block % WORKED) {
                    let mut data = [0; BLOCK_SIZE];
                    fill(block, stamp, &mut data);
                    model.set(block, 1, stamp);
                    level.write(BlockAddr(block), &data)?;
                }
                level.flush()?;
                model.flushed();
            }
        }
        Ok(())
    };
    work(&levels, &mut models, 6).map_err(|e| e.to_string())?;
    failing.fail_sync(nth);
    if closing {
        // So many syncs it may not make.
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
        let said = |e: &dyn std::fmt::Display| format!("{when}: {e}");
        levels = open().map_err(|e| said(&e))?;
        for (level, model) in levels.iter().zip(models.iter_mut()) {
            model.compare(&**level).map_err(|e| said(&e))?;
        }
        // Little, so that nothing covers up what was wrong.
        work(&levels, &mut models, 1).map_err(|e| said(&e))?;
    }
    Ok(())
}

impl Medium for FailedSync {
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

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut state = self.state();
        batch.iter().try_for_each(|extent| {
            let range = extent.offset..extent.offset + extent.data.len() as u64;
            state.change(&*self.medium, range, |piece, at| {
                piece.copy_from_slice(&extent.data[at..at + piece.len()]);
            })
        })
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state();
        state.after += u64::from(state.failed);
        let fails = state.left == Some(1);
        state.left = state.left.filter(|_| !fails).map(|left| left.saturating_sub(1));
        state.failed |= fails;
        if !fails {
            state.write_back(&*self.medium)?;
            drop(state);
            return self.medium.sync();
        }
        state.cache.values_mut().for_each(|page| page.dirty = false);
        drop(state);
        std::thread::sleep(FAILS_AFTER);
        Err(Error::new(Kind::Io, "sync of the medium").found("pages that could not be written"))
    }

    fn forget_cached(&self) -> Result<()> {
        let mut state = self.state();
        state.write_back(&*self.medium)?;
        state.cache.clear();
        self.medium.forget_cached()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.state().change(&*self.medium, offset..offset + len, |piece, _| piece.fill(0))
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
    fn what_a_failed_sync_lost_reads_until_it_is_forgotten() {
        let below = Arc::new(MemoryMedium::new(10_000));
        let medium = FailedSync::new(below.clone());
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
        medium.write_at(0, &[5]).unwrap();
        medium.cut_power();
        assert_eq!(byte(0), 4);
        assert!(medium.write_at(9_999, &[0; 2]).is_err());
    }
}
