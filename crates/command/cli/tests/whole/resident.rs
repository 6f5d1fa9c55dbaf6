//! What the system's cache holds of the medium of a disk with levels: nothing when it is closed, and meanwhile nothing of what was
//! read for hidden levels. The slots that were read would tell of them.

use crate::nbd_client::Client;
use crate::scene::{Scene, can_mount, have, noise, skipped, wait_until};
use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::{self, File};
use std::io::IoSliceMut;
use std::path::Path;
use std::process::Command;

const FORMATS: [&str; 2] = ["deniable", "oblivious"];
const BLOCK: u64 = 4096;

/// Pages of a file in memory.
fn resident(path: &Path) -> u64 {
    let told =
        Command::new("fincore").args(["--noheadings", "--output", "PAGES"]).arg(path).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
}

/// The same, once it has not changed for a while.
fn settled(path: &Path) -> u64 {
    let (mut last, mut same) = (resident(path), 0);
    wait_until("that nothing more is read", || {
        let now = resident(path);
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same > 50
    });
    last
}

/// Whether the system can read without keeping what it read (RWF_DONTCACHE, Linux 6.14), on the file system of tests.
fn reads_discreetly(path: &Path) -> bool {
    let mut block = [0; BLOCK as usize];
    let file = File::open(path).unwrap();
    // Nothing ahead: that would stay.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let read = preadv2(&file, &mut [IoSliceMut::new(&mut block)], 0, ReadWriteFlags::from_bits_retain(0x80));
    if read.is_err() {
        skipped("the system cannot read without keeping what it read");
    }
    read.is_ok()
}

/// Waits for the end of a server, with which all pages go. Asking for the disk would read its header.
fn wait_until_gone(scene: &Scene) {
    wait_until("that no page is in memory", || resident(&scene.path("disk.img")) == 0);
}

/// Whether files are kept in a cache here, and how much of one is can be asked.
fn can_look(scene: &Scene) -> bool {
    if !have("fincore") {
        return false;
    }
    let path = scene.path("probe");
    fs::write(&path, [7; 65536]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let kept = resident(&path) == 0;
    if !kept {
        skipped("the temporary directory is in memory alone");
    }
    kept
}

/// A disk of two levels without beats.
fn scene(format: &str) -> Scene {
    let scene = Scene::new();
    fs::write(scene.path("deep"), "battery staple").unwrap();
    let shape = ["--format", format, "--size", "64M", "--levels", "2", "--key-file", "deep", "--cover", "0"];
    scene.create("disk.img", &shape).code(0);
    scene
}

#[test]
fn nothing_of_a_closed_disk_and_nothing_that_a_hidden_level_read() {
    for format in FORMATS {
        let scene = scene(format);
        let disk = scene.path("disk.img");
        if !can_look(&scene) {
            return;
        }
        let server = scene.serve_with_key("deep");
        let [mut public, mut hidden] =
            ["0", "1"].map(|level| Client::connect_to(&server.socket, level).unwrap());
        hidden.write_at(0, &noise(1, 200_000)).unwrap();
        for at in 0..8 {
            public.write_at(at << 20, &noise(at, 1 << 20)).unwrap();
        }
        public.flush().unwrap();
        hidden.flush().unwrap();
        drop((public, hidden));
        assert_eq!(server.stop(), 0);
        assert_eq!(resident(&disk), 0, "{format}: closed");

        let mut server = scene.serve_with_key("deep");
        // Cells of batches to come are read ahead, whatever levels there are.
        let opened = settled(&disk);
        let [mut public, mut hidden] =
            ["0", "1"].map(|level| Client::connect_to(&server.socket, level).unwrap());
        if reads_discreetly(&disk) {
            let content = noise(1, 200_000);
            for at in 0..20 {
                let at = at * 7 % 48 * BLOCK;
                assert!(hidden.read_at(at, 4096).unwrap() == content[at as usize..][..4096]);
            }
            assert_eq!(resident(&disk), opened, "{format}: hidden reads");
        }
        // What is public may stay.
        (0..20).for_each(|at| drop(public.read_at(at * 37 * BLOCK, 4096).unwrap()));
        assert!(resident(&disk) > opened, "{format}: public reads");
        server.kill();
        assert!(resident(&disk) > 0, "{format}: killed");
        let server = scene.serve_with_key("deep");
        assert!(format == "oblivious" || resident(&disk) == 0, "{format}: opened after a kill");
        assert_eq!(server.stop(), 0);
        assert_eq!(resident(&disk), 0, "{format}: closed again");
    }
}

#[test]
fn nothing_of_a_disk_that_was_mounted() {
    if !can_mount("/dev/loop-control") || !can_mount("/dev/fuse") || !have("mkfs.ext4") {
        return;
    }
    for format in FORMATS {
        let scene = Scene::new();
        if !can_look(&scene) {
            return;
        }
        fs::write(scene.path("deep"), "battery staple").unwrap();
        ["files", "data"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
        let shape =
            ["--format", format, "--size", "96M", "--levels", "2", "--key-file", "deep", "--cover", "20"];
        scene.create("disk.img", &shape).code(0);
        let open = ["open", "disk.img", "files", "data", "--key-file", "deep"];
        scene.lacuna(&[&open[..], &["--mkfs", "ext4"]].concat()).code(0);
        fs::write(scene.path("data/file"), noise(1, 200_000)).unwrap();
        fs::write(scene.path("files/file"), noise(2, 200_000)).unwrap();
        scene.lacuna(&["close", "disk.img", "--wait"]).code(0);
        wait_until_gone(&scene);
        scene.lacuna(&open).code(0);
        assert!(fs::read(scene.path("data/file")).unwrap() == noise(1, 200_000), "{format}");
        scene.lacuna(&["close", "disk.img"]).code(0);
        wait_until_gone(&scene);
    }
}
