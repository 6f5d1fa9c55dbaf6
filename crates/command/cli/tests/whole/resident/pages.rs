//! Pages of a file or block device in the cache of the system.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::io::{Error, Seek, SeekFrom};
use std::path::Path;
use std::ptr;

/// The smallest page that there is.
const PAGE: usize = 4096;

/// How many pages are in memory, as the system tells the owner. (`fincore` tells it of files
/// alone.)
pub(super) fn resident(path: &Path) -> usize {
    let mut file = File::open(path).unwrap();
    let len = file.seek(SeekFrom::End(0)).unwrap() as usize;
    let mut pages = vec![0u8; len.div_ceil(PAGE)];
    // SAFETY: the kernel chooses the place, so no other memory is touched.
    let at = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    // SAFETY: the range is this mapping, and there is a byte for each of its pages.
    let told = unsafe { libc::mincore(at, len, pages.as_mut_ptr()) };
    assert_eq!(told, 0, "{}", Error::last_os_error());
    // SAFETY: the range is this mapping, which nothing uses any more. No page of it was touched, so
    // none came into memory.
    unsafe { munmap(at, len) }.unwrap();
    pages.iter().filter(|page| **page & 1 == 1).count()
}
