//! The memory of a server holds no data of clients and no passphrases soon after the last request.
//!
//! These tests do not check how soon: `lacuna_contracts::IdlePool` specifies the time, and its own
//! tests check it.

mod marks;

use crate::harness::{CloseOnDrop, Scene, Serving, can_mount, is_program_available, noise, skip_unless};
use crate::nbd_client::Client;
use crate::pool::{Cluster, PoolDisk};
use crate::vault_harness::VaultScene;
use marks::{can_search, found, holds, marked};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::slice::from_mut;
use std::time::Duration;

/// Number of blocks written to a level: with their metadata they make three batches of an
/// `oblivious` disk, and the last of these is nearly full.
const BLOCKS: u64 = 47;
/// Number of searches before data in memory counts as left there permanently.
const MAX_SEARCHES: u32 = 120;
/// Beyond the maximum file size of a vault.
const FAR: u64 = 1 << 44;

/// A kind of disk.
struct DiskKind {
    format: &'static str,
    size: &'static str,
    levels: usize,
    /// Maximum number of marked blocks among the blocks that its server has read and decrypted
    /// ahead of need (docs/threat-model.md, *A machine that is on*).
    ahead: usize,
}

const KINDS: [DiskKind; 4] = [
    DiskKind { format: "sealed", size: "64M", levels: 1, ahead: 0 },
    DiskKind { format: "nand", size: "32M", levels: 1, ahead: 0 },
    // Its log has not wrapped around: no stripe carries blocks.
    DiskKind { format: "deniable", size: "64M", levels: 2, ahead: 0 },
    // The next two batches draw 16 of some 4,000 groups of 8 cells, and a dozen groups hold marked
    // blocks: the chance that four of these are among the 16 is one in a million. The memory of a
    // written batch holds more blocks.
    DiskKind { format: "oblivious", size: "256M", levels: 2, ahead: 24 },
];

impl DiskKind {
    fn location(&self) -> &'static str {
        if self.format == "nand" { "nand:disk.img" } else { "disk.img" }
    }

    fn key(&self) -> &'static str {
        if self.levels > 1 { "deep" } else { "key" }
    }

    /// The disk in a scene of its own. Its clock does not beat, so that no background work uses
    /// memory.
    fn scene(&self) -> Scene {
        let scene = Scene::new();
        fs::write(scene.path("deep"), "battery staple").unwrap();
        let with_levels = ["--format", self.format, "--levels", "2", "--key-file", "deep", "--cover", "0"];
        let options = if self.levels > 1 { &with_levels[..] } else { &[] };
        scene.create(self.location(), &[&["--size", self.size][..], options].concat()).code(0);
        scene
    }

    fn serve(&self, scene: &Scene) -> Serving {
        let words = ["serve", self.location(), "--socket", "nbd.sock", "--key-file", self.key()];
        scene.serve_command(&mut scene.command(&words))
    }
}

/// A level of a client, or a file.
trait Blocks {
    fn write(&mut self, at: u64, data: &[u8]);
    fn read(&mut self, at: u64, len: usize) -> Vec<u8>;
    fn flush(&mut self);
}

impl Blocks for Client {
    fn write(&mut self, at: u64, data: &[u8]) {
        self.write_at(at, data).unwrap();
    }

    fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.read_at(at, len).unwrap()
    }

    fn flush(&mut self) {
        Client::flush(self).unwrap();
    }
}

impl Blocks for File {
    fn write(&mut self, at: u64, data: &[u8]) {
        self.write_all_at(data, at).unwrap();
    }

    /// Reads from the server, not from the kernel's cache.
    fn read(&mut self, at: u64, len: usize) -> Vec<u8> {
        fadvise(&*self, 0, None, Advice::DontNeed).unwrap();
        let mut data = vec![0; len];
        self.read_exact_at(&mut data, at).unwrap();
        data
    }

    fn flush(&mut self) {
        self.sync_all().unwrap();
    }
}

