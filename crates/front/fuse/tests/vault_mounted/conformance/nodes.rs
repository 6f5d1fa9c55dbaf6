//! Checks of named pipes, sockets, devices, and locks.

use super::check_dir::{CheckDir, fails, fails_among, stat};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use lacuna_testkit::is_program_available;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, makedev, mknodat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    nodes_have_their_kind,
    devices_have_their_number,
    device_numbers_of_every_size,
    devices_cannot_be_opened,
    pipe_carries_data,
    pipe_without_a_reader,
    pipe_is_moved_and_linked,
    socket_carries_data,
    socket_cannot_be_opened,
    socket_without_a_listener,
    mknod_makes_regular_files,
    mknod_refuses_other_kinds,
    nodes_have_modes,
    flock_excludes,
    flock_is_shared,
    flock_ends_with_its_handle,
    record_locks_between_processes,
    flock_between_processes,
];

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

fn nodes_have_their_kind(at: &CheckDir) {
    let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice];
    for kind in kinds {
        let path = at.path(format!("{kind:?}"));
        mknodat(CWD, &path, kind, MODE, makedev(1, 3)).unwrap();
        let stat = stat(&path);
        assert_eq!(FileType::from_raw_mode(stat.st_mode), kind);
        assert_eq!((stat.st_size, stat.st_nlink, stat.st_mode & 0o7777), (0, 1, 0o600));
        fs::remove_file(&path).unwrap();
    }
}

fn devices_have_their_number(at: &CheckDir) {
    for (name, kind) in [("char", FileType::CharacterDevice), ("block", FileType::BlockDevice)] {
        mknodat(CWD, at.path(name), kind, MODE, makedev(7, 200)).unwrap();
        assert_eq!(stat(at.path(name)).st_rdev, makedev(7, 200));
        fs::hard_link(at.path(name), at.path("link")).unwrap();
        assert_eq!(stat(at.path("link")).st_rdev, makedev(7, 200));
        fs::remove_file(at.path("link")).unwrap();
    }
    at.file("file", b"");
    assert_eq!(stat(at.path("file")).st_rdev, 0);
}

fn device_numbers_of_every_size(at: &CheckDir) {
    for (major, minor) in [(0, 0), (1, 1), (255, 255), (256, 256), (4095, 1_048_575), (8, 65_536)] {
        let path = at.path(format!("{major} {minor}"));
        mknodat(CWD, &path, FileType::BlockDevice, MODE, makedev(major, minor)).unwrap();
        let number = stat(&path).st_rdev;
        assert_eq!((rustix::fs::major(number), rustix::fs::minor(number)), (major, minor));
    }
}

fn devices_cannot_be_opened(at: &CheckDir) {
    if !at.vault {
        return;
    }
    // Otherwise an adversary with write access to the backing directory could add devices.
    mknodat(CWD, at.path("null"), FileType::CharacterDevice, MODE, makedev(1, 3)).unwrap();
    fails(at.open("null", OFlags::RDWR), Errno::ACCESS);
}

fn pipe_carries_data(at: &CheckDir) {
    mknodat(CWD, at.path("fifo"), FileType::Fifo, MODE, 0).unwrap();
    let path = at.path("fifo");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            File::options().write(true).open(&path).unwrap().write_all(b"through the pipe").unwrap();
        });
        let mut text = String::new();
        File::open(&path).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "through the pipe");
    });
    assert_eq!(stat(&path).st_size, 0);
}

fn pipe_without_a_reader(at: &CheckDir) {
    mknodat(CWD, at.path("fifo"), FileType::Fifo, MODE, 0).unwrap();
    fails(at.open("fifo", OFlags::WRONLY | OFlags::NONBLOCK), Errno::NXIO);
    let mut reader = at.open("fifo", OFlags::RDONLY | OFlags::NONBLOCK).unwrap();
    assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
}

fn pipe_is_moved_and_linked(at: &CheckDir) {
    mknodat(CWD, at.path("fifo"), FileType::Fifo, MODE, 0).unwrap();
    let mut both = at.open("fifo", OFlags::RDWR).unwrap();
    both.write_all(b"waiting").unwrap();
    fs::hard_link(at.path("fifo"), at.path("link")).unwrap();
    fs::rename(at.path("fifo"), at.path("moved")).unwrap();
    let mut out = [0; 7];
    at.open("link", OFlags::RDONLY).unwrap().read_exact(&mut out).unwrap();
    assert_eq!(&out, b"waiting");
    fs::remove_file(at.path("link")).unwrap();
    fs::remove_file(at.path("moved")).unwrap();
    both.write_all(b"still").unwrap();
}

/// A path short enough for the address of a socket.
fn through(dir: &File, name: &str) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}/{name}", dir.as_raw_fd())
}

