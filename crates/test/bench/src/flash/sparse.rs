//! A sparse medium in memory, for chips of 64 GiB; it can discard the contents of nodes.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// A sparse medium in memory. Writes begin and end on pages, except those inside a page.
pub(crate) struct SparseChipMedium {
    len: u64,
    /// Writes up to this length keep only their first page.
    first_page_only: AtomicUsize,
    pages: RwLock<HashMap<u64, Box<[u8; PAGE]>>>,
}

impl SparseChipMedium {
    /// A medium of `len` zero bytes.
    pub(crate) fn new(len: u64) -> SparseChipMedium {
        SparseChipMedium { len, first_page_only: AtomicUsize::new(0), pages: RwLock::default() }
    }

    /// Later writes of at most `most` bytes keep only their first page, which is the header of a
    /// group in the log. The rest of the range keeps its old contents.
    pub(crate) fn keep_first_pages(&self, most: usize) {
        self.first_page_only.store(most, Ordering::Relaxed);
    }
}

/// The pages of a range: number, part of the page, part of the range.
fn pages(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, std::ops::Range<usize>, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE as u64) as usize;
        let part = (PAGE - within).min(len - done);
        let found = (at / PAGE as u64, within..within + part, done..done + part);
        done += part;
        (part > 0).then_some(found)
    })
}

impl Medium for SparseChipMedium {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let there = self.pages.read();
        for extent in batch {
            for (page, within, part) in pages(extent.offset, extent.buf.len()) {
                match there.get(&page) {
                    Some(page) => extent.buf[part].copy_from_slice(&page[within]),
                    None => extent.buf[part].fill(0),
                }
            }
        }
        Ok(())
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut there = self.pages.write();
        for extent in batch {
            let (len, forgets) = (extent.data.len(), self.first_page_only.load(Ordering::Relaxed));
            let kept = if len <= forgets { len.min(PAGE) } else { len };
            for (page, within, part) in pages(extent.offset, kept) {
                let page = there.entry(page).or_insert_with(|| Box::new([0; PAGE]));
                page[within].copy_from_slice(&extent.data[part]);
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut there = self.pages.write();
        for (page, within, _) in pages(offset, len as usize) {
            if within.len() == PAGE {
                there.remove(&page);
            } else if let Some(page) = there.get_mut(&page) {
                page[within].fill(0);
            }
        }
        Ok(())
    }

    fn set_len(&self, _: u64) -> Result<()> {
        Err(lacuna_contracts::Error::new(
            lacuna_contracts::Kind::Other,
            "the chip of a benchmark keeps its length",
        ))
    }
}
