//! Reads through the system's cache that leave nothing there. Supported by Linux 6.14 and later, on
//! most file systems, but not on block devices (at least up to 6.18). Pages already in the cache
//! are read from there, and stay.

use crate::ReadExtent;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// RWF_DONTCACHE: pages that this read adds to the cache are dropped at its end.
pub(crate) const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Reads one file with `DONT_CACHE`.
#[derive(Default)]
pub(crate) struct DontCacheReader {
    /// A separate open file without read-ahead: pages read ahead would stay in the cache. Until it
    /// can be opened, each read tries again.
    file: OnceLock<File>,
    /// Whether the system has refused.
    refused: AtomicBool,
}

impl DontCacheReader {
    /// Opens the file with `open` unless it is open. Errors: those of `open`; a later call may
    /// succeed.
    pub(crate) fn prepare(&self, open: impl FnOnce() -> Result<File>) -> Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = open()?;
        fadvise(&file, 0, None, Advice::Random)?;
        Ok(self.file.get_or_init(|| file))
    }

    /// Whether the system has refused such reads.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// The open file; `open` opens it if needed. `None` if that fails, or if the system has
    /// refused.
    fn file(&self, open: impl FnOnce() -> Result<File>) -> Option<&File> {
        if self.is_refused() { None } else { self.prepare(open).ok() }
    }

    /// Reads adjacent extents with one call. False if that did not read all of them: the caller
    /// then reads one by one, to find the failing extent.
    pub(crate) fn read_run(&self, open: impl FnOnce() -> Result<File>, run: &mut [ReadExtent<'_>]) -> bool {
        let Some(file) = self.file(open) else { return false };
        let (offset, len) = (run[0].offset, run.iter().map(|extent| extent.buf.len()).sum());
        let mut bufs: Vec<IoSliceMut<'_>> =
            run.iter_mut().map(|extent| IoSliceMut::new(extent.buf)).collect();
        preadv2(file, &mut bufs, offset, DONT_CACHE) == Ok(len)
    }

    /// Reads an extent. False if the system cannot: the caller then uses an ordinary read. Errors:
    /// those of the medium. An ordinary read would not help, and would leave neighbouring pages in
    /// the cache.
    pub(crate) fn read(
        &self,
        open: impl FnOnce() -> Result<File>,
        extent: &mut ReadExtent<'_>,
    ) -> Result<bool> {
        let Some(file) = self.file(open) else { return Ok(false) };
        let mut done = 0;
        while done < extent.buf.len() {
            let (offset, rest) = (extent.offset + done as u64, &mut extent.buf[done..]);
            match preadv2(file, &mut [IoSliceMut::new(rest)], offset, DONT_CACHE) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.refused.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(true)
    }
}
