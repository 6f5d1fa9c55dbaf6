//! The limits of a file that are known before it is made or grows: the longest file of this process
//! and of the file system, the free space, and the length of a block device.

use crate::file_open::{LinkPolicy, check_takes_writes, open_for_inspection};
use lacuna_contracts::{Error, Hint, Kind, Result, Setting};
use rustix::fs::{statfs, statvfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The type of FAT in statfs(2).
const FAT: u32 = 0x4d44;
/// The bytes of the longest file on FAT.
const LONGEST_ON_FAT: u64 = 0xffff_ffff;

/// The advice if a file may not become longer.
const LONGER_FILES: &str =
    "raise `ulimit -f` if it is set; ext4 takes files up to 16 TiB less 4 KiB: take less, or use xfs";

/// Refuses a length that the file or block device at a path cannot get, before anything else is
/// done for it. `allocates`: refuses also a length that the file system has no space for. A file
/// that is there may be replaced, so its space counts as free. Writes nothing. The call that sets
/// the length checks again.
///
/// Errors: [`Kind::NoSpace`]; those of opening a device.
pub fn check_takes_len(path: &Path, len: u64, allocates: bool) -> Result<()> {
    let about = std::fs::metadata(path);
    if about.as_ref().is_ok_and(|about| about.file_type().is_block_device()) {
        return check_device_len(path, len);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if about.is_ok() { path } else { folder };
    let is_fat = statfs(place).is_ok_and(|about| about.f_type as u32 == FAT);
    let longest = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    if len > longest {
        return Err(length_error(path, len, &Errno::FBIG.into()));
    }
    if is_fat && len > LONGEST_ON_FAT {
        return Err(length_error(path, len, &Errno::FBIG.into()).hint(
            Hint::from("FAT takes files of less than 4 GiB: choose a smaller ")
                .setting(Setting("size"))
                .text(", or use exFAT or ext4"),
        ));
    }
    let taken = about.map_or(0, |about| about.blocks() * 512);
    match statvfs(place) {
        // A file system without a limit, such as a tmpfs, has no blocks.
        Ok(fs) if allocates && fs.f_blocks > 0 => {
            let free = fs.f_bavail.saturating_mul(fs.f_frsize);
            let has_space = len.saturating_sub(taken) <= free;
            if has_space { Ok(()) } else { Err(allocation_error(path, len, &Errno::NOSPC.into())) }
        }
        // Without the free space, the allocation itself reports a lack of it.
        _ => Ok(()),
    }
}

fn check_device_len(path: &Path, len: u64) -> Result<()> {
    let failed = |e| Error::io(format!("cannot read {}", path.display()), &e);
    let mut device = open_for_inspection(path, LinkPolicy::Followed).map_err(failed)?;
    check_takes_writes(&device, path)?;
    let present = device.seek(SeekFrom::End(0)).map_err(failed)?;
    if len <= present { Ok(()) } else { Err(short_device_error(path, present, len)) }
}

/// The error for a block device of `device` bytes that is to have `len`.
pub(crate) fn short_device_error(path: &Path, device: u64, len: u64) -> Error {
    Error::new(Kind::NoSpace, format!("cannot grow {}", path.display()))
        .found(format!("a device of {device} bytes"))
        .expected(format!("at least {len} bytes"))
        .hint("enlarge the device first, or ask for less")
}

/// The error for a file that cannot get the length of `len` bytes.
pub(crate) fn length_error(path: &Path, len: u64, e: &io::Error) -> Error {
    longer_files(Error::io(format!("cannot make {} {len} bytes long", path.display()), e))
}

/// The error for a file that cannot get the space of `len` bytes.
pub(crate) fn allocation_error(path: &Path, len: u64, e: &io::Error) -> Error {
    let error = longer_files(Error::io(format!("cannot allocate {len} bytes for {}", path.display()), e));
    if error.kind() == Kind::NoSpace && error.get_hint().is_none() {
        return error
            .hint(Hint::from("free space on the host, or choose a smaller ").setting(Setting("size")));
    }
    error
}

/// Adds advice to the error for a file that may not become longer.
pub(crate) fn longer_files(e: Error) -> Error {
    if e.errno() == Errno::FBIG.raw_os_error() { e.hint(LONGER_FILES) } else { e }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_without_space_is_refused_only_where_it_is_allocated() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("new");
        let huge = u64::MAX / 4;
        check_takes_len(&file, 1 << 20, true).unwrap();
        check_takes_len(&file, 1 << 20, false).unwrap();
        let refused = check_takes_len(&file, huge, true).unwrap_err();
        assert_eq!(refused.kind(), Kind::NoSpace);
        assert!(refused.to_string().contains("free space on the host"), "{refused}");
        assert!(!file.exists());
    }

    #[test]
    fn an_error_for_too_long_a_file_names_the_limit() {
        let e = length_error(Path::new("x"), 5, &Errno::FBIG.into());
        assert!(e.kind() == Kind::NoSpace && e.to_string().contains("ulimit"), "{e}");
        let e = allocation_error(Path::new("x"), 5, &Errno::FBIG.into());
        assert!(e.to_string().contains("ulimit") && !e.to_string().contains("free space"), "{e}");
        let e = short_device_error(Path::new("x"), 4096, 8192);
        assert!(e.to_string().contains("a device of 4096 bytes"), "{e}");
    }
}
