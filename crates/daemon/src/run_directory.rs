//! The run directory of a server: its lock, its record, its control socket, its FUSE mount point.

use crate::run_base::{create_dir, prepare_base};
use lacuna_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LOCK: &str = "lock";
const RECORD: &str = "record.json";
const NEW_RECORD: &str = "record.new";
const CONTROL: &str = "control";
const FUSE: &str = "fuse";
/// Longest record that is read.
const RECORD_LIMIT: u64 = 64 << 10;
/// How often a lock is tried again after its directory vanished under it.
const LOCK_ATTEMPTS: usize = 16;
/// How often, and how long after one another, a lock is tried that a probe may hold.
const PROBE_TRIES: usize = 5;
const PROBE_PAUSE: Duration = Duration::from_millis(2);

/// Name of the file that is the disk.
pub const DISK_NAME: &str = "disk";

/// What an open disk is, for those who close or list it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The location as it was given to `open`.
    pub location: String,
    /// Where it is mounted.
    #[serde(with = "crate::record_path")]
    pub mountpoint: PathBuf,
    /// The loop device below the mounted file system; none in raw mode.
    pub loop_device: Option<PathBuf>,
    /// The server's process number.
    pub pid: u32,
    /// Whether only the FUSE file is mounted.
    pub raw: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// The name of its format, such as `sealed`.
    pub format: String,
    /// When it was opened, in seconds since 1970.
    pub since: u64,
    /// Whether it is a vault: then the FUSE file system at the mount point is what was opened, and no disk is behind it.
    pub vault: bool,
    /// The way in which the file system is mounted ([`Way::name`](lacuna_mount::Way::name)); none in raw mode, and of a vault.
    pub via: Option<String>,
    /// Which of the disks of its name it is, if it is one in a pool.
    pub in_pool: Option<InPool>,
    /// What tells its file or device from others, whatever its path is; empty in a pool.
    pub place: String,
}

/// What a location in a pool does not say of its disk: which of those of its name it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InPool {
    /// The namespace in the pool, if any.
    pub namespace: Option<String>,
    /// The configuration file of the cluster, if it was named and is not the usual one.
    pub ceph_conf: Option<PathBuf>,
}

impl Record {
    /// Whether FUSE is mounted at the mount point itself.
    pub(crate) fn fuse_at_mountpoint(&self) -> bool {
        self.raw || self.vault
    }
}

/// Now, as records have it: seconds since 1970.
pub fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// The paths that belong to one mount point. Nothing of it need exist.
#[derive(Clone, Debug)]
pub struct RunPaths {
    dir: PathBuf,
}

impl RunPaths {
    /// The paths for `mountpoint`, which must be canonical.
    pub(crate) fn of(base: &Path, mountpoint: &Path) -> Self {
        RunPaths { dir: base.join(format!("{:016x}", fnv1a(mountpoint.as_os_str().as_bytes()))) }
    }

    /// Everything in `base` that may be a run directory; nothing if there is no such base. Errors: a base that cannot be read.
    pub(crate) fn all(base: &Path) -> Result<Vec<Self>> {
        let failed =
            |e: &io::Error| Error::io(format!("cannot look into the run directory {}", base.display()), e);
        let entries = match fs::read_dir(base) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|e| failed(&e))?,
        };
        entries.map(|entry| Ok(RunPaths { dir: entry.map_err(|e| failed(&e))?.path() })).collect()
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.dir.join(CONTROL)
    }

    pub(crate) fn fuse(&self) -> PathBuf {
        self.dir.join(FUSE)
    }

    /// The record, or `None` if the server had not got so far. Errors: one that cannot be read, and [`Kind::Corrupt`] for what no
    /// server has written.
    pub(crate) fn record(&self) -> Result<Option<Record>> {
        let path = self.dir.join(RECORD);
        let what = || format!("cannot read the record of what is open, {}", path.display());
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(RECORD_LIMIT + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io(what(), &e)),
        }
        let broken = |found: String| {
            let (expected, dir) = ("the record that a server of lacuna writes", self.dir.display());
            let error = Error::new(Kind::Corrupt, what()).found(found).expected(expected);
            error.remedy(format!("if its server died, unmount what it left, and remove the directory {dir}"))
        };
        if bytes.len() as u64 > RECORD_LIMIT {
            return Err(broken(format!("more than {RECORD_LIMIT} bytes")));
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|e| broken(e.to_string()))
    }

    /// Opens the lock without taking it. `None` if there is no such run directory.
    pub(crate) fn lock_file(&self) -> Result<Option<File>> {
        match File::options().read(true).write(true).open(self.dir.join(LOCK)) {
            Ok(file) => Ok(Some(file)),
            // A file in the base is no run directory.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(Error::io(format!("cannot open the lock in {}", self.dir.display()), &e)),
        }
    }

    /// Removes the files by name. Never recursive: what is mounted below must not be walked into. Errors: a file that stays; by its
    /// lock others would take the server for one that died.
    pub(crate) fn remove(&self) -> Result<()> {
        let mut removed = Ok(());
        for file in [RECORD, NEW_RECORD, CONTROL, LOCK] {
            let path = self.dir.join(file);
            if let Err(e) = fs::remove_file(&path)
                && e.kind() != ErrorKind::NotFound
            {
                removed = removed.and(Err(Error::io(format!("cannot remove {}", path.display()), &e)));
            }
        }
        // They stay where something is still mounted in them. Without the lock they are no run directory.
        for dir in [self.fuse(), self.dir.clone()] {
            let _ = fs::remove_dir(dir);
        }
        removed
    }
}

