//! Closing an open disk from another process, and clearing away what a dead server left.

use crate::mount_table::Entry;
use crate::run_base::run_bases;
use crate::run_directory::{DISK_NAME, Record, RunPaths, lock_past_probes};
use crate::unmount::{busy_or_failed, unmount_dead, unmount_lazily};
use crate::watch::RELEASE_LIMIT;
use crate::{control, loop_device, mount_table, outcome, strangers, tool};
use lacuna_core::{Error, Kind, Result, shell_word};
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
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
        // Servers of an older version go on when they are busy, and say no more.
        Ok(Some(Err(e))) if stays || e.kind() == Kind::Busy => Err(e),
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
            let pid = paths.record().map(|record| record.pid).unwrap_or_default();
            Err(Error::new(Kind::TimedOut, format!("cannot close {}", mountpoint.display()))
                .found(format!("a server that does not answer (process {pid})"))
                .expected("an answer within 5 seconds")
                .remedy(format!(
                    "if the process was stopped, `kill -CONT {pid}` lets it go on; then try again"
                )))
        }
        Err(e) => Err(Error::new(Kind::Busy, format!("cannot close {}", mountpoint.display()))
            .found(format!("a server that does not answer yet ({e})"))
            .remedy("it is still starting, or about to end: try again in a moment")),
    }
}

/// The server of `lock`, which is ours now, ended by itself at this moment, or crashed at any time before.
fn ended_without_answer(lock: &File, paths: &RunPaths, mountpoint: &Path) -> Result<Closed> {
    let removed = lock.metadata().is_ok_and(|m| m.nlink() == 0);
    let result = if removed {
        Ok(Closed::Cleanly)
    } else {
        clean_up(paths, Some(mountpoint)).map(|()| {
            paths.remove();
            Closed::AfterCrash
        })
    };
    let _ = lock.unlock();
    result
}

/// What the server of the disk that is open at `mountpoint` says: `items`, the counters of the disk,
/// `last_error`, the last request that failed, or null, and `closing`, whether it was told to end. Errors:
/// [`Kind::TimedOut`] if it does not answer.
pub fn status(mountpoint: &Path, run_base: Option<&Path>) -> Result<serde_json::Value> {
    let (paths, mountpoint) = find(mountpoint, run_base)?;
    let failed = |found: String| {
        Error::new(Kind::NotFound, format!("no answer from the server of {}", mountpoint.display()))
            .found(found)
    };
    let answer = control::ask(&paths.control(), control::STATUS).map_err(|e| match e.kind() {
        ErrorKind::TimedOut => failed("silence for 5 seconds".to_owned()).with_kind(Kind::TimedOut),
        _ => failed(e.to_string()),
    })?;
    serde_json::from_str(&answer).map_err(|e| failed(format!("an answer that is not JSON: {e}")))
}

/// Asks the server of what is open at `mountpoint` a question that it alone understands
/// ([`Subject::answer`](crate::Subject::answer)).
///
/// Errors: what the server says; [`Kind::NotFound`] if nothing of lacuna is open there or its server does not know the
/// question, [`Kind::TimedOut`] if it does not answer.
pub fn ask(mountpoint: &Path, question: &str, run_base: Option<&Path>) -> Result<serde_json::Value> {
    let (paths, mountpoint) = find(mountpoint, run_base)?;
    let failed = |found: &str| {
        Error::new(Kind::NotFound, format!("no answer from the server of {}", mountpoint.display()))
            .found(found)
    };
    let answer = control::ask(&paths.control(), question).map_err(|e| match e.kind() {
        ErrorKind::TimedOut => failed("silence for 5 seconds").with_kind(Kind::TimedOut),
        _ => failed(&e.to_string()),
    })?;
    let answer =
        outcome::decode_items(&answer).unwrap_or_else(|| Err(failed("no answer that makes sense")))?;
    answer.into_iter().next().ok_or_else(|| failed("an empty answer"))
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
    let devices = loop_device::resting_on(&backing);
    Ok(mount_table::at(&mountpoint)?
        .is_some_and(|top| top.is_served_from(&backing) || rests_on(&top, &devices)))
}

/// Every disk that a living server of this user has open.
pub fn running(run_base: Option<&Path>) -> Result<Vec<Record>> {
    Ok(records(&bases(run_base)?, true))
}

/// Every disk whose server died without closing it: [`close`] clears away what it left.
pub fn died(run_base: Option<&Path>) -> Result<Vec<Record>> {
    Ok(records(&bases(run_base)?, false))
}

