//! A host file system that is filled to the last byte, and disks that allocate all their space in
//! advance.

use crate::harness::{
    CHEAP, CloseOnDrop, Device, Scene, can_mount, can_mount_ext4, is_program_available, noise, skip_unless,
};
use crate::nbd_client::Client;
use crate::vault_harness::VaultScene;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;

const BLOCK: usize = 4096;
const CHUNK: usize = 1 << 20;

/// A small file system of its own, mounted at `host`.
struct HostFs {
    at: PathBuf,
    _device: Device,
}

impl HostFs {
    fn mount(scene: &Scene, size: u64) -> HostFs {
        HostFs::made(scene, size, &[])
    }

    /// The same with more options of mkfs.
    fn made(scene: &Scene, size: u64, options: &[&str]) -> HostFs {
        fs::File::create(scene.path("backing")).unwrap().set_len(size).unwrap();
        // No space is reserved for root, so that a full file system is full for all users.
        scene.tool("mkfs.ext4", &[&["-q", "-m", "0"][..], options, &["backing"]].concat());
        let device = Device::over(scene, &["backing"]);
        fs::create_dir(scene.path("host")).unwrap();
        scene.tool("mount", &[&device.0, "host"]);
        HostFs { at: scene.path("host"), _device: device }
    }

    /// Fills it to the last byte.
    fn fill(&self) {
        let mut file = fs::File::create(self.at.join("ballast")).unwrap();
        for piece in [CHUNK, BLOCK, 1] {
            let data = noise(99, piece);
            loop {
                match file.write_all(&data) {
                    Ok(()) => {}
                    Err(e) if e.kind() == ErrorKind::StorageFull => break,
                    Err(e) => panic!("{e}"),
                }
            }
            let _ = file.sync_all();
        }
        assert!(fs::write(self.at.join("more"), [1; BLOCK]).is_err(), "the host is not full");
    }
}

impl Drop for HostFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.at).stderr(std::process::Stdio::null()).status();
    }
}

fn scene() -> Option<Scene> {
    let can = can_mount_ext4();
    can.then(|| {
        let scene = Scene::new();
        fs::create_dir(scene.path("mnt")).unwrap();
        scene
    })
}

const OPEN: [&str; 5] = ["open", "host/disk.img", "mnt", "--key-file", "key"];

/// A disk in use on a host that fills up, with a server that is killed: the owner can still open
/// the disk, delete, trim and close.
fn opened_emptied_and_closed(options: &[&str]) {
    let Some(scene) = scene() else { return };
    let host = HostFs::mount(&scene, 128 << 20);
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.create("host/disk.img", options).code(0);
    scene.lacuna(&[&OPEN[..], &["--mkfs", "ext4"]].concat()).code(0);
    for file in 0..8u64 {
        fs::write(scene.path(&format!("mnt/{file}")), noise(file + 1, CHUNK)).unwrap();
    }
    scene.tool("sync", &["-f", "mnt"]);
    host.fill();
    // These writes are acknowledged, and durable as far as the disk has space for them.
    for file in 0..100 {
        let _ = fs::write(scene.path(&format!("mnt/late {file}")), noise(file, 3000));
    }
    let _ = Command::new("sync").args(["-f", "mnt"]).current_dir(scene.path(".")).status();
    kill_server(&scene);
    scene.lacuna(&["close", "mnt"]).code(0);

    let before = fs::read(scene.path("host/disk.img")).unwrap();
    scene.lacuna(&[&OPEN[..], &["--read-only", "--mount-options", "noload"]].concat()).code(0);
    scene.lacuna(&["close", "mnt"]).code(0);
    assert!(fs::read(scene.path("host/disk.img")).unwrap() == before, "reading wrote");

    for _ in 0..2 {
        let said = scene.lacuna(&OPEN).code(0).stderr;
        let levels = options.contains(&"--format");
        assert!(levels || said.contains("the host has no space left for this disk"), "{said}");
        assert!(fs::read(scene.path("mnt/3")).unwrap() == noise(4, CHUNK));
        scene.lacuna(&["close", "mnt"]).code(0);
    }
    scene.lacuna(&OPEN).code(0);
    for file in [0, 1, 2, 4, 5] {
        fs::remove_file(scene.path(&format!("mnt/{file}"))).unwrap();
    }
    scene.tool("sync", &["-f", "mnt"]);
    scene.tool("fstrim", &["mnt"]);
    scene.tool("sync", &["-f", "mnt"]);
    scene.lacuna(&["close", "mnt"]).code(0);

    scene.lacuna(&OPEN).code(0);
    for file in [3u64, 6, 7] {
        assert!(fs::read(scene.path(&format!("mnt/{file}"))).unwrap() == noise(file + 1, CHUNK));
    }
    fs::write(scene.path("mnt/new"), noise(77, CHUNK)).unwrap();
    scene.tool("sync", &["-f", "mnt"]);
    scene.lacuna(&["close", "mnt"]).code(0);
    scene.lacuna(&["check", "host/disk.img", "--key-file", "key", "--read-only"]).code(0);
}

