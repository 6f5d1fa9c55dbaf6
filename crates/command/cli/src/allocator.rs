//! Settings of the system allocator that save memory. By default each of a server's many threads
//! would keep an arena of freed blocks; together these outgrow the memory budget of the caches.

/// Arenas that all threads share.
const ARENAS: libc::c_int = 2;

/// Allocations of at least this length get their own mapping. Setting the threshold also stops
/// glibc from adapting it.
const LARGE: libc::c_int = 128 << 10;

/// Gives large allocations their own mappings. For three kinds of disks: disks with levels keep
/// large stripe buffers; the client library of RADOS copies all written data; commits of vaults are
/// sometimes large. Between the small allocations of the caches, freed large ones would leave holes
/// that add up to more than the caches. (On other disks large allocations come and go with
/// requests, and the allocator reuses them well.)
pub(crate) fn map_large_allocations() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
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
