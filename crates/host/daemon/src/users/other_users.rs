//! Recognizes disks and vaults that servers outside this user's run directories have open, from the
//! mount table. They belong to other users, and the commands of this user leave them alone.

use crate::run_dir::is_disk_file;
use lacuna_mount::loop_device::backing_file;
use lacuna_mount::mount_table::MountEntry;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The user that has a lacuna mount open, such as `user 1000`; `None` for other mounts.
pub(crate) fn owner_of_mount(entry: &MountEntry) -> Option<String> {
    let is_of_program = entry.fs_type.starts_with("fuse") && is_disk_file(Path::new(&entry.source));
    let ours = entry.is_our_fuse() || is_of_program;
    let user = if ours { entry.user } else { backing_disk_file(entry).and_then(|file| owner_of_base(&file)) };
    let own = rustix::process::geteuid().as_raw();
    match user {
        Some(user) if user == own => {
            Some("this user with another run directory (XDG_RUNTIME_DIR)".to_owned())
        }
        Some(user) => Some(format!("user {user}")),
        None => ours.then(|| "another user".to_owned()),
    }
}

/// The disk file of lacuna below a loop device.
fn backing_disk_file(entry: &MountEntry) -> Option<PathBuf> {
    let device = Path::new(&entry.source);
    let file = if device.starts_with("/dev") { backing_file(device).ok()?? } else { return None };
    is_disk_file(&file).then_some(file)
}

/// The owner of the run directory base that contains this file.
fn owner_of_base(file: &Path) -> Option<u32> {
    file.ancestors().nth(3).and_then(|base| fs::symlink_metadata(base).ok()).map(|meta| meta.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_of_a_mount_is_recognized() {
        let fuse = |fs_type: &str, source: &str, user| MountEntry {
            device: "0:41".into(),
            mountpoint: "/mnt".into(),
            fs_type: fs_type.into(),
            source: source.into(),
            user,
            is_propagated: false,
        };
        let file = "/run/user/7/lacuna/0123456789abcdef/fuse/disk";
        assert_eq!(owner_of_mount(&fuse("fuse.ext4", file, Some(77))).unwrap(), "user 77");
        assert_eq!(owner_of_mount(&fuse("fuse.lacuna", "/home/me/vault", Some(77))).unwrap(), "user 77");
        assert_eq!(owner_of_mount(&fuse("fuse.lacuna", "lacuna", None)).unwrap(), "another user");
        assert_eq!(owner_of_mount(&fuse("fuse.ext4", "/home/me/disk", Some(77))), None);
        assert_eq!(owner_of_mount(&fuse("fuse.ext4", "lacuna", None)), None);
        assert_eq!(owner_of_mount(&fuse("fuse", "/dev/no-such", None)), None);
    }
}
