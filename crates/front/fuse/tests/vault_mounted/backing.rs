//! Tests with backing directories that fail while the vault is mounted: full, lost with their disk,
//! and read-only.

use crate::conformance::MemoryMap;
use crate::fixture::{VaultFixture, skip_if};
use crate::machine::{lacking, run, wait_until};
use crate::serving::MountMode;
use crate::shutdown::takes_no_changes;
use lacuna_contracts::Kind;
use lacuna_daemon::close;
use lacuna_testkit::{is_program_available, skip_unless};
use rustix::fs::Advice;
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    lacuna_sim::Rng::new(seed).bytes(len)
}

fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = File::create(path)?;
    file.write_all_at(content, 0)?;
    file.sync_all()
}

/// Reads a file after dropping its content from the kernel's cache.
fn read_from_storage(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    rustix::fs::fadvise(&file, 0, NonZeroU64::new(u64::MAX >> 1), Advice::DontNeed)?;
    fs::read(path)
}

#[track_caller]
fn is_full(result: io::Result<()>) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn a_full_backing_directory_refuses_writes_until_there_is_space() {
    skip_if!(lacking());
    let place = VaultFixture::new();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m", "lacuna-test"]).arg(place.backing()));
    let server = place.mount(MountMode::Create);
    let at = |name: &str| place.mountpoint().join(name);
    write_durably(&at("before"), &noise(1, 100_000)).unwrap();

    let piece = noise(2, MIB);
    let large = File::create(at("large")).unwrap();
    let append = |n: usize| large.write_all_at(&piece, (n * MIB) as u64).and_then(|()| large.sync_data());
    let pieces = (0..96).take_while(|n| append(*n).is_ok()).count();
    assert!(pieces > 8 && pieces < 96, "{pieces} pieces found space");
    is_full(append(pieces));
    // The kernel accepts these writes and cannot send them to the vault.
    is_full(write_durably(&at("late"), &noise(3, 8 * MIB)));
    let mapped = File::options().read(true).write(true).create_new(true).open(at("mapped")).unwrap();
    mapped.set_len(8 * MIB as u64).unwrap();
    MemoryMap::shared(&mapped, 0, 8 * MIB).unwrap().write(0, &noise(4, 8 * MIB));
    is_full(mapped.sync_all());
    // Acknowledged data is still there.
    assert!(read_from_storage(&at("before")).unwrap() == noise(1, 100_000));
    assert!(read_from_storage(&at("large")).unwrap()[..pieces * MIB].chunks(MIB).all(|found| found == piece));

    drop((large, mapped));
    ["large", "late", "mapped"].iter().for_each(|name| fs::remove_file(at(name)).unwrap());
    File::open(place.mountpoint()).unwrap().sync_all().unwrap();
    write_durably(&at("after"), &noise(5, 8 * MIB)).unwrap();
    place.unmount(server);

    let server = place.mount(MountMode::Open);
    assert!(fs::read(at("before")).unwrap() == noise(1, 100_000));
    assert!(fs::read(at("after")).unwrap() == noise(5, 8 * MIB));
    place.unmount(server);
    place.take_log();
    place.verify();
    VaultFixture::umount(&place.backing());
    place.assert_nothing_left();
}

/// Simulates the removal of a disk: ext4 refuses all later requests, and writes nothing more.
fn pull(directory: &Path) {
    let script = "import fcntl, os, struct, sys\n\
        EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2\n\
        fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), EXT4_IOC_SHUTDOWN, struct.pack('I', NO_LOG_FLUSH))";
    run(Command::new("python3").args(["-c", script]).arg(directory));
}

#[test]
fn a_failed_backing_disk_is_an_error_and_synced_data_survives() {
    skip_if!(lacking());
    skip_unless!(is_program_available("python3"));
    let place = VaultFixture::new();
    let image = place.dir().join("disk");
    File::create(&image).unwrap().set_len(256 * MIB as u64).unwrap();
    run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let put_on = || {
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(&image).arg(place.backing()).stderr(Stdio::null());
        mount.status().unwrap().success()
    };
    skip_unless!(put_on(), "a loop device cannot be mounted");
    fs::remove_dir(place.backing().join("lost+found")).unwrap();
    let server = place.mount(MountMode::Create);
    let at = |name: &str| place.mountpoint().join(name);
    let content = noise(1, 2 * MIB);
    write_durably(&at("synced"), &content).unwrap();
    fs::write(at("not synced"), &content).unwrap();

    pull(&place.backing());
    let lost = |result: io::Result<()>| {
        let number = result.unwrap_err().raw_os_error();
        assert!(number == Some(libc::EIO) || number == Some(libc::EROFS), "{number:?}");
    };
    // Reads fail; they return neither zeros nor an early end of file.
    lost(read_from_storage(&at("synced")).map(drop));
    assert_eq!(fs::metadata(at("synced")).unwrap().len(), 2 * MIB as u64);
    lost(write_durably(&at("new"), &content));
    lost(File::open(place.mountpoint()).and_then(|dir| dir.sync_all()));
    // The server ends and reports the failure.
    wait_until("the end of the use of the mount", || {
        close(&place.mountpoint(), Some(&place.run_base())).unwrap_err().kind() != Kind::Busy
    });
    assert_ne!(server.end_error(&place), "");
    assert!(fs::read_dir(place.mountpoint()).unwrap().next().is_none());
    assert!(!place.take_log().is_empty());
    VaultFixture::umount(&place.backing());

    assert!(put_on(), "the disk cannot be mounted again");
    let server = place.mount(MountMode::Open);
    assert!(fs::read(at("synced")).unwrap() == content);
    write_durably(&at("new"), &content).unwrap();
    place.unmount(server);
    place.take_log();
    place.verify();
    VaultFixture::umount(&place.backing());
    place.assert_nothing_left();
}

#[test]
fn a_removed_backing_directory_is_an_error() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    let at = |name: &str| place.mountpoint().join(name);
    write_durably(&at("synced"), b"content").unwrap();
    // The server may add files while they are removed.
    wait_until("the removal of the directory", || fs::remove_dir_all(place.backing()).is_ok());
    // A small file would fit into the journal, which is removed from its directory but still open.
    assert_eq!(write_durably(&at("small"), b"content").unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(write_durably(&at("another"), b"content").is_err());
    wait_until("the end of the use of the mount", || {
        close(&place.mountpoint(), Some(&place.run_base())).unwrap_err().kind() != Kind::Busy
    });
    assert_ne!(server.end_error(&place), "");
    let log = place.take_log();
    assert!(log.iter().any(|line| line.contains("repair the backing directory")), "{log:?}");
}

#[test]
fn a_vault_in_a_read_only_directory_can_be_read() {
    let Some((place, server)) = VaultFixture::mounted() else { return };
    fs::write(place.mountpoint().join("file"), b"content").unwrap();
    fs::create_dir(place.mountpoint().join("dir")).unwrap();
    place.unmount(server);
    run(Command::new("mount").arg("--bind").arg(place.backing()).arg(place.backing()));
    run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(place.backing()));
    let server = place.mount(MountMode::FromReadOnly);
    takes_no_changes(&place);
    place.unmount(server);
    VaultFixture::umount(&place.backing());
    place.verify();
    place.assert_nothing_left();
}
