//! Reads `/proc`: processes, their mounts, and the users of a mount.
//!
//! The parsers read bytes and only the fields that they need: the files contain names of other
//! users' mounts, files and programs, and a malformed line, or one that is not UTF-8, must not hide
//! other lines.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A file of a process in `/proc`. `process` is its number, or `self`.
fn path(process: impl Display, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{process}/{name}"))
}

/// The entries of a directory with a number as their name; none if it cannot be read.
fn numbers<N: std::str::FromStr>(dir: &Path) -> impl Iterator<Item = N> + use<N> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The numbers of all visible processes; none without `/proc`.
pub(crate) fn processes() -> impl Iterator<Item = u32> {
    numbers(Path::new("/proc"))
}

/// The mount table of a process as the kernel prints it (proc_pid_mountinfo(5)).
pub(crate) fn mount_table(process: impl Display) -> io::Result<Vec<u8>> {
    fs::read(path(process, "mountinfo"))
}

/// The identity of the mount namespace of a process; `None` if this user may not read it.
pub(crate) fn mount_namespace(process: impl Display) -> Option<PathBuf> {
    fs::read_link(path(process, "ns/mnt")).ok()
}

/// The name of the program that a process runs.
pub(crate) fn name_of(process: u32) -> String {
    fs::read(path(process, "comm"))
        .map_or_else(|_| "?".to_owned(), |name| String::from_utf8_lossy(&name).trim().to_owned())
}

/// A process in messages, such as `bash (process 812)`; its number alone if it has ended, or if
/// this user may not see its name.
pub fn described(process: u32) -> String {
    match fs::read(path(process, "comm")) {
        Ok(name) => format!("{} (process {process})", String::from_utf8_lossy(&name).trim()),
        Err(_) => format!("process {process}"),
    }
}

/// How a process uses a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountUse {
    /// Its working directory is there, and nothing else.
    WorkingDirectory,
    /// It has a file, its root directory, its program or a mapping there.
    Content,
}

/// How a process uses the mount at `mountpoint`, as far as this user may inspect it; `None` if it
/// does not.
pub(crate) fn use_of(process: u32, mountpoint: &Path) -> Option<MountUse> {
    let within = |link: PathBuf| fs::read_link(link).is_ok_and(|target| target.starts_with(mountpoint));
    let mut descriptors = fs::read_dir(path(process, "fd")).into_iter().flatten().flatten();
    let has_mapping = |maps: Vec<u8>| {
        maps.split(|byte| *byte == b'\n').any(|l| mapped(l).is_some_and(|p| p.starts_with(mountpoint)))
    };
    if ["root", "exe"].iter().any(|link| within(path(process, link)))
        || descriptors.any(|d| within(d.path()))
        || fs::read(path(process, "maps")).is_ok_and(has_mapping)
    {
        return Some(MountUse::Content);
    }
    within(path(process, "cwd")).then_some(MountUse::WorkingDirectory)
}

/// The number of the parent of a process; 0, which no process has, if it is unknown.
pub(crate) fn parent_of(process: u32) -> u32 {
    let parent = |status: Vec<u8>| {
        let status = String::from_utf8_lossy(&status).into_owned();
        let number = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        number.map_or(0, |number| number.trim().parse().unwrap_or(0))
    };
    fs::read(path(process, "status")).map_or(0, parent)
}

/// The path at the end of a line of `/proc/PID/maps`.
fn mapped(line: &[u8]) -> Option<&Path> {
    line.iter().position(|byte| *byte == b'/').map(|at| Path::new(OsStr::from_bytes(&line[at..])))
}

/// The files and devices used for swap; none if the table cannot be read.
pub(crate) fn swap_areas() -> Vec<PathBuf> {
    let table = fs::read("/proc/swaps").unwrap_or_default();
    let areas = table.split(|byte| *byte == b'\n').skip(1);
    let areas = areas.filter_map(|line| line.split(u8::is_ascii_whitespace).next());
    areas.map(|area| PathBuf::from(OsStr::from_bytes(area))).collect()
}

/// The `uid_map` of this process's user namespace, as the kernel prints it (user_namespaces(7));
/// `None` if the kernel has no user namespaces.
pub fn user_map() -> io::Result<Option<String>> {
    match fs::read_to_string(path("self", "uid_map")) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        map => map.map(Some),
    }
}

/// The number of threads of this process.
pub fn threads() -> io::Result<usize> {
    Ok(fs::read_dir(path("self", "task"))?.count())
}

/// The open descriptors of this process, including the one that lists them, which is closed again;
/// none without `/proc`.
pub fn descriptors() -> Vec<RawFd> {
    numbers(&path("self", "fd")).collect()
}

/// Whether this process ignores a signal.
pub fn ignores(signal: i32) -> bool {
    fs::read_to_string(path("self", "status")).is_ok_and(|status| has_signal(&status, "SigIgn:", signal))
}

/// Whether a process is ending, or has a pending fatal signal. False for a process that is gone.
pub fn is_dying(process: u32) -> io::Result<bool> {
    let (status, stat) = (text_of(process, "status")?, text_of(process, "stat")?);
    Ok(is_killed(&status) || is_ending(&stat))
}

/// When a process was started, in clock ticks since boot; `None` if it is ending or gone. The
/// number of a process is used again, but not together with this time.
pub fn start_of(process: u32) -> io::Result<Option<u64>> {
    let stat = text_of(process, "stat")?;
    if is_ending(&stat) { Ok(None) } else { start_in(&stat) }
}