/// Writes and reads marked blocks of a level in requests of many lengths, some not aligned to
/// blocks. Data of a hidden level reaches the medium with writes to level 0.
fn use_blocks(levels: &mut [impl Blocks], level: usize, numbers: Range<u64>) {
    let all = marked(numbers);
    for (at, block) in (0..).step_by(4096).zip(all.chunks(4096)) {
        levels[level].write(at, block);
    }
    levels[level].write(0, &all);
    levels[level].write(4096 + 512, &all[4096 + 512..4096 + 3584]);
    if level > 0 {
        for at in 0..8 {
            levels[0].write((at + 1) << 20, &noise(at, 1 << 20));
        }
        levels[0].flush();
    }
    levels[level].flush();
    for len in [4096, 64 << 10, all.len()] {
        assert!(levels[level].read(0, len) == all[..len]);
    }
    assert!(levels[level].read(1000, 5000) == all[1000..6000]);
}

/// The numbers of the blocks of a level.
fn numbers(level: usize) -> Range<u64> {
    let first = 1000 * (level as u64 + 1);
    first..first + BLOCKS
}

/// Waits until at most `most` of the blocks are in memory; searches repeatedly, each time after
/// `before`.
#[track_caller]
fn wait_until_wiped(what: &str, process: u32, numbers: Range<u64>, most: usize, mut before: impl FnMut()) {
    let mut left = usize::MAX;
    for _ in 0..MAX_SEARCHES {
        before();
        left = found(process, numbers.clone());
        if left <= most {
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    panic!("{what}: {left} blocks stay in memory");
}

#[track_caller]
fn assert_no_passphrase(process: u32) {
    for passphrase in [&b"correct horse"[..], b"battery staple"] {
        assert!(!holds(process, passphrase), "a passphrase stays in memory");
    }
}

/// The process that serves the disk at a mount point.
fn server_of(scene: &Scene, mountpoint: &str) -> u32 {
    let status = scene.lacuna(&["status", mountpoint, "--json"]).code(0).json();
    status["servers"][0]["pid"].as_u64().unwrap() as u32
}

/// Sends writes at least as long as all earlier ones, to a place where the server refuses them
/// without reading their data. Each thread of the FUSE library keeps the last write that it
/// received, in memory that we cannot wipe (docs/threat-model.md): afterwards it keeps these
/// writes.
fn fill_library(file: &File, place: u64) {
    let long = vec![0x5a; 1 << 20];
    for _ in 0..64 {
        file.write_at(&long, place).expect_err("nothing can be written there");
    }
}

fn can_open() -> bool {
    can_search() && can_mount("/dev/fuse") && is_program_available("fusermount3")
}

/// Uses the levels of a disk that is mounted at these mount points.
fn use_mounted(what: &str, scene: &Scene, points: &[&str], ahead: usize) {
    let process = server_of(scene, points[0]);
    assert_no_passphrase(process);
    let open = |point: &&str| File::options().read(true).write(true).open(scene.path(point).join("disk"));
    let mut levels: Vec<File> = points.iter().map(|point| open(point).unwrap()).collect();
    let ends: Vec<u64> = levels.iter().map(|file| file.metadata().unwrap().len()).collect();
    for level in 0..levels.len() {
        use_blocks(&mut levels, level, numbers(level));
        let what = format!("{what}, level {level}, mounted");
        wait_until_wiped(&what, process, numbers(level), ahead, || {
            levels.iter().zip(&ends).for_each(|(file, end)| fill_library(file, *end));
        });
    }
}

#[test]
fn nothing_that_nbd_clients_wrote_or_read_stays_in_memory() {
    skip_unless!(can_search());
    for kind in &KINDS {
        let scene = kind.scene();
        let serving = kind.serve(&scene);
        let (name, process) = (kind.format, serving.process());
        assert_no_passphrase(process);
        let connect = |export: &&str| Client::connect_to(&serving.socket, export).unwrap();
        let mut levels: Vec<Client> = ["", "1"][..kind.levels].iter().map(connect).collect();
        for level in 0..levels.len() {
            use_blocks(&mut levels, level, numbers(level));
            let what = format!("{name}, level {level}, idle");
            wait_until_wiped(&what, process, numbers(level), kind.ahead, || ());
        }
        // Not on the medium yet, so that the search must find them.
        levels[0].write_at(4 << 20, &marked(9000..9010)).unwrap();
        assert!(found(process, 9000..9010) > 0, "{name}: the search finds nothing");
        use_blocks(&mut levels, 0, 5000..5000 + BLOCKS);
        drop(levels);
        let what = format!("{name}, its clients have left");
        wait_until_wiped(&what, process, 5000..5000 + BLOCKS, kind.ahead, || ());
        assert_eq!(serving.stop(), 0, "{name}");
    }
}

#[test]
fn nothing_that_was_written_or_read_through_fuse_stays_in_memory() {
    skip_unless!(can_open());
    for kind in &KINDS {
        let scene = kind.scene();
        let points = &["public", "hidden"][..kind.levels];
        points.iter().for_each(|point| fs::create_dir(scene.path(point)).unwrap());
        let _closing = CloseOnDrop(&scene, points);
        let open = [&["open", kind.location()][..], points, &["--raw", "--key-file", kind.key()]].concat();
        scene.lacuna(&open).code(0);
        use_mounted(kind.format, &scene, points, kind.ahead);
        // The deepest level first: level 0 covers its remaining writes.
        for point in points.iter().rev() {
            scene.lacuna(&["close", *point]).code(0);
        }
    }
}

#[test]
fn nothing_that_clients_of_a_disk_in_rados_wrote_or_read_stays_in_memory() {
    skip_unless!(can_search());
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let serving = disk.serve(&[]);
    let process = serving.process();
    assert_no_passphrase(process);
    let mut client = Client::connect(&serving.socket).unwrap();
    use_blocks(from_mut(&mut client), 0, numbers(0));
    wait_until_wiped("in RADOS, idle", process, numbers(0), 0, || ());
    use_blocks(from_mut(&mut client), 0, numbers(1));
    drop(client);
    wait_until_wiped("in RADOS, its client has left", process, numbers(1), 0, || ());
    assert_eq!(serving.stop(), 0);
    skip_unless!(can_open());
    fs::create_dir(disk.scene.path("mnt")).unwrap();
    let points = &["mnt"];
    let _closing = CloseOnDrop(&disk.scene, points);
    disk.keyed(&["open"], &["mnt", "--raw"]).code(0);
    use_mounted("in RADOS", &disk.scene, points, 0);
    disk.scene.lacuna(&["close", "mnt"]).code(0);
}

#[test]
fn nothing_that_was_written_to_a_vault_or_read_from_it_stays_in_memory() {
    skip_unless!(can_search());
    for integrity in ["auto", "rand", "comp"] {
        let Some(vault) = VaultScene::new(&["--integrity", integrity]) else { return };
        vault.open().code(0);
        let process = server_of(&vault.0, "mnt");
        assert_no_passphrase(process);
        let path = vault.0.path("mnt/file");
        let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        use_blocks(from_mut(&mut file), 0, numbers(0));
        // A copy within the vault, an end within a block, and a hole that begins within one.
        fs::copy(&path, vault.0.path("mnt/copy")).unwrap();
        file.set_len(40 * 4096 + 100).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, hole, 10_000, 10_000).unwrap();
        file.sync_all().unwrap();
        drop(file);
        // Bypasses the cache of the kernel, which would keep the data.
        let far = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
        let what = format!("a vault, {integrity}");
        wait_until_wiped(&what, process, numbers(0), 0, || fill_library(&far, FAR));
        drop(far);
        vault.close().code(0);
    }
}

#[test]
fn no_purged_block_stays_in_memory() {
    skip_unless!(can_search());
    let scene = Scene::new();
    scene.create("nand:chip.img", &["--size", "32M"]).code(0);
    let serving = scene.serve_disk("nand:chip.img", &["--purge-period", "0"]);
    let process = serving.process();
    let mut client = Client::connect(&serving.socket).unwrap();
    use_blocks(from_mut(&mut client), 0, 0..256);
    // Not written yet, so that the search must find them.
    client.write_at(2 << 20, &marked(256..266)).unwrap();
    assert!(found(process, 256..266) == 10, "the search finds nothing");
    client.flush().unwrap();
    client.discard(0, 4 << 20).unwrap();
    client.flush().unwrap();
    scene.lacuna(&["purge", "nand:chip.img"]).code(0);
    assert_eq!(found(process, 0..266), 0, "after a purge, while the client is connected");
    assert_eq!(serving.stop(), 0);
}
