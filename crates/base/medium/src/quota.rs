//! The space that the quotas of this user and group leave in a file system, as far as the kernel
//! reports it.
//!
//! Only hard limits count. If a soft limit has been exceeded for too long, or the file system does
//! not report its quotas (btrfs, file servers), the first sign is a refused write.
#![allow(unsafe_code)]

use crate::FsSpace;
use rustix::process::{getegid, geteuid};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// From `asm-generic/unistd.h`: quota requests by a descriptor on the file system.
const QUOTACTL_FD: libc::c_long = 443;
/// From `linux/quota.h`: reads a quota. The low byte is the kind: 0 for a user, 1 for a group.
const GET_QUOTA: libc::c_uint = 0x0080_0007 << 8;
/// The unit of space limits, in bytes.
const UNIT: u64 = 1024;

/// The space of the file system of a directory, limited by the quotas of this user and group.
pub(crate) fn within_quotas(dir: impl AsFd, space: FsSpace) -> FsSpace {
    let ids = [geteuid().as_raw(), getegid().as_raw()];
    (0..).zip(ids).filter_map(|(kind, id)| read_quota(&dir, kind, id)).fold(space, limited)
}

/// A quota; `None` if there is none, or if the kernel does not report it.
fn read_quota(dir: impl AsFd, kind: libc::c_uint, id: u32) -> Option<libc::dqblk> {
    let mut quota = MaybeUninit::<libc::dqblk>::zeroed();
    let dir = dir.as_fd().as_raw_fd();
    // SAFETY: the kernel fills the structure, or reports that it did not; all-zero bytes are valid
    // too.
    unsafe {
        let failed = libc::syscall(QUOTACTL_FD, dir, GET_QUOTA | kind, id, quota.as_mut_ptr()) != 0;
        (!failed).then(|| quota.assume_init())
    }
}

/// The space under a quota. A limit of zero means no limit.
fn limited(space: FsSpace, quota: libc::dqblk) -> FsSpace {
    let least = |(total, free): (u64, u64), limit: u64, used: u64| {
        let (most, left) = if limit == 0 { (total, free) } else { (limit, limit.saturating_sub(used)) };
        (total.min(most), free.min(left))
    };
    let counted = space.total_files > 0 || quota.dqb_ihardlimit == 0;
    let files = if counted { (space.total_files, space.free_files) } else { (u64::MAX, u64::MAX) };
    let (total_files, free_files) = least(files, quota.dqb_ihardlimit, quota.dqb_curinodes);
    let most = quota.dqb_bhardlimit.saturating_mul(UNIT);
    let (total_bytes, free_bytes) = least((space.total_bytes, space.free_bytes), most, quota.dqb_curspace);
    FsSpace { total_bytes, free_bytes, total_files, free_files }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: FsSpace =
        FsSpace { total_bytes: 1 << 30, free_bytes: 1 << 20, total_files: 0, free_files: 0 };

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
    fn a_quota_limits_the_space() {
        assert_eq!(limited(SPACE, quota(0, 1 << 20, 0)), SPACE);
        let space = limited(SPACE, quota(100, 60 << 10, 0));
        assert_eq!(space, FsSpace { total_bytes: 100 << 10, free_bytes: 40 << 10, ..SPACE });
        assert_eq!(limited(SPACE, quota(100, 200 << 10, 0)).free_bytes, 0);
        // The file system may have less space than the quota allows.
        assert_eq!(limited(SPACE, quota(1 << 30, 0, 0)), SPACE);
        let space = limited(SPACE, quota(0, 0, 100));
        assert_eq!(space, FsSpace { total_files: 100, free_files: 50, ..SPACE });
    }

    #[test]
    fn quotas_never_add_space() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::File::open(dir.path()).unwrap();
        let within = within_quotas(&dir, SPACE);
        assert!(within.total_bytes <= SPACE.total_bytes && within.free_bytes <= SPACE.free_bytes);
    }
}
