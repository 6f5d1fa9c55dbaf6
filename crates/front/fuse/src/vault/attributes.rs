//! Conversion of attributes and times between the vault and FUSE.

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use lacuna_vault::{Attr, BLOCK, FileKind, SystemWallClock, Time, WallClock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The attributes for the kernel.
pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks512,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.crtime),
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

/// The reply for a missing name, which the kernel caches for as long as an entry is valid.
pub(crate) fn no_entry() -> FileAttr {
    empty_attr(INodeNo(0), FileType::RegularFile)
}

/// For an entry of a listing with unreadable attributes. The kernel lists the name, ignores the
/// attributes because of their impossible size, and asks for them when a program does; that program
/// sees the error.
pub(crate) fn unreadable_entry(ino: u64, kind: FileKind) -> FileAttr {
    FileAttr { size: u64::MAX, ..empty_attr(INodeNo(ino), file_type(kind)) }
}

fn empty_attr(ino: INodeNo, kind: FileType) -> FileAttr {
    FileAttr {
        ino,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The kind for the kernel.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// Converts a time for the kernel. A time that the system cannot represent becomes the epoch.
pub(crate) fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|s| s.checked_add(Duration::from_nanos(time.nanos.into()))).unwrap_or(UNIX_EPOCH)
}

/// Converts a requested time.
pub(crate) fn time_or_now(time: TimeOrNow) -> Time {
    match time {
        TimeOrNow::SpecificTime(at) => time_from_kernel(at),
        TimeOrNow::Now => SystemWallClock.now(),
    }
}

/// Converts a time from the kernel. For negative seconds `fuser` 0.18 subtracts both seconds and
/// nanoseconds from the epoch, while the kernel counts the nanoseconds forward. This reverses the
/// error of `fuser`.
pub(crate) fn time_from_kernel(at: SystemTime) -> Time {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => Time { secs: after.as_secs() as i64, nanos: after.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Time { secs: 0i64.wrapping_sub_unsigned(before.as_secs()), nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let time = Time { secs: -2, nanos: 250_000_000 };
        let at = system_time(time);
        assert_eq!(UNIX_EPOCH.duration_since(at).unwrap(), Duration::from_millis(1750));
        // The value that fuser 0.18 makes of the same pair.
        assert_eq!(time_from_kernel(UNIX_EPOCH - Duration::new(2, 250_000_000)), time);
        let later = Time { secs: 5, nanos: 7 };
        assert_eq!(time_from_kernel(system_time(later)), later);
        for far in [i64::MIN, i64::MAX] {
            system_time(Time { secs: far, nanos: 999_999_999 });
        }
    }
}
