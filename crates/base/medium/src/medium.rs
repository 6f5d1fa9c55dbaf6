//! The trait for flat media.

use crate::FileStamp;
use lacuna_contracts::Result;
use std::ops::Range;
use std::sync::Arc;

/// A range to read, and its buffer.
pub struct ReadExtent<'a> {
    /// Byte offset on the medium.
    pub offset: u64,
    /// Filled completely.
    pub buf: &'a mut [u8],
}

/// A range to write, and its data.
pub struct WriteExtent<'a> {
    /// Byte offset on the medium.
    pub offset: u64,
    /// Written completely.
    pub data: &'a [u8],
}

/// Flat bytes. Called from many threads at once.
///
/// A power cut may drop, reorder, and tear (at 512 bytes) writes that were not synced.
pub trait Medium: Send + Sync {
    /// Length in bytes.
    fn len(&self) -> u64;
    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reads every extent of the batch, in any order. A range past the end is an error.
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()>;
    /// Writes every extent of the batch, in any order. Durable only after a later [`Medium::sync`].
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()>;
    /// Writes every extent of the batch and returns when they are durable. Earlier writes may still
    /// be volatile.
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.write(batch)?;
        self.sync()
    }
    /// Returns when every write, discard and resize before the call is durable.
    fn sync(&self) -> Result<()>;
    /// Makes later reads come from the medium, not from a cache that may differ from it: after a
    /// failed sync, Linux keeps the unwritten pages in its cache as if they were written. A caller
    /// that needs the durable content calls this before it reads. Writes back all pages that can
    /// still be written; the error reports failed writes.
    fn forget_cached(&self) -> Result<()> {
        Ok(())
    }
    /// The same for everything outside of `kept`, a range of bytes. Cached pages within it may
    /// stay: the caller knows that they are those of the medium. They do not stay if writing back
    /// fails.
    fn forget_cached_outside(&self, _kept: Range<u64>) -> Result<()> {
        self.forget_cached()
    }
    /// The state of the file that this medium is. `None`: its changes cannot be told.
    fn stamp(&self) -> Result<Option<FileStamp>> {
        Ok(None)
    }
    /// Makes earlier writes durable, and returns the state of the file that this medium is. If the
    /// file has this state at a later time of the same boot, no writer has changed it, and all its
    /// cached pages are those of the medium. `None`: that cannot be told, as after a sync that
    /// failed, or if a write is under way. It may wait for some milliseconds.
    fn settled_stamp(&self) -> Result<Option<FileStamp>> {
        Ok(None)
    }
    /// Another handle on the same medium, with the current length of the medium. It has no lock:
    /// the caller must keep this handle, which has the lock, for as long. A failed write is
    /// reported to the syncs of both handles. `None`: this handle can be shared.
    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        Ok(None)
    }
    /// Tells the medium that later reads are small and in no order, so that reading ahead gains
    /// nothing.
    fn expect_random_reads(&self) {}
    /// Tells the medium that a range is read soon. It may start to fetch the range.
    fn will_read(&self, _offset: u64, _len: u64) {}
    /// Tells the medium that a range is complete and is synced soon. It may start to write the
    /// range back, so that the sync waits for less. Only that sync makes it durable and reports
    /// failures.
    fn will_sync(&self, _offset: u64, _len: u64) {}
    /// Tells the medium that discreet reads may follow ([`Medium::read_discreetly`]). It acquires
    /// the resources for them.
    ///
    /// Errors: the reason why it could not; discreet reads are then ordinary reads until it can.
    fn expect_discreet_reads(&self) -> Result<()> {
        Ok(())
    }
    /// Reads every extent of the batch as [`Medium::read`] does. If it can, leaves no page in the
    /// system's cache that was not there before: other users of the host can see which pages are
    /// cached. It does not make the system write anything earlier. Each such read may cost a
    /// request to the underlying device; extents in ascending order need the fewest requests
    /// ([`near_runs`](crate::near_runs)).
    ///
    /// Deniability contract: hidden levels are read in this way. A medium over another one passes
    /// such reads on; there is no default that it could forget to replace.
    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()>;
    /// Makes a range read as zeros, and frees its space if the medium can. Durable after a sync.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;
    /// Allocates the space of a range, so that no later write to it finds the medium full. The
    /// content stays. False: the medium cannot guarantee that.
    ///
    /// Errors: [`lacuna_contracts::Kind::NoSpace`] if there is not enough space.
    fn allocate(&self, _offset: u64, _len: u64) -> Result<bool> {
        Ok(false)
    }
    /// Changes the length; new bytes read as zeros. A medium of fixed size refuses to grow past it.
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
