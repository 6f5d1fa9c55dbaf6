//! A disk with its blocks unencrypted on the medium: the baseline on modelled media.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Extent, Result, Status};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::sync::Arc;

/// The blocks of a medium.
pub(crate) struct RawDisk(Arc<dyn Medium>);

impl RawDisk {
    /// The blocks of this medium.
    pub(crate) fn new(medium: Arc<dyn Medium>) -> RawDisk {
        RawDisk(medium)
    }
}

fn offset(block: BlockAddr) -> u64 {
    block.0 * BLOCK_SIZE as u64
}

impl Disk for RawDisk {
    fn blocks(&self) -> u64 {
        self.0.len() / BLOCK_SIZE as u64
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.0.read(&mut [ReadExtent { offset: offset(first), buf }])
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.0.write(&[WriteExtent { offset: offset(first), data }])
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.0.discard(offset(first), count * BLOCK_SIZE as u64)
    }

    fn flush(&self) -> Result<()> {
        self.0.sync()
    }

    fn extents(&self, _first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        Ok(vec![Extent { blocks: count, written: true }])
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn close(&self) -> Result<()> {
        self.flush()
    }
}
