//! Tests of file systems that fuse2fs serves, and of its writes at the unmount.

use crate::fixture::{MountFixture, ServerThread, run, skip_unless_supported, text};
use crate::machine::{skipped, wait_until};
use crate::memory::MemoryDisk;
use lacuna_contracts::{Error, Kind};
use lacuna_fuse::DiskRequest;
use lacuna_mount::{CoverRole, CoverSource, MountMethod, Program};
use lacuna_testkit::noise;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn request(place: &MountFixture, disk: &Arc<MemoryDisk>, mkfs: bool) -> DiskRequest {
    let mut request = place.request(disk);
    request.via = Some(MountMethod::Program(Program::Fuse2fs));
    request.mkfs = mkfs.then(|| "ext4".to_owned());
    request
}

fn lacks_fuse2fs() -> bool {
    let lacks = !Path::new("/usr/bin/fuse2fs").exists();
    if lacks {
        skipped("there is no fuse2fs");
    }
    lacks
}

/// The failure of a close. Starting programs of other tests may use the mount for a moment.
fn close_unused(place: &MountFixture) -> Error {
    let mut failed = None;
    wait_until("a close without another user", || {
        failed = place.close().err();
        failed.as_ref().is_none_or(|e| e.kind() != Kind::Busy)
    });
    failed.expect("a failure")
}

#[test]
fn writes_that_fail_at_the_unmount_are_reported() {
    skip_unless_supported!(false);
    if lacks_fuse2fs() {
        return;
    }
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(64)));
    let mut server = ServerThread::start(request(&place, &disk, true));
    fs::write(place.mountpoint().join("file"), noise(1, 1 << 20)).unwrap();
    disk.fail_writes.store(true, SeqCst);
    let failed = close_unused(&place);
    assert!(failed.to_string().contains("cannot be written"), "{failed}");
    assert!(server.join().is_err());
    place.assert_nothing_left();
}

/// The process that serves the file system of this mount point.
fn program_at(mountpoint: &Path) -> u32 {
    let processes = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let mut numbers = processes.filter_map(|name| name.to_str()?.parse::<u32>().ok());
    let is_it = |number: &u32| {
        // Other processes end at any time.
        let line = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|name| name.ends_with(b"fuse2fs"))
            && words.any(|word| word == text(mountpoint).as_bytes())
    };
    numbers.find(is_it).expect("a program that serves the file system")
}

/// Deniability contract: the error names the mount point, which could be that of a hidden level.
#[test]
fn the_failure_of_a_program_is_private_for_a_disk_with_levels() {
    skip_unless_supported!(false);
    if lacks_fuse2fs() {
        return;
    }
    for private in [false, true] {
        let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(64)));
        let mut wanted = request(&place, &disk, true);
        wanted.identity.private = private;
        let mut server = ServerThread::start(wanted);
        let program = program_at(&place.mountpoint());
        run("kill", &["-KILL", &program.to_string()]);
        wait_until("that the end of the program is told", || place.status().last_error.is_some());
        for failed in [place.close().map(drop), server.join()] {
            let failed = failed.unwrap_err();
            assert!(failed.to_string().contains("fuse2fs failed"), "{failed}");
            assert_eq!(failed.is_confidential(), private);
        }
        place.assert_nothing_left();
    }
}

#[test]
fn a_program_writes_its_remaining_data_when_cover_comes() {
    skip_unless_supported!(false);
    if lacks_fuse2fs() {
        return;
    }
    let (place, disk) = (MountFixture::new(), Arc::new(MemoryDisk::new(64)));
    let mut wanted = request(&place, &disk, true);
    wanted.cover = CoverRole::Needs(CoverSource::default());
    let mut server = ServerThread::start(wanted);
    fs::write(place.mountpoint().join("file"), noise(1, 1 << 20)).unwrap();
    disk.uncovered.store(true, SeqCst);
    let refused = close_unused(&place);
    assert_eq!(refused.kind(), Kind::NoCover, "{refused}");
    assert!(refused.to_string().contains("write to level 0"), "{refused}");
    disk.uncovered.store(false, SeqCst);
    // The program needs no second request.
    server.join().unwrap();
    place.assert_nothing_left();

    let server = ServerThread::start(request(&place, &disk, false));
    assert!(fs::read(place.mountpoint().join("file")).unwrap() == noise(1, 1 << 20));
    place.stop(server);
}
