//! A disk under other names than its own, and names that a shell reads as something else.

use crate::scene::{Device, Scene, can_mount, have};
use std::fs;

#[test]
fn force_overwrites_no_disk_that_is_open_under_another_name() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    fs::hard_link(scene.path("disk.img"), scene.path("link.img")).unwrap();
    let before = fs::read(scene.path("copy.img")).unwrap();
    let server = scene.serve(&[]);
    let force = |name: &str| scene.create(name, &["--size", "64M", "--force"]).code(5).stderr;
    let refused = force("copy.img");
    assert!(refused.contains(&format!("process {}", server.process())), "{refused}");
    assert!(refused.contains("cannot overwrite copy.img"), "{refused}");
    force("link.img");
    if can_mount("/dev/loop-control") {
        force(&Device::over(&scene, &["disk.img"]).0);
    }
    assert!(fs::read(scene.path("copy.img")).unwrap() == before);
    assert_eq!(server.stop(), 0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    scene.create("copy.img", &["--size", "64M", "--force"]).code(0);
}

#[test]
fn hints_can_be_pasted_into_a_shell() {
    if !can_mount("/dev/fuse") || !have("fusermount3") {
        return;
    }
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.create("other.img", &["--size", "64M"]).code(0);
    fs::create_dir(scene.path("it's a disk")).unwrap();
    let hint =
        format!("`lacuna close '{}/it'\\''s a disk'`", scene.path("").canonicalize().unwrap().display());
    let open = |disk: &str| scene.lacuna(&["open", disk, "it's a disk", "--raw", "--key-file", "key"]);
    let opened = open("disk.img").code(0).stdout;
    let refused = open("other.img").code(5).stderr;
    scene.tool("sh", &["-c", &hint.trim_matches('`').replace("lacuna", env!("CARGO_BIN_EXE_lacuna"))]);
    assert!(opened.contains(&hint), "{opened}");
    assert!(refused.contains(r"`lacuna close 'it'\''s a disk'`"), "{refused}");
    assert!(!scene.path("it's a disk/disk").exists());
}
