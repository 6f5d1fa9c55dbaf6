//! A disk in memory without a format.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Extent, Result, Status};
use parking_lot::{Mutex, MutexGuard};

/// Plain blocks; a block of zeros counts as unwritten.
pub struct RamDisk(Mutex<Vec<u8>>);

impl RamDisk {
    /// A disk of `blocks` blocks of zeros.
    pub fn new(blocks: usize) -> Self {
        RamDisk(Mutex::new(vec![0; blocks * BLOCK_SIZE]))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock()
    }
}

fn at(first: BlockAddr, len: usize) -> std::ops::Range<usize> {
    let start = first.0 as usize * BLOCK_SIZE;
    start..start + len
}

impl Disk for RamDisk {
    fn blocks(&self) -> u64 {
        (self.bytes().len() / BLOCK_SIZE) as u64
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        buf.copy_from_slice(&self.bytes()[at(first, buf.len())]);
        Ok(())
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.bytes()[at(first, data.len())].copy_from_slice(data);
        Ok(())
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.bytes()[at(first, count as usize * BLOCK_SIZE)].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        let bytes = self.bytes();
        let blocks = bytes[at(first, count as usize * BLOCK_SIZE)].chunks_exact(BLOCK_SIZE);
        Ok(blocks.map(|b| Extent { blocks: 1, written: b.iter().any(|byte| *byte != 0) }).collect())
    }

    fn status(&self) -> Status {
        Status::default()
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
