//! The system allocator, told that memory counts: a server's many threads would otherwise each keep
//! an arena of freed blocks, which together outgrow the caches whose budget was given.

/// Arenas that all threads share.
const ARENAS: libc::c_int = 2;

/// Blocks of at least this length have pages of their own for good.
const LARGE: libc::c_int = 128 << 10;

/// For disks whose stripes take large blocks and keep them, for those in RADOS, whose client
/// library copies all that is written, and for vaults, whose commits are large now and then: among
/// the small ones of the caches they would leave holes that add up to more than the caches.
/// (Elsewhere large blocks come and go with requests, and the allocator is right to reuse them.)
pub(crate) fn keep_large_apart() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator, under the allocator's own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}

/// Called once, before any thread is started.
pub(crate) fn keep_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator; no other thread exists yet to race
    // with.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}
