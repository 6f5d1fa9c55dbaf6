//! Reads the kernel's mount table. Accesses no mount.

use crate::proc;
use lacuna_contracts::{Error, Result};
use std::ffi::OsString;
use std::fmt::Display;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The source in mount tables of FUSE mounts of lacuna without a name of their own.
pub const FUSE_SOURCE: &str = "lacuna";
/// The subtype of every FUSE mount of lacuna: mount tables show the type `fuse.lacuna`.
pub const FUSE_SUBTYPE: &str = "lacuna";

/// One entry of a mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Device number as `major:minor`.
    pub device: String,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type of the file system.
    pub fs_type: String,
    /// The source, as given at the mount.
    pub source: String,
    /// The user that mounted it, for a FUSE mount.
    pub user: Option<u32>,
    /// Whether mount propagation (shared or slave) carries an unmount of the original to this
    /// mount.
    pub is_propagated: bool,
}

impl MountEntry {
    /// Whether this is a FUSE mount of lacuna.
    pub fn is_our_fuse(&self) -> bool {
        self.fs_type.strip_prefix("fuse.") == Some(FUSE_SUBTYPE)
    }

    /// Whether a program serves it through FUSE from the file of a disk.
    pub fn is_served_from(&self, file: &Path) -> bool {
        self.fs_type.starts_with("fuse") && Path::new(&self.source) == file
    }

    /// Whether it is an automount: on the first access the kernel blocks the caller and asks
    /// systemd to mount something.
    pub fn is_automount(&self) -> bool {
        self.fs_type == "autofs"
    }

    /// Whether it was mounted from the block device `node` with this number. A file system with a
    /// device number of its own, such as btrfs, is compared by its source.
    pub fn is_mounted_from(&self, node: &Path, number: &str) -> bool {
        self.device == number || (self.device.starts_with("0:") && Path::new(&self.source) == node)
    }
}

/// Every mount that this process sees; a later mount at the same path covers an earlier one.
pub(crate) fn entries() -> Result<Vec<MountEntry>> {
    entries_of("self")
}

/// Every mount that a process sees. `process` is its number, or `self`.
pub(crate) fn entries_of(process: impl Display) -> Result<Vec<MountEntry>> {
    let failed = |e| Error::io(format!("cannot read the mount table /proc/{process}/mountinfo"), &e);
    let table = proc::mount_table(&process).map_err(failed)?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse).collect())
}

/// The topmost mount at `path`, if `path` is a mount point.
pub fn at(path: &Path) -> Result<Option<MountEntry>> {
    Ok(entries()?.into_iter().rfind(|e| e.mountpoint == path))
}

/// Whether the topmost mount at `path` is an automount. A process that mounts there must not access
/// `path` itself: it would wait for ever.
pub fn is_automount(path: &Path) -> Result<bool> {
    Ok(at(path)?.is_some_and(|top| top.is_automount()))
}

/// Whether there is an automount at `path`, even below another mount.
pub fn has_automount(path: &Path) -> Result<bool> {
    Ok(entries()?.iter().any(|e| e.mountpoint == path && e.is_automount()))
}

/// Whether something is mounted at `path`.
pub fn is_mounted(path: &Path) -> Result<bool> {
    Ok(at(path)?.is_some())
}

/// Whether a process sees a mount at `path` that is no automount. It may be in another mount
/// namespace, such as that of a container, with mounts that this process does not see. Unlike its
/// namespace, its mount table is open to every user that sees the process. False if it cannot be
/// read.
pub fn is_mounted_for(process: u32, path: &Path) -> bool {
    let top = |all: Vec<MountEntry>| all.into_iter().rfind(|e| e.mountpoint == path);
    entries_of(process).is_ok_and(|all| top(all).is_some_and(|top| !top.is_automount()))
}