fn socket_carries_data(at: &CheckDir) {
    let dir = File::open(&at.dir).unwrap();
    let listener = UnixListener::bind(through(&dir, "socket")).unwrap();
    assert_eq!(FileType::from_raw_mode(stat(at.path("socket")).st_mode), FileType::Socket);
    let mut client = UnixStream::connect(through(&dir, "socket")).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"through the socket").unwrap();
    drop(client);
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the socket");
    fails(UnixListener::bind(through(&dir, "socket")), Errno::ADDRINUSE);
}

fn socket_cannot_be_opened(at: &CheckDir) {
    mknodat(CWD, at.path("socket"), FileType::Socket, MODE, 0).unwrap();
    fails(at.open("socket", OFlags::RDONLY), Errno::NXIO);
    fails(at.open("socket", OFlags::RDWR), Errno::NXIO);
}

fn socket_without_a_listener(at: &CheckDir) {
    let dir = File::open(&at.dir).unwrap();
    drop(UnixListener::bind(through(&dir, "socket")).unwrap());
    fails(UnixStream::connect(through(&dir, "socket")), Errno::CONNREFUSED);
    fs::remove_file(at.path("socket")).unwrap();
    fails(UnixStream::connect(through(&dir, "socket")), Errno::NOENT);
}

fn mknod_makes_regular_files(at: &CheckDir) {
    mknodat(CWD, at.path("file"), FileType::RegularFile, Mode::from_raw_mode(0o640), 0).unwrap();
    let made = stat(at.path("file"));
    assert_eq!((made.st_mode, made.st_size, made.st_nlink), (0o100_640, 0, 1));
    fs::write(at.path("file"), b"content").unwrap();
    assert_eq!(fs::read(at.path("file")).unwrap(), b"content");
}

fn mknod_refuses_other_kinds(at: &CheckDir) {
    fails_among(mknodat(CWD, at.path("x"), FileType::Directory, MODE, 0), &[Errno::PERM, Errno::INVAL]);
    fails(mknodat(CWD, at.path("x"), FileType::Symlink, MODE, 0), Errno::INVAL);
    assert!(!at.path("x").exists());
}

fn nodes_have_modes(at: &CheckDir) {
    mknodat(CWD, at.path("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    assert_eq!(super::check_dir::mode(at.path("fifo")), 0o644);
    super::check_dir::chmod(at.path("fifo"), 0o1751);
    super::check_dir::set_owner_and_group(at.path("fifo"), 3, 4);
    let stat = stat(at.path("fifo"));
    assert_eq!((stat.st_mode & 0o7777, stat.st_uid, stat.st_gid), (0o1751, 3, 4));
}

fn flock_excludes(at: &CheckDir) {
    let one = at.handle("file", b"");
    let two = at.open("file", OFlags::RDONLY).unwrap();
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    fails(rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive), Errno::WOULDBLOCK);
    fails(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared), Errno::WOULDBLOCK);
    rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
}

fn flock_is_shared(at: &CheckDir) {
    let one = at.handle("file", b"");
    let two = at.open("file", OFlags::RDONLY).unwrap();
    rustix::fs::flock(&one, FlockOperation::NonBlockingLockShared).unwrap();
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared).unwrap();
    fails(rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive), Errno::WOULDBLOCK);
}

fn flock_ends_with_its_handle(at: &CheckDir) {
    // Starting programs of other tests inherit this handle for a moment, so it is unlocked
    // explicitly.
    let one = at.handle("file", b"");
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    let copy = one.try_clone().unwrap();
    rustix::fs::flock(&copy, FlockOperation::Unlock).unwrap();
    let two = at.open("file", OFlags::RDONLY).unwrap();
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
}

fn record_locks_between_processes(at: &CheckDir) {
    if !is_program_available("python3") {
        return;
    }
    let path = at.file("file", b"0123456789");
    run(Command::new("python3").arg("-c").arg(RECORD_LOCKS).arg(path));
}

/// A child may lock only ranges that its parent has not locked.
const RECORD_LOCKS: &str = "
import fcntl, os, sys
f = open(sys.argv[1], 'r+')
fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 0)
child = os.fork()
if child == 0:
    g = open(sys.argv[1], 'r+')
    fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 5)
    try:
        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 4)
        os._exit(1)
    except BlockingIOError:
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
";

fn flock_between_processes(at: &CheckDir) {
    let path = at.file("file", b"");
    let script = "flock -n 9 || exit 3; flock -n \"$0\" true && exit 1; flock -u 9; flock -n \"$0\" true";
    run(Command::new("sh").arg("-c").arg(format!("exec 9< \"$0\"; {script}")).arg(path));
}
