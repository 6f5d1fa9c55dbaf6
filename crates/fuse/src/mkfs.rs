//! What is on the disk, and making a file system where there is nothing.

use crate::tool;
use lacuna_core::{Error, Kind, Result};
use std::ffi::OsStr;
use std::path::Path;

/// Checks the name of a file system type before it becomes part of a program's name.
pub(crate) fn check_type(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if !name.is_empty() && name.len() <= 16 && name.chars().all(plain) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "cannot make a file system")
        .found(format!("type {name:?}"))
        .expected("a type such as ext4, xfs or btrfs"))
}

/// Makes sure that `device`, on which `found` is, holds a file system: makes one of type `wanted` if it is blank and one is wanted,
/// and refuses to overwrite anything recognizable.
pub(crate) fn prepare(device: &Path, found: Option<Content>, wanted: Option<&str>) -> Result<()> {
    match (found, wanted) {
        (Some(found), None) if found.mountable => Ok(()),
        (Some(found), None) => Err(Error::new(Kind::Usage, "cannot mount the disk")
            .found(found.name)
            .expected("a file system on the whole disk")
            .remedy("serve it with `lacuna serve --socket PATH`, or use `lacuna open --raw`, and mount its parts")),
        (Some(found), Some(wanted)) => Err(Error::new(Kind::Usage, format!("refused to make {wanted}"))
            .found(format!("{} already on the disk", found.name))
            .expected("a blank disk")
            .remedy("open it without --mkfs, or discard the whole disk first (`lacuna open --raw`, then blkdiscard or wipefs)")),
        (None, None) => Err(Error::new(Kind::NotFound, "cannot mount the disk")
            .found("no file system that is known here")
            .remedy("on a new disk give `--mkfs ext4` to make one")),
        (None, Some(wanted)) => make(device, wanted),
    }
}

/// Something recognizable on a disk.
pub(crate) struct Content {
    name: String,
    mountable: bool,
}

/// What is on `device`; `None` if nothing that is known here.
pub(crate) fn content(device: &Path) -> Result<Option<Content>> {
    let what = "cannot look for a file system on the disk";
    let args = [OsStr::new("-p"), OsStr::new("-o"), OsStr::new("export"), device.as_os_str()];
    let probe = tool::run("blkid", &args).map_err(|e| e.context(what))?;
    let value = |key: &str| {
        probe.stdout.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('=')).map(str::to_owned)
    };
    match probe.code {
        Some(0) => Ok(Some(match (value("TYPE"), value("PTTYPE")) {
            (Some(fs), _) => Content { mountable: value("USAGE").as_deref() != Some("raid"), name: fs },
            (None, Some(table)) => Content { name: format!("a partition table ({table})"), mountable: false },
            (None, None) => Content { name: "data of a known kind".to_owned(), mountable: false },
        })),
        Some(2) if probe.stderr.is_empty() => Ok(None),
        Some(8) => {
            Ok(Some(Content { name: "signatures of more than one file system".to_owned(), mountable: false }))
        }
        _ => Err(Error::new(Kind::Io, what).found(format!("blkid: {}", probe.words()))),
    }
}

/// Whole blocks of ours wherever the type lets us say so; the tools' own choice on small disks is 1024 bytes.
fn make(device: &Path, wanted: &str) -> Result<()> {
    let mut args: Vec<&OsStr> = match wanted {
        "ext2" | "ext3" | "ext4" => vec!["-q", "-b", "4096"],
        "xfs" => vec!["-q", "-s", "size=4096"],
        _ => vec![],
    }
    .into_iter()
    .map(OsStr::new)
    .collect();
    args.push(device.as_os_str());
    tool::succeed(&format!("cannot make {wanted}"), &format!("mkfs.{wanted}"), &args).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_become_programs() {
        for good in ["ext4", "xfs", "btrfs", "f2fs"] {
            check_type(good).unwrap();
        }
        for bad in ["", "../sh", "ext4 -F", "EXT4", "a.b", "abcdefghijklmnopq"] {
            assert_eq!(check_type(bad).unwrap_err().kind(), Kind::Usage);
        }
    }
}
