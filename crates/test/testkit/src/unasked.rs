//! A disk of which nothing is asked but how it is.

use lacuna_contracts::{BlockAddr, Disk, Extent, Result, Status};

/// A disk of one block, which answers [`Disk::status`] with what the closure says, and panics if it
/// is asked for data.
pub struct Unasked<S>(pub S);

impl<S: Fn() -> Status + Send + Sync> Disk for Unasked<S> {
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
