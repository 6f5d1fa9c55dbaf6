//! The run directory of an instance: its lock, record, control socket and FUSE mount point.

pub(crate) mod run_base;

use crate::record::Record;
use crate::run_dir::run_base::{create_dir, prepare_base};
use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const LOCK: &str = "lock";
const RECORD: &str = "record.json";
const NEW_RECORD: &str = "record.new";
/// Name of the control socket.
pub(crate) const CONTROL: &str = "control";
const FUSE: &str = "fuse";
/// Hexadecimal digits of the name of a run directory.
const NAME_DIGITS: usize = 16;
/// Longest record that is read.
const RECORD_LIMIT: u64 = 64 << 10;
/// How often to take a lock again after its directory was removed concurrently.
const LOCK_ATTEMPTS: usize = 16;
/// How often, and at what interval, to retry a lock that a liveness probe may hold.
const PROBE_TRIES: usize = 5;
const PROBE_PAUSE: Duration = Duration::from_millis(2);

/// Name of the file that is the disk.
pub const DISK_NAME: &str = "disk";

/// Whether this is the name of a run directory.
pub(crate) fn is_name(name: &OsStr) -> bool {
    name.len() == NAME_DIGITS && name.as_bytes().iter().all(u8::is_ascii_hexdigit)
}

/// Whether a path is that of a disk file in a run directory: `BASE/NAME/fuse/disk`.
pub(crate) fn is_disk_file(path: &Path) -> bool {
    let mut parts = path.iter().rev();
    parts.next() == Some(OsStr::new(DISK_NAME))
        && parts.next() == Some(OsStr::new(FUSE))
        && parts.next().is_some_and(is_name)
}

/// The paths of one run directory. None of them need exist.
#[derive(Clone, Debug)]
pub(crate) struct RunPaths {
    dir: PathBuf,
}

impl RunPaths {
    /// The paths for a mount at `mountpoint`, which must be canonical.
    pub(crate) fn of_mount(base: &Path, mountpoint: &Path) -> Self {
        RunPaths::named(base, mountpoint.as_os_str().as_bytes())
    }

    /// The paths for a server of this location without a mount point. Several servers may have one
    /// location; `number` distinguishes them. A path cannot contain a zero byte, so the name cannot
    /// be that of a mount point.
    pub(crate) fn of_server(base: &Path, location: &str, number: u32) -> Self {
        RunPaths::named(base, format!("{location}\0{number}").as_bytes())
    }

    /// Two instances may get one name by a hash collision. The second is refused as busy while the
    /// first is alive, and a lookup by mount point compares the record (`registry.rs`).
    fn named(base: &Path, name: &[u8]) -> Self {
        RunPaths { dir: base.join(format!("{:0NAME_DIGITS$x}", fnv1a(name))) }
    }

    /// Every entry of `base`; each may be a run directory. Empty if `base` does not exist.
    /// Errors: a base that cannot be read.
    pub(crate) fn all(base: &Path) -> Result<Vec<Self>> {
        let failed =
            |e: &io::Error| Error::io(format!("cannot look into the run directory {}", base.display()), e);
        let entries = match fs::read_dir(base) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| failed(&e))?,
        };
        entries.map(|entry| Ok(RunPaths { dir: entry.map_err(|e| failed(&e))?.path() })).collect()
    }

    /// The directory of run directories.
    pub(crate) fn base(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    /// The control socket.
    pub(crate) fn control(&self) -> PathBuf {
        self.dir.join(CONTROL)
    }

    pub(crate) fn fuse(&self) -> PathBuf {
        self.dir.join(FUSE)
    }

    /// The record; `None` if the server has not written one yet. Errors: a record that cannot be
    /// read, and [`Kind::Corrupt`] for content that no server writes.
    pub(crate) fn record(&self) -> Result<Option<Record>> {
        let path = self.dir.join(RECORD);
        let what = || format!("cannot read the record {}", path.display());
        let mut bytes = Vec::new();
        // Do not follow a symbolic link, and do not block on a pipe.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = File::options().read(true).custom_flags(flags).open(&path);
        let read = file.and_then(|file| file.take(RECORD_LIMIT + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(what(), &e)),
        }
        let broken = |found: String| {
            let (expected, dir) = ("the record that a server of lacuna writes", self.dir.display());
            let error = Error::new(Kind::Corrupt, what()).found(found).expected(expected);
            error.hint(format!(
                "if a server of another version of lacuna wrote it, close that server by its mount point; if \
                 its server died, unmount its mount points, and remove the directory {dir}"
            ))
        };
        if bytes.len() as u64 > RECORD_LIMIT {
            return Err(broken(format!("more than {RECORD_LIMIT} bytes")));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|e| broken(e.to_string()))
    }

    /// Writes the record atomically.
    pub(crate) fn write_record(&self, record: &Record) -> Result<()> {
        let failed = |e: io::Error| Error::io("cannot write the record of the server", &e);
        let text = serde_json::to_vec_pretty(record).map_err(|e| failed(e.into()))?;
        let new = self.dir.join(NEW_RECORD);
        fs::write(&new, text).and_then(|()| fs::rename(&new, self.dir.join(RECORD))).map_err(failed)
    }

    /// Creates the directory on which FUSE is mounted.
    pub(crate) fn make_fuse(&self) -> Result<PathBuf> {
        let dir = self.fuse();
        create_dir(&dir)?;
        Ok(dir)
    }

    /// Opens the lock without taking it. `None` if there is no such run directory.
    pub(crate) fn lock_file(&self) -> Result<Option<File>> {
        match File::options().read(true).write(true).open(self.dir.join(LOCK)) {
            Ok(file) => Ok(Some(file)),
            // A plain file in the base is no run directory.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(Error::io(format!("cannot open the lock in {}", self.dir.display()), &e)),
        }
    }

    /// Removes the record and the control socket. Errors: a file that cannot be removed.
    pub(crate) fn remove_record(&self) -> Result<()> {
        self.remove_files(&[RECORD, NEW_RECORD, CONTROL])
    }

    /// Removes the run directory. Never recursive, because it must not descend into a mount.
    /// Errors: a file that cannot be removed; a remaining lock file would make the server look
    /// dead.
    pub(crate) fn remove(&self) -> Result<()> {
        let removed = self.remove_files(&[RECORD, NEW_RECORD, CONTROL, LOCK]);
        // A directory stays if something is still mounted in it. Without the lock it is no run
        // directory.
        for dir in [self.fuse(), self.dir.clone()] {
            let _ = fs::remove_dir(dir);
        }
        removed
    }

    fn remove_files(&self, files: &[&str]) -> Result<()> {
        let mut removed = Ok(());
        for path in files.iter().map(|file| self.dir.join(file)) {
            if let Err(e) = fs::remove_file(&path)
                && e.kind() != ErrorKind::NotFound
            {
                removed = removed.and(Err(Error::io(format!("cannot remove {}", path.display()), &e)));
            }
        }
        removed
    }
}

