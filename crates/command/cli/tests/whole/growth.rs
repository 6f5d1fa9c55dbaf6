//! Block devices that grow, and the disks on them.

use crate::harness::{Device, Scene, can_mount, noise, skip_unless};
use std::fs;
use std::os::unix::fs::FileExt;

const CHUNK: usize = 1 << 20;

struct GrowableDevice {
    scene: Scene,
    device: Device,
}

impl GrowableDevice {
    fn new(size: u64, options: &[&str]) -> Option<GrowableDevice> {
        if !can_mount("/dev/loop-control") {
            return None;
        }
        let scene = Scene::new();
        fs::File::create(scene.path("backing")).unwrap().set_len(size).unwrap();
        let device = Device::over(&scene, &["backing"]);
        scene.create(&device.0, options).code(0);
        Some(GrowableDevice { scene, device })
    }

    fn enlarge(&self, size: u64) {
        fs::OpenOptions::new().write(true).open(self.scene.path("backing")).unwrap().set_len(size).unwrap();
        self.scene.tool("losetup", &["-c", &self.device.0]);
    }

    fn size(&self) -> u64 {
        self.scene.lacuna(&["info", &self.device.0, "--json"]).code(0).json()["size"].as_u64().unwrap()
    }

    fn resize(&self, options: &[&str]) -> crate::harness::RunOutput {
        self.scene.lacuna(&[&["resize", &self.device.0, "--key-file", "key"], options].concat())
    }

    fn write(&self, at: u64, seed: u64) {
        self.scene
            .serve_disk(&self.device.0, &[])
            .used_by(|client| client.write_at(at, &noise(seed, CHUNK)).unwrap());
    }

    fn holds(&self, at: u64, seed: u64) {
        let data = self
            .scene
            .serve_disk(&self.device.0, &["--read-only"])
            .used_by(|client| client.read_at(at, CHUNK).unwrap());
        assert!(data == noise(seed, CHUNK), "at {at}");
    }
}

#[test]
fn a_disk_grows_with_its_device() {
    for options in [&[][..], &["--cipher", "xts-random"]] {
        let Some(grown) = GrowableDevice::new(200 << 20, options) else { return };
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
fn create_says_how_much_of_the_device_the_disk_gets() {
    skip_unless!(can_mount("/dev/loop-control"));
    let scene = Scene::new();
    fs::File::create(scene.path("backing")).unwrap().set_len(1 << 30).unwrap();
    let device = Device::over(&scene, &["backing"]);
    let said = scene.create(&device.0, &[]).code(0).stdout;
    assert!(said.contains("of 1 GiB on the device the disk gets 94.5%; journal 20.2 MiB, "), "{said}");
}

#[test]
fn growth_is_no_fault_and_a_lost_last_copy_is_one() {
    for (format, remedy) in [("sealed", "lacuna resize"), ("deniable", "lacuna header repair")] {
        let Some(grown) = GrowableDevice::new(200 << 20, &["--format", format]) else { return };
        let (scene, device) = (&grown.scene, grown.device.0.as_str());
        grown.enlarge(500 << 20);
        let words = scene.lacuna(&["doctor", device]).code(0).stdout;
        assert!(words.contains("the device is 300 MiB longer than the disk"), "{words}");
        assert!(words.contains(&format!("`{remedy} {device}`")), "{words}");
        assert_eq!(scene.lacuna(&["doctor", device, "--json"]).code(0).json()["healthy"], true);
        let notes = scene.lacuna(&["info", device, "--json"]).code(0).json()["notes"].to_string();
        let advice = format!("`{remedy}`");
        assert!(notes.contains("longer than the disk") && notes.contains(&advice), "{notes}");
        // A repair writes the last copy at the new end, and the size of the disk still tells.
        scene.lacuna(&["header", "repair", device, "--key-file", "key"]).code(0);
        if format == "sealed" {
            let words = scene.lacuna(&["doctor", device]).code(0).stdout;
            assert!(words.contains("more of the device"), "{words}");
            assert!(words.contains(&format!("`lacuna resize {device}` takes it")), "{words}");
            grown.resize(&[]).code(0);
        }
        let words = scene.lacuna(&["doctor", device]).code(0).stdout;
        assert!(words.contains("all 3 copies are whole") && !words.contains("300 MiB"), "{words}");
        assert!(!words.contains("more of the device"), "{words}");

        // The last copy alone is lost: no copy is where the device ended before.
        let last = (500 << 20) - (64 << 10);
        let medium = fs::OpenOptions::new().write(true).open(device).unwrap();
        medium.write_all_at(&[0; 65_536], last).unwrap();
        medium.sync_all().unwrap();
        if format == "sealed" {
            let words = scene.lacuna(&["doctor", device]).code(10).stdout;
            assert!(words.contains("2 of 3 copies are whole") && words.contains("header repair"), "{words}");
        }
        grown.enlarge(100 << 20);
        assert!(scene.lacuna(&["doctor", device]).code(10).stdout.contains("was cut short"));
    }
}

#[test]
fn a_length_that_differs_by_a_byte_is_shown_in_bytes() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let disk = fs::OpenOptions::new().append(true).open(scene.path("disk.img")).unwrap();
    let len = disk.metadata().unwrap().len();
    disk.set_len(len + 1).unwrap();
    let words = scene.lacuna(&["doctor", "disk.img"]).code(0).stdout;
    assert!(words.contains(&format!("{} bytes (the disk needs {len})", len + 1)), "{words}");
}

#[test]
fn a_file_that_was_made_longer_gets_its_last_copy_at_the_end() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let disk = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    disk.set_len(disk.metadata().unwrap().len() + (8 << 20)).unwrap();
    let words = scene.lacuna(&["doctor", "disk.img"]).code(0).stdout;
    assert!(words.contains("the file is 8 MiB longer than the disk"), "{words}");
    assert!(words.contains("`lacuna header repair disk.img`"), "{words}");
    scene.lacuna(&["header", "repair", "disk.img", "--key-file", "key"]).code(0);
    let words = scene.lacuna(&["doctor", "disk.img"]).code(0).stdout;
    assert!(words.contains("all 3 copies are whole"), "{words}");
}

