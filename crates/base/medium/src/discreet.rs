//! Reads through the system's cache that leave nothing there, where the system can do that: Linux
//! from 6.14 on, on most file systems, not on block devices (up to 6.18 at least). What lies in the
//! cache already is read from there, and stays.

use crate::ReadExtent;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// RWF_DONTCACHE: pages that this read brings into the cache go with its end.
pub(crate) const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Reads one file so.
#[derive(Default)]
pub(crate) struct DiscreetReader {
    /// An open file of its own, for which the system reads nothing ahead: that would stay. While
    /// there is none to be had, each read tries again.
    file: OnceLock<File>,
    /// Whether the system has refused.
    refused: AtomicBool,
}

impl DiscreetReader {
    /// The file that `open` opens, once. Errors: why there is none; another call may get one.
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

    /// The file that `open` opens, if it is not open yet. None if it cannot be opened, or the
    /// system has refused.
    fn file(&self, open: impl FnOnce() -> Result<File>) -> Option<&File> {
        if self.is_refused() { None } else { self.prepare(open).ok() }
    }

    /// Reads adjacent extents with one call. Whether that gave all of them: if not, they are read
    /// one by one, which finds out what is wrong with which.
    pub(crate) fn read_run(&self, open: impl FnOnce() -> Result<File>, run: &mut [ReadExtent<'_>]) -> bool {
        let Some(file) = self.file(open) else { return false };
        let (offset, len) = (run[0].offset, run.iter().map(|extent| extent.buf.len()).sum());
        let mut bufs: Vec<IoSliceMut<'_>> =
            run.iter_mut().map(|extent| IoSliceMut::new(extent.buf)).collect();
        preadv2(file, &mut bufs, offset, DONT_CACHE) == Ok(len)
    }

    /// Reads an extent. False if the system cannot: an ordinary read does it then. Errors: what the
    /// medium does not give; an ordinary read would keep its neighbours.
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
