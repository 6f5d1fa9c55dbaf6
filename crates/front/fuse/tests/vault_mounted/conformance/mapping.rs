//! A mapping of a file into memory.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::ptr;

/// A mapped part of a file. Reading or writing a page past the file's end kills the process, so
/// callers stay below it.
pub(crate) struct MemoryMap {
    at: *mut c_void,
    len: usize,
}

impl MemoryMap {
    /// Maps for reading and writing; writes reach the file.
    pub(crate) fn shared(file: &File, offset: u64, len: usize) -> rustix::io::Result<Self> {
        Self::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED)
    }

    /// Maps for reading and writing; writes stay private.
    pub(crate) fn private(file: &File, offset: u64, len: usize) -> rustix::io::Result<Self> {
        Self::new(file, offset, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }

    /// Maps for reading.
    pub(crate) fn reading(file: &File, offset: u64, len: usize) -> rustix::io::Result<Self> {
        Self::new(file, offset, len, ProtFlags::READ, MapFlags::SHARED)
    }

    fn new(
        file: &File,
        offset: u64,
        len: usize,
        access: ProtFlags,
        kind: MapFlags,
    ) -> rustix::io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no other memory is touched.
        let at = unsafe { mmap(ptr::null_mut(), len, access, kind, file, offset) }?;
        Ok(MemoryMap { at, len })
    }

    pub(crate) fn read(&self, from: usize, len: usize) -> Vec<u8> {
        assert!(from + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: the range is mapped, by the check above; it is not written concurrently.
        unsafe { ptr::copy_nonoverlapping(self.at.cast::<u8>().add(from), out.as_mut_ptr(), len) };
        out
    }

    pub(crate) fn write(&self, to: usize, data: &[u8]) {
        assert!(to + data.len() <= self.len);
        // SAFETY: the range is mapped, by the check above; it is not accessed concurrently.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), self.at.cast::<u8>().add(to), data.len()) };
    }

    /// Calls `msync` and waits until the data is on the storage.
    pub(crate) fn sync(&self) -> rustix::io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { msync(self.at, self.len, MsyncFlags::SYNC) }
    }
}

impl Drop for MemoryMap {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and it is not used after the drop.
        let _ = unsafe { munmap(self.at, self.len) };
    }
}
