//! A medium in memory that stores only written pages and shares them between copies.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent, pieces};
use lacuna_sim::{MediumImage, PAGE_SIZE};
use parking_lot::RwLock;
use std::ops::Range;

/// Bytes in shared pages. Every write is durable immediately.
pub struct SparseMedium(RwLock<MediumImage>);

impl SparseMedium {
    /// A medium of `len` zero bytes.
    pub fn new(len: u64) -> Self {
        SparseMedium(RwLock::new(MediumImage::new(len)))
    }

    /// A copy that shares its pages until one side changes them.
    pub fn snapshot(&self) -> SparseMedium {
        SparseMedium(RwLock::new(self.0.read().clone()))
    }

    /// Changes a range in place, page by page. The part past the end is left out.
    pub fn alter(&self, offset: u64, len: usize, mut change: impl FnMut(u64, &mut [u8])) {
        let mut image = self.0.write();
        let len = (len as u64).min(image.len().saturating_sub(offset));
        for (_, within, at) in pieces(offset, len, PAGE_SIZE) {
            let (mut bytes, start) = (vec![0; within.len()], offset + at.start as u64);
            image.read(start, &mut bytes).expect("within the medium");
            change(start, &mut bytes);
            image.write(start, &bytes).expect("within the medium");
        }
    }

    /// Offsets of the written pages in `range`, in order.
    pub fn used_pages(&self, range: Range<u64>) -> Vec<u64> {
        self.0.read().written_pages().map(|page| page * PAGE_SIZE).filter(|at| range.contains(at)).collect()
    }
}

impl Medium for SparseMedium {
    fn len(&self) -> u64 {
        self.0.read().len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let image = self.0.read();
        batch.iter_mut().try_for_each(|extent| image.read(extent.offset, extent.buf))
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut image = self.0.write();
        batch.iter().try_for_each(|extent| image.write(extent.offset, extent.data))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.write().zero(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.write().set_len(len);
        Ok(())
    }
}
