//! The directories of other users with their run directories and control sockets, for root.
//!
//! These users may be hostile: a name there may be a link, the mount of a program that never
//! answers, or the socket of another server. So no path leads through a link or into another mount,
//! every owner is checked, only sockets are opened, and nothing is sent before the system has named
//! a process of that user as the listener.

use crate::client::connect_with_timeout;
use crate::run_dir::run_base::{WRITABLE_BY_OTHERS, names};
use crate::run_dir::{CONTROL, is_name};
use lacuna_contracts::{Error, Kind, Result, SocketPeer};
use lacuna_mount::mount_table;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statx};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// The directory with a directory of each logged in user.
const OF_LOGINS: &str = "/run/user";
/// The directories that all users share.
const SHARED: [&str; 2] = ["/dev/shm", "/tmp"];
/// Most run directories of a base that are looked at, and most entries that are read to find them.
const MOST_RUN_DIRS: usize = 64;
const MOST_ENTRIES: usize = 4096;
/// How names below a base are resolved.
const INSIDE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

/// A directory of run directories of another user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserBase {
    /// The user by the name of the directory; [`UserBase::open`] checks the owner.
    pub user: u32,
    parent: PathBuf,
    /// Whether the parent belongs to the user too. The user can mount a FUSE file system there.
    is_login: bool,
    name: String,
}

impl UserBase {
    /// Every base that belongs to another user. A base without a well-known path, below another
    /// `XDG_RUNTIME_DIR`, is not found.
    ///
    /// Errors: a directory of many users that cannot be read. A base that cannot be opened is among
    /// them: [`UserBase::sockets`] returns the error.
    pub(crate) fn all() -> Result<Vec<UserBase>> {
        let logins = Path::new(OF_LOGINS);
        let of_login = |name: &OsStr| Some(UserBase::of_login(logins, name.to_str().and_then(number)?));
        let mut all = in_dir(logins, of_login)?;
        for dir in SHARED.map(Path::new) {
            all.extend(in_dir(dir, |name| UserBase::in_shared(dir, name))?);
        }
        let own = geteuid().as_raw();
        all.retain(|base| base.user != own && !matches!(base.open(), Ok(None)));
        Ok(all)
    }

    /// Whether it is below a directory that the system made when the user logged in.
    pub(crate) fn is_of_login(&self) -> bool {
        self.is_login
    }

    /// The base below the directory of a logged in user.
    fn of_login(logins: &Path, user: u32) -> UserBase {
        UserBase { user, parent: logins.join(user.to_string()), is_login: true, name: "lacuna".to_owned() }
    }

    /// The base with this name in a shared directory; `None` for other names.
    fn in_shared(dir: &Path, name: &OsStr) -> Option<UserBase> {
        let name = name.to_str()?;
        let user = number(name.strip_prefix("lacuna-")?.split('-').next()?)?;
        let base = UserBase { user, parent: dir.to_owned(), is_login: false, name: name.to_owned() };
        names(dir, user).contains(&base.path()).then_some(base)
    }

    fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// The error for a base that cannot be read.
    fn failed(&self, e: &io::Error) -> Error {
        let error = Error::io(format!("cannot look into {}", self.path().display()), e);
        if e.raw_os_error() == Some(libc::ENOSYS) { error.expected("Linux 5.6 or newer") } else { error }
    }

    /// Opens the directory. `None` if its user has none there: nothing is there, or something that
    /// is no directory of the user, or that other users can change.
    ///
    /// Errors: those of the system.
    fn open(&self) -> io::Result<Option<OwnedFd>> {
        let parent = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = if self.is_login { parent | OFlags::NOFOLLOW } else { parent };
        let Some(parent) = if_there(openat(CWD, &self.parent, parent, Mode::empty()))? else {
            return Ok(None);
        };
        if self.is_login && !is_of_system(&parent, &self.parent)? {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Some(base) = if_there(openat2(&parent, &self.name, flags, Mode::empty(), INSIDE))? else {
            return Ok(None);
        };
        let base = File::from(base);
        let about = base.metadata()?;
        let is_of_user = about.uid() == self.user && about.mode() & WRITABLE_BY_OTHERS == 0;
        Ok(is_of_user.then(|| base.into()))
    }

    /// The control sockets in its run directories, at most 64. A second value is the error for
    /// further entries.
    ///
    /// Errors: those of the system; a kernel without `openat2` (before Linux 5.6).
    pub(crate) fn sockets(&self) -> Result<(Vec<UserSocket>, Option<Error>)> {
        let failed = |e: Errno| self.failed(&e.into());
        let Some(base) = self.open().map_err(|e| self.failed(&e))? else { return Ok((Vec::new(), None)) };
        let (mut sockets, mut entries) = (Vec::new(), 0);
        for entry in Dir::new(base).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            entries += 1;
            if entries > MOST_ENTRIES || (is_name(name) && sockets.len() == MOST_RUN_DIRS) {
                let more = format!("too many entries in {}", self.path().display());
                return Ok((sockets, Some(Error::new(Kind::Other, more))));
            }
            if let Some(name) = name.to_str().filter(|_| is_name(name)) {
                sockets.push(UserSocket { base: self.clone(), name: name.to_owned() });
            }
        }
        Ok((sockets, None))
    }
}

