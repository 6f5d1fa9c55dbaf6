//! A folder on a real directory.

use crate::file_open::{close_first, retry_while_busy};
use crate::quota::within_quotas;
use crate::{Access, Folder, FolderFile, FsSpace, check_name};
use lacuna_contracts::{Error, Kind, Result};
use parking_lot::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{
    self, Access as Permission, Advice, AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags,
    SeekFrom, StatVfsMountFlags,
};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The file that is locked if the system cannot lock directories.
pub const LOCK: &str = "lock";

/// The most subfolders, and the most files, that are kept open.
const OPEN_SUBFOLDERS: usize = 512;
const OPEN_FILES: usize = 256;

/// A directory. Holds a lock on it until dropped: exclusive for writing, shared for reading.
///
/// It never leaves the directory: names are checked, and symbolic links in it are never followed.
pub struct DiskFolder {
    path: PathBuf,
    top: Arc<OwnedFd>,
    _lock: Option<OwnedFd>,
    read_only: bool,
    subfolders: Mutex<HashMap<String, Arc<OwnedFd>>>,
    /// The number of times that a subfolder was opened because it was not cached, and how many of
    /// these openings are covered by a later sync of the top. An existing subfolder may be new,
    /// made by another thread or by a process that was killed.
    opened_subfolders: AtomicU64,
    durable_subfolders: AtomicU64,
}

impl DiskFolder {
    /// Opens an existing directory.
    ///
    /// Errors: [`Kind::NotFound`], [`Kind::Permission`], [`Kind::ReadOnly`] for writing on a
    /// read-only file system, and [`Kind::Busy`] if another program has it open.
    pub fn open(path: &Path, access: Access) -> Result<DiskFolder> {
        let failed = |e: Errno| Error::io(format!("cannot open the directory {}", path.display()), &e.into());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let top = retry_on_intr(|| fs::open(path, flags, Mode::empty())).map_err(|e| match e {
            Errno::NOTDIR => failed(e).with_kind(Kind::NotFound).expected("a directory"),
            Errno::NOENT => failed(e).hint("check the path"),
            _ => failed(e),
        })?;
        let read_only = access == Access::Read;
        if !read_only {
            // The system reports a read-only file system before it checks permissions.
            fs::accessat(&top, ".", Permission::WRITE_OK, AtFlags::EACCESS).map_err(failed)?;
        }
        let lock = lock(path, &top, read_only)?;
        Ok(DiskFolder {
            path: path.to_owned(),
            top: Arc::new(top),
            _lock: lock,
            read_only,
            subfolders: Mutex::default(),
            opened_subfolders: AtomicU64::new(0),
            durable_subfolders: AtomicU64::new(0),
        })
    }

    fn failed(&self, what: &str, name: &str, e: Errno) -> Error {
        let path = self.path.join(name);
        let error = named_limit(Error::io(format!("cannot {what} {}", path.display()), &e.into()), e);
        match e {
            Errno::LOOP | Errno::NOTDIR | Errno::ISDIR => {
                error.with_kind(Kind::Corrupt).expected("a regular file in a directory, and no symbolic link")
            }
            _ => error,
        }
    }

    fn changeable(&self, what: &str, name: &str) -> Result<()> {
        if self.read_only { Err(self.failed(what, name, Errno::ROFS)) } else { Ok(()) }
    }