/// A run directory that this process holds. Dropping it removes it, then lets the lock go.
pub struct RunDirectory {
    paths: RunPaths,
    lock: File,
    /// Whether its files are removed. Others of the same names may be another server's by now.
    removed: bool,
}

impl RunDirectory {
    /// Creates and locks the directory. [`Kind::Busy`] while another server has it. What a dead server left in
    /// it stays for the caller to clean up.
    pub fn claim(base: &Path, mountpoint: &Path) -> Result<Self> {
        prepare_base(base)?;
        let paths = RunPaths::of(base, mountpoint);
        for _ in 0..LOCK_ATTEMPTS {
            if let Some(lock) = try_claim(&paths, mountpoint)? {
                return Ok(RunDirectory { paths, lock, removed: false });
            }
        }
        Err(busy(mountpoint))
    }

    /// What is in it.
    pub fn paths(&self) -> &RunPaths {
        &self.paths
    }

    /// Makes the directory that FUSE is mounted on.
    pub fn make_fuse(&self) -> Result<PathBuf> {
        let dir = self.paths.fuse();
        create_dir(&dir)?;
        Ok(dir)
    }

    /// Writes the record, whole or not at all.
    pub fn write_record(&self, record: &Record) -> Result<()> {
        let failed = |e: std::io::Error| Error::io("cannot write the record of the open disk", &e);
        let text = serde_json::to_vec_pretty(record).map_err(|e| failed(e.into()))?;
        let new = self.paths.dir.join(NEW_RECORD);
        fs::write(&new, text).and_then(|()| fs::rename(&new, self.paths.dir.join(RECORD))).map_err(failed)
    }

    /// Does what dropping it does. Errors: what could not be removed.
    pub fn end(mut self) -> Result<()> {
        self.removed = true;
        self.paths.remove()
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if !self.removed {
            // There is nobody to tell: see `RunDirectory::end`.
            let _ = self.paths.remove();
        }
        // A child that was started at this moment may still share the open file, and the lock with it.
        let _ = self.lock.unlock();
    }
}

/// The lock, or `None` if the directory was removed at the same moment.
fn try_claim(paths: &RunPaths, mountpoint: &Path) -> Result<Option<File>> {
    create_dir(&paths.dir)?;
    let path = paths.dir.join(LOCK);
    let lock = match File::options().read(true).write(true).create(true).truncate(false).open(&path) {
        Ok(lock) => lock,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(format!("cannot create {}", path.display()), &e)),
    };
    match lock_past_probes(&lock) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(busy(mountpoint)),
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

/// Takes a lock that others may hold for the moment of a look whether the server lives.
pub(crate) fn lock_past_probes(lock: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..PROBE_TRIES {
        match lock.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(PROBE_PAUSE),
            other => return other,
        }
    }
    lock.try_lock()
}

fn busy(mountpoint: &Path) -> Error {
    Error::new(Kind::Busy, format!("cannot open at {}", mountpoint.display()))
        .found("a lacuna server that has or is getting this mount point")
        .remedy("close it first")
}

/// FNV-1a: a short name for a path, for where the path itself has no room. Two paths with one name must do no
/// worse than to refuse one of them as busy.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: &Path) -> Record {
        Record {
            location: "a.img".into(),
            mountpoint: at.into(),
            loop_device: None,
            pid: 1,
            raw: true,
            read_only: false,
            format: "sealed".into(),
            since: 1_714_570_620,
            vault: false,
            via: None,
            in_pool: None,
            place: String::new(),
        }
    }

    #[test]
    fn one_server_for_a_mount_point() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let first = RunDirectory::claim(base.path(), at).unwrap();
        assert_eq!(RunDirectory::claim(base.path(), at).err().unwrap().kind(), Kind::Busy);
        RunDirectory::claim(base.path(), Path::new("/mnt/y")).unwrap();
        first.write_record(&record(at)).unwrap();
        assert_eq!(RunPaths::of(base.path(), at).record().unwrap(), Some(record(at)));
        drop(first);
        assert!(RunPaths::of(base.path(), at).lock_file().unwrap().is_none());
        RunDirectory::claim(base.path(), at).unwrap().end().unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_read_is_not_what_is_not_there() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        assert!(RunPaths::all(&base.path().join("none")).unwrap().is_empty());
        let stray = base.path().join("stray");
        fs::write(&stray, "").unwrap();
        assert!(RunPaths::all(&stray).is_err());
        let all = RunPaths::all(base.path()).unwrap();
        assert!(all.len() == 1 && all[0].lock_file().unwrap().is_none());

        let held = RunDirectory::claim(base.path(), at).unwrap();
        assert_eq!(held.paths().record().unwrap(), None);
        for broken in [&b""[..], b"{}", b"no JSON", &[b' '; RECORD_LIMIT as usize + 1]] {
            fs::write(held.paths().dir.join(RECORD), broken).unwrap();
            assert_eq!(held.paths().record().unwrap_err().kind(), Kind::Corrupt);
        }
        // A file that stays is told, and the others go all the same.
        fs::remove_file(held.paths().dir.join(RECORD)).unwrap();
        fs::create_dir(held.paths().dir.join(RECORD)).unwrap();
        let paths = held.paths().clone();
        assert!(held.end().is_err() && paths.lock_file().unwrap().is_none());
    }
}
