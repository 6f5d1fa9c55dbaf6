//! Reading a disk changes no access time of its file, or the program warns that it will.

use crate::harness::{RunOutput, Scene, is_program_available, skipped};
use crate::nbd_client::Client;
use std::fs::{self, FileTimes, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Two levels, and an access time older than the modification time, which even `relatime` updates.
fn scene(format: &str) -> (Scene, SystemTime) {
    let scene = Scene::with_levels(format, &["--size", "64M", "--cover", "5"]);
    let old = UNIX_EPOCH + Duration::from_secs(1_000_000);
    let file = OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.set_times(FileTimes::new().set_accessed(old)).unwrap();
    (scene, old)
}

fn accessed(scene: &Scene) -> SystemTime {
    fs::metadata(scene.path("disk.img")).unwrap().accessed().unwrap()
}

#[test]
fn reading_a_level_leaves_no_access_time() {
    for format in ["deniable", "oblivious"] {
        let (scene, old) = scene(format);
        let server = scene.serve_with_key("deep");
        let mut hidden = Client::connect_to(&server.socket, "1").unwrap();
        hidden.write_at(0, &[7; 65536]).unwrap();
        hidden.flush().unwrap();
        drop(hidden);
        assert_eq!(server.stop(), 0);
        // Again, so that no state is left in memory.
        let server = scene.serve_with_key("deep");
        for export in ["1", "0"] {
            Client::connect_to(&server.socket, export).unwrap().read_at(0, 65536).unwrap();
        }
        assert_eq!(server.stop(), 0);
        scene.lacuna(&["check", "disk.img", "--key-file", "deep"]).code(0);
        scene.lacuna(&["info", "disk.img", "--key-file", "deep"]).code(0);
        assert_eq!(accessed(&scene), old, "{format}");
    }
}

#[test]
fn a_user_who_does_not_own_the_file_is_warned() {
    if !rustix::process::geteuid().is_root() || !is_program_available("setpriv") {
        return skipped("another user's file is needed, and root to make one");
    }
    let (scene, _) = scene("deniable");
    fs::copy(env!("CARGO_BIN_EXE_lacuna"), scene.path("lacuna")).unwrap();
    for (name, mode) in [(".", 0o755), ("disk.img", 0o666), ("key", 0o644), ("deep", 0o644)] {
        fs::set_permissions(scene.path(name), Permissions::from_mode(mode)).unwrap();
    }
    let mut words = Vec::new();
    for key in ["key", "deep"] {
        let mut check = Command::new("setpriv");
        check.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        check.args(["./lacuna", "check", "disk.img", "--key-file", key]).current_dir(scene.path("."));
        let ran = RunOutput::from(check.output().unwrap()).code(0);
        assert!(ran.stderr.contains("noatime"), "{}", ran.stderr);
        words.push(ran.stderr);
    }
    // The warning is the same for both passphrases.
    assert_eq!(words[0], words[1]);
    assert!(!scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0).stderr.contains("noatime"));
}
