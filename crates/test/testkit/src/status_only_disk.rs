//! A disk that only answers status queries and is closed.

use lacuna_contracts::{BlockAddr, Disk, Extent, Result, Status};

/// A disk of one block with a [`Disk::status`] and a [`Disk::close`] that the closures provide. It
/// panics on requests for data.
pub struct StatusOnlyDisk<S, C>(pub S, pub C);

impl<S, C> Disk for StatusOnlyDisk<S, C>
where
    S: Fn() -> Status + Send + Sync,
    C: Fn() -> Result<()> + Send + Sync,
{
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
        (self.1)()
    }
}
