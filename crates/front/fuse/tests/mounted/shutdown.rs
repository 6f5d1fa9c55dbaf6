//! Tests of the end of a server: closed while in use, by a plain umount, with a failing disk, and
//! killed.

use crate::fixture::{MountFixture, Process, ServerThread, run, skip_unless_supported, text};
use crate::machine::{skipped, wait_until};
use crate::memory::MemoryDisk;
use lacuna_contracts::Kind;
use lacuna_daemon::{CloseOutcome, IfMissing, check_mountpoint};
use lacuna_fuse::{DiskRequest, MountedDisk};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn a_busy_file_system_stays_mounted_and_the_error_names_its_user() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mut server = place.ext4(&disk, true);
    let mut user = Command::new("cat");
    user.current_dir(place.mountpoint()).stdin(Stdio::piped());
    let user = Process(user.spawn().unwrap());

    let error = place.close().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains(&format!("in use by cat (process {})", user.0.id())), "{error}");
    let flushes = disk.flushes.load(Ordering::SeqCst);
    server.stopper.request();
    wait_until("a flush, though it is busy", || disk.flushes.load(Ordering::SeqCst) > flushes);
    fs::write(place.mountpoint().join("still"), b"served").unwrap();
    drop(user);
    // The stop request made while the file system was busy may still be pending and end the server
    // first.
    match place.close() {
        Ok(CloseOutcome::Cleanly) => {}
        Err(e) if e.kind() == Kind::NotFound => {}
        other => panic!("{other:?}"),
    }
    server.join().unwrap();
    assert_eq!(disk.closes.load(Ordering::SeqCst), 1);
    place.assert_nothing_left();
}

#[test]
fn umount_ends_the_server() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mut server = place.ext4(&disk, true);
    fs::write(place.mountpoint().join("file"), b"kept").unwrap();
    run("umount", &[text(&place.mountpoint())]);
    server.join().unwrap();
    place.assert_nothing_left();

    let mut server = place.raw(&disk);
    run("umount", &[text(&place.mountpoint())]);
    server.join().unwrap();
    place.assert_nothing_left();

    let server = place.ext4(&disk, false);
    assert_eq!(fs::read(place.mountpoint().join("file")).unwrap(), b"kept");
    place.stop(server);
}

#[test]
fn a_mount_point_that_a_server_made_goes_with_its_mount() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let at = place.mountpoint();
    fs::remove_dir(&at).unwrap();
    let disk = Arc::new(MemoryDisk::new(64));
    let request = |raw: bool, mkfs: Option<&str>| {
        let mut request = place.request(&disk);
        (request.raw, request.mkfs) = (raw, mkfs.map(str::to_owned));
        DiskRequest { make_mountpoint: true, ..request }
    };
    let refused = MountedDisk::start(request(false, None)).err().expect("a refusal");
    assert!(refused.kind() == Kind::NotFound && !at.exists(), "{refused}");
    for (raw, mkfs) in [(true, None), (false, Some("ext4"))] {
        ServerThread::start(request(raw, mkfs)).stop().unwrap();
        assert!(!at.exists(), "raw: {raw}");
        place.assert_nothing_left();
    }
    let mut server = ServerThread::start(request(false, None));
    run("umount", &[text(&at)]);
    server.join().unwrap();
    assert!(!at.exists());
    let refused = MountedDisk::start(place.request(&disk)).err().expect("a refusal");
    assert!(refused.kind() == Kind::NotFound && !at.exists(), "{refused}");
    // A directory that is there stays.
    fs::create_dir(&at).unwrap();
    ServerThread::start(request(true, None)).stop().unwrap();
    assert!(at.is_dir());
}

#[test]
fn a_failure_to_close_the_disk_reaches_the_client_that_closes() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mut server = place.ext4(&disk, true);
    disk.fail_close.store(true, Ordering::SeqCst);
    let error = place.close().unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (Kind::FailStop, "the medium failed at block 7"));
    assert_eq!(server.join().unwrap_err().kind(), Kind::FailStop);
    place.assert_nothing_left();
}

/// The example that serves a disk from a process of its own. It is built along with the tests.
fn memory_server() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join("examples/memory_server");
    path.exists().then_some(path)
}

#[test]
fn a_background_server_closes_and_the_mount_of_a_dead_one_is_removed() {
    skip_unless_supported!(true);
    let Some(program) = memory_server() else {
        skipped("the example memory_server is not built");
        return;
    };
    let place = MountFixture::new();
    let start = |more: &[&str]| {
        let (base, at) = (place.base(), place.mountpoint());
        Command::new(&program).args([text(&base), text(&at)]).args(more).arg("background").output().unwrap()
    };
    let failed = start(&[]);
    let words = |ran: &std::process::Output| String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(!failed.status.success() && words(&failed).contains("`mkfs` ext4"), "{}", words(&failed));
    place.assert_nothing_left();

    assert!(start(&["mkfs=ext4"]).status.success());
    fs::write(place.mountpoint().join("file"), b"x").unwrap();
    let busy = start(&["mkfs=ext4"]);
    assert!(!busy.status.success() && words(&busy).contains("mounted there already"), "{}", words(&busy));
    assert_eq!(place.close().unwrap(), CloseOutcome::Cleanly);
    place.assert_nothing_left();

    // A dead server with a mount that is still in use.
    let kill = |started: &std::process::Output| {
        assert!(started.status.success());
        let number = String::from_utf8_lossy(&started.stdout).trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(number).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    };
    let started = start(&["mkfs=ext4"]);
    let mut user = Command::new("cat");
    let user = Process(user.current_dir(place.mountpoint()).stdin(Stdio::piped()).spawn().unwrap());
    kill(&started);
    let mut busy = String::new();
    wait_until("the end of the server", || {
        let error = place.close().unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        busy = error.to_string();
        busy.contains("in use by")
    });
    assert!(busy.contains(&format!("cat (process {})", user.0.id())), "{busy}");
    drop(user);

    // After a manual unmount of the dead file system, a new server cleans up the rest.
    run("umount", &[text(&place.mountpoint())]);
    let again = start(&["mkfs=ext4"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert_eq!(place.close().unwrap(), CloseOutcome::Cleanly);
    place.assert_nothing_left();

    for mode in ["mkfs=ext4", "raw"] {
        kill(&start(&[mode]));
        wait_until("the end of the server", || !place.mounted_by(false).is_empty());
        let at = place.mountpoint();
        assert_eq!(place.mounted_by(false), [at.canonicalize().unwrap_or(at)]);
        let refused =
            check_mountpoint(&place.mountpoint(), Some(&place.base()), IfMissing::Refuse).unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy);
        assert!(refused.to_string().contains("dead lacuna server"), "{refused}");
        // A new server clears the mount away.
        kill(&start(&[mode]));
        assert_eq!(wait_closed(&place), CloseOutcome::AfterCrash);
        place.assert_nothing_left();
    }
}

/// Closes after a kill. Until the kernel has finished with the dead process, the server seems to be
/// busy.
fn wait_closed(place: &MountFixture) -> CloseOutcome {
    let mut closed = None;
    wait_until("the end of the server", || match place.close() {
        Ok(how) => closed.insert(how) == &how,
        Err(e) if e.kind() == Kind::Busy => false,
        Err(e) => panic!("{e}"),
    });
    closed.unwrap()
}
