//! The seam of flat media.

use lacuna_contracts::Result;
use std::sync::Arc;

/// A piece to read: where, and into what.
pub struct ReadExtent<'a> {
    /// Byte offset on the medium.
    pub offset: u64,
    /// Filled whole.
    pub buf: &'a mut [u8],
}

/// A piece to write: where, and what.
pub struct WriteExtent<'a> {
    /// Byte offset on the medium.
    pub offset: u64,
    /// Written whole.
    pub data: &'a [u8],
}

/// Flat bytes. Called from many threads at once.
///
/// A power cut may drop, reorder, and tear at 512 bytes whatever was written and not yet synced.
pub trait Medium: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether the medium holds no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads every extent of the batch, in any order. Past the end is an error.
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()>;
    /// Writes every extent of the batch, in any order. Durable only after a later [`Medium::sync`].
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()>;
    /// Writes every extent of the batch and returns when they are durable. Says nothing of earlier
    /// writes.
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write(batch)?;
        self.sync()
    }
    /// Returns when everything written, discarded or resized before the call is durable.
    fn sync(&self) -> Result<()>;
    /// From now on reads come from the medium, not from a cache that may hold more than the medium
    /// does: after a failed sync Linux keeps in its cache, as if they were written, pages that are
    /// not. Whatever reads a medium to find out what is durable calls this first. Writes back what
    /// can still be written; the error says what could not be.
    fn forget_cached(&self) -> Result<()> {
        Ok(())
    }
    /// Another handle on the same medium, with the length that the medium has now. It has no lock:
    /// the caller keeps this handle, which has, for as long. A write that fails is told to the
    /// syncs of both. None: this handle can be shared as it is.
    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        Ok(None)
    }
    /// From now on reads are small and in no order: nothing is gained by reading more than what is
    /// asked for.
    fn expect_random_reads(&self) {}
    /// A range is read soon: the medium may begin to fetch it while the caller does something else.
    fn will_read(&self, _offset: u64, _len: u64) {}
    /// From now on there may be reads that are to leave no trace ([`Medium::read_discreetly`]):
    /// what they need is taken now.
    ///
    /// Errors: why it cannot be had; such reads are then as others are, until it can.
    fn expect_discreet_reads(&self) -> Result<()> {
        Ok(())
    }
    /// Reads every extent of the batch as [`Medium::read`] does, and leaves nothing of them in a
    /// cache of the system that was not there before, where it can do that: others on the host can
    /// see what is in that. Nor does it make the system write anything earlier than it would. Each
    /// such read may cost a request to what the medium rests on: extents in the order of their
    /// places need fewest ([`near_runs`](crate::near_runs)).
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }
    /// Makes a range read as zeros and gives its space back where the medium can. Durable after a
    /// sync.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
    /// Takes the space of a range now, so that no later write to it finds the medium full; what the
    /// range holds stays. False: the medium cannot promise that.
    ///
    /// Errors: [`lacuna_contracts::Kind::NoSpace`] if there is not as much.
    fn allocate(&self, _offset: u64, _len: u64) -> Result<bool> {
        Ok(false)
    }
    /// Changes the length; new bytes read as zeros. Media of fixed size refuse to grow past their
    /// size.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Reads one extent.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read(&mut [ReadExtent { offset, buf }])
    }
    /// Writes one extent.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.write(&[WriteExtent { offset, data }])
    }
}
