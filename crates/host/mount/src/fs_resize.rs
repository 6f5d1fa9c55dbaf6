//! Grows the mounted file system with its own tool after its disk has grown.

use crate::{command, mount_table};
use lacuna_contracts::{Result, shell_word};
use std::ffi::OsString;
use std::fmt;
use std::path::Path;

/// The command that grows a mounted file system to the size of its device.
#[derive(Debug, PartialEq, Eq)]
pub struct FsResize {
    program: &'static str,
    args: Vec<OsString>,
}

impl FsResize {
    /// The command for the file system that is mounted at `mountpoint` from `loop_device`. None if
    /// its type cannot grow or is unknown, if it has no loop device because a program serves it, or
    /// if another mount covers it.
    ///
    /// Errors: a mount table that cannot be read.
    pub fn of(mountpoint: &Path, loop_device: Option<&Path>) -> Result<Option<FsResize>> {
        let top = mount_table::at(mountpoint)?;
        let ours = top.filter(|top| loop_device == Some(Path::new(&top.source)));
        Ok(ours.and_then(|top| FsResize::for_type(&top.fs_type, Path::new(&top.source), mountpoint)))
    }

    fn for_type(fs_type: &str, device: &Path, mountpoint: &Path) -> Option<FsResize> {
        let (program, args) = match fs_type {
            "ext2" | "ext3" | "ext4" => ("resize2fs", vec![device.into()]),
            "xfs" => ("xfs_growfs", vec![mountpoint.into()]),
            "btrfs" => {
                let words = ["filesystem", "resize", "max"].map(OsString::from);
                ("btrfs", words.into_iter().chain([mountpoint.into()]).collect())
            }
            _ => return None,
        };
        Some(FsResize { program, args })
    }

    /// Runs the command. Errors: those of the tool.
    pub fn run(&self) -> Result<()> {
        command::run_checked("cannot make the file system larger", self.program, &self.args).map(drop)
    }
}

impl fmt::Display for FsResize {
    /// The command as a user types it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}", self.program)?;
        self.args.iter().try_for_each(|word| write!(f, " {}", shell_word(word)))?;
        write!(f, "`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_type_has_its_command() {
        let of = |fs_type| FsResize::for_type(fs_type, Path::new("/dev/loop3"), Path::new("/mnt/my files"));
        let words = |fs_type| of(fs_type).map(|growth| growth.to_string());
        assert_eq!(words("ext4").unwrap(), "`resize2fs /dev/loop3`");
        assert_eq!(words("xfs").unwrap(), "`xfs_growfs '/mnt/my files'`");
        assert_eq!(words("btrfs").unwrap(), "`btrfs filesystem resize max '/mnt/my files'`");
        assert_eq!(words("vfat"), None);
    }
}