    /// Runs `act` in a subfolder. If the process has no descriptors left, closes cached subfolders
    /// and tries once more.
    fn in_subfolder<T>(
        &self,
        subfolder: &str,
        make: bool,
        mut act: impl FnMut(&OwnedFd) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        match self.in_subfolder_once(subfolder, make, &mut act) {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.subfolders.lock().clear();
                self.in_subfolder_once(subfolder, make, &mut act)
            }
            done => done,
        }
    }

    /// The open subfolder; created if it is absent and `make` is set.
    fn subfolder(&self, name: &str, make: bool) -> rustix::io::Result<Arc<OwnedFd>> {
        if name.is_empty() {
            return Ok(self.top.clone());
        }
        if let Some(known) = self.subfolders.lock().get(name) {
            return Ok(known.clone());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || retry_on_intr(|| fs::openat(&self.top, name, flags, Mode::empty()));
        let opened = match open() {
            Err(Errno::NOENT) if make => {
                match retry_on_intr(|| fs::mkdirat(&self.top, name, Mode::RWXU)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(e) => return Err(e),
                }
                open()?
            }
            other => other?,
        };
        // Counted before another thread can create a name in it.
        self.opened_subfolders.fetch_add(1, Ordering::AcqRel);
        let opened = Arc::new(opened);
        let mut known = self.subfolders.lock();
        if known.len() >= share_of_descriptors(descriptor_limit(), OPEN_SUBFOLDERS) {
            known.clear();
        }
        known.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    /// Runs `act` in a subfolder. Reopens a subfolder that another program removed and recreated
    /// meanwhile, and repeats calls that a signal interrupts.
    fn in_subfolder_once<T>(
        &self,
        subfolder: &str,
        make: bool,
        act: &mut impl FnMut(&OwnedFd) -> rustix::io::Result<T>,
    ) -> rustix::io::Result<T> {
        let open = self.subfolder(subfolder, make)?;
        let first = retry_on_intr(|| act(&open));
        // A removed directory has no links.
        let removed = || fs::fstat(&*open).is_ok_and(|about| about.st_nlink == 0);
        let stale = matches!(first, Err(Errno::STALE)) || matches!(first, Err(Errno::NOENT)) && removed();
        if !stale || subfolder.is_empty() {
            return first;
        }
        self.subfolders.lock().remove(subfolder);
        let open = self.subfolder(subfolder, make)?;
        retry_on_intr(|| act(&open))
    }

    /// Whether a subfolder may not be durable yet.
    fn has_volatile_subfolders(&self) -> bool {
        self.durable_subfolders.load(Ordering::Acquire) < self.opened_subfolders.load(Ordering::Acquire)
    }

    /// Runs `sync`, and counts every subfolder seen before it as durable.
    fn sync_subfolders(&self, sync: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
        let met = self.opened_subfolders.load(Ordering::Acquire);
        retry_on_intr(sync)?;
        self.durable_subfolders.fetch_max(met, Ordering::AcqRel);
        Ok(())
    }

    fn file(&self, name: &str, opened: OwnedFd) -> Result<Arc<dyn FolderFile>> {
        let kind = fs::fstat(&opened).map(|about| FileType::from_raw_mode(about.st_mode));
        match kind.map_err(|e| self.failed("open", name, e))? {
            FileType::RegularFile => {
                Ok(Arc::new(DiskFolderFile { file: File::from(opened), path: self.path.join(name) }))
            }
            _ => Err(self.failed("open", name, Errno::ISDIR)),
        }
    }
}

/// The descriptors that a process needs beside those of a folder: sockets, devices, superblocks
/// and journals, and the pipes of programs that mount and unmount.
const OTHER_DESCRIPTORS: u64 = 32;

/// The number of descriptors that may be cached at this limit of the process: a quarter of the
/// rest beside [`OTHER_DESCRIPTORS`], at most `most`.
fn share_of_descriptors(limit: u64, most: usize) -> usize {
    usize::try_from(limit.saturating_sub(OTHER_DESCRIPTORS) / 4).unwrap_or(most).clamp(4, most)
}

/// The limit of open files of this process.
fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// If the process has no descriptors left, adds the limit to the error.
fn named_limit(error: Error, e: Errno) -> Error {
    if e != Errno::MFILE {
        return error;
    }
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(String::new, |most| format!(", {most} at present"));
    error
        .expected(format!("fewer open files than the limit of this process (RLIMIT_NOFILE{limit})"))
        .hint("raise the limit: `ulimit -n` in the shell that starts the server, LimitNOFILE= in its unit")
}

/// Locks the directory. If that is impossible, locks a file in it, and returns that file.
fn lock(path: &Path, top: &OwnedFd, read_only: bool) -> Result<Option<OwnedFd>> {
    let how = |fd: &OwnedFd| {
        let exclusive = FlockOperation::NonBlockingLockExclusive;
        let how = if read_only { FlockOperation::NonBlockingLockShared } else { exclusive };
        retry_while_busy(|| fs::flock(fd, how), |e| *e == Errno::WOULDBLOCK)
    };
    let what = || format!("cannot lock {}", path.display());
    let busy = || {
        Error::new(Kind::Busy, what()).found("another program has this directory open").hint(close_first())
    };
    match how(top) {
        Ok(()) => return Ok(None),
        Err(Errno::WOULDBLOCK) => return Err(busy()),
        // Network file systems lock only files that are open for writing.
        Err(Errno::BADF | Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
        Err(e) => return Err(Error::io(what(), &e.into())),
    }
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let flags = flags | if read_only { OFlags::RDONLY } else { OFlags::RDWR | OFlags::CREATE };
    let file = match fs::openat(top, LOCK, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        // The file is absent, so no writer ever locked it.
        Err(Errno::NOENT) if read_only => return Ok(None),
        Err(e) => return Err(Error::io(what(), &e.into())),
    };
    match how(&file) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Err(busy()),
        Err(e) => Err(Error::io(what(), &e.into())
            .expected("a file system with locks")
            .hint("mount the file system with locks")),
    }
}

impl Folder for DiskFolder {
    fn open(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
        let (subfolder, file) = check_name(name)?;
        let access = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = self.in_subfolder(subfolder, false, |folder| {
            match fs::openat(folder, file, flags | OFlags::NOATIME, Mode::empty()) {
                // Only the owner may keep access times unchanged.
                Err(Errno::PERM) => fs::openat(folder, file, flags, Mode::empty()),
                opened => opened,
            }
        });
        self.file(name, opened.map_err(|e| self.failed("open", name, e))?)
    }

    fn create(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
        let (subfolder, file) = check_name(name)?;
        self.changeable("create", name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let create = |folder: &OwnedFd| fs::openat(folder, file, flags, Mode::RUSR | Mode::WUSR);
        let opened = self.in_subfolder(subfolder, true, |folder| match create(folder) {
            Err(Errno::EXIST) => {
                fs::unlinkat(folder, file, AtFlags::empty())?;
                create(folder)
            }
            other => other,
        });
        self.file(name, opened.map_err(|e| self.failed("create", name, e))?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let (subfolder, file) = check_name(name)?;
        self.changeable("remove", name)?;
        match self.in_subfolder(subfolder, false, |folder| fs::unlinkat(folder, file, AtFlags::empty())) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.failed("remove", name, e)),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let ((from_folder, from_file), (to_folder, to_file)) = (check_name(from)?, check_name(to)?);
        self.changeable("rename", from)?;
        let renamed = self.in_subfolder(from_folder, false, |source| {
            self.in_subfolder(to_folder, false, |target| fs::renameat(source, from_file, target, to_file))
        });
        renamed.map_err(|e| self.failed("rename", from, e))
    }

    fn list(&self, subfolder: &str) -> Result<Vec<String>> {
        let listed = || -> rustix::io::Result<Vec<String>> {
            let folder = self.subfolder(subfolder, false)?;
            let mut names = Vec::new();
            for entry in Dir::read_from(&*folder)? {
                // A vault has no names that are not UTF-8.
                names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
            }
            names.retain(|name| name != "." && name != "..");
            Ok(names)
        };
        match retry_on_intr(listed) {
            Err(Errno::NOENT) => Ok(Vec::new()),
            other => other.map_err(|e| self.failed("list", subfolder, e)),
        }
    }

    fn sync_names(&self, subfolder: &str) -> Result<()> {
        let failed = |e| self.failed("sync the directory", subfolder, e).with_kind(Kind::Io);
        if !subfolder.is_empty() {
            match self.in_subfolder(subfolder, false, |folder| fs::fsync(folder)) {
                // A removed subfolder has nothing to sync; the sync of the top makes its removal
                // durable.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(failed(e)),
            }
        }
        // Other threads that wait for the same subfolders sync the top as well, so it is durable
        // when any of them returns.
        if subfolder.is_empty() || self.has_volatile_subfolders() {
            self.sync_subfolders(|| fs::fsync(&self.top)).map_err(failed)?;
        }
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        self.sync_subfolders(|| fs::syncfs(&self.top))
            .map_err(|e| self.failed("sync the file system of", "", e).with_kind(Kind::Io))
    }

    fn space(&self) -> Result<FsSpace> {
        let about = fs::fstatvfs(&self.top).map_err(|e| self.failed("ask for the space of", "", e))?;
        Ok(within_quotas(&self.top, about.into()))
    }

    fn open_files(&self) -> usize {
        share_of_descriptors(descriptor_limit(), OPEN_FILES)
    }

    fn read_only(&self) -> bool {
        let mounted =
            || fs::fstatvfs(&self.top).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
        self.read_only || mounted()
    }
}

/// An open file of a [`DiskFolder`].
struct DiskFolderFile {
    file: File,
    path: PathBuf,
}

impl DiskFolderFile {
    fn failed(&self, what: &str, e: &std::io::Error) -> Error {
        Error::io(format!("{what} {}", self.path.display()), e)
    }
}

impl FolderFile for DiskFolderFile {
    fn len(&self) -> Result<u64> {
        let about = fs::fstat(&self.file).map_err(|e| self.failed("cannot look at", &e.into()))?;
        Ok(about.st_size as u64)
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            match self.file.read_at(buf, offset) {
                Ok(0) => {
                    buf.fill(0);
                    return Ok(());
                }
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let what = format!("cannot read {} bytes at byte {offset} of", buf.len());
                    return Err(self.failed(&what, &e));
                }
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file
            .write_all_at(data, offset)
            .map_err(|e| self.failed(&format!("cannot write {} bytes at byte {offset} of", data.len()), &e))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file
            .set_len(len)
            .map_err(|e| self.failed(&format!("cannot set to {len} bytes the length of"), &e))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        match retry_on_intr(|| fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, offset, len)) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(e) => Err(self.failed(&format!("cannot allocate {len} bytes for"), &e.into())),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let failed =
            |e: Errno| self.failed(&format!("cannot punch {len} bytes at byte {offset} of"), &e.into());
        match retry_on_intr(|| fs::fallocate(&self.file, how, offset, len)) {
            Ok(()) => Ok(()),
            Err(e @ (Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)) => {
                Err(failed(e).with_kind(Kind::Other))
            }
            Err(e) => Err(failed(e)),
        }
    }

    fn sync(&self) -> Result<()> {
        // Never `NoSpace`: the dropped data is unknown, so a caller must not continue as after a
        // refused write.
        self.file.sync_data().map_err(|e| self.failed("cannot sync", &e).with_kind(Kind::Io))
    }

    fn max_len(&self) -> Result<u64> {
        // The system refuses to seek past the maximum length of the file system. The file position
        // has no other use here.
        let fits = |len: u64| match fs::seek(&self.file, SeekFrom::Start(len)) {
            Ok(_) => Ok(true),
            Err(Errno::INVAL | Errno::OVERFLOW) => Ok(false),
            Err(e) => Err(self.failed("cannot determine the maximum length of", &e.into())),
        };
        let (mut fitting, mut beyond) = (0, i64::MAX as u64);
        while beyond - fitting > 1 {
            let middle = fitting + (beyond - fitting) / 2;
            if fits(middle)? { fitting = middle } else { beyond = middle }
        }
        Ok(fitting.min(getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)))
    }

    fn has_name(&self) -> Result<bool> {
        let about = fs::fstat(&self.file).map_err(|e| self.failed("cannot look at", &e.into()))?;
        Ok(about.st_nlink > 0)
    }

    fn forget_cached(&self) -> Result<()> {
        forget_cached(&self.file, &self.path)
    }
}

/// Makes later reads of a file return the durable content, as
/// [`Medium::forget_cached`](crate::Medium::forget_cached) does.
///
/// Errors: [`Kind::Io`] if earlier writes cannot be made durable.
pub fn forget_cached(file: &File, path: &Path) -> Result<()> {
    let failed = |what: &str, e: &std::io::Error| {
        Error::io(format!("{what} {}", path.display()), e).with_kind(Kind::Io)
    };
    match file.sync_data() {
        Ok(()) => {}
        // A file that is open for reading, or on a read-only file system, has nothing to write.
        Err(e) if matches!(e.raw_os_error(), Some(n) if n == Errno::ROFS.raw_os_error()) => {}
        Err(e) => {
            return Err(failed("earlier writes did not reach", &e)
                .hint("repair the medium that holds it, then open it again: it continues from the last durable state"));
        }
    }
    fs::fadvise(file, 0, None, Advice::DontNeed)
        .map_err(|e| failed("cannot drop the cached pages of", &e.into()))
}

#[cfg(test)]
#[path = "disk_folder_tests.rs"]
mod tests;
