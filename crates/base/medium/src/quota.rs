//! What the quotas of this user and this group leave in a file system, as far as the kernel tells.
//!
//! Hard limits count alone. Past a soft limit for too long, and where the file system keeps a quota
//! to itself (btrfs, servers), nothing tells before a write is refused.
#![allow(unsafe_code)]

use crate::Space;
use rustix::process::{getegid, geteuid};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// From `asm-generic/unistd.h`: asks about quotas by a descriptor of the file system.
const QUOTACTL_FD: libc::c_long = 443;
/// From `linux/quota.h`: asks for a quota of the kind that is added: 0 of a user, 1 of a group.
const GET_QUOTA: libc::c_uint = 0x0080_0007 << 8;
/// Bytes in which limits of space are counted.
const UNIT: u64 = 1024;

/// The space of the file system of a directory, less what quotas keep from this user and this
/// group.
pub(crate) fn within_quotas(dir: impl AsFd, space: Space) -> Space {
    let ids = [geteuid().as_raw(), getegid().as_raw()];
    (0..).zip(ids).filter_map(|(kind, id)| ask(&dir, kind, id)).fold(space, limited)
}

/// A quota. None where there is none, or the kernel does not tell.
fn ask(dir: impl AsFd, kind: libc::c_uint, id: u32) -> Option<libc::dqblk> {
    let mut quota = MaybeUninit::<libc::dqblk>::zeroed();
    let dir = dir.as_fd().as_raw_fd();
    // SAFETY: the kernel fills the structure, or says that it did not; zeroed bytes are one as
    // well.
    unsafe {
        let failed = libc::syscall(QUOTACTL_FD, dir, GET_QUOTA | kind, id, quota.as_mut_ptr()) != 0;
        (!failed).then(|| quota.assume_init())
    }
}

/// The space under a quota, in which zero stands for no limit.
fn limited(space: Space, quota: libc::dqblk) -> Space {
    let least = |(total, free): (u64, u64), limit: u64, used: u64| {
        let (most, left) = if limit == 0 { (total, free) } else { (limit, limit.saturating_sub(used)) };
        (total.min(most), free.min(left))
    };
    let counted = space.total_files > 0 || quota.dqb_ihardlimit == 0;
    let files = if counted { (space.total_files, space.free_files) } else { (u64::MAX, u64::MAX) };
    let (total_files, free_files) = least(files, quota.dqb_ihardlimit, quota.dqb_curinodes);
    let most = quota.dqb_bhardlimit.saturating_mul(UNIT);
    let (total_bytes, free_bytes) = least((space.total_bytes, space.free_bytes), most, quota.dqb_curspace);
    Space { total_bytes, free_bytes, total_files, free_files }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: Space = Space { total_bytes: 1 << 30, free_bytes: 1 << 20, total_files: 0, free_files: 0 };

    fn quota(kibibytes: u64, bytes: u64, files: u64) -> libc::dqblk {
        let used = files / 2;
        libc::dqblk {
            dqb_bhardlimit: kibibytes,
            dqb_bsoftlimit: 0,
            dqb_curspace: bytes,
            dqb_ihardlimit: files,
            dqb_isoftlimit: 0,
            dqb_curinodes: used,
            dqb_btime: 0,
            dqb_itime: 0,
            dqb_valid: 0,
        }
    }

    #[test]
    fn a_quota_leaves_no_more_than_it_has() {
        assert_eq!(limited(SPACE, quota(0, 1 << 20, 0)), SPACE);
        let space = limited(SPACE, quota(100, 60 << 10, 0));
        assert_eq!(space, Space { total_bytes: 100 << 10, free_bytes: 40 << 10, ..SPACE });
        assert_eq!(limited(SPACE, quota(100, 200 << 10, 0)).free_bytes, 0);
        // The file system may have less than the quota leaves.
        assert_eq!(limited(SPACE, quota(1 << 30, 0, 0)), SPACE);
        let space = limited(SPACE, quota(0, 0, 100));
        assert_eq!(space, Space { total_files: 100, free_files: 50, ..SPACE });
    }

    #[test]
    fn a_directory_without_quotas_has_all_of_its_space() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::File::open(dir.path()).unwrap();
        let within = within_quotas(&dir, SPACE);
        assert!(within.total_bytes <= SPACE.total_bytes && within.free_bytes <= SPACE.free_bytes);
    }
}