#[test]
fn a_device_that_became_shorter_is_not_to_be_truncated() {
    let Some(cut) = GrowableDevice::new(200 << 20, &[]) else { return };
    cut.enlarge(100 << 20);
    for words in [&["info"][..], &["doctor"], &["check", "--key-file", "key"]] {
        let ran = cut.scene.lacuna(&[words, &[&cut.device.0]].concat()).code(10);
        let said = ran.stdout + &ran.stderr;
        assert!(said.contains("was cut short") && said.contains("a longer device"), "{said}");
        assert!(!said.contains("truncate"), "{said}");
    }
}

#[test]
fn a_medium_that_cannot_grow_is_an_error() {
    for format in ["deniable", "oblivious"] {
        let Some(levels) = GrowableDevice::new(200 << 20, &["--format", format]) else { return };
        levels.enlarge(1 << 30);
        for options in [&[][..], &["--size", "500M"]] {
            let refused = levels.resize(options).code(1).stderr;
            assert!(refused.contains("which keeps its size"), "{refused}");
        }
        levels.scene.lacuna(&["check", &levels.device.0, "--key-file", "key"]).code(0);
    }
    let Some(sealed) = GrowableDevice::new(200 << 20, &[]) else { return };
    let refused = sealed.scene.create(&sealed.device.0, &["--preallocate", "--force"]).code(1).stderr;
    assert!(refused.contains("thin volume"), "{refused}");
    let file = Scene::with_disk(&["--size", "64M"]);
    assert!(file.lacuna(&["resize", "disk.img", "--key-file", "key"]).code(1).stderr.contains("--size"));
}

#[test]
fn a_removed_passphrase_opens_no_copy_where_the_device_ended() {
    for format in ["sealed", "deniable"] {
        let Some(grown) = GrowableDevice::new(200 << 20, &["--format", format]) else { return };
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
        let change = ["key", "change", &grown.device.0, "--key-file", "key", "--new-key-file", "new"];
        grown.scene.lacuna(&[&change[..], &["--yes", "--keep", "1"]].concat()).code(0);
        grown.scene.tool("sync", &[&grown.device.0]);
        assert_eq!(copy(), [0; 8], "{format}");
        grown.scene.lacuna(&["check", &grown.device.0, "--key-file", "new"]).code(0);
    }
}
