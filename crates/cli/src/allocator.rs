//! The system allocator, told that memory counts: a server's many threads would otherwise each keep an arena of
//! freed blocks, which together outgrow the caches whose budget was given.

/// Arenas that all threads share.
const ARENAS: libc::c_int = 2;

/// Called once, before any thread is started.
pub fn keep_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only sets a number inside the allocator; no other thread exists yet to race with.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS);
    }
}
