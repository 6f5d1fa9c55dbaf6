//! Finds the users that keep a mount busy, from `/proc` and `/sys`, without accessing the mount.

use crate::proc::MountUse;
use crate::{loop_device, mount_table, proc};
use std::path::Path;

/// The most users that a message names.
const NAMED: usize = 8;

/// A part of a sentence such as `bash (process 812), a mount at /mnt/x/y`; `None` if no user was
/// found.
///
/// A process is left out if it uses only the working directory that it got from a named parent:
/// `umount`, its helper, and every other command that a shell runs there.
pub(crate) fn describe(mountpoint: &Path) -> Option<String> {
    let processes = proc::processes();
    let uses: Vec<(u32, MountUse)> =
        processes.filter_map(|process| Some((process, proc::use_of(process, mountpoint)?))).collect();
    let has_user_as_parent = |process: u32| {
        let parent = proc::parent_of(process);
        uses.iter().any(|(user, _)| *user == parent)
    };
    let named = uses
        .iter()
        .filter(|(process, how)| *how == MountUse::Content || !has_user_as_parent(*process))
        .map(|(process, _)| *process);
    let mut users: Vec<String> =
        named.map(|process| format!("{} (process {process})", proc::name_of(process))).collect();
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
    let devices = loop_device::devices_with(|file| file.starts_with(mountpoint)).unwrap_or_default();
    let areas = proc::swap_areas().into_iter().filter(|area| area.starts_with(mountpoint));
    let swaps = areas.map(|area| format!("swap on {}", area.display()));
    devices.iter().map(|device| device.display().to_string()).chain(swaps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    #[test]
    fn a_process_with_an_open_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(describe(&path), None);
        let _open = std::fs::File::create(path.join("held")).unwrap();
        let said = describe(&path).unwrap();
        assert!(said.contains(&format!("(process {})", std::process::id())), "{said}");
    }

    #[test]
    fn a_child_in_the_directory_of_its_parent_is_not_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let held = path.join("held");
        let sleep = || {
            let mut sleep = Command::new("sleep");
            sleep.arg("600").current_dir(&path);
            sleep
        };
        let is_named = |child: &Child| {
            describe(&path).is_some_and(|said| said.contains(&format!("sleep (process {})", child.id())))
        };
        let mut children = vec![sleep().spawn().unwrap()];
        // Without a parent that is named, the child is.
        let alone = is_named(&children[0]);
        let open = std::fs::File::create(&held).unwrap();
        let beside_parent = is_named(&children[0]);
        children.push(sleep().stdin(open.try_clone().unwrap()).spawn().unwrap());
        let with_file = is_named(&children[1]);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!((alone, beside_parent, with_file), (true, false, true));
    }
}
