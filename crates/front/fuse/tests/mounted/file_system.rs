//! Tests of a file system on the disk: its files and its trims.

use crate::fixture::{MountFixture, ServerThread, run, skip_unless_supported, text};
use crate::memory::MemoryDisk;
use lacuna_daemon::CloseOutcome;
use std::fs::{self, File};
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[test]
fn file_system_keeps_a_tree() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(512));
    let at = place.mountpoint();
    let tree = at.join("tree");

    let server = place.ext4(&disk, true);
    assert_eq!(place.mounted_by(true), [at.canonicalize().unwrap()]);
    run("cp", &["-a", "/usr/share/doc", text(&tree)]);
    File::open(&at).unwrap().sync_all().unwrap();
    assert!(disk.flushes.load(Ordering::SeqCst) > 0);
    place.stop(server);
    assert!(!tree.exists());

    let server = place.ext4(&disk, false);
    run("diff", &["--no-dereference", "-r", "/usr/share/doc", text(&tree)]);
    place.stop(server);

    let mut request = place.request(&disk);
    request.read_only = true;
    let server = ServerThread::start(request);
    let refused = File::create(at.join("new")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(place.close().unwrap(), CloseOutcome::Cleanly);
    drop(server);
    place.assert_nothing_left();
    assert_eq!(disk.closes.load(Ordering::SeqCst), 3);
}

#[test]
fn trims_arrive_as_discards() {
    skip_unless_supported!(true);
    let place = MountFixture::new();
    let disk = Arc::new(MemoryDisk::new(256));
    let server = place.ext4(&disk, true);
    let file = place.mountpoint().join("big");
    fs::write(&file, vec![7; 64 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    fs::remove_file(&file).unwrap();
    run("sync", &["--file-system", text(&place.mountpoint())]);
    let before = disk.discarded.load(Ordering::SeqCst);
    run("fstrim", &[text(&place.mountpoint())]);
    let blocks = disk.discarded.load(Ordering::SeqCst) - before;
    assert!(blocks >= (64 << 20) / 4096, "{blocks} blocks discarded");
    assert_eq!(place.status().items[0].value, before + blocks);
    place.stop(server);
}
