//! A medium with a bad sector in a page that is read to be written in part.

use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A medium that reads the rest of a page for a write of a part of it, as a system does.
pub(crate) struct BadPageMedium {
    pub(crate) medium: Arc<dyn Medium>,
    /// A page of metadata with a bad sector, until it is written whole.
    pub(crate) bad: Mutex<Range<u64>>,
}

impl BadPageMedium {
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let bad = self.bad.lock().unwrap();
        if offset < bad.end && bad.start < offset + len {
            return Err(Error::new(Kind::Io, "a bad sector"));
        }
        Ok(())
    }
}

impl Medium for BadPageMedium {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        batch.iter().try_for_each(|extent| self.check(extent.offset, extent.buf.len() as u64))?;
        self.medium.read(batch)
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch {
            let whole = extent.offset.is_multiple_of(4096) && extent.data.len().is_multiple_of(4096);
            if !whole {
                self.check(extent.offset, extent.data.len() as u64)?;
            } else if extent.offset == self.bad.lock().unwrap().start / 4096 * 4096 {
                *self.bad.lock().unwrap() = 0..0;
            }
        }
        self.medium.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.medium.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.medium.set_len(len)
    }
}
