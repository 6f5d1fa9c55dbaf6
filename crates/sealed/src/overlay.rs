//! A medium that is read and never written: what would be written stays in memory. The key-value store writes
//! to its region whenever it is opened; a disk that is opened read-only must not.

use lacuna_core::{Advice, Error, Kind, Result, Setting};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

const PAGE: usize = 4096;
/// Changed pages kept at most: 64 MiB.
const MOST_PAGES: usize = 16384;
type Pages = BTreeMap<u64, Box<[u8; PAGE]>>;

/// `below`, with the pages that were changed since on top.
pub(crate) struct Overlay {
    below: Arc<dyn Medium>,
    pages: Mutex<Pages>,
}

impl Overlay {
    pub(crate) fn over(below: Arc<dyn Medium>) -> Self {
        Overlay { below, pages: Mutex::default() }
    }

    /// Changes `len` bytes from `offset`, page by page; `change` gets a piece and where in the whole it lies.
    fn change(&self, offset: u64, len: u64, mut change: impl FnMut(&mut [u8], usize)) -> Result<()> {
        let mut pages = self.pages.lock();
        let mut at = offset;
        while at < offset + len {
            let (number, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let part = ((offset + len - at) as usize).min(PAGE - within);
            let full = pages.len() >= MOST_PAGES;
            let page = match pages.entry(number) {
                Entry::Occupied(page) => page.into_mut(),
                Entry::Vacant(_) if full => {
                    return Err(Error::new(Kind::Memory, "cannot open the key-value store read-only")
                        .found("a store that wants to change more than fits in memory")
                        .expected(format!("changes within {MOST_PAGES} pages"))
                        .remedy(Advice::from("open the disk once without ").setting(Setting::ReadOnly)));
                }
                Entry::Vacant(place) => {
                    let start = number * PAGE as u64;
                    let there = self.below.len().saturating_sub(start).min(PAGE as u64) as usize;
                    let mut page = Box::new([0; PAGE]);
                    self.below.read_at(start, &mut page[..there])?;
                    place.insert(page)
                }
            };
            change(&mut page[within..within + part], (at - offset) as usize);
            at += part as u64;
        }
        Ok(())
    }
}

impl Medium for Overlay {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let pages = self.pages.lock();
        self.below.read(batch)?;
        for extent in batch {
            let end = extent.offset + extent.buf.len() as u64;
            for (number, page) in pages.range(extent.offset / PAGE as u64..end.div_ceil(PAGE as u64)) {
                let start = number * PAGE as u64;
                let (from, to) = (start.max(extent.offset), (start + PAGE as u64).min(end));
                extent.buf[(from - extent.offset) as usize..(to - extent.offset) as usize]
                    .copy_from_slice(&page[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        batch.iter().try_for_each(|extent| {
            self.change(extent.offset, extent.data.len() as u64, |piece, at| {
                piece.copy_from_slice(&extent.data[at..at + piece.len()]);
            })
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn forget_cached(&self) -> Result<()> {
        self.below.forget_cached()
    }

    fn will_read(&self, offset: u64, len: u64) {
        self.below.will_read(offset, len);
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.change(offset, len, |piece, _| piece.fill(0))
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::MemoryMedium;

    #[test]
    fn reads_what_was_written_and_leaves_the_medium_alone() {
        let content: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        let below = Arc::new(MemoryMedium::from_bytes(content.clone()));
        let overlay = Overlay::over(below.clone());
        let mut expected = content.clone();
        for (offset, len) in [(100, 50), (4000, 300), (8192, 4096), (19_990, 10), (0, 12_000)] {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + offset) as u8).collect();
            overlay.write_at(offset as u64, &data).unwrap();
            expected[offset..offset + len].copy_from_slice(&data);
        }
        overlay.discard(5000, 3000).unwrap();
        expected[5000..8000].fill(0);
        for (offset, len) in [(0, 20_000), (99, 52), (12_287, 2), (19_999, 1)] {
            let mut back = vec![0; len];
            overlay.read_at(offset as u64, &mut back).unwrap();
            assert_eq!(back, expected[offset..offset + len]);
        }
        assert!(overlay.read_at(19_999, &mut [0; 2]).is_err());
        assert_eq!(below.snapshot(), content);
    }
}
