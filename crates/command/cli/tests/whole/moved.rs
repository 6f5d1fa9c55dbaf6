//! The file of an open disk is moved, deleted or copied: lacuna reports where the disk is open, and
//! loses no data without a warning.

use crate::harness::{CloseOnDrop, Scene, can_mount, is_program_available};
use crate::vault_harness::VaultScene;
use std::fs;

/// Opens a disk of two levels, mounted raw at `mnt` and `second`.
fn open_levels() -> Option<Scene> {
    if !can_mount("/dev/fuse") || !is_program_available("fusermount3") {
        return None;
    }
    let scene = Scene::with_levels("deniable", &["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    fs::create_dir(scene.path("second")).unwrap();
    scene.lacuna(&["open", "disk.img", "mnt", "second", "--raw", "--key-file", "deep"]).code(0);
    Some(scene)
}

/// The lines of `list` for the disks of this scene: other tests have disks open as well.
fn listed(scene: &Scene) -> String {
    let dir = scene.path(".").canonicalize().unwrap().display().to_string();
    let list = scene.lacuna(&["list"]).code(0).stdout;
    list.lines().filter(|line| line.contains(&dir)).collect::<Vec<_>>().join("\n")
}

/// Opens a disk in `disk.img`, mounted raw at `mnt`.
fn open() -> Option<Scene> {
    if !can_mount("/dev/fuse") || !is_program_available("fusermount3") {
        return None;
    }
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    fs::create_dir(scene.path("second")).unwrap();
    scene.lacuna(&["open", "disk.img", "mnt", "--raw", "--key-file", "key"]).code(0);
    Some(scene)
}

#[test]
fn a_moved_file_is_known_by_its_new_path() {
    let Some(scene) = open() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    let list = listed(&scene);
    assert!(list.contains("its file is ") && list.contains("/moved.img now"), "{list}");
    assert!(scene.lacuna(&["status", "moved.img"]).code(0).stdout.contains("/disk.img"));
    let again = scene.lacuna(&["open", "moved.img", "second", "--raw", "--key-file", "key"]).code(5).stderr;
    assert!(again.contains("this user has it open") && again.contains("/moved.img` ends"), "{again}");
    let doctor = scene.lacuna(&["doctor", "moved.img"]).code(0).stdout;
    assert!(doctor.contains("/moved.img now") && !doctor.contains("no server of this user"), "{doctor}");
    scene.lacuna(&["check", "moved.img"]).code(0);
    scene.lacuna(&["close", "moved.img"]).code(0);
    assert_eq!(listed(&scene), "");
    scene.lacuna(&["check", "moved.img", "--key-file", "key"]).code(0);
}

#[test]
fn a_served_file_that_was_moved_is_closed_by_its_new_path() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let server = scene.serve(&[]);
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    assert!(scene.lacuna(&["status", "moved.img"]).code(0).stdout.contains("its file is "));
    scene.lacuna(&["check", "moved.img"]).code(0);
    fs::write(scene.path("second"), "second").unwrap();
    let words = ["key", "add", "moved.img", "--key-file", "key", "--new-key-file", "second"];
    scene.lacuna(&words).code(0);
    scene.lacuna(&["close", "moved.img"]).code(0);
    assert_eq!(server.wait(), 0);
}

#[test]
fn closing_a_disk_with_a_deleted_file_needs_an_option() {
    let Some(scene) = open() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    fs::remove_file(scene.path("disk.img")).unwrap();
    for said in [listed(&scene), scene.lacuna(&["status", "disk.img"]).code(0).stdout] {
        assert!(said.contains("its file was deleted"), "{said}");
    }
    let doctor = scene.lacuna(&["doctor", "disk.img"]).code(4).stdout;
    assert!(doctor.contains("its file was deleted"), "{doctor}");
    for target in ["mnt", "disk.img"] {
        let refused = scene.lacuna(&["close", target]).code(20).stderr;
        assert!(refused.contains("deleted while it was open") && refused.contains("--deleted"), "{refused}");
    }
    assert!(
        scene.lacuna(&["check", "disk.img"]).code(5).stderr.contains("no file that can be seen at this path")
    );
    // The data of the disk can still be read.
    assert_eq!(fs::read(scene.path("mnt/disk")).unwrap().len(), 64 << 20);
    scene.lacuna(&["close", "mnt", "--deleted"]).code(0);
}

#[test]
fn a_copy_of_an_open_disk_is_refused_with_the_open_location() {
    let Some(scene) = open() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    let refused = scene.lacuna(&["open", "copy.img", "second", "--raw", "--key-file", "key"]).code(5).stderr;
    assert!(
        refused.contains("this user has it open as ") && refused.contains("/disk.img` ends"),
        "{refused}"
    );
    let doctor = scene.lacuna(&["doctor", "copy.img"]).code(0).stdout;
    assert!(doctor.contains("this user has the same disk open as "), "{doctor}");
}

#[test]
fn all_levels_of_a_moved_file_are_closed_by_its_new_path() {
    let Some(scene) = open_levels() else { return };
    let _closing = CloseOnDrop(&scene, &["second", "mnt"]);
    fs::write(scene.path("second/disk"), "deep").unwrap();
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    let list = listed(&scene);
    assert_eq!(list.matches("/moved.img now").count(), 2, "{list}");
    scene.lacuna(&["close", "moved.img"]).code(0);
    scene.wait_until_free("moved.img");
    assert_eq!(listed(&scene), "");
    let check = scene.lacuna(&["check", "moved.img", "--key-file", "deep", "--json"]).code(0).json();
    assert_eq!(check["bad"], 0);
}

#[test]
fn levels_of_a_deleted_file_stay_open_without_the_option() {
    let Some(scene) = open_levels() else { return };
    let _closing = CloseOnDrop(&scene, &["second", "mnt"]);
    fs::remove_file(scene.path("disk.img")).unwrap();
    let list = listed(&scene);
    assert_eq!(list.matches("its file was deleted").count(), 2, "{list}");
    for targets in [&["mnt"][..], &["second"], &["second", "mnt"], &["disk.img"]] {
        let refused = scene.lacuna(&[&["close"][..], targets].concat()).code(20).stderr;
        assert!(refused.contains("deleted while it was open"), "{refused}");
    }
    // The data of the levels can still be read.
    for level in ["mnt/disk", "second/disk"] {
        assert!(!fs::read(scene.path(level)).unwrap().is_empty(), "{level}");
    }
    scene.lacuna(&["close", "disk.img", "--deleted"]).code(0);
    assert!(!scene.path("mnt/disk").exists() && !scene.path("second/disk").exists());
}

#[test]
fn another_file_at_the_old_path_is_another_disk() {
    let Some(scene) = open() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt", "second"]);
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    scene.create("disk.img", &["--size", "32M"]).code(0);
    scene.lacuna(&["close", "disk.img"]).code(4);
    scene.lacuna(&["status", "disk.img"]).code(4);
    assert!(scene.lacuna(&["doctor", "disk.img"]).code(0).stdout.contains("open nowhere"));
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    fs::write(scene.path("new"), "new").unwrap();
    scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--new-key-file", "new"]).code(0);
    scene.lacuna(&["resize", "disk.img", "--grow-fs"]).code(1);
    // A mount point names the disk mounted there, not the file at its old path.
    assert_eq!(scene.lacuna(&["info", "mnt", "--json"]).code(0).json()["size"], 64 << 20);
    scene.lacuna(&["check", "mnt"]).code(0);
    scene.lacuna(&["open", "disk.img", "second", "--raw", "--key-file", "key"]).code(0);
    scene.lacuna(&["close", "disk.img"]).code(0);
    assert!(scene.path("mnt/disk").exists() && !scene.path("second/disk").exists());
    scene.lacuna(&["erase", "disk.img", "--yes"]).code(0);
    scene.lacuna(&["close", "moved.img"]).code(0);
}

#[test]
fn a_deleted_file_keeps_no_other_disk_open() {
    let Some(scene) = open() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt", "second"]);
    scene.create("other.img", &["--size", "32M"]).code(0);
    scene.lacuna(&["open", "other.img", "second", "--raw", "--key-file", "key"]).code(0);
    fs::remove_file(scene.path("disk.img")).unwrap();
    let refused = scene.lacuna(&["close", "mnt", "second"]).code(20).stderr;
    assert!(refused.contains("deleted while it was open"), "{refused}");
    assert!(scene.path("mnt/disk").exists() && !scene.path("second/disk").exists());
    scene.lacuna(&["close", "mnt", "--deleted"]).code(0);
}

#[test]
fn a_moved_vault_is_known_by_its_new_path() {
    let Some(vault) = VaultScene::new(&[]) else { return };
    vault.open().code(0);
    let scene = &vault.0;
    fs::rename(scene.path("v"), scene.path("w")).unwrap();
    let list = listed(scene);
    assert!(list.contains("its directory is ") && list.contains("/w now"), "{list}");
    scene.lacuna(&["status", "w"]).code(0);
    let doctor = scene.lacuna(&["doctor", "w"]).code(0).stdout;
    assert!(doctor.contains("its directory is ") && !doctor.contains("a copy"), "{doctor}");
    fs::write(scene.path("mnt/file"), "written").unwrap();
    scene.lacuna(&["close", "w"]).code(0);
    scene.lacuna(&["vault", "check", "w", "--key-file", "key"]).code(0);
}

#[test]
fn a_replaced_file_is_closed_with_the_option() {
    let Some(scene) = open() else { return };
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    scene.create("new.img", &["--size", "32M"]).code(0);
    fs::rename(scene.path("new.img"), scene.path("disk.img")).unwrap();
    assert!(scene.lacuna(&["doctor", "disk.img"]).code(0).stdout.contains("open nowhere"));
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    for words in [&["info", "mnt"][..], &["header", "backup", "mnt", "hdr"]] {
        let refused = scene.lacuna(words).code(4).stderr;
        assert!(refused.contains("another file at "), "{refused}");
    }
    let refused = scene.lacuna(&["close", "disk.img"]).code(20).stderr;
    assert!(refused.contains("lacuna close --deleted /"), "{refused}");
    scene.lacuna(&["close", "disk.img", "--deleted"]).code(0);
    assert_eq!(listed(&scene), "");

    // The same for a served disk.
    let server = scene.serve(&[]);
    scene.create("new.img", &["--size", "32M"]).code(0);
    fs::rename(scene.path("new.img"), scene.path("disk.img")).unwrap();
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    scene.lacuna(&["close", "disk.img"]).code(20);
    scene.lacuna(&["close", "disk.img", "--deleted"]).code(0);
    assert_eq!(server.wait(), 0);
    scene.lacuna(&["erase", "disk.img", "--yes"]).code(0);
}

#[test]
fn two_servers_at_one_path_are_both_known() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let moved = scene.serve(&[]);
    fs::rename(scene.path("disk.img"), scene.path("moved.img")).unwrap();
    scene.create("disk.img", &["--size", "32M"]).code(0);
    let serve = ["serve", "disk.img", "--socket", "second.sock", "--key-file", "key"];
    let second = scene.serve_command(&mut scene.command(&serve));
    scene.lacuna(&["check", "disk.img"]).code(0);
    scene.lacuna(&["close", "disk.img"]).code(0);
    assert_eq!(second.wait(), 0);
    assert!(scene.lacuna(&["status", "moved.img"]).code(0).stdout.contains("its file is "));
    scene.lacuna(&["close", "moved.img"]).code(0);
    assert_eq!(moved.wait(), 0);
}
