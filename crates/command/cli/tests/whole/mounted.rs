//! Use of a file system on a disk.

use crate::harness::{
    CloseOnDrop, Device, Scene, Signal, can_mount, can_mount_ext4, noise, send, skip_unless, wait_until,
};
use std::fs;
use std::os::unix::fs::MetadataExt;

fn scene() -> Option<Scene> {
    if !can_mount_ext4() {
        return None;
    }
    let scene = Scene::with_disk(&["--size", "512M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    Some(scene)
}

fn used(scene: &Scene) -> u64 {
    fs::metadata(scene.path("disk.img")).unwrap().blocks() * 512
}

/// Makes a few thousand small files.
fn make_tree(scene: &Scene) {
    for dir in 0..50u64 {
        let path = scene.path(&format!("tree/{}/d{dir}", dir % 7));
        fs::create_dir_all(&path).unwrap();
        for file in 0..60 {
            let seed = dir * 60 + file + 1;
            fs::write(path.join(format!("file {file}")), noise(seed, (seed * 7919 % 20_000) as usize))
                .unwrap();
        }
    }
}

#[test]
fn a_tree_comes_back_and_trimmed_space_is_given_back() {
    let Some(scene) = scene() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let open = ["open", "disk.img", "mnt", "--key-file", "key"];
    fs::write(scene.path("mnt/below"), b"hidden").unwrap();
    assert!(scene.lacuna(&open).code(4).stderr.contains("is not empty"));
    fs::remove_file(scene.path("mnt/below")).unwrap();
    assert_eq!(scene.lacuna(&[&open[..], &["--mkfs", "ext4"]].concat()).code(0).stderr, "");
    make_tree(&scene);
    scene.tool("cp", &["-r", "tree", "mnt/tree"]);
    fs::write(scene.path("mnt/large"), noise(5, 60 << 20)).unwrap();

    // While it is open, other commands cannot open it; `info`, `status` and `check` still answer.
    scene.lacuna(&["serve", "disk.img", "--socket", "s", "--key-file", "key"]).code(5);
    scene.lacuna(&["check", "disk.img"]).code(0);
    assert_eq!(scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["medium"]["in_use"], true);
    let status = scene.lacuna(&["status", "mnt", "--json"]).code(0).json();
    assert_eq!(status["servers"][0]["front"], "fuse");
    assert!(status["servers"][0]["items"].as_array().unwrap().len() > 3);
    let busy = scene.command(&["close", "."]).current_dir(scene.path("mnt")).output().unwrap();
    assert_eq!(busy.status.code(), Some(5), "{}", String::from_utf8_lossy(&busy.stderr));

    scene.lacuna(&["close", "mnt"]).code(0);
    assert!(!scene.path("mnt/large").exists());
    scene.lacuna(&["close", "mnt"]).code(4);
    let full = used(&scene);
    assert!(full > 60 << 20);

    scene.lacuna(&open).code(0);
    scene.tool("diff", &["-r", "tree", "mnt/tree"]);
    assert!(fs::read(scene.path("mnt/large")).unwrap() == noise(5, 60 << 20));
    fs::remove_file(scene.path("mnt/large")).unwrap();
    scene.tool("sync", &["-f", "mnt"]);
    scene.tool("fstrim", &["mnt"]);
    scene.lacuna(&["close", "mnt"]).code(0);
    let trimmed = used(&scene);
    assert!(trimmed + (50 << 20) < full, "fstrim left {trimmed} of {full} bytes in use");

    scene.lacuna(&[&open[..], &["--read-only"]].concat()).code(0);
    scene.tool("diff", &["-r", "tree", "mnt/tree"]);
    assert!(fs::write(scene.path("mnt/new"), b"no").is_err());
    scene.lacuna(&["close", "mnt"]).code(0);
    scene.lacuna(&[&open[..], &["--read-only", "--mount-options", "noload,noatime"]].concat()).code(0);
    let options = scene.tool("findmnt", &["-no", "OPTIONS", "--mountpoint", "mnt"]).stdout;
    assert!(options.contains("norecovery") || options.contains("noload"), "{options}");
    scene.lacuna(&["close", "mnt"]).code(0);
    // No file system is made over an existing one.
    scene.lacuna(&[&open[..], &["--mkfs", "ext4"]].concat()).code(1);
}

#[test]
fn raw_mode_is_a_file_and_the_foreground_ends_by_signal() {
    let Some(scene) = scene() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let open = ["open", "disk.img", "mnt", "--raw", "--key-file", "key"];
    scene.lacuna(&open).code(0);
    assert_eq!(fs::metadata(scene.path("mnt/disk")).unwrap().len(), 512 << 20);
    scene.lacuna(&["close", "mnt"]).code(0);

    let mut child = scene.command(&[&open[..], &["--foreground"]].concat()).spawn().unwrap();
    wait_until("the file of the disk", || {
        assert!(child.try_wait().unwrap().is_none(), "the server ended");
        scene.path("mnt/disk").exists()
    });
    send(Signal::TERM, child.id());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!scene.path("mnt/disk").exists());
}

#[test]
fn a_failed_opening_leaves_nothing_mounted() {
    let Some(scene) = scene() else { return };
    fs::write(scene.path("wrong"), "wrong").unwrap();
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "wrong"]).code(2);
    let nowhere = scene.lacuna(&["open", "disk.img", "no/where", "--key-file", "key"]).code(4).stderr;
    assert!(nowhere.contains("create the directory: mkdir -p no/where"), "{nowhere}");
    scene.lacuna(&["open", "disk.img", "key", "--key-file", "key"]).code(1);
    scene.lacuna(&["open", "disk.img", "mnt", "--key-file", "key", "--mkfs", "no-such"]).code(1);
    // If the opening cannot be reported, the disk is not opened.
    let mut deaf = scene.command(&["open", "disk.img", "mnt", "--raw", "--key-file", "key"]);
    deaf.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    assert_eq!(deaf.status().unwrap().code(), Some(13));
    assert_eq!(fs::read_dir(scene.path("mnt")).unwrap().count(), 0);
    assert_eq!(scene.lacuna(&["info", "disk.img", "--json"]).json()["medium"]["in_use"], false);
}

