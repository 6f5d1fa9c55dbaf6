//! A medium in memory, for tests and golden images.

use crate::{Medium, ReadExtent, WriteExtent, check_range};
use lacuna_contracts::Result;
use parking_lot::RwLock;

/// Bytes in memory. Every write is durable at once.
pub struct MemoryMedium(RwLock<Vec<u8>>);

impl MemoryMedium {
    /// A medium of `len` zero bytes.
    pub fn new(len: u64) -> Self {
        Self::from_bytes(vec![0; len as usize])
    }

    /// A medium that holds `bytes`.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        MemoryMedium(RwLock::new(bytes))
    }

    /// A copy of the medium: a snapshot in the adversary's sense.
    pub fn snapshot(&self) -> Vec<u8> {
        self.0.read().clone()
    }
}

/// The index range of an extent; an error if it exceeds a medium of `len` bytes.
fn range(offset: u64, size: usize, len: usize) -> Result<std::ops::Range<usize>> {
    check_range(offset, size as u64, len as u64)?;
    Ok(offset as usize..offset as usize + size)
}

impl Medium for MemoryMedium {
    fn len(&self) -> u64 {
        self.0.read().len() as u64
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let bytes = self.0.read();
        for extent in batch {
            let at = range(extent.offset, extent.buf.len(), bytes.len())?;
            extent.buf.copy_from_slice(&bytes[at]);
        }
        Ok(())
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let mut bytes = self.0.write();
        for extent in batch {
            let at = range(extent.offset, extent.data.len(), bytes.len())?;
            bytes[at].copy_from_slice(extent.data);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let mut bytes = self.0.write();
        let at = range(offset, len as usize, bytes.len())?;
        bytes[at].fill(0);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.0.write().resize(len as usize, 0);
        Ok(())
    }
}
