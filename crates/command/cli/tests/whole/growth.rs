//! Block devices that grow, and the disks on them.

use crate::nbd_client::Client;
use crate::scene::{Device, Scene, can_mount, noise};
use std::fs;
use std::os::unix::fs::FileExt;

const CHUNK: usize = 1 << 20;

struct Grown {
    scene: Scene,
    device: Device,
}

impl Grown {
    fn new(size: u64, options: &[&str]) -> Option<Grown> {
        if !can_mount("/dev/loop-control") {
            return None;
        }
        let scene = Scene::new();
        fs::File::create(scene.path("backing")).unwrap().set_len(size).unwrap();
        let device = Device::over(&scene, &["backing"]);
        scene.create(&device.0, options).code(0);
        Some(Grown { scene, device })
    }

    fn enlarge(&self, size: u64) {
        fs::OpenOptions::new().write(true).open(self.scene.path("backing")).unwrap().set_len(size).unwrap();
        self.scene.tool("losetup", &["-c", &self.device.0]);
    }

    fn size(&self) -> u64 {
        self.scene.lacuna(&["info", &self.device.0, "--json"]).code(0).json()["size"].as_u64().unwrap()
    }

    fn resize(&self, options: &[&str]) -> crate::scene::Ran {
        self.scene.lacuna(&[&["resize", &self.device.0, "--key-file", "key"], options].concat())
    }

    fn write(&self, at: u64, seed: u64) {
        let server = self.scene.serve_disk(&self.device.0, &[]);
        Client::connect(&server.socket).unwrap().write_at(at, &noise(seed, CHUNK)).unwrap();
        assert_eq!(server.stop(), 0);
    }

    fn holds(&self, at: u64, seed: u64) {
        let server = self.scene.serve_disk(&self.device.0, &["--read-only"]);
        let data = Client::connect(&server.socket).unwrap().read_at(at, CHUNK).unwrap();
        assert!(data == noise(seed, CHUNK), "at {at}");
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn a_disk_grows_with_its_device() {
    for options in [&[][..], &["--cipher", "xts-random"]] {
        let Some(grown) = Grown::new(200 << 20, options) else { return };
        let created = grown.size();
        // One more segment may fit than `create` reserved.
        grown.resize(&[]).code(0);
        let small = grown.size();
        grown.write(small - CHUNK as u64, 1);
        assert!(grown.resize(&[]).code(0).stdout.contains("has this size already"));
        let refused = grown.resize(&["--size", "1G"]).code(13).stderr;
        assert!(refused.contains("enlarge the device first"), "{refused}");
        grown.enlarge(2 << 30);
        grown.resize(&["--size", "1G"]).code(0);
        assert_eq!(grown.size(), 1 << 30);
        grown.resize(&[]).code(0);
        let large = grown.size();
        assert!(large > (18 << 30) / 10 && large < 2 << 30, "{large}");
        grown.write(large - CHUNK as u64, 2);
        grown.holds(large - CHUNK as u64, 2);
        grown.holds(small - CHUNK as u64, 1);
        // The map has room for sixteen times the original size.
        grown.enlarge(8 << 30);
        grown.resize(&[]).code(0);
        let largest = grown.size();
        assert_eq!(largest, created * 16);
        let refused = grown.resize(&["--size", "7G"]).code(1).stderr;
        assert!(refused.contains("its map has no room for more"), "{refused}");
        grown.holds(large - CHUNK as u64, 2);
        grown.scene.lacuna(&["check", &grown.device.0, "--key-file", "key"]).code(0);
    }
}

#[test]
fn a_device_that_became_shorter_is_not_to_be_truncated() {
    let Some(cut) = Grown::new(200 << 20, &[]) else { return };
    cut.enlarge(100 << 20);
    for words in [&["info"][..], &["doctor"], &["check", "--key-file", "key"]] {
        let ran = cut.scene.lacuna(&[words, &[&cut.device.0]].concat()).code(10);
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains("was cut short") && said.contains("a longer device"), "{said}");
        assert!(!said.contains("truncate"), "{said}");
    }
}

#[test]
fn what_cannot_grow_says_so() {
    for format in ["deniable", "oblivious"] {
        let Some(levels) = Grown::new(200 << 20, &["--format", format]) else { return };
        levels.enlarge(1 << 30);
        for options in [&[][..], &["--size", "500M"]] {
            let refused = levels.resize(options).code(1).stderr;
            assert!(refused.contains("which keeps its size"), "{refused}");
        }
        levels.scene.lacuna(&["check", &levels.device.0, "--key-file", "key"]).code(0);
    }
    let Some(sealed) = Grown::new(200 << 20, &[]) else { return };
    let refused = sealed.scene.create(&sealed.device.0, &["--preallocate", "--force"]).code(1).stderr;
    assert!(refused.contains("thin volume"), "{refused}");
    let file = Scene::with_disk(&["--size", "64M"]);
    assert!(file.lacuna(&["resize", "disk.img", "--key-file", "key"]).code(1).stderr.contains("--size"));
}

#[test]
fn a_removed_passphrase_opens_no_copy_where_the_device_ended() {
    for format in ["sealed", "deniable"] {
        let Some(grown) = Grown::new(200 << 20, &["--format", format]) else { return };
        let former = (200 << 20) - (64 << 10);
        let copy = || {
            let mut bytes = [0; 8];
            let backing = fs::File::open(grown.scene.path("backing")).unwrap();
            backing.read_exact_at(&mut bytes, former).unwrap();
            bytes
        };
        assert_eq!(copy(), *b"LACUNA\x00\x01");
        grown.enlarge(1 << 30);
        fs::write(grown.scene.path("new"), "staple").unwrap();
        let change = [
            "key",
            "change",
            &grown.device.0,
            "--key-file",
            "key",
            "--new-key-file",
            "new",
            "--yes",
            "--keep",
            "1",
        ];
        grown.scene.lacuna(&change).code(0);
        grown.scene.tool("sync", &[&grown.device.0]);
        assert_eq!(copy(), [0; 8], "{format}");
        grown.scene.lacuna(&["check", &grown.device.0, "--key-file", "new"]).code(0);
    }
}
