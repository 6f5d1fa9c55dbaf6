//! Pages of a file or block device in the cache of the system.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{Error, Seek, SeekFrom};
use std::path::Path;
use std::ptr;

/// The smallest page size.
const PAGE: usize = 4096;

/// Number of pages in memory, as the system reports it to the owner. (`fincore` supports files
/// only.)
pub(super) fn resident(path: &Path) -> usize {
    resident_from(path, 0)
}

/// The same for the pages from a byte offset on.
pub(super) fn resident_from(path: &Path, offset: usize) -> usize {
    let mut file = File::open(path).unwrap();
    let len = file.seek(SeekFrom::End(0)).unwrap() as usize;
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: the kernel chooses the address, so no other memory is touched.
    let at = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    // SAFETY: the range is this mapping, and there is a byte for each of its pages.
    let code = unsafe { libc::mincore(at, len, pages.as_mut_ptr()) };
    assert_eq!(code, 0, "{}", Error::last_os_error());
    // SAFETY: the range is this mapping, which is not used any more. None of its pages was touched,
    // so none was brought into memory.
    unsafe { munmap(at, len) }.unwrap();
    pages.iter().skip(offset / PAGE).filter(|page| **page & 1 == 1).count()
}
