//! Tests of refused requests and their messages.

use crate::fixture::{MountFixture, ServerThread, run, skip_unless_supported, text};
use crate::memory::MemoryDisk;
use lacuna_contracts::{BlockAddr, Disk, Kind};
use lacuna_fuse::{DiskRequest, MountedDisk};
use lacuna_testkit::noise;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn refusals_contain_a_hint() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let refused = |change: &dyn Fn(&mut DiskRequest)| {
        let mut request = place.request(&disk);
        change(&mut request);
        let error = MountedDisk::start(request).err().expect("a refusal");
        (error.kind(), error.to_string())
    };
    let says = |(kind, words): (Kind, String), wanted: Kind, part: &str| {
        assert!(kind == wanted && words.contains(part), "{kind:?}: {words}");
    };
    says(refused(&|_| {}), Kind::NotFound, "give `mkfs` ext4");
    says(refused(&|r| r.mountpoint.push("missing")), Kind::NotFound, "mkdir -p");
    says(refused(&|r| r.mountpoint = "/proc/version".into()), Kind::Usage, "expected: a directory");
    says(refused(&|r| r.mountpoint = "/proc".into()), Kind::Busy, "mounted there already");
    says(refused(&|r| r.mkfs = Some("../sh".into())), Kind::Usage, "../sh");
    says(refused(&|r| r.mkfs = Some("nosuchfs".into())), Kind::Usage, "no program mkfs.nosuchfs");
    says(refused(&|r| (r.raw, r.mkfs) = (true, Some("ext4".into()))), Kind::Usage, "in raw mode");
    disk.fail_reads.store(true, Ordering::SeqCst);
    says(refused(&|r| r.mkfs = Some("ext4".into())), Kind::Corrupt, "does not verify");
    disk.fail_reads.store(false, Ordering::SeqCst);
    place.assert_nothing_left();

    let server = place.ext4(&disk, true);
    says(refused(&|_| {}), Kind::Busy, "close or unmount it");
    server.stop().unwrap();
    says(refused(&|r| r.mkfs = Some("xfs".into())), Kind::Usage, "ext4 already on the disk");
    let error = place.close().unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    place.assert_nothing_left();
}

#[test]
fn unknown_data_is_not_overwritten() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(64));
    let mkfs = |overwrite| {
        let mut request = place.request(&disk);
        (request.mkfs, request.overwrite) = (Some("ext4".to_owned()), overwrite);
        request
    };
    let refused = |overwrite| MountedDisk::start(mkfs(overwrite)).err().expect("a refusal").to_string();
    // Discarded blocks count as blank, also in a partly discarded piece. One nonzero byte does not.
    disk.write(BlockAddr(5000), &noise(1, 8192)).unwrap();
    disk.discard(BlockAddr(5000), 2).unwrap();
    let mut block = vec![0; 4096];
    block[77] = 1;
    disk.write(BlockAddr(9000), &block).unwrap();
    let said = refused(false);
    assert!(said.contains("data of no known kind from byte 36864077"), "{said}");
    place.assert_nothing_left();
    ServerThread::start(mkfs(true)).stop().unwrap();

    // Data of a known kind is refused even with `overwrite`. The error contains the remedy.
    let said = refused(true);
    let server = place.raw(&disk);
    let file = place.mountpoint().join("disk");
    let line = said.split("`fallocate ").nth(1).unwrap().split('`').next().unwrap();
    let line = line.replace("MOUNTPOINT/disk", text(&file));
    run("fallocate", &line.split(' ').collect::<Vec<_>>());
    server.stop().unwrap();
    place.ext4(&disk, true).stop().unwrap();
    place.assert_nothing_left();
}