/// Creates the directory and takes its lock; `shown` names it in errors. The caller cleans up the
/// files of a dead server.
///
/// Errors: [`Kind::Busy`] while another server has it.
pub(crate) fn claim(base: &Path, paths: &RunPaths, shown: &str) -> Result<File> {
    prepare_base(base)?;
    for _ in 0..LOCK_ATTEMPTS {
        if let Some(lock) = try_claim(paths, shown)? {
            return Ok(lock);
        }
    }
    Err(busy(shown))
}

/// The lock, or `None` if the directory was removed concurrently.
fn try_claim(paths: &RunPaths, shown: &str) -> Result<Option<File>> {
    create_dir(&paths.dir)?;
    let path = paths.dir.join(LOCK);
    let lock = match File::options().read(true).write(true).create(true).truncate(false).open(&path) {
        Ok(lock) => lock,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot create {}", path.display()), &e)),
    };
    match lock_past_probes(&lock) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy(shown)),
        Err(TryLockError::Error(e)) => return Err(Error::io(format!("cannot lock {}", path.display()), &e)),
    }
    let failed = |e: io::Error| Error::io(format!("cannot look at {}", path.display()), &e);
    let named = match fs::metadata(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        named => named.map_err(failed)?,
    };
    let held = lock.metadata().map_err(failed)?;
    Ok(((held.dev(), held.ino()) == (named.dev(), named.ino())).then_some(lock))
}

/// Takes a lock that another process may hold for the moment of a liveness probe.
pub(crate) fn lock_past_probes(lock: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..PROBE_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PROBE_PAUSE),
            other => return other,
        }
    }
    lock.try_lock()
}

fn busy(shown: &str) -> Error {
    Error::new(Kind::Busy, format!("cannot open at {shown}"))
        .found("a lacuna server that has or is getting this mount point")
        .hint("close it first")
}

/// FNV-1a: a short name, because the path of a socket has room for 107 bytes.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn an_unreadable_record_is_an_error_and_a_missing_one_is_not() {
        let base = tempfile::tempdir().unwrap();
        assert!(RunPaths::all(&base.path().join("none")).unwrap().is_empty());
        let stray = base.path().join("stray");
        fs::write(&stray, "").unwrap();
        assert!(RunPaths::all(&stray).is_err());
        let all = RunPaths::all(base.path()).unwrap();
        assert!(all.len() == 1 && all[0].lock_file().unwrap().is_none());

        let paths = RunPaths::of_mount(base.path(), Path::new("/mnt/x"));
        let _lock = claim(base.path(), &paths, "/mnt/x").unwrap();
        assert_eq!(claim(base.path(), &paths, "/mnt/x").unwrap_err().kind(), Kind::Busy);
        assert_eq!(paths.record().unwrap(), None);
        for broken in [&b""[..], b"{}", b"no JSON", &[b' '; RECORD_LIMIT as usize + 1]] {
            fs::write(paths.dir.join(RECORD), broken).unwrap();
            assert_eq!(paths.record().unwrap_err().kind(), Kind::Corrupt);
        }
        // A link is not followed, and a pipe does not block.
        fs::remove_file(paths.dir.join(RECORD)).unwrap();
        symlink("/etc/passwd", paths.dir.join(RECORD)).unwrap();
        assert!(paths.record().is_err());
        fs::remove_file(paths.dir.join(RECORD)).unwrap();
        let mode = rustix::fs::Mode::RUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, paths.dir.join(RECORD), kind, mode, 0).unwrap();
        assert!(paths.record().is_err());
    }

    #[test]
    fn the_run_directory_of_a_server_differs_from_that_of_a_mount() {
        let base = Path::new("/run/lacuna");
        let dir = |paths: RunPaths| paths.dir;
        let mount = dir(RunPaths::of_mount(base, Path::new("/disk.img")));
        let servers = [0, 1].map(|number| dir(RunPaths::of_server(base, "/disk.img", number)));
        assert!(mount != servers[0] && mount != servers[1] && servers[0] != servers[1]);
        let fuse = RunPaths::of_mount(base, Path::new("/mnt")).fuse();
        assert!(is_disk_file(&fuse.join(DISK_NAME)) && !is_disk_file(&fuse));
    }
}
