//! Helpers of the checks: their directory, files in it, expected failures, and work as another
//! user.

use rustix::fs::{Advice, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A user other than root, and its group.
pub(crate) const ALICE: u32 = 4001;
/// Another user.
pub(crate) const BOB: u32 = 4002;
/// A group that is not the primary group of any user.
pub(crate) const STAFF: u32 = 4100;

/// The directory of one check.
pub(crate) struct CheckDir {
    pub dir: PathBuf,
    /// Whether it is in a vault. A plain directory may differ where POSIX leaves a choice.
    pub vault: bool,
}

impl CheckDir {
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes a file with this content.
    pub(crate) fn file(&self, name: impl AsRef<Path>, content: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    /// Makes a directory.
    pub(crate) fn dir(&self, name: impl AsRef<Path>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// Makes a file with this content and opens it for reading and writing.
    pub(crate) fn handle(&self, name: &str, content: &[u8]) -> File {
        self.file(name, content);
        self.open(name, OFlags::RDWR).unwrap()
    }

    /// Opens with `flags`; a new file gets the mode 0644.
    pub(crate) fn open(&self, name: impl AsRef<Path>, flags: OFlags) -> rustix::io::Result<File> {
        open(&self.path(name), flags)
    }
}

/// Opens with `flags`; a new file gets the mode 0644.
pub(crate) fn open(path: &Path, flags: OFlags) -> rustix::io::Result<File> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).map(File::from)
}

/// The attributes of the name itself, without following a symbolic link.
#[track_caller]
pub(crate) fn stat(path: impl AsRef<Path>) -> Stat {
    rustix::fs::lstat(path.as_ref()).unwrap_or_else(|e| panic!("{}: {e}", path.as_ref().display()))
}

/// Permission bits with set-user-ID, set-group-ID and sticky.
#[track_caller]
pub(crate) fn mode(path: impl AsRef<Path>) -> u32 {
    stat(path).st_mode & 0o7777
}

/// The value of an extended attribute.
pub(crate) fn attribute(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 70_000];
    let len = rustix::fs::getxattr(path, name, &mut value[..])?;
    value.truncate(len);
    Ok(value)
}

/// The call must fail with this number.
#[track_caller]
pub(crate) fn fails<T, E: Into<io::Error>>(result: Result<T, E>, expected: Errno) {
    fails_among(result, &[expected]);
}

/// The call must fail with one of these numbers.
#[track_caller]
pub(crate) fn fails_among<T, E: Into<io::Error>>(result: Result<T, E>, expected: &[Errno]) {
    let Err(e) = result else { panic!("success instead of {expected:?}") };
    let e: io::Error = e.into();
    let right = expected.iter().any(|number| e.raw_os_error() == Some(number.raw_os_error()));
    assert!(right, "{e} instead of {expected:?}");
}

/// Syncs a file and drops the kernel's cache of its content, so that the next read asks the file
/// system.
#[track_caller]
pub(crate) fn sync_and_drop_cache(file: &File) {
    file.sync_all().unwrap();
    rustix::fs::fadvise(file, 0, NonZeroU64::new(u64::MAX >> 1), Advice::DontNeed).unwrap();
}

/// A file's content from the storage.
#[track_caller]
pub(crate) fn stored(path: impl AsRef<Path>) -> Vec<u8> {
    sync_and_drop_cache(&File::open(path.as_ref()).unwrap());
    fs::read(path).unwrap()
}

/// A path to an open file that works without its names.
pub(crate) fn by_handle(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Pseudorandom bytes for a seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    lacuna_sim::Rng::new(seed).bytes(len)
}

/// Runs `work` on a thread as this user, with the group of the same number and `groups`.
pub(crate) fn as_user<T: Send>(user: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let identify = || {
        let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            identify().unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Changes the owner and the group of a node.
#[track_caller]
pub(crate) fn set_owner_and_group(path: impl AsRef<Path>, user: u32, group: u32) {
    std::os::unix::fs::lchown(path, Some(user), Some(group)).unwrap();
}

/// Sets permission bits.
#[track_caller]
pub(crate) fn chmod(path: impl AsRef<Path>, mode: u32) {
    rustix::fs::chmod(path.as_ref(), Mode::from_raw_mode(mode)).unwrap();
}
