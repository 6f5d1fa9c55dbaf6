//! Habits and accidents of users while a disk is in use: no data is lost.

use crate::harness::{
    CloseOnDrop, Device, Scene, Signal, can_mount, can_mount_ext4, is_program_available, noise, send,
    skip_unless, skipped,
};
use std::fs;
use std::process::Command;

#[test]
fn no_tool_destroys_a_device_that_is_open() {
    skip_unless!(can_mount("/dev/loop-control"));
    let scene = Scene::new();
    fs::File::create(scene.path("backing")).unwrap().set_len(200 << 20).unwrap();
    let device = Device::over(&scene, &["backing"]);
    scene.create(&device.0, &["--cipher", "gcm"]).code(0);
    for options in [&[][..], &["--read-only"]] {
        let server = scene.serve_disk(&device.0, options);
        let tools: [&[&str]; 7] = [
            &["mkfs.ext4", "-q", "-F"],
            &["mkfs.xfs", "-f", "-q"],
            &["mkfs.btrfs", "-f", "-q"],
            &["mkswap"],
            &["wipefs", "-a"],
            // Restricted to this device: the devices of other tests could delay it.
            &["pvcreate", "-ff", "-y", "--devices", &device.0],
            &[
                "cryptsetup",
                "luksFormat",
                "-q",
                "--pbkdf-force-iterations=1000",
                "--pbkdf=pbkdf2",
                "--key-file=key",
            ],
        ];
        for tool in tools.into_iter().filter(|tool| is_program_available(tool[0])) {
            let mut command = Command::new(tool[0]);
            let ran = command.args(&tool[1..]).arg(&device.0).current_dir(scene.path(".")).output().unwrap();
            assert!(!ran.status.success(), "{tool:?}: {}", String::from_utf8_lossy(&ran.stdout));
        }
        scene.create(&device.0, &["--force"]).code(5);
        assert_eq!(server.stop(), 0);
    }
    scene.lacuna(&["check", &device.0, "--key-file", "key"]).code(0);
}

#[test]
fn a_disk_has_one_writer_under_all_its_names() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    let server = scene.serve(&[]);
    let check = ["check", "copy.img", "--key-file", "key"];
    let refused = scene.lacuna(&check).code(5).stderr;
    assert!(refused.contains(&format!("process {}", server.process())), "{refused}");
    // A copy can be read at the same time.
    scene.lacuna(&[&check[..], &["--read-only"]].concat()).code(0);
    if can_mount("/dev/loop-control") {
        let device = Device::over(&scene, &["disk.img"]);
        scene.lacuna(&["serve", &device.0, "--socket", "other", "--key-file", "key"]).code(5);
    }
    assert_eq!(server.stop(), 0);
    scene.lacuna(&check).code(0);
}

#[test]
fn the_process_of_a_background_server_is_named() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    let serve = ["serve", "disk.img", "--socket", "s", "--key-file", "key"];
    scene.lacuna(&[&serve[..], &["--fork", "--pid-file", "pid", "--no-keeper"]].concat()).code(0);
    let process = fs::read_to_string(scene.path("pid")).unwrap();
    let refused = scene.lacuna(&["check", "copy.img", "--key-file", "key"]).code(5).stderr;
    send(Signal::TERM, process.trim());
    assert!(refused.contains(&format!("process {} (", process.trim())), "{refused}");
}

#[test]
fn unauthenticated_clients_need_an_option() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("tls")).unwrap();
    let serve = ["serve", "disk.img", "--key-file", "key", "--listen", "0.0.0.0:0"];
    for options in [&[][..], &["--tls-dir", "tls"], &["--tls-dir", "tls", "--tls", "allow"]] {
        let refused = scene.lacuna(&[&serve[..], options].concat()).code(1).stderr;
        assert!(refused.contains("--allow-strangers"), "{refused}");
    }
    let background = ["--allow-strangers", "--fork", "--pid-file", "pid"];
    scene.lacuna(&[&serve[..], &background].concat()).code(0);
    send(Signal::TERM, fs::read_to_string(scene.path("pid")).unwrap().trim());
}

#[test]
fn create_prints_the_passphrase_cost() {
    let scene = Scene::new();
    let created = scene.create("disk.img", &["--size", "64M"]).code(0).stdout;
    assert!(created.contains("Argon2id with 1 MiB, 1 pass,"), "{created}");
}

#[test]
fn commands_do_not_hang_on_a_stopped_server() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "key", "--mkfs", "ext4"]).code(0);
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let process = scene.lacuna(&["status", "mnt", "--json"]).code(0).json()["servers"][0]["pid"].to_string();
    send(Signal::STOP, &process);
    // With no target, root would ask the servers of all other tests too.
    let status = scene.lacuna(&["status", "mnt"]).code(0).stdout;
    let close = scene.lacuna(&["close", "mnt"]);
    send(Signal::CONT, &process);
    assert!(status.contains(&format!("does not answer (process {process})")), "{status}");
    assert!(close.code(20).stderr.contains("kill -CONT"));
    scene.lacuna(&["close", "mnt"]).code(0);
}

