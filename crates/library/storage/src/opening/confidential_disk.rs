//! A level with private errors only.

use crate::opening::claim::DiskClaim;
use lacuna_contracts::{BlockAddr, Disk, Error, Extent, Result, Status};
use std::sync::Arc;

/// A level of a disk, public or hidden; all its errors are private.
///
/// Deniability contract: if only errors of hidden levels were private, the text that replaces them
/// in a log would reveal the level.
pub(crate) struct ConfidentialDisk {
    level: Arc<dyn Disk>,
    /// Kept as long as the level is in use.
    _claim: Option<Arc<DiskClaim>>,
}

impl ConfidentialDisk {
    /// Wraps a level.
    pub(crate) fn new(level: Arc<dyn Disk>, claim: Option<Arc<DiskClaim>>) -> Self {
        ConfidentialDisk { level, _claim: claim }
    }
}

impl Disk for ConfidentialDisk {
    fn blocks(&self) -> u64 {
        self.level.blocks()
    }

    fn read(&self, first: BlockAddr, buf: &mut [u8]) -> Result<()> {
        self.level.read(first, buf).map_err(Error::confidential)
    }

    fn write(&self, first: BlockAddr, data: &[u8]) -> Result<()> {
        self.level.write(first, data).map_err(Error::confidential)
    }

    fn discard(&self, first: BlockAddr, count: u64) -> Result<()> {
        self.level.discard(first, count).map_err(Error::confidential)
    }

    fn flush(&self) -> Result<()> {
        self.level.flush().map_err(Error::confidential)
    }

    fn extents(&self, first: BlockAddr, count: u64) -> Result<Vec<Extent>> {
        self.level.extents(first, count).map_err(Error::confidential)
    }

    fn status(&self) -> Status {
        self.level.status()
    }

    fn close(&self) -> Result<()> {
        self.level.close().map_err(Error::confidential)
    }

    fn is_read_only(&self) -> bool {
        self.level.is_read_only()
    }
}
