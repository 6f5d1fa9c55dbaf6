//! Backing directories that fail their vault: read-only, full, and removed.

use crate::harness::noise;
use crate::vault_harness::VaultScene;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

/// A mount in the scene, unmounted on drop.
struct BackingMount(std::path::PathBuf);

impl BackingMount {
    /// Mounts at `at` in the scene, with these options for `mount`.
    fn new(scene: &VaultScene, options: &[&str], at: &str) -> BackingMount {
        scene.0.tool("mount", &[options, &[at]].concat());
        BackingMount(scene.0.path(at))
    }
}

impl Drop for BackingMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

#[test]
fn a_read_only_directory_can_be_read() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.work_on("state", "v", |scene| scene.write("file", b"words"));
    fs::create_dir(scene.0.path("ro")).unwrap();
    let _bind = BackingMount::new(&scene, &["--bind", "v"], "ro");
    scene.0.tool("mount", &["-o", "remount,bind,ro", "ro"]);
    let refused = scene.keyed(&["open", "ro", "mnt"]).code(20);
    assert!(refused.stderr.contains("--read-only"), "{}", refused.stderr);
    scene.keyed(&["open", "ro", "mnt", "--read-only"]).code(0);
    assert_eq!(scene.read("file").unwrap(), b"words");
    scene.close().code(0);
    scene.keyed(&["vault", "check", "ro"]).code(0);
}

#[test]
fn a_full_backing_directory_refuses_writes_until_there_is_space() {
    let Some(scene) = VaultScene::empty() else { return };
    fs::create_dir(scene.0.path("host")).unwrap();
    let _host = BackingMount::new(&scene, &["-t", "tmpfs", "-o", "size=96m", "lacuna-test"], "host");
    scene.init("host/v", &[]).code(0);
    scene.keyed(&["open", "host/v", "mnt"]).code(0);
    scene.write("before", &noise(1, 100_000));
    fs::File::open(scene.0.path("mnt/before")).unwrap().sync_all().unwrap();
    let mut file = fs::File::create(scene.0.path("mnt/large")).unwrap();
    let piece = noise(2, 1 << 20);
    let full = (0..200).find_map(|_| file.write_all(&piece).and_then(|()| file.sync_data()).err());
    assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert!(scene.read("before").unwrap() == noise(1, 100_000));
    fs::remove_file(scene.0.path("mnt/large")).unwrap();
    fs::File::open(scene.0.path("mnt")).unwrap().sync_all().unwrap();
    scene.write("after", &noise(3, 200_000));
    fs::File::open(scene.0.path("mnt/after")).unwrap().sync_all().unwrap();
    scene.close().code(0);
    scene.keyed(&["vault", "check", "host/v"]).code(0);
    scene.keyed(&["open", "host/v", "mnt"]).code(0);
    assert!(scene.read("after").unwrap() == noise(3, 200_000));
    scene.close().code(0);

    // No space for a new vault: its directory is removed again.
    let ballast = scene.0.path("host/ballast");
    let mut ballast = fs::File::create(ballast).unwrap();
    while ballast.write_all(&piece).is_ok() {}
    scene.init("host/w", &[]).code(13);
    assert!(!scene.0.path("host/w").exists());
}

#[test]
fn a_removed_backing_directory_is_an_error() {
    let Some(scene) = VaultScene::new(&[]) else { return };
    scene.open().code(0);
    let content = noise(1, 1 << 20);
    scene.write("file", &content);
    fs::File::open(scene.0.path("mnt/file")).unwrap().sync_all().unwrap();
    fs::rename(scene.0.path("v"), scene.0.path("away")).unwrap();
    fs::remove_dir_all(scene.0.path("away")).unwrap();
    if let Ok(read) = scene.read("file") {
        assert!(read == content);
    }
    let written = fs::File::create(scene.0.path("mnt/new"))
        .and_then(|mut file| file.write_all(&content).and_then(|()| file.sync_all()));
    assert!(written.is_err());
    // Closing ends the server and reports an error; nothing stays mounted.
    let closed = scene.close();
    assert!(closed.code != 0, "{}", closed.stderr);
    assert!(fs::read_dir(scene.0.path("mnt")).unwrap().next().is_none());
    scene.open().code(4);
}
