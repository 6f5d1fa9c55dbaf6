//! Closing an open disk from another process, and clearing away what a dead server left.

use crate::run_base::run_bases;
use crate::run_directory::{DISK_NAME, Record, RunPaths, lock_past_probes};
use crate::{connect, control, outcome, strangers};
use lacuna_core::{Error, Kind, Result, shell_word};
use lacuna_mount::mount_table::Entry;
use lacuna_mount::unmount::{busy_or_failed, unmount_dead, unmount_lazily};
use lacuna_mount::{RELEASE_LIMIT, loop_device, mount_table, tool};
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait before a lock is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// How a close went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The server unmounted, flushed, and is gone.
    Cleanly,
    /// The server had died before; what it left mounted is cleared away. Writes that had not been flushed when
    /// it died are lost.
    AfterCrash,
}

/// Closes what is open at `mountpoint`: unmounts, and waits until the server has flushed and gone.
///
/// `run_base` is the directory of the run directories, if not all that this user may have. Errors: [`Kind::NotFound`]
/// if lacuna has nothing open there, [`Kind::Busy`] (naming who) if it is in use, [`Kind::NoCover`] if it waited for cover
/// in vain and stays open, and whatever failure the server had at its end.
pub fn close(mountpoint: &Path, run_base: Option<&Path>) -> Result<Closed> {
    let (paths, mountpoint) = find(mountpoint, run_base)?;
    let Some(lock) = paths.lock_file()? else { return Err(not_open(&mountpoint)) };
    match lock_past_probes(&lock) {
        Ok(()) => return ended_without_answer(&lock, &paths, &mountpoint),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock the run directory", &e)),
    }
    let answer = control::ask(&paths.control(), control::CLOSE);
    let stays = answer.as_ref().is_ok_and(|line| outcome::stays_open(line));
    match answer.as_deref().map(outcome::decode) {
        Ok(Some(Err(e))) if stays => Err(e),
        Ok(Some(result)) => {
            wait_gone(&lock)?;
            result.map(|()| Closed::Cleanly)
        }
        Ok(None) => {
            wait_gone(&lock)?;
            ended_without_answer(&lock, &paths, &mountpoint)
        }
        // It has stopped listening, as it does when its mount is gone: somebody unmounted by hand. One that is still
        // starting may have found the socket of another that died.
        Err(e) if e.kind() == ErrorKind::ConnectionRefused && gone_soon(&lock) => {
            ended_without_answer(&lock, &paths, &mountpoint)
        }
        Err(e) if e.kind() == ErrorKind::TimedOut => {
            let process = process_of(&paths).map_or_else(String::new, |pid| format!(" (process {pid})"));
            let silent = Error::new(Kind::TimedOut, format!("cannot close {}", mountpoint.display()))
                .found(format!("a server that does not answer{process}"))
                .expected("an answer within 5 seconds");
            Err(let_go_on(&paths, silent))
        }
        Err(e) => Err(Error::new(Kind::Busy, format!("cannot close {}", mountpoint.display()))
            .found(format!("a server that does not answer yet ({e})"))
            .remedy("it is still starting, or about to end: try again in a moment")),
    }
}

/// The server of `lock`, which is ours now, ended by itself at this moment, or crashed at any time before.
fn ended_without_answer(lock: &File, paths: &RunPaths, mountpoint: &Path) -> Result<Closed> {
    let about = lock.metadata().map_err(|e| Error::io("cannot look at the lock of the server", &e))?;
    let result = if about.nlink() == 0 {
        Ok(Closed::Cleanly)
    } else {
        clean_up(paths, Some(mountpoint)).and_then(|()| paths.remove()).map(|()| Closed::AfterCrash)
    };
    let _ = lock.unlock();
    result
}

/// The process of a server that does not answer, as far as anything tells it.
fn process_of(paths: &RunPaths) -> Option<u32> {
    let known = paths.record().ok().flatten().map(|record| record.pid);
    known.or_else(|| connect::process_at(&paths.control()))
}

/// Says what to do about a server that does not answer.
fn let_go_on(paths: &RunPaths, e: Error) -> Error {
    let go_on = match process_of(paths) {
        Some(pid) => format!("`kill -CONT {pid}` lets it go on"),
        None => "let it go on (`kill -CONT`)".to_owned(),
    };
    e.remedy(format!("if the process was stopped, {go_on}; then try again"))
}

