//! Tests of file systems that fuse2fs serves, and of its writes at the unmount.

use crate::machine::{skipped, wait_until};
use crate::memory::MemoryDisk;
use crate::place::{Place, Server, needs, pattern};
use lacuna_contracts::Kind;
use lacuna_fuse::DiskRequest;
use lacuna_mount::{Cover, CoverSource, MountMethod, Program};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

fn request(place: &Place, disk: &Arc<MemoryDisk>, mkfs: bool) -> DiskRequest {
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

#[test]
fn what_cannot_be_written_at_the_end_is_told() {
    needs!(false);
    if lacks_fuse2fs() {
        return;
    }
    let (place, disk) = (Place::new(), Arc::new(MemoryDisk::new(64)));
    let mut server = Server::start(request(&place, &disk, true));
    fs::write(place.mountpoint().join("file"), pattern(1 << 20)).unwrap();
    disk.fail_writes.store(true, SeqCst);
    let mut failed = None;
    wait_until("a close that nobody keeps busy", || {
        failed = place.close().err();
        failed.as_ref().is_none_or(|e| e.kind() != Kind::Busy)
    });
    let failed = failed.expect("a failure");
    assert!(failed.to_string().contains("cannot be written"), "{failed}");
    assert!(server.ended().is_err());
    place.assert_nothing_left();
}

#[test]
fn a_program_writes_the_rest_as_soon_as_cover_comes() {
    needs!(false);
    if lacks_fuse2fs() {
        return;
    }
    let (place, disk) = (Place::new(), Arc::new(MemoryDisk::new(64)));
    let mut wanted = request(&place, &disk, true);
    wanted.cover = Cover::Needs(CoverSource::default());
    let mut server = Server::start(wanted);
    fs::write(place.mountpoint().join("file"), pattern(1 << 20)).unwrap();
    disk.uncovered.store(true, SeqCst);
    let mut refused = None;
    wait_until("a close that nobody keeps busy", || {
        refused = place.close().err();
        refused.as_ref().is_none_or(|e| e.kind() != Kind::Busy)
    });
    let refused = refused.expect("a refusal");
    assert_eq!(refused.kind(), Kind::NoCover, "{refused}");
    assert!(refused.to_string().contains("write to level 0"), "{refused}");
    disk.uncovered.store(false, SeqCst);
    // The program needs no second request.
    server.ended().unwrap();
    place.assert_nothing_left();

    let server = Server::start(request(&place, &disk, false));
    assert!(fs::read(place.mountpoint().join("file")).unwrap() == pattern(1 << 20));
    server.stop().unwrap();
    place.assert_nothing_left();
}
