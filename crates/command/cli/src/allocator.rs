//! Settings of the system allocator, which save memory, or processor time. By default each of a
//! server's many threads would keep an arena of freed blocks; together these outgrow the memory
//! budget of the caches.

/// Arenas that all threads share.
const ARENAS: libc::c_int = 2;

/// Allocations of at least this length get their own mapping. Setting the threshold also stops
/// glibc from adapting it.
const LARGE: libc::c_int = 128 << 10;

/// The same for disks in a pool. Each buffer of a request for a whole object of 4 MiB is shorter.
const LARGE_IN_POOL: libc::c_int = 8 << 20;
/// For disks in a pool: free memory at the end of an arena that goes back to the system only once
/// it is as long as this.
const FREE_AT_END_IN_POOL: libc::c_int = 16 << 20;

/// Gives large allocations their own mappings. For two kinds of disks: disks with levels keep large
/// stripe buffers; commits of vaults are sometimes large. Between the small allocations of the
/// caches, freed large ones would leave holes that add up to more than the caches. (On other disks
/// large allocations come and go with requests, and the allocator reuses them well.)
pub(crate) fn map_large_allocations() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Lets large allocations take memory that was freed before. For disks in a pool: the client
/// library allocates a buffer for the data of each request. If each buffer got its own mapping, the
/// kernel would clear and map 256 pages for a request of 1 MiB, and unmap them again. glibc does
/// not adapt its threshold to such buffers if all have the same length: an allocation of aligned
/// memory asks for more than the freed mapping counts.
pub(crate) fn reuse_large_allocations() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_IN_POOL);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREE_AT_END_IN_POOL);
    }
}

/// Limits the number of arenas. Called once, before any thread starts.
pub(crate) fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator; no other thread exists yet to race
    // with.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::mem::MaybeUninit;

    const PAGE: usize = 4096;

    /// The number of pages that the kernel mapped for the calling thread so far.
    fn mapped_pages() -> i64 {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the structure is of the right size, and all zeros are a valid value of it.
        unsafe {
            libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            usage.assume_init().ru_minflt
        }
    }

    /// Allocates a buffer as the client library of RADOS does, writes to it and frees it.
    fn use_buffer(len: usize) {
        let layout = Layout::from_size_align(len, PAGE).unwrap();
        // SAFETY: the layout is not empty, and the buffer is freed with the same layout.
        unsafe {
            let buffer = alloc_zeroed(layout);
            assert!(!std::hint::black_box(buffer).is_null());
            dealloc(buffer, layout);
        }
    }

    #[test]
    fn buffers_of_requests_to_a_pool_are_reused() {
        reuse_large_allocations();
        for len in [1 << 20, 4 << 20] {
            let before = mapped_pages();
            (0..64).for_each(|_| use_buffer(len));
            let mapped = mapped_pages() - before;
            let most = 64 * (len / PAGE) as i64 / 4;
            assert!(mapped < most, "{mapped} pages for 64 buffers of {len} bytes");
        }
    }
}