/// [`start_of`], also of a process that is ending: `None` only if it is gone.
pub fn start_until_gone(process: u32) -> io::Result<Option<u64>> {
    start_in(&text_of(process, "stat")?)
}

/// Whether `/proc` hides a running process of this user. With the mount option `hidepid` it shows a
/// process with secrets, such as a server or its keeper, to root alone (proc(5)).
pub fn is_hidden(process: u32) -> io::Result<bool> {
    let is_visible = start_until_gone(process).is_ok_and(|start| start.is_some());
    Ok(!is_visible && is_own(process)?)
}

/// Whether a process with this number runs and takes signals of this user.
fn is_own(process: u32) -> io::Result<bool> {
    let Some(number) = i32::try_from(process).map_or(None, Pid::from_raw) else { return Ok(false) };
    let descriptor = match pidfd_open(number, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(false),
        descriptor => descriptor?,
    };
    match test_kill_process(number) {
        Err(Errno::SRCH | Errno::PERM) => return Ok(false),
        tested => tested?,
    }
    // Until the process ends, its number is that of no other one. So this comes last. A process
    // that has ended counts as such although its parent has not noticed.
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now))? == 0)
}

fn start_in(stat: &str) -> io::Result<Option<u64>> {
    let ticks = after_name(stat).nth(19).map(str::parse::<u64>).transpose();
    ticks.map_err(io::Error::other)
}

/// A file of a process in `/proc`; empty if the process is gone.
fn text_of(process: u32, name: &str) -> io::Result<String> {
    match fs::read(path(process, name)) {
        // ESRCH: the process ended during the read.
        Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
            Ok(String::new())
        }
        text => text.map(|text| String::from_utf8_lossy(&text).into_owned()),
    }
}

/// Whether the status of a process shows a pending SIGKILL, for one of its threads or for all.
fn is_killed(status: &str) -> bool {
    ["SigPnd:", "ShdPnd:"].iter().any(|mask| has_signal(status, mask, libc::SIGKILL))
}

/// Whether a signal mask in the status of a process contains this signal (proc_pid_status(5)).
fn has_signal(status: &str, mask: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    mask.is_some_and(|mask| {
        u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask >> (signal - 1) & 1 == 1)
    })
}

/// Whether the first thread of a process is ending, or has ended (proc_pid_stat(5): state and
/// flags, after the name).
fn is_ending(stat: &str) -> bool {
    /// From `linux/sched.h`: the thread is being shut down.
    const PF_EXITING: u64 = 0x4;
    let mut fields = after_name(stat);
    let ended = fields.next().is_some_and(|state| matches!(state, "Z" | "X"));
    ended
        || fields.nth(5).is_some_and(|flags| flags.parse::<u64>().is_ok_and(|flags| flags & PF_EXITING != 0))
}

/// The fields of proc_pid_stat(5) after the name, which may contain anything; the first one is the
/// state.
fn after_name(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_killed_is_dying() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!is_dying(child.id()).unwrap());
        assert_eq!((parent_of(child.id()), parent_of(u32::MAX)), (std::process::id(), 0));
        assert_eq!(described(child.id()), format!("sleep (process {})", child.id()));
        assert_eq!(described(u32::MAX), format!("process {}", u32::MAX));
        let (start, own) = (start_of(child.id()).unwrap(), start_of(std::process::id()).unwrap());
        assert!(start.is_some() && start >= own && start_of(child.id()).unwrap() == start);
        assert!(is_own(child.id()).unwrap() && !is_hidden(child.id()).unwrap());
        child.kill().unwrap();
        // Killed, ending, or ended and not reaped: all count as dying.
        assert!(is_dying(child.id()).unwrap() && start_until_gone(child.id()).unwrap() == start);
        child.wait().unwrap();
        assert!(!is_dying(child.id()).unwrap() && start_of(child.id()).unwrap().is_none());
        assert!(start_until_gone(child.id()).unwrap().is_none());
        for none in [child.id(), 0, u32::MAX] {
            assert!(!is_own(none).unwrap() && !is_hidden(none).unwrap(), "{none}");
        }
        assert!(is_killed("SigPnd:\t0000000000000100\n") && !is_killed("SigPnd:\t0000000000000000\n"));
        assert!(is_ending("7 (a) b) Z 1 2 3 4 5 0") && is_ending("7 (a) R 1 2 3 4 5 4194564"));
        assert!(!is_ending("7 (a) R 1 2 3 4 5 4194560") && !is_ending(""));
    }

    #[test]
    fn a_mapping_is_known_by_its_path() {
        let line = b"7f00-7f01 r--p 00000000 07:03 12   /mnt/a\xff b (deleted)";
        assert_eq!(mapped(line), Some(Path::new(OsStr::from_bytes(b"/mnt/a\xff b (deleted)"))));
        assert_eq!(mapped(b"7f00-7f01 rw-p 00000000 00:00 0   [heap]"), None);
    }

    #[test]
    fn the_own_process_is_listed() {
        assert!(processes().any(|process| process == std::process::id()));
        assert!(threads().unwrap() >= 1 && descriptors().contains(&0));
        assert!(mount_namespace("self").is_some() && !mount_table("self").unwrap().is_empty());
    }
}
