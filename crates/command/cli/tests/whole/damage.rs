//! Tests of modified data, and of a host without space.

use crate::harness::{Scene, can_mount, noise, skip_unless};
use crate::nbd_client::Client;
use lacuna_crypto::Cipher;
use lacuna_sealed::Params;
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::Command;

const BLOCK: usize = 4096;
const VICTIM: u64 = 5;

/// The place of the victim's ciphertext: the page that changes as a whole when only that block
/// does.
fn place_of_victim(scene: &Scene, data: usize) -> usize {
    let before = fs::read(scene.path("disk.img")).unwrap();
    scene.serve(&[]).used_by(|client| {
        client.write_at(VICTIM * BLOCK as u64, &noise(77, BLOCK)).unwrap();
        client.flush().unwrap();
    });
    let after = fs::read(scene.path("disk.img")).unwrap();
    let pages = before[data..].chunks(BLOCK).zip(after[data..].chunks(BLOCK)).enumerate();
    let changed = |(a, b): (&[u8], &[u8])| a.iter().zip(b).filter(|(a, b)| a != b).count();
    let whole: Vec<usize> =
        pages.filter(|(_, pair)| changed(*pair) > BLOCK / 2).map(|(i, _)| data + i * BLOCK).collect();
    assert_eq!(whole.len(), 1, "pages that changed as a whole: {whole:?}");
    whole[0]
}

#[test]
fn a_flipped_bit_costs_one_block_of_a_gcm_disk() {
    let scene = Scene::with_disk(&["--size", "64M", "--cipher", "gcm"]);
    let server = scene.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    let content = noise(1, 16 * BLOCK);
    client.write_at(0, &content).unwrap();
    drop(client);
    assert_eq!(server.stop(), 0);
    let params = Params::plan(Cipher::Gcm, (64 << 20) / BLOCK as u64, None).unwrap();
    let place = place_of_victim(&scene, params.geometry().data as usize);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);

    let mut medium = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    let byte = fs::read(scene.path("disk.img")).unwrap()[place + 1000];
    medium.seek(SeekFrom::Start(place as u64 + 1000)).unwrap();
    medium.write_all(&[byte ^ 1]).unwrap();

    scene.serve(&[]).used_by(|client| {
        for block in 0..16u64 {
            let read = client.read_at(block * BLOCK as u64, BLOCK);
            if block == VICTIM {
                assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO));
            } else {
                assert!(read.unwrap() == content[block as usize * BLOCK..][..BLOCK]);
            }
        }
    });

    let check = ["check", "disk.img", "--key-file", "key"];
    let said = scene.lacuna(&check).code(10);
    assert!(said.stdout.contains("block 5: does not verify"), "{}", said.stdout);
    assert!(said.stderr.contains("1 block that cannot be read"), "{}", said.stderr);
    assert!(said.stdout.contains("15 blocks verified"), "{}", said.stdout);
    let said = scene.lacuna(&[&check[..], &["--json", "--read-only"]].concat()).code(10).json();
    assert_eq!(said["bad"], 1);
    assert_eq!(said["good"], 15);
    assert_eq!(said["bad_blocks"][0]["block"], VICTIM);

    // Rewritten, it is good again.
    scene.serve(&[]).used_by(|client| client.write_at(VICTIM * BLOCK as u64, &noise(8, BLOCK)).unwrap());
    scene.lacuna(&check).code(0);
}

/// A small file system in memory.
struct SmallFs(PathBuf);

impl SmallFs {
    fn mount(at: PathBuf, size: &str) -> SmallFs {
        fs::create_dir(&at).unwrap();
        let option = format!("size={size}");
        assert!(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", &option, "none"])
                .arg(&at)
                .status()
                .unwrap()
                .success()
        );
        SmallFs(at)
    }

    fn grow(&self, size: &str) {
        let option = format!("remount,size={size}");
        assert!(Command::new("mount").args(["-o", &option]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn full_host(cipher: &str) {
    const CHUNK: usize = 1 << 20;
    let scene = Scene::new();
    let small = SmallFs::mount(scene.path("small"), "40m");
    scene.create("small/disk.img", &["--size", "64M", "--cipher", cipher]).code(0);
    let server = scene.serve_disk("small/disk.img", &["--cache", "4M"]);
    let mut client = Client::connect(&server.socket).unwrap();
    let mut flushed = 0;
    let error = loop {
        let data = noise(flushed + 1, CHUNK);
        let written = client.write_at(flushed * CHUNK as u64, &data).and_then(|()| client.flush());
        match written {
            Ok(()) => flushed += 1,
            Err(e) => break e,
        }
        assert!(flushed < 64, "40 MiB took 64 MiB");
    };
    assert!(matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EIO)), "{error}");
    assert!(flushed > 4, "full after {flushed} MiB");
    for chunk in 0..flushed {
        assert!(client.read_at(chunk * CHUNK as u64, CHUNK).unwrap() == noise(chunk + 1, CHUNK));
    }
    // Only the refused write failed, and the disk continues when there is space.
    small.grow("200m");
    let again = noise(flushed + 1, CHUNK);
    let written = client.write_at(flushed * CHUNK as u64, &again).and_then(|()| client.flush());
    assert!(written.is_ok(), "{cipher}: no write passes after {flushed} MiB");
    drop(client);
    assert_eq!(server.stop(), 0);
    flushed += 1;

    scene.serve_disk("small/disk.img", &[]).used_by(|client| {
        for chunk in 0..flushed {
            assert!(
                client.read_at(chunk * CHUNK as u64, CHUNK).unwrap() == noise(chunk + 1, CHUNK),
                "{cipher}: chunk {chunk} of {flushed} is not as flushed"
            );
        }
        client.write_at(0, &noise(500, CHUNK)).unwrap();
        client.flush().unwrap();
    });
    scene.lacuna(&["check", "small/disk.img", "--key-file", "key"]).code(0);
}

#[test]
fn a_full_host_fails_requests_and_loses_nothing_flushed() {
    skip_unless!(can_mount("/proc/mounts"));
    full_host("xts-random");
    full_host("gcm");
    full_host("xts");
}