/// Whether what is mounted at the path that a person gives was left there by a server that died. The path is not looked at: every
/// look would fail.
pub(crate) fn is_left_by_dead(given: &Path, run_base: Option<&Path>) -> bool {
    find(given, run_base).is_ok_and(|(_, mountpoint)| {
        let top = mount_table::at(&mountpoint).ok().flatten();
        top.is_some_and(|top| left_by_dead(&mountpoint, &top, run_base))
    })
}

/// Whether `top`, the upmost mount of `mountpoint`, which is canonical, is what a server left there that died.
pub(crate) fn left_by_dead(mountpoint: &Path, top: &Entry, run_base: Option<&Path>) -> bool {
    let bases = bases(run_base).unwrap_or_default();
    bases.iter().any(|base| left_in(&RunPaths::of(base, mountpoint), top))
}

/// Whether it is what the server of this run directory left.
fn left_in(paths: &RunPaths, top: &Entry) -> bool {
    let raw = || paths.record().is_some_and(|record| record.fuse_at_mountpoint()) && top.is_our_fuse();
    let backing = paths.fuse().join(DISK_NAME);
    is_alive(paths) == Some(false)
        && (top.is_served_from(&backing) || rests_on(top, &loop_device::resting_on(&backing)) || raw())
}

/// Whether one of these loop devices is what is mounted.
fn rests_on(top: &Entry, devices: &[PathBuf]) -> bool {
    devices.iter().any(|device| number_of(device).is_some_and(|number| top.is_on(device, &number)))
}

fn records(bases: &[PathBuf], alive: bool) -> Vec<Record> {
    let all = bases.iter().flat_map(|base| RunPaths::all(base));
    all.filter(|paths| is_alive(paths) == Some(alive)).filter_map(|paths| paths.record()).collect()
}

/// Whether the server of a run directory lives; `None` if there is no such run directory, or it cannot be told.
fn is_alive(paths: &RunPaths) -> Option<bool> {
    let lock = paths.lock_file().ok()??;
    match lock.try_lock_shared() {
        // One that ended meanwhile has removed its directory, and another may have made one in its place.
        Ok(()) if lock.metadata().is_ok_and(|meta| meta.nlink() == 0) => None,
        Ok(()) => Some(false),
        Err(TryLockError::WouldBlock) => Some(true),
        Err(TryLockError::Error(_)) => None,
    }
}

/// Clears away what a dead server left in its run directory: the mounted file system, its loop device and the
/// FUSE mount. The caller holds the lock. `mountpoint` is where to look if the record is gone; without it,
/// nothing outside the run directory and the record is touched.
pub fn clean_up(paths: &RunPaths, mountpoint: Option<&Path>) -> Result<()> {
    let record = paths.record();
    let at = record.as_ref().map(|r| r.mountpoint.as_path()).or(mountpoint);
    let backing = paths.fuse().join(DISK_NAME);
    let devices = loop_device::resting_on(&backing);
    if let Some(at) = at
        && let Some(top) = mount_table::at(at)?
    {
        if rests_on(&top, &devices) {
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

fn number_of(device: &Path) -> Option<String> {
    let path = Path::new("/sys/block").join(device.file_name()?).join("dev");
    std::fs::read_to_string(path).ok().map(|n| n.trim().to_owned())
}

/// The run directory for a mount point as a person writes it. The mount point itself is looked at last: if
/// its server died, every look at it fails.
fn find(given: &Path, run_base: Option<&Path>) -> Result<(RunPaths, PathBuf)> {
    let bases = bases(run_base)?;
    let absolute = std::path::absolute(given).map_err(|e| Error::io("cannot find the mount point", &e))?;
    let beside = absolute
        .parent()
        .zip(absolute.file_name())
        .and_then(|(parent, name)| Some(parent.canonicalize().ok()?.join(name)));
    for mountpoint in beside.into_iter().chain(absolute.canonicalize()) {
        let all = bases.iter().map(|base| RunPaths::of(base, &mountpoint));
        let mut existing: Vec<RunPaths> = all.filter(RunPaths::exists).collect();
        // In one base there may be what a server left that died, and in another the one that came after it.
        existing.sort_by_key(|paths| is_alive(paths) != Some(true));
        if let Some(paths) = existing.into_iter().next() {
            return Ok((paths, mountpoint));
        }
    }
    Err(not_open(given))
}

/// Where run directories are looked for.
fn bases(run_base: Option<&Path>) -> Result<Vec<PathBuf>> {
    run_base.map_or_else(run_bases, |base| Ok(vec![base.to_owned()]))
}

fn not_open(mountpoint: &Path) -> Error {
    let mounted = mount_table::at(mountpoint).ok().flatten();
    let error = Error::new(Kind::NotFound, format!("cannot close {}", mountpoint.display()));
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