/// The control socket in a run directory of another user.
#[derive(Clone, Debug)]
pub(crate) struct UserSocket {
    base: UserBase,
    /// The name of the run directory.
    name: String,
}

impl UserSocket {
    pub(crate) fn user(&self) -> u32 {
        self.base.user
    }

    /// Connects to the server, and returns the number of the process that listens.
    ///
    /// Errors: [`ErrorKind::NotFound`] if the server has ended, [`ErrorKind::ConnectionRefused`] if
    /// it died or takes no clients any more, [`ErrorKind::PermissionDenied`] if it is no socket of
    /// the user, or if a process of another user or one without a number here listens; those of the
    /// system.
    pub(crate) fn connect(&self) -> io::Result<(UnixStream, u32)> {
        let denied = |found: &str| io::Error::new(ErrorKind::PermissionDenied, found);
        let base = self.base.open()?.ok_or(ErrorKind::NotFound)?;
        let control = format!("{}/{CONTROL}", self.name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = File::from(openat2(&base, control, flags, Mode::empty(), INSIDE)?);
        let about = socket.metadata()?;
        if !about.file_type().is_socket() || about.uid() != self.base.user {
            return Err(denied("no socket of this user in the place of a control socket"));
        }
        // The link leads to the socket that was checked, whatever its name is now.
        let stream = connect_with_timeout(&PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd())))?;
        let listener = SocketPeer::of(&stream)?;
        if listener.user != self.base.user {
            return Err(denied("a process of another user that listens on the control socket"));
        }
        let unnamed = || denied("a process of another container that listens on the control socket");
        Ok((stream, listener.process.ok_or_else(unnamed)?))
    }
}

/// The decimal number of a user, written as the system does.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|number: &u32| number.to_string() == text)
}

/// The bases that `find` gives for the entries of a directory; none if it does not exist.
fn in_dir(dir: &Path, find: impl Fn(&OsStr) -> Option<UserBase>) -> Result<Vec<UserBase>> {
    let failed = |e: &io::Error| Error::io(format!("cannot look into {}", dir.display()), e);
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| failed(&e))?,
    };
    let mut bases = Vec::new();
    for entry in entries {
        bases.extend(find(&entry.map_err(|e| failed(&e))?.file_name()));
    }
    Ok(bases)
}

