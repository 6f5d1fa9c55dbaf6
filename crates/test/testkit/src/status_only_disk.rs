//! A disk that answers only status queries.

use lacuna_contracts::{BlockAddr, Disk, Extent, Result, Status};

/// A disk of one block with a [`Disk::status`] that the closure provides. It panics on requests for
/// data.
pub struct StatusOnlyDisk<S>(pub S);

impl<S: Fn() -> Status + Send + Sync> Disk for StatusOnlyDisk<S> {
    fn blocks(&self) -> u64 {
        1
    }

    fn read(&self, _: BlockAddr, _: &mut [u8]) -> Result<()> {
        unreachable!("nothing is read")
    }

    fn write(&self, _: BlockAddr, _: &[u8]) -> Result<()> {
        unreachable!("nothing is written")
    }

    fn discard(&self, _: BlockAddr, _: u64) -> Result<()> {
        unreachable!("nothing is discarded")
    }

    fn flush(&self) -> Result<()> {
        unreachable!("nothing is flushed")
    }

    fn extents(&self, _: BlockAddr, _: u64) -> Result<Vec<Extent>> {
        unreachable!("nothing is looked for")
    }

    fn status(&self) -> Status {
        (self.0)()
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