#[test]
fn the_mount_of_a_dead_server_is_cleared_away() {
    let Some(scene) = scene() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    let open = ["open", "disk.img", "mnt", "--key-file", "key"];
    scene.lacuna(&[&open[..], &["--mkfs", "ext4"]].concat()).code(0);
    fs::write(scene.path("mnt/kept"), noise(4, 1 << 20)).unwrap();
    scene.tool("sync", &["-f", "mnt"]);
    let status = scene.lacuna(&["status", "mnt", "--json"]).code(0).json();
    send(Signal::KILL, &status["servers"][0]["pid"]);
    // The kernel takes a moment to release the locks of the dead process.
    scene.wait_until_free("disk.img");
    let dead = || scene.lacuna(&["status", "mnt"]).stdout.contains("its server died");
    wait_until("that status tells of it", dead);
    for status in [&["status"][..], &["status", "mnt"], &["status", "disk.img"]] {
        assert!(scene.lacuna(status).code(0).stdout.contains("its server died"), "{status:?}");
    }
    assert_eq!(scene.lacuna(&["status", "mnt", "--json"]).code(0).json()["servers"][0]["died"], true);
    // The next opening does it.
    let said = scene.lacuna(&open).code(0).stderr;
    assert!(said.contains("had died; its mount is cleared away"), "{said}");
    assert!(fs::read(scene.path("mnt/kept")).unwrap() == noise(4, 1 << 20));
    // So does `close`, and an opening elsewhere.
    fs::create_dir(scene.path("other")).unwrap();
    let _other = CloseOnDrop(&scene, &["other"]);
    for at in ["mnt", "other"] {
        let status = scene.lacuna(&["status", "mnt", "--json"]).code(0).json();
        send(Signal::KILL, &status["servers"][0]["pid"]);
        scene.wait_until_free("disk.img");
        wait_until("that status tells of it", dead);
        if at == "mnt" {
            assert!(scene.lacuna(&["close", "mnt"]).code(0).stderr.contains("died"));
            scene.lacuna(&["status", "mnt"]).code(4);
        }
        scene.lacuna(&["open", "disk.img", at, "--key-file", "key"]).code(0);
    }
    scene.lacuna(&["status", "mnt"]).code(4);
    assert!(fs::read(scene.path("other/kept")).unwrap() == noise(4, 1 << 20));
    scene.lacuna(&["close", "other"]).code(0);
}

#[test]
fn a_block_device_is_filled_and_not_overwritten_by_mistake() {
    skip_unless!(can_mount("/dev/loop-control"));
    let scene = Scene::new();
    fs::File::create(scene.path("backing")).unwrap().set_len(200 << 20).unwrap();
    let device = Device::over(&scene, &["backing"]);
    scene.create(&device.0, &["--size", "300M"]).code(1);
    scene.create(&device.0, &[]).code(0);
    let info = scene.lacuna(&["info", &device.0, "--json"]).code(0).json();
    assert_eq!(info["medium"]["size"], 200 << 20);
    assert!(info["size"].as_u64().unwrap() > 150 << 20);
    scene.create(&device.0, &[]).code(1);
    scene.create(&device.0, &["--force", "--cipher", "gcm"]).code(0);
    scene.lacuna(&["check", &device.0, "--key-file", "key"]).code(0);
    let resize = ["resize", &device.0, "--size", "1G", "--key-file", "key"];
    scene.lacuna(&resize).code(13);

    // A device in use by the system is refused, even with `--force`.
    scene.tool("mkfs.ext4", &["-q", "-F", &device.0]);
    fs::create_dir(scene.path("other")).unwrap();
    scene.tool("mount", &[&device.0, "other"]);
    scene.create(&device.0, &["--force"]).code(5);
    scene.tool("umount", &["other"]);
}