/// `None` if a name does not exist, or cannot be a directory of lacuna: it is a file, a link, or a
/// mount that even root may not enter.
fn if_there(opened: rustix::io::Result<OwnedFd>) -> io::Result<Option<OwnedFd>> {
    match opened {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS) => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// Whether an open directory is in a file system of the system, and not in a FUSE mount of another
/// user: every request to such a mount may wait for ever. This function sends it none: FUSE answers
/// a question for nothing but the device by itself, and to every user.
fn is_of_system(dir: &OwnedFd, path: &Path) -> io::Result<bool> {
    let device = |dir: &OwnedFd| -> io::Result<String> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let about = statx(dir, c"", flags, StatxFlags::empty())?;
        Ok(format!("{}:{}", about.stx_dev_major, about.stx_dev_minor))
    };
    let (opened, own) = (device(dir)?, geteuid().as_raw());
    if let Some(top) = mount_table::at(path).map_err(io::Error::other)? {
        return Ok(top.device == opened && top.user.is_none_or(|user| user == own));
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(CWD, path.parent().unwrap_or(path), flags, Mode::empty())?;
    Ok(opened == device(&parent)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Uid;
    use rustix::thread::set_thread_uid;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    const USER: u32 = 54_321;
    const NAME: &str = "0123456789abcdef";

    /// A shared directory with a base and a run directory of [`USER`]; `None` if this user cannot
    /// make one.
    fn base() -> Option<(TempDir, UserBase)> {
        if !geteuid().is_root() {
            return None;
        }
        let shared = tempfile::tempdir().unwrap();
        fs::set_permissions(shared.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let base = UserBase::in_shared(shared.path(), OsStr::new("lacuna-54321")).unwrap();
        for dir in [base.path(), base.path().join(NAME)] {
            fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
            chown(&dir, Some(USER), None).unwrap();
        }
        Some((shared, base))
    }

    fn socket(base: &UserBase) -> UserSocket {
        base.sockets().unwrap().0.remove(0)
    }

    #[track_caller]
    fn refused(base: &UserBase, kind: ErrorKind) {
        assert_eq!(socket(base).connect().map(drop).unwrap_err().kind(), kind);
    }

    #[test]
    fn a_base_is_known_by_its_name() {
        let dir = Path::new("/dev/shm");
        let user = |name: &str| UserBase::in_shared(dir, OsStr::new(name)).map(|base| base.user);
        assert_eq!((user("lacuna-7"), user("lacuna-7-2"), user("lacuna-7-8")), (Some(7), Some(7), Some(7)));
        for other in
            ["lacuna", "lacuna-", "lacuna-07", "lacuna-+7", "lacuna-7-", "lacuna-7-9", "lacuna-7-2-3", "x"]
        {
            assert_eq!(user(other), None, "{other}");
        }
    }

    #[test]
    fn a_base_of_its_user_alone_is_opened() {
        let Some((shared, base)) = base() else { return };
        assert_eq!(socket(&base).name, NAME);
        let mode = |mode| fs::set_permissions(base.path(), fs::Permissions::from_mode(mode)).unwrap();
        for open_to_others in [0o770, 0o707] {
            mode(open_to_others);
            assert!(base.open().unwrap().is_none(), "{open_to_others:o}");
        }
        mode(0o700);
        chown(base.path(), Some(USER + 1), None).unwrap();
        assert!(base.open().unwrap().is_none());
        chown(base.path(), Some(USER), None).unwrap();
        assert!(base.open().unwrap().is_some());
        fs::rename(base.path(), shared.path().join("moved")).unwrap();
        assert!(base.open().unwrap().is_none());
        symlink(shared.path().join("moved"), base.path()).unwrap();
        assert!(base.open().unwrap().is_none());
        fs::remove_file(base.path()).unwrap();
        fs::write(base.path(), "").unwrap();
        assert!(base.open().unwrap().is_none());
        let login = UserBase::of_login(shared.path(), USER);
        assert!(login.open().unwrap().is_none());
        fs::create_dir(shared.path().join(USER.to_string())).unwrap();
        fs::rename(shared.path().join("moved"), login.path()).unwrap();
        assert_eq!(socket(&login).name, NAME);
    }

    #[test]
    fn no_more_run_directories_than_a_few_are_looked_at() {
        let Some((_shared, base)) = base() else { return };
        for name in ["short", "0123456789abcdeg"] {
            fs::create_dir(base.path().join(name)).unwrap();
        }
        assert!(base.sockets().is_ok_and(|(sockets, more)| sockets.len() == 1 && more.is_none()));
        for n in 1..=MOST_RUN_DIRS {
            fs::create_dir(base.path().join(format!("{n:016x}"))).unwrap();
        }
        let (sockets, more) = base.sockets().unwrap();
        assert!(sockets.len() == MOST_RUN_DIRS && more.is_some());
    }

    #[test]
    fn a_planted_name_is_no_control_socket() {
        let Some((shared, base)) = base() else { return };
        refused(&base, ErrorKind::NotFound);
        let control = base.path().join(NAME).join(CONTROL);
        // A server of root obeys root.
        let target = shared.path().join("socket");
        let listener = UnixListener::bind(&target).unwrap();
        symlink(&target, &control).unwrap();
        assert!(socket(&base).connect().is_err());
        fs::remove_file(&control).unwrap();
        fs::hard_link(&target, &control).unwrap();
        refused(&base, ErrorKind::PermissionDenied);
        chown(&control, Some(USER), None).unwrap();
        refused(&base, ErrorKind::PermissionDenied);
        fs::remove_file(&control).unwrap();
        fs::write(&control, "").unwrap();
        chown(&control, Some(USER), None).unwrap();
        refused(&base, ErrorKind::PermissionDenied);
        fs::remove_file(&control).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, Mode::RUSR);
        rustix::fs::mknodat(CWD, &control, kind, mode, 0).unwrap();
        chown(&control, Some(USER), None).unwrap();
        refused(&base, ErrorKind::PermissionDenied);
        // A run directory that is a link leads nowhere.
        fs::remove_file(&control).unwrap();
        fs::remove_dir(base.path().join(NAME)).unwrap();
        symlink(shared.path(), base.path().join(NAME)).unwrap();
        assert!(socket(&base).connect().is_err());
        drop(listener);
    }

    #[test]
    fn a_server_of_the_user_is_reached() {
        let Some((_shared, base)) = base() else { return };
        let control = base.path().join(NAME).join(CONTROL);
        let at = control.clone();
        let listens = std::thread::spawn(move || {
            // This thread alone becomes the user.
            set_thread_uid(Uid::from_raw(USER)).unwrap();
            UnixListener::bind(at).unwrap()
        });
        let listener = listens.join().unwrap();
        let (stream, process) = socket(&base).connect().unwrap();
        assert_eq!(process, std::process::id());
        drop((stream, listener));
        refused(&base, ErrorKind::ConnectionRefused);
        fs::remove_file(control).unwrap();
        refused(&base, ErrorKind::NotFound);
    }
}