/// What the server of the disk that is open at `mountpoint` says: `items`, the counters of the disk,
/// `last_error`, the last request that failed, or null, and `closing`, whether it was told to end.
///
/// Errors: [`Kind::NotFound`] if nothing of lacuna is open there, or if its server has just ended or does not listen yet;
/// [`Kind::TimedOut`] if it does not answer.
pub fn status(mountpoint: &Path, run_base: Option<&Path>) -> Result<serde_json::Value> {
    let (paths, mountpoint) = find(mountpoint, run_base)?;
    let answer = ask_in(&paths, &mountpoint, control::STATUS)?;
    if let Some(refused) = outcome::refusal(&answer) {
        return Err(refused);
    }
    serde_json::from_str(&answer).map_err(|e| {
        no_answer(&mountpoint, format!("an answer that is not JSON: {e}")).with_kind(Kind::Other)
    })
}

/// Asks the server of what is open at `mountpoint` a question that it alone understands
/// ([`Subject::answer`](crate::Subject::answer)).
///
/// Errors: what the server says, such as [`Kind::Usage`] to a question that it does not know; [`Kind::NotFound`] if nothing of
/// lacuna is open there or its server has just ended, [`Kind::TimedOut`] if it does not answer.
pub fn ask(mountpoint: &Path, question: &str, run_base: Option<&Path>) -> Result<serde_json::Value> {
    let (paths, mountpoint) = find(mountpoint, run_base)?;
    let nonsense = |found: &str| no_answer(&mountpoint, found).with_kind(Kind::Other);
    let answer = outcome::decode_items(&ask_in(&paths, &mountpoint, question)?);
    let answer = answer.unwrap_or_else(|| Err(nonsense("none that makes sense")))?;
    answer.into_iter().next().ok_or_else(|| nonsense("an empty answer"))
}

/// The line with which the server in this run directory answers a word.
fn ask_in(paths: &RunPaths, mountpoint: &Path, word: &str) -> Result<String> {
    let failed = |found: String| no_answer(mountpoint, found);
    let answer = control::ask(&paths.control(), word).map_err(|e| match e.kind() {
        ErrorKind::TimedOut => {
            let_go_on(paths, failed("silence for 5 seconds".to_owned()).with_kind(Kind::TimedOut))
        }
        // It ended at this moment, or does not listen yet.
        ErrorKind::NotFound
        | ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::BrokenPipe => failed(e.to_string()),
        _ => failed(e.to_string()).with_kind(Kind::Io),
    })?;
    if answer.ends_with('\n') {
        return Ok(answer);
    }
    Err(failed("a server that ended".to_owned()))
}

fn no_answer(mountpoint: &Path, found: impl Into<String>) -> Error {
    Error::new(Kind::NotFound, format!("no answer from the server of {}", mountpoint.display())).found(found)
}

/// Where the server of the disk listens that is open at `mountpoint`.
pub(crate) fn control_socket(mountpoint: &Path, run_base: Option<&Path>) -> Result<PathBuf> {
    find(mountpoint, run_base).map(|(paths, _)| paths.control())
}

/// Whether what is mounted at `mountpoint` is the file system of the disk that is open there: something else may be mounted over it,
/// or it may have been moved away.
pub(crate) fn shows_its_disk(mountpoint: &Path, run_base: Option<&Path>) -> Result<bool> {
    let (paths, mountpoint) = find(mountpoint, run_base)?;
    let backing = paths.fuse().join(DISK_NAME);
    match mount_table::at(&mountpoint)? {
        Some(top) => shows(&top, &backing, &loop_device::resting_on(&backing)?),
        None => Ok(false),
    }
}

/// Every disk that a living server of this user has open. Errors: what keeps one of them from being seen.
pub fn running(run_base: Option<&Path>) -> Result<Vec<Record>> {
    records(&bases(run_base)?, Some(true))
}

/// Every disk of which anything is mounted, whether its server lives or died, and what keeps others from being seen: for a caller
/// that does what it can.
pub fn seen(run_base: Option<&Path>) -> Result<(Vec<Record>, Vec<Error>)> {
    Ok(look(&bases(run_base)?, None))
}

/// Every disk whose server died without closing it: [`close`] clears away what it left. Errors: what keeps one of them from being
/// seen.
pub fn died(run_base: Option<&Path>) -> Result<Vec<Record>> {
    records(&bases(run_base)?, Some(false))
}

