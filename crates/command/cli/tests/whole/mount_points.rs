//! Mount points that `open` makes, and the names of mounts.

use crate::harness::{
    CloseOnDrop, Scene, Signal, can_mount, can_mount_ext4, send, skip_unless, skipped, wait_until,
};
use crate::vault_harness::VaultScene;
use rustix::fs::statfs;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

#[test]
fn a_mount_point_that_open_made_goes_with_it() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    let _closing = CloseOnDrop(&scene, &["made"]);
    let made = scene.path("made");
    let open = |key: &str, options: &[&str]| {
        scene.lacuna(&[&["open", "disk.img", "made", "--key-file", key], options].concat())
    };
    // A failed opening leaves no directory that the next command could write to.
    fs::write(scene.path("wrong"), "wrong").unwrap();
    open("wrong", &[]).code(2);
    open("key", &[]).code(4);
    assert!(!made.exists());
    open("key", &["--mkfs", "ext4"]).code(0);
    fs::write(made.join("file"), "content").unwrap();
    scene.lacuna(&["close", "made"]).code(0);
    assert!(!made.exists());
    for options in [&[][..], &["--raw"]] {
        open("key", options).code(0);
        scene.tool("umount", &["made"]);
        wait_until("the end of the directory", || !made.exists());
        scene.wait_until_free("disk.img");
    }

    // After the death of the server the directory takes no files of its user, and `close` removes
    // it.
    open("key", &[]).code(0);
    let server = scene.lacuna(&["status", "made", "--json"]).json()["servers"][0]["pid"].take();
    send(Signal::KILL, &server);
    scene.wait_until_free("disk.img");
    wait_until("that status tells of it", || {
        scene.lacuna(&["status", "made"]).stdout.contains("its server died")
    });
    scene.tool("umount", &["made"]);
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o7777, 0);
    scene.lacuna(&["close", "made"]).code(0);
    assert!(!made.exists());

    // A directory of the user stays.
    fs::create_dir(&made).unwrap();
    open("key", &[]).code(0);
    scene.lacuna(&["close", "made"]).code(0);
    assert!(made.is_dir());
}

#[test]
fn a_vault_makes_its_mount_point_and_is_the_source_of_its_mount() {
    let Some(vault) = VaultScene::new(&[]) else { return };
    let scene = &vault.0;
    vault.init("w,x", &[]).code(0);
    let _closing = (CloseOnDrop(scene, &["made"]), CloseOnDrop(scene, &["made too"]));
    vault.keyed(&["open", "v", "v/made"]).code(1);
    for (dir, at) in [("v", "made"), ("w,x", "made too")] {
        vault.keyed(&["open", dir, at]).code(0);
    }
    for (dir, at) in [("v", "made"), ("w,x", "made too")] {
        let (dir, at) = (scene.path(dir).canonicalize().unwrap(), scene.path(at).canonicalize().unwrap());
        let mount = scene.tool("findmnt", &["-lno", "TARGET", "--source", dir.to_str().unwrap()]).stdout;
        assert_eq!(mount.trim_end(), at.to_str().unwrap());
    }
    for at in ["made", "made too"] {
        scene.lacuna(&["close", at]).code(0);
        assert!(!scene.path(at).exists(), "{at}");
    }
    assert!(!scene.path("v/made").exists());
}

/// A file system in memory at the directory `memory` of a scene. Dropping it closes the disk of the
/// scene.
struct Memory<'s>(&'s Scene);

impl<'s> Memory<'s> {
    fn mount(scene: &'s Scene) -> Self {
        fs::create_dir(scene.path("memory")).unwrap();
        scene.tool("mount", &["-t", "tmpfs", "lacuna-test", "memory"]);
        Memory(scene)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.0.lacuna(&["-q", "close", "disk.img"]);
        let memory = self.0.path("memory");
        let _ = Command::new("umount").arg("--lazy").arg(memory).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_disk_with_levels_makes_no_directory_on_a_medium() {
    skip_unless!(can_mount("/dev/fuse"));
    let scene = Scene::with_levels("deniable", &["--size", "64M"]);
    let memory = Memory::mount(&scene);
    let open = |public: &'static str, hidden: &'static str| {
        ["open", "disk.img", public, hidden, "--raw", "--key-file", "deep"]
    };
    scene.lacuna(&open("memory/a", "memory/b")).code(0);
    assert!(scene.path("memory/a/disk").exists() && scene.path("memory/b/disk").exists());
    scene.lacuna(&["close", "disk.img"]).code(0);
    assert_eq!(fs::read_dir(scene.path("memory")).unwrap().count(), 0);
    if statfs(scene.path(".")).unwrap().f_type == statfs(scene.path("memory")).unwrap().f_type {
        return skipped("temporary files are in memory here");
    }
    scene.lacuna(&open("a", "b")).code(20);
    let refused = scene.lacuna_on_terminal(&open("a", "b")).code(4).stderr;
    assert!(refused.contains("create the directory: mkdir -p a"), "{refused}");
    assert!(!scene.path("a").exists() && !scene.path("b").exists());
    drop(memory);
}