/// Whether the mount at `path` also exists where an unmount of `path` does not reach it: at another
/// path, or in another mount namespace such as a container. Considers only mount namespaces that
/// this user may inspect.
pub fn is_mounted_elsewhere(path: &Path) -> bool {
    let Ok(Some(top)) = at(path) else { return false };
    let mut seen = vec![proc::mount_namespace("self")];
    let mut others = proc::processes().filter(|process| {
        let theirs = proc::mount_namespace(process);
        let new = theirs.is_some() && !seen.contains(&theirs);
        if new {
            seen.push(theirs);
        }
        new
    });
    let is_here = |entry: &MountEntry| entry.device == top.device && entry.mountpoint != path;
    let is_there =
        |entry: &MountEntry| entry.device == top.device && (entry.mountpoint != path || !entry.is_propagated);
    entries().is_ok_and(|all| all.iter().any(is_here))
        || others.any(|process| entries_of(process).is_ok_and(|all| all.iter().any(is_there)))
}

/// Mount points strictly below `path`.
pub(crate) fn below(path: &Path) -> Vec<PathBuf> {
    let all = entries().unwrap_or_default();
    all.into_iter().map(|e| e.mountpoint).filter(|m| m != path && m.starts_with(path)).collect()
}

fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&b| b == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let mountpoint = unescape(fields.nth(1)?);
    let mut follows = false;
    fields.find(|f| {
        follows |= f.starts_with(b"shared:") || f.starts_with(b"master:");
        *f == b"-"
    })?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = unescape(fields.next()?).to_string_lossy().into_owned();
    let options = std::str::from_utf8(fields.next().unwrap_or_default()).unwrap_or_default();
    let user = options.split(',').find_map(|option| option.strip_prefix("user_id=")?.trim().parse().ok());
    Some(MountEntry { device, mountpoint, fs_type, source, user, is_propagated: follows })
}

/// Decodes the octal escapes that the kernel uses for spaces and similar characters.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let escaped = (first == b'\\').then(|| tail.get(..3)).flatten().and_then(octal);
        bytes.push(escaped.unwrap_or(first));
        rest = if escaped.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    let value = digits
        .iter()
        .try_fold(0u32, |sum, d| (b'0'..=b'7').contains(d).then(|| sum * 8 + u32::from(d - b'0')))?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_lines_are_parsed() {
        let line = b"36 35 7:3 /root /mnt/a\\040b\\134c rw,noatime shared:1 master:2 - ext4 /dev/loop3 rw";
        assert_eq!(
            parse(line).unwrap(),
            MountEntry {
                device: "7:3".into(),
                mountpoint: "/mnt/a b\\c".into(),
                fs_type: "ext4".into(),
                source: "/dev/loop3".into(),
                user: None,
                is_propagated: true,
            }
        );
        let fuse =
            parse(b"36 35 0:41 / /mnt/a rw - fuse.ext4 /run/a\\040b rw,user_id=1000,group_id=7").unwrap();
        assert_eq!((fuse.user, &*fuse.source), (Some(1000), "/run/a b"));
        let vault = parse(b"36 35 0:41 / /mnt/a rw - fuse.lacuna /home/me/v rw,user_id=1000").unwrap();
        assert!(vault.is_our_fuse() && !fuse.is_our_fuse());
        let ext4 = parse(line).unwrap();
        assert!(
            ext4.is_mounted_from(Path::new("/dev/loop9"), "7:3")
                && !ext4.is_mounted_from(Path::new("/dev/loop3"), "7:9")
        );
        let btrfs = parse(b"36 35 0:53 / /mnt/a rw - btrfs /dev/loop3 rw").unwrap();
        assert!(
            btrfs.is_mounted_from(Path::new("/dev/loop3"), "7:3")
                && !btrfs.is_mounted_from(Path::new("/dev/loop4"), "7:4")
        );
        for broken in [&b""[..], b"1 2 3", b"1 2 7:3 / /x rw", b"1 2 7:3 / /x rw -"] {
            assert_eq!(parse(broken), None);
        }
        assert_eq!(unescape(b"a\\9\\77"), PathBuf::from("a\\9\\77"));
        assert!(is_mounted(Path::new("/proc")).unwrap() && !is_mounted(Path::new("/proc/self")).unwrap());
        let own = std::process::id();
        assert!(is_mounted_for(own, Path::new("/proc")) && !is_mounted_for(own, Path::new("/proc/self")));
        assert!(!is_mounted_for(u32::MAX, Path::new("/proc")));
    }
}
