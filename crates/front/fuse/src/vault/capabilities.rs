//! What the server asks of the kernel when it mounts a vault.

use fuser::InitFlags;

/// The capabilities to ask for. Each is optional: an old kernel without it works as well, only
/// slower, or without handles of files.
pub(crate) fn wanted(read_only: bool) -> Vec<InitFlags> {
    let mut wanted = vec![
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_ATOMIC_O_TRUNC,
        // Without it the kernel asks for `security.capability` before each write of each program.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        // For handles (`open_by_handle_at`, an export over NFS) of nodes that it forgot.
        InitFlags::FUSE_EXPORT_SUPPORT,
    ];
    // The kernel (Linux 6.18) keeps old pages after an asynchronous direct write, and later reads
    // get their data. So only a mount without writes takes asynchronous direct requests.
    wanted.push(if read_only { InitFlags::FUSE_ASYNC_DIO } else { InitFlags::FUSE_WRITEBACK_CACHE });
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asynchronous_direct_requests_are_for_mounts_without_writes() {
        for read_only in [false, true] {
            let wanted = wanted(read_only);
            assert_eq!(wanted.contains(&InitFlags::FUSE_ASYNC_DIO), read_only);
            assert_eq!(wanted.contains(&InitFlags::FUSE_WRITEBACK_CACHE), !read_only);
        }
    }
}
