//! Who keeps a mount busy: found in `/proc` and `/sys`, without touching the mount itself.

use crate::mount_table;
use std::fs;
use std::path::{Path, PathBuf};

/// Most users named in a message.
const NAMED: usize = 8;

/// A sentence part such as `bash (process 812), a mount at /mnt/x/y`; `None` if nobody was found.
pub(crate) fn describe(mountpoint: &Path) -> Option<String> {
    let mut users = processes(mountpoint);
    users.extend(mount_table::below(mountpoint).iter().map(|m| format!("a mount at {}", m.display())));
    users.extend(backing_files(mountpoint));
    let more = users.len().saturating_sub(NAMED);
    users.truncate(NAMED);
    if more > 0 {
        users.push(format!("{more} more"));
    }
    (!users.is_empty()).then(|| users.join(", "))
}

/// Processes that have a file, a directory or a mapping below `mountpoint`.
fn processes(mountpoint: &Path) -> Vec<String> {
    let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = proc.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| uses(&PathBuf::from(format!("/proc/{pid}")), mountpoint))
        .map(|pid| format!("{} (process {pid})", name_of(pid)))
        .collect()
}

fn uses(process: &Path, mountpoint: &Path) -> bool {
    let within = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint));
    if ["cwd", "root", "exe"].iter().any(|link| within(process.join(link))) {
        return true;
    }
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.into_iter().any(|d| within(d.path()))
        || fs::read_to_string(process.join("maps"))
            .is_ok_and(|maps| maps.lines().any(|l| mapped(l).is_some_and(|p| p.starts_with(mountpoint))))
}

/// The path at the end of a line of `/proc/PID/maps`.
fn mapped(line: &str) -> Option<&Path> {
    line.find('/').map(|at| Path::new(&line[at..]))
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map_or_else(|_| "?".to_owned(), |n| n.trim().to_owned())
}

/// Loop devices and swap areas that rest on files below `mountpoint`.
fn backing_files(mountpoint: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for device in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim()).starts_with(mountpoint) {
            found.push(format!("/dev/{}", device.file_name().to_string_lossy()));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let areas = swaps.lines().skip(1).filter_map(|l| l.split_whitespace().next());
    found.extend(areas.filter(|a| Path::new(a).starts_with(mountpoint)).map(|a| format!("swap on {a}")));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_this_process_by_its_open_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        assert_eq!(describe(&path), None);
        let _open = fs::File::create(path.join("held")).unwrap();
        let said = describe(&path).unwrap();
        assert!(said.contains(&format!("(process {})", std::process::id())), "{said}");
    }
}
