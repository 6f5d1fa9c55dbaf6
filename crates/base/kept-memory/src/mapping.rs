//! The mapped pages. All unsafe code of the crate is here.
#![allow(unsafe_code)]

use lacuna_contracts::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Pages that are mapped until this value is dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the value alone owns the mapping, and shares only atomic words of it.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`; the bytes are reached only through unsafe methods.
unsafe impl Sync for Mapping {}

const ACCESS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// New pages of this process alone, all zeros.
    pub(crate) fn anonymous(len: usize) -> Result<Mapping> {
        // A page takes memory once it is written.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the system chooses touches no memory in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ACCESS, flags) };
        Self::of(start, len)
    }

    /// The pages of a file, which must not become shorter.
    pub(crate) fn of_file(file: &File, len: usize) -> Result<Mapping> {
        // SAFETY: as for `anonymous`.
        let start = unsafe { mmap(std::ptr::null_mut(), len, ACCESS, MapFlags::SHARED, file, 0) };
        Self::of(start, len)
    }

    fn of(start: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Mapping> {
        let start = start.map_err(|e| Error::io("cannot map the memory for pending writes", &e.into()))?;
        // SAFETY: the advice concerns the pages just mapped, and changes none of their bytes.
        unsafe { madvise(start, len, Advice::LinuxDontDump) }
            .map_err(|e| Error::io("cannot keep pending writes out of core dumps", &e.into()))?;
        Ok(Mapping { start: NonNull::new(start.cast()).expect("a mapping never starts at address 0"), len })
    }

    /// The word at an offset, which must be a multiple of 8.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        &self.words(offset, 1)[0]
    }

    /// Words at an offset, which must be a multiple of 8. They are never part of an
    /// [`OwnedRange`].
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        assert!(offset.is_multiple_of(8), "words that are not aligned");
        let start = self.start_of(&(offset..offset + 8 * count));
        // SAFETY: the range is mapped for as long as `self` lives, aligned, and only accessed as
        // atomic words, for which every value is valid.
        unsafe { std::slice::from_raw_parts(start.cast(), count) }
    }

    /// The address of a range.
    fn start_of(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "a range outside the mapping");
        // SAFETY: the range was just found to lie in the mapping.
        unsafe { self.start.as_ptr().add(range.start) }
    }

    /// Copies the bytes of a record of another mapping, which nothing writes meanwhile.
    #[cfg(feature = "simulation")]
    pub(crate) fn copy_bytes(&self, from: &Mapping, range: Range<usize>) {
        let to = self.start_of(&range);
        // SAFETY: both ranges are mapped, in different mappings, and no owner holds the range in
        // this mapping.
        unsafe { std::ptr::copy_nonoverlapping(from.start_of(&range), to, range.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped for this value, and nothing refers to them any more.
        // Unmapping them can fail only if the range were not this mapping.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The bytes of one record. A pool gives each range to one owner at a time, and bytes and words of
/// a mapping never overlap.
pub(crate) struct OwnedRange(Range<usize>);

impl OwnedRange {
    /// The range of a record. Only a pool calls this, for a record that no owner holds.
    pub(crate) fn of_record(range: Range<usize>) -> OwnedRange {
        OwnedRange(range)
    }

    /// The bytes in the mapping of the pool.
    pub(crate) fn bytes<'m>(&'m self, mapping: &'m Mapping) -> &'m [u8] {
        let start = mapping.start_of(&self.0);
        // SAFETY: the range is mapped for as long as `mapping` lives. `self` alone owns it, and is
        // borrowed as shared, so nothing writes to it.
        unsafe { std::slice::from_raw_parts(start, self.0.len()) }
    }

    /// The bytes in the mapping of the pool, to be written.
    pub(crate) fn bytes_mut<'m>(&'m mut self, mapping: &'m Mapping) -> &'m mut [u8] {
        let start = mapping.start_of(&self.0);
        // SAFETY: as for `bytes`, and `self` is borrowed exclusively, so nothing reads it either.
        unsafe { std::slice::from_raw_parts_mut(start, self.0.len()) }
    }
}
