//! Finds the users that keep a mount busy, from `/proc` and `/sys`, without accessing the mount.

use crate::{loop_device, mount_table, proc};
use std::path::Path;

/// The most users that a message names.
const NAMED: usize = 8;

/// A part of a sentence such as `bash (process 812), a mount at /mnt/x/y`; `None` if no user was
/// found.
pub(crate) fn describe(mountpoint: &Path) -> Option<String> {
    let processes = proc::processes().filter(|process| proc::uses(*process, mountpoint));
    let mut users: Vec<String> =
        processes.map(|process| format!("{} (process {process})", proc::name_of(process))).collect();
    users.extend(mount_table::below(mountpoint).iter().map(|m| format!("a mount at {}", m.display())));
    users.extend(backing_files(mountpoint));
    let more = users.len().saturating_sub(NAMED);
    users.truncate(NAMED);
    if more > 0 {
        users.push(format!("{more} more"));
    }
    (!users.is_empty()).then(|| users.join(", "))
}

/// Loop devices and swap areas on files below `mountpoint`.
fn backing_files(mountpoint: &Path) -> Vec<String> {
    let devices = loop_device::resting(|file| file.starts_with(mountpoint)).unwrap_or_default();
    let areas = proc::swap_areas().into_iter().filter(|area| area.starts_with(mountpoint));
    let swaps = areas.map(|area| format!("swap on {}", area.display()));
    devices.iter().map(|device| device.display().to_string()).chain(swaps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_this_process_by_its_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(describe(&path), None);
        let _open = std::fs::File::create(path.join("held")).unwrap();
        let said = describe(&path).unwrap();
        assert!(said.contains(&format!("(process {})", std::process::id())), "{said}");
    }
}
