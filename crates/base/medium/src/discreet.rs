//! Reads that leave nothing in the system's cache, where the system can do that: Linux from 6.14 on, on most file systems and block
//! devices. What lies in the cache already is read from there, and stays.

use crate::ReadExtent;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::{IoSliceMut, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// RWF_DONTCACHE: pages that this read brings into the cache go with its end.
const DONT_CACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

/// Reads one file so.
#[derive(Default)]
pub(crate) struct DiscreetReader {
    /// An open file of its own, for which the system reads nothing ahead: that would stay. While there is none to be had, each read tries
    /// again.
    file: OnceLock<File>,
    /// Whether the system has refused.
    pub(crate) refused: AtomicBool,
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

    /// Reads an extent of the file that `open` opens, if it is not open yet. False if the system cannot, or did not give all of it: an
    /// ordinary read does it then. Errors: what the medium does not give; an ordinary read would keep its neighbours.
    pub(crate) fn read(
        &self,
        open: impl FnOnce() -> Result<File>,
        extent: &mut ReadExtent<'_>,
    ) -> Result<bool> {
        if self.refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let Ok(file) = self.prepare(open) else { return Ok(false) };
        let len = extent.buf.len();
        loop {
            match preadv2(file, &mut [IoSliceMut::new(extent.buf)], extent.offset, DONT_CACHE) {
                Ok(read) => return Ok(read == len),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                    self.refused.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}