/// Returns when no server of `mountpoint` is dying any more, or has been for [`RELEASE_LIMIT`]: one that was killed a moment ago still
/// holds its lock and its mount, and is none that anything could be asked of.
///
/// Errors: what keeps it from being seen.
pub fn await_dying(mountpoint: &Path, run_base: Option<&Path>) -> Result<()> {
    let paths = match find(mountpoint, run_base) {
        Ok((paths, _)) => paths,
        Err(e) if e.kind() == Kind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    let Some(record) = paths.record()? else { return Ok(()) };
    let start = Instant::now();
    while start.elapsed() < RELEASE_LIMIT && is_dying(record.pid)? && is_alive(&paths)? == Some(true) {
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Whether a process is ending, or was sent a signal that ends it whatever it does. One that is gone is not.
fn is_dying(pid: u32) -> Result<bool> {
    let read = |name: &str| match std::fs::read_to_string(format!("/proc/{pid}/{name}")) {
        // ESRCH: it went while this was read.
        Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => {
            Ok(String::new())
        }
        read => read.map_err(|e| Error::io(format!("cannot look at the process {pid}"), &e)),
    };
    let (status, stat) = (read("status")?, read("stat")?);
    Ok(is_killed(&status) || is_ending(&stat))
}

/// Whether the status of a process says that SIGKILL is pending.
fn is_killed(status: &str) -> bool {
    let mut pending = status.lines().filter_map(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        Some(u64::from_str_radix(mask.trim(), 16))
    });
    pending.any(|mask| mask.is_ok_and(|mask| mask >> (libc::SIGKILL - 1) & 1 == 1))
}

/// Whether the first thread of a process is ending, or has ended (proc_pid_stat(5): state and flags, behind the name).
fn is_ending(stat: &str) -> bool {
    /// From `linux/sched.h`: the thread is being shut down.
    const PF_EXITING: u64 = 0x4;
    let mut fields = stat.rsplit(')').next().unwrap_or("").split_ascii_whitespace();
    let ended = fields.next().is_some_and(|state| matches!(state, "Z" | "X"));
    ended
        || fields.nth(5).is_some_and(|flags| flags.parse::<u64>().is_ok_and(|flags| flags & PF_EXITING != 0))
}

/// Whether what is mounted at the path that a person gives was left there by a server that died. The path is not looked at: every
/// look would fail.
pub(crate) fn is_left_by_dead(given: &Path, run_base: Option<&Path>) -> Result<bool> {
    let mountpoint = match find(given, run_base) {
        Ok((_, mountpoint)) => mountpoint,
        Err(e) if e.kind() == Kind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    match mount_table::at(&mountpoint)? {
        Some(top) => left_by_dead(&mountpoint, &top, run_base),
        None => Ok(false),
    }
}

/// Whether `top`, the upmost mount of `mountpoint`, which is canonical, is what a server left there that died.
pub(crate) fn left_by_dead(mountpoint: &Path, top: &Entry, run_base: Option<&Path>) -> Result<bool> {
    for base in bases(run_base)? {
        if left_in(&RunPaths::of(&base, mountpoint), top)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether it is what the server of this run directory left.
fn left_in(paths: &RunPaths, top: &Entry) -> Result<bool> {
    if is_alive(paths)? != Some(false) {
        return Ok(false);
    }
    let backing = paths.fuse().join(DISK_NAME);
    if shows(top, &backing, &loop_device::resting_on(&backing)?)? {
        return Ok(true);
    }
    Ok(top.is_our_fuse() && paths.record()?.is_some_and(|record| record.fuse_at_mountpoint()))
}

/// Whether what is mounted is served from `backing`, or from one of these loop devices, which rest on it.
fn shows(top: &Entry, backing: &Path, devices: &[PathBuf]) -> Result<bool> {
    Ok(top.is_served_from(backing) || rests_on(top, devices)?)
}

/// Whether one of these loop devices is what is mounted.
fn rests_on(top: &Entry, devices: &[PathBuf]) -> Result<bool> {
    for device in devices {
        if loop_device::number(device)?.is_some_and(|number| top.is_on(device, &number)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The records of servers that live, or died; with none of both. Errors: what keeps one of them from being seen.
fn records(bases: &[PathBuf], alive: Option<bool>) -> Result<Vec<Record>> {
    let (records, errors) = look(bases, alive);
    errors.into_iter().next().map_or(Ok(records), Err)
}

fn look(bases: &[PathBuf], alive: Option<bool>) -> (Vec<Record>, Vec<Error>) {
    let (mut records, mut errors) = (Vec::new(), Vec::new());
    let of = |paths: &RunPaths| match is_alive(paths)? {
        Some(lives) if alive.is_none_or(|wanted| wanted == lives) => paths.record(),
        _ => Ok(None),
    };
    for base in bases {
        match RunPaths::all(base) {
            Ok(all) => {
                for paths in all {
                    match of(&paths) {
                        Ok(record) => records.extend(record),
                        Err(e) => errors.push(e),
                    }
                }
            }
            Err(e) => errors.push(e),
        }
    }
    (records, errors)
}

/// Whether the server of a run directory lives; `None` if there is no such run directory.
fn is_alive(paths: &RunPaths) -> Result<Option<bool>> {
    let Some(lock) = paths.lock_file()? else { return Ok(None) };
    let failed = |e: &io::Error| Error::io("cannot tell whether a server lives", e);
    match lock.try_lock_shared() {
        Ok(()) => {
            // One that ended meanwhile has removed its directory, and another may have made one in its place.
            let removed = lock.metadata().map_err(|e| failed(&e))?.nlink() == 0;
            Ok((!removed).then_some(false))
        }
        Err(TryLockError::WouldBlock) => Ok(Some(true)),
        Err(TryLockError::Error(e)) => Err(failed(&e)),
    }
}

/// Clears away what a dead server left in its run directory: the mounted file system, its loop device and the
/// FUSE mount. The caller holds the lock. `mountpoint` is where to look if the record is gone; without it,
/// nothing outside the run directory and the record is touched.
pub fn clean_up(paths: &RunPaths, mountpoint: Option<&Path>) -> Result<()> {
    let record = paths.record()?;
    let at = record.as_ref().map(|r| r.mountpoint.as_path()).or(mountpoint);
    let backing = paths.fuse().join(DISK_NAME);
    let devices = loop_device::resting_on(&backing)?;
    if let Some(at) = at
        && let Some(top) = mount_table::at(at)?
    {
        if rests_on(&top, &devices)? {
            let finished =
                tool::run("umount", &["--internal-only".as_ref(), OsStr::new("--"), at.as_os_str()])?;
            if !finished.success() {
                return Err(busy_or_failed(at, &finished));
            }
        } else if top.is_served_from(&backing) {
            // A program that lives still has nothing left to read from or write to.
            unmount_lazily(at, || Ok(mount_table::at(at)?.is_some_and(|top| top.is_served_from(&backing))))?;
        } else if record.as_ref().is_some_and(Record::fuse_at_mountpoint) && top.is_our_fuse() {
            unmount_dead(at)?;
        }
    }
    for device in devices {
        loop_device::detach_from(&device, &backing)?;
    }
    unmount_dead(&paths.fuse())
}

/// The run directory for a mount point as a person writes it. The mount point itself is looked at last: if
/// its server died, every look at it fails.
fn find(given: &Path, run_base: Option<&Path>) -> Result<(RunPaths, PathBuf)> {
    let bases = bases(run_base)?;
    let failed = |e: &io::Error| Error::io(format!("cannot find the mount point {}", given.display()), e);
    let absolute = std::path::absolute(given).map_err(|e| failed(&e))?;
    let beside = match absolute.parent().zip(absolute.file_name()) {
        Some((parent, name)) => {
            if_there(parent.canonicalize()).map_err(|e| failed(&e))?.map(|parent| parent.join(name))
        }
        None => None,
    };
    if let Some(at) = &beside
        && let Some(paths) = in_bases(&bases, at)?
    {
        return Ok((paths, at.clone()));
    }
    let itself = match (absolute.canonicalize(), beside) {
        // What is mounted there may have its name alone: its server died, or is another user's.
        (Err(_), Some(at)) if mount_table::at(&at)?.is_some() => None,
        (itself, _) => if_there(itself).map_err(|e| failed(&e))?,
    };
    if let Some(at) = itself
        && let Some(paths) = in_bases(&bases, &at)?
    {
        return Ok((paths, at));
    }
    Err(not_open(given))
}

/// None if there is nothing at a path, or if a server died on the way there: nothing is open below what it left.
fn if_there(path: io::Result<PathBuf>) -> io::Result<Option<PathBuf>> {
    match path {
        Ok(path) => Ok(Some(path)),
        Err(e) => match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::NotConnected => Ok(None),
            _ => Err(e),
        },
    }
}

/// The run directory for this mount point. In one base there may be what a server left that died, and in another the one that came
/// after it: that comes first.
fn in_bases(bases: &[PathBuf], mountpoint: &Path) -> Result<Option<RunPaths>> {
    let mut found = None;
    for paths in bases.iter().map(|base| RunPaths::of(base, mountpoint)) {
        match is_alive(&paths)? {
            Some(true) => return Ok(Some(paths)),
            Some(false) => found = found.or(Some(paths)),
            None => {}
        }
    }
    Ok(found)
}

/// Where run directories are looked for.
fn bases(run_base: Option<&Path>) -> Result<Vec<PathBuf>> {
    run_base.map_or_else(run_bases, |base| Ok(vec![base.to_owned()]))
}

fn not_open(mountpoint: &Path) -> Error {
    let what = format!("cannot close {}", mountpoint.display());
    let mounted = match mount_table::at(mountpoint) {
        Ok(mounted) => mounted,
        // What is there cannot be told, and so not that nothing is.
        Err(e) => return e.context(what).with_kind(Kind::Io),
    };
    let error = Error::new(Kind::NotFound, what);
    match mounted {
        Some(entry) if strangers::owner(&entry).is_some() => error
            .found(format!("what lacuna has open for {}", strangers::owner(&entry).unwrap_or_default()))
            .expected("what this user opened")
            .remedy("each user closes what is theirs"),
        Some(entry) => error
            .found(format!("a mount of type {} that lacuna did not make", entry.fs_type))
            .remedy(format!("unmount it with `umount {}`", shell_word(mountpoint))),
        None => error.found("nothing of lacuna open there"),
    }
}

/// Whether the server that holds the lock goes within [`RELEASE_LIMIT`]. The lock is then ours.
fn gone_soon(lock: &File) -> bool {
    let start = Instant::now();
    while start.elapsed() < RELEASE_LIMIT {
        if lock.try_lock().is_ok() {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    false
}

/// Waits for the server's lock, which it holds as long as it lives.
fn wait_gone(lock: &File) -> Result<()> {
    lock.lock().map_err(|e| Error::io("cannot wait for the end of the server", &e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_directory::RunDirectory;

    #[test]
    fn a_process_that_was_killed_is_dying() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(!is_dying(child.id()).unwrap());
        child.kill().unwrap();
        // Killed, ending, or ended and not reaped: it is dying until it is gone.
        assert!(is_dying(child.id()).unwrap());
        child.wait().unwrap();
        assert!(!is_dying(child.id()).unwrap());
        assert!(is_killed("SigPnd:\t0000000000000100\n") && !is_killed("SigPnd:\t0000000000000000\n"));
        assert!(is_ending("7 (a) b) Z 1 2 3 4 5 0") && is_ending("7 (a) R 1 2 3 4 5 4194564"));
        assert!(!is_ending("7 (a) R 1 2 3 4 5 4194560") && !is_ending(""));
    }

    #[test]
    fn what_cannot_be_seen_is_not_nothing() {
        let base = tempfile::tempdir().unwrap();
        let (dir, stray) = (Some(base.path()), base.path().join("stray"));
        std::fs::write(&stray, "").unwrap();
        assert!(running(dir).unwrap().is_empty() && died(dir).unwrap().is_empty());
        assert!(running(Some(&stray)).is_err() && died(Some(&stray)).is_err());
        for at in ["mnt", "none/mnt", "stray/mnt"] {
            let at = base.path().join(at);
            assert_eq!(status(&at, dir).unwrap_err().kind(), Kind::NotFound, "{}", at.display());
            assert!(!is_left_by_dead(&at, dir).unwrap());
        }
        let at = base.path().canonicalize().unwrap().join("mnt");
        let held = RunDirectory::claim(base.path(), &at).unwrap();
        // A server that is still starting has no record, and does not listen.
        assert!(running(dir).unwrap().is_empty());
        assert_eq!(status(&at, dir).unwrap_err().kind(), Kind::NotFound);
        std::fs::write(held.paths().control().with_file_name("record.json"), "{").unwrap();
        assert_eq!(running(dir).unwrap_err().kind(), Kind::Corrupt);
        held.end().unwrap();
        assert!(running(dir).unwrap().is_empty());
    }
}
