//! A level whose errors no log may keep.

use lacuna_core::{BlockAddr, Disk, Error, Extent, Result, Status};
use lacuna_levels::LevelDisk;
use std::sync::Arc;

/// A level of a disk, public or hidden, whose errors are all private.
///
/// Deniability contract: if only those of hidden levels were, the sentence that stands for them in a log would tell.
pub(crate) struct PrivateDisk(Arc<LevelDisk>);

impl PrivateDisk {
    /// Of a level.
    pub(crate) fn new(level: Arc<LevelDisk>) -> Self {
        PrivateDisk(level)
    }
}

impl Disk for PrivateDisk {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.0.read(first, buf).map_err(Error::private)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.0.write(first, data).map_err(Error::private)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.0.discard(first, count).map_err(Error::private)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush().map_err(Error::private)
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.0.extents(first, count).map_err(Error::private)
    }

    fn status(&self) -> Status {
        self.0.status()
    }

    fn close(&self) -> Result<()> {
        self.0.close().map_err(Error::private)
    }

    fn read_only(&self) -> bool {
        self.0.read_only()
    }
}