#[test]
fn btrfs_is_unmounted_like_any_other() {
    skip_unless!(can_mount_ext4() && is_program_available("mkfs.btrfs"));
    if !fs::read_to_string("/proc/filesystems").unwrap().contains("btrfs") {
        return skipped("this kernel has no btrfs");
    }
    let scene = Scene::with_disk(&["--size", "256M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let open = ["open", "disk.img", "mnt", "--key-file", "key"];
    scene.lacuna(&[&open[..], &["--mkfs", "btrfs"]].concat()).code(0);
    fs::write(scene.path("mnt/file"), "kept").unwrap();
    scene.lacuna(&["close", "mnt"]).code(0);
    scene.lacuna(&open).code(0);
    assert_eq!(fs::read_to_string(scene.path("mnt/file")).unwrap(), "kept");
    scene.lacuna(&["close", "mnt"]).code(0);
}

#[test]
fn disks_are_closed_by_location_and_several_at_once() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.create("other.img", &["--size", "64M"]).code(0);
    for (disk, at) in [("disk.img", "a"), ("other.img", "b c")] {
        fs::create_dir(scene.path(at)).unwrap();
        scene.lacuna(&["open", disk, at, "--key-file", "key", "--mkfs", "ext4"]).code(0);
    }
    let _closing = CloseOnDrop(&scene, &["a", "b c"]);
    // The mount point names the disk.
    assert_eq!(scene.lacuna(&["info", "b c", "--json"]).code(0).json()["size"], 64 << 20);
    scene.lacuna(&["check", "a"]).code(0);
    scene.lacuna(&["header", "backup", "a", "a.hdr"]).code(0);
    scene.lacuna(&["resize", "b c", "--size", "80M"]).code(0);
    let doctor = scene.lacuna(&["doctor", "a"]).code(0).stdout;
    assert!(doctor.contains("disk.img, a file") && doctor.contains("open at "), "{doctor}");
    scene.create("served.img", &["--size", "64M"]).code(0);
    let server = scene.serve_disk("served.img", &[]);
    scene.lacuna(&["close", "disk.img", "nothing", "served.img", "b c"]).code(4);
    for disk in ["disk.img", "other.img", "served.img"] {
        scene.lacuna(&["status", disk]).code(4);
    }
    assert_eq!(server.wait(), 0);
}

#[test]
fn a_copy_of_an_open_disk_is_read_and_stays_as_it_is() {
    skip_unless!(is_program_available("nbdcopy"));
    let scene = Scene::new();
    fs::write(scene.path("data"), noise(3, 20 << 20)).unwrap();
    for cipher in ["xts-random", "gcm"] {
        scene.create("disk.img", &["--size", "64M", "--cipher", cipher, "--force"]).code(0);
        let server = scene.serve(&[]);
        scene.tool("nbdcopy", &["--flush", "data", &server.uri]);
        fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
        assert_eq!(server.stop(), 0);
        let before = fs::read(scene.path("copy.img")).unwrap();
        let device = can_mount("/dev/loop-control").then(|| Device::over(&scene, &["-r", "copy.img"]));
        let copy = device.as_ref().map_or("copy.img", |device| &device.0);
        let check = scene.lacuna(&["check", copy, "--read-only", "--key-file", "key"]).code(0).stdout;
        assert!(check.contains(" 0 bad"), "{check}");
        let server = scene.serve_disk(copy, &["--read-only"]);
        scene.tool("nbdcopy", &[&server.uri, "back"]);
        assert_eq!(server.stop(), 0);
        let back = fs::read(scene.path("back")).unwrap();
        assert!(back[..20 << 20] == fs::read(scene.path("data")).unwrap(), "{cipher}");
        drop(device);
        assert!(fs::read(scene.path("copy.img")).unwrap() == before, "{cipher}: reading wrote");
    }
}

/// The procedure in docs/usage.md: a copy made while the file system is frozen mounts without
/// repair, with the latest data.
#[test]
fn a_copy_of_a_frozen_file_system_mounts_read_only() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    for dir in ["mnt", "copy"] {
        fs::create_dir(scene.path(dir)).unwrap();
    }
    let _closing = CloseOnDrop(&scene, &["copy", "mnt"]);
    scene.lacuna(&["open", "disk.img", "mnt", "--mkfs", "ext4", "--key-file", "key"]).code(0);
    fs::write(scene.path("mnt/plan"), b"written last").unwrap();
    scene.tool("fsfreeze", &["--freeze", "mnt"]);
    let copied = fs::copy(scene.path("disk.img"), scene.path("copy.img"));
    scene.tool("fsfreeze", &["--unfreeze", "mnt"]);
    copied.unwrap();
    let before = fs::read(scene.path("copy.img")).unwrap();
    scene.lacuna(&["open", "copy.img", "copy", "--read-only", "--key-file", "key"]).code(0);
    assert_eq!(fs::read(scene.path("copy/plan")).unwrap(), b"written last");
    scene.lacuna(&["close", "copy"]).code(0);
    scene.lacuna(&["close", "mnt"]).code(0);
    assert!(fs::read(scene.path("copy.img")).unwrap() == before);
}

#[test]
fn commands_do_not_hang_on_a_fifo() {
    let scene = Scene::new();
    scene.tool("mkfifo", &["pipe"]);
    for args in [&["info", "pipe"][..], &["check", "pipe", "--key-file", "key"]] {
        assert!(scene.lacuna(args).code(4).stderr.contains("neither a file nor a block device"));
    }
}