fn kill_server(scene: &Scene) {
    let status = scene.lacuna(&["status", "mnt", "--json"]).code(0).json();
    let process = status["servers"][0]["pid"].as_u64().unwrap();
    crate::harness::send(crate::harness::Signal::KILL, process);
}

#[test]
fn a_disk_on_a_full_host_can_be_opened_and_emptied() {
    opened_emptied_and_closed(&["--size", "64M"]);
}

#[test]
fn a_disk_with_another_cipher_on_a_full_host_can_be_opened_and_emptied() {
    opened_emptied_and_closed(&["--size", "64M", "--cipher", "xts-random"]);
    opened_emptied_and_closed(&["--size", "64M", "--cipher", "xts"]);
}

#[test]
fn a_disk_with_levels_on_a_full_host_can_be_opened_and_emptied() {
    opened_emptied_and_closed(&["--size", "64M", "--format", "deniable"]);
    opened_emptied_and_closed(&["--size", "100M", "--format", "oblivious"]);
}

#[test]
fn a_preallocated_disk_takes_every_write_of_a_full_host() {
    let Some(scene) = scene() else { return };
    let host = HostFs::mount(&scene, 128 << 20);
    // Before a passphrase is asked for.
    fs::write(scene.path("ask"), "#!/bin/sh\ntouch asked; cat key\n").unwrap();
    scene.tool("chmod", &["+x", "ask"]);
    let large = ["create", "host/large.img", "--size", "1G", "--preallocate", "--askpass", "./ask"];
    scene.lacuna(&[&large[..], &CHEAP].concat()).code(13);
    assert!(!scene.path("host/large.img").exists() && !scene.path("asked").exists());
    scene.create("host/disk.img", &["--size", "64M", "--preallocate"]).code(0);
    let space = || fs::metadata(scene.path("host/disk.img")).unwrap().blocks() * 512;
    let whole = fs::metadata(scene.path("host/disk.img")).unwrap().len();
    assert!(space() >= whole);
    host.fill();
    for round in 1..3u64 {
        scene.serve_disk("host/disk.img", &[]).used_by(|client| {
            for chunk in 0..64 {
                client.write_at(chunk * CHUNK as u64, &noise(round * 100 + chunk, CHUNK)).unwrap();
            }
            client.flush().unwrap();
            client.discard(8 << 20, 32 << 20).unwrap();
            client.flush().unwrap();
            assert!(client.read_at(8 << 20, CHUNK).unwrap().iter().all(|byte| *byte == 0));
        });
        assert!(space() >= whole, "discards gave space back");
    }
}

/// There is space, but the last block is beyond the maximum file size of the host's file system.
#[test]
fn a_write_beyond_the_longest_file_of_the_host_fails_alone() {
    skip_unless!(can_mount("/dev/loop-control") && is_program_available("mkfs.ext4"));
    let Some(vault) = VaultScene::empty() else { return };
    let _host = HostFs::made(&vault.0, 300 << 20, &["-b", "1024"]);
    let _closing = CloseOnDrop(&vault.0, &["mnt"]);
    vault.init("host/v", &[]).code(0);
    vault.keyed(&["open", "host/v", "mnt"]).code(0);
    vault.write("keep", b"kept");
    let big = fs::File::create(vault.0.path("mnt/big")).unwrap();
    let written = std::os::unix::fs::FileExt::write_all_at(&big, &[1; BLOCK], 15_000_000 << 20);
    let refused = written.and_then(|()| big.sync_all()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EFBIG), "{refused}");
    drop(big);
    vault.write("other", b"goes on");
    fs::File::open(vault.0.path("mnt/other")).unwrap().sync_all().unwrap();
    fs::remove_file(vault.0.path("mnt/big")).unwrap();
    vault.close().code(0);
    vault.keyed(&["vault", "check", "host/v"]).code(0);
}

#[test]
fn errors_on_a_full_host_name_a_remedy() {
    let Some(scene) = scene() else { return };
    let host = HostFs::mount(&scene, 128 << 20);
    scene.create("host/disk.img", &["--size", "256M"]).code(0);
    host.fill();
    let mut said = tempfile::NamedTempFile::new().unwrap();
    let args = ["serve", "host/disk.img", "--socket", "nbd.sock", "--key-file", "key"];
    let server = scene.serve_command_logging_to(&mut scene.command(&args), said.reopen().unwrap().into());
    let mut client = Client::connect(&server.socket).unwrap();
    let refused = (0..200).find_map(|chunk| {
        let write = client.write_at(chunk * CHUNK as u64, &noise(chunk, CHUNK));
        write.and_then(|()| client.flush()).err()
    });
    assert!(matches!(refused.unwrap().raw_os_error(), Some(libc::ENOSPC | libc::EIO)));
    drop(client);
    // The client got the error, and all other data is on the medium.
    assert_eq!(server.stop(), 0);
    let mut words = String::new();
    std::io::Read::read_to_string(said.as_file_mut(), &mut words).unwrap();
    assert!(words.contains("free space on the file system that holds"), "{words}");
}
