//! A level with private errors only.

use crate::claim::Claim;
use lacuna_contracts::{BlockAddr, Disk, Error, Extent, Result, Status};
use std::sync::Arc;

/// A level of a disk, public or hidden; all its errors are private.
///
/// Deniability contract: if only errors of hidden levels were private, the text that replaces them
/// in a log would reveal the level.
pub(crate) struct PrivateDisk {
    level: Arc<dyn Disk>,
    /// Kept as long as the level is in use.
    _claim: Option<Arc<Claim>>,
}

impl PrivateDisk {
    /// Wraps a level.
    pub(crate) fn new(level: Arc<dyn Disk>, claim: Option<Arc<Claim>>) -> Self {
        PrivateDisk { level, _claim: claim }
    }
}

impl Disk for PrivateDisk {
    fn blocks(&self) -> u64 {
        self.level.blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.level.read(first, buf).map_err(Error::private)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.level.write(first, data).map_err(Error::private)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.level.discard(first, count).map_err(Error::private)
    }

    fn flush(&self) -> Result<()> {
        self.level.flush().map_err(Error::private)
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.level.extents(first, count).map_err(Error::private)
    }

    fn status(&self) -> Status {
        self.level.status()
    }

    fn close(&self) -> Result<()> {
        self.level.close().map_err(Error::private)
    }

    fn read_only(&self) -> bool {
        self.level.read_only()
    }
}
