//! Privileges that the program has and the user that starts it may lack.

use crate::harness::{RunOutput, Scene, can_mount_ext4, is_program_available, skip_unless, skipped};
use crate::vault_harness::VaultScene;
use rustix::fs::StatVfsMountFlags;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skipped("this needs root");
    }
    root
}

#[test]
fn root_runs_no_program_from_the_path_of_the_user() {
    skip_unless!(is_root() && can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    for dir in ["bin", "mnt"] {
        fs::create_dir(scene.path(dir)).unwrap();
    }
    for name in ["mount", "umount", "blkid", "mkfs.ext4"] {
        let trap = scene.path("bin").join(name);
        fs::write(&trap, format!("#!/bin/sh\necho {name} >> '{}'\nexit 1\n", scene.path("ran").display()))
            .unwrap();
        fs::set_permissions(&trap, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let lacuna = |args: &[&str]| scene.command(args).env("PATH", &path).output().unwrap();
    let opened = lacuna(&["open", "disk.img", "mnt", "--key-file", "key", "--mkfs", "ext4"]);
    let closed = lacuna(&["close", "mnt"]);
    let ran = fs::read_to_string(scene.path("ran")).unwrap_or_default();
    assert_eq!(ran, "", "{}", String::from_utf8_lossy(&opened.stderr));
    assert!(opened.status.success() && closed.status.success());
}

/// Without the right to mount, as in a container, root uses `fusermount3`: the program of the
/// system, which cannot mount either.
#[test]
fn root_without_capabilities_runs_no_fusermount3_from_the_path_of_the_user() {
    skip_unless!(is_root() && is_program_available("setpriv") && is_program_available("fusermount3"));
    let Some(vault) = VaultScene::new(&[]) else { return };
    let scene = &vault.0;
    scene.create("disk.img", &["--size", "16M"]).code(0);
    let ran = scene.path("ran");
    let trap = scene.path("bin/fusermount3");
    fs::create_dir(scene.path("bin")).unwrap();
    fs::write(&trap, format!("#!/bin/sh\necho ran >> '{}'\nexit 1\n", ran.display())).unwrap();
    fs::set_permissions(&trap, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let bounded = |words: &[&str]| -> RunOutput {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]).args(words);
        command.current_dir(scene.path(".")).stdin(Stdio::null()).env_remove("LISTEN_FDS");
        command.env("XDG_RUNTIME_DIR", scene.path(".")).env("XDG_STATE_HOME", scene.path("state"));
        command.env("PATH", &path).env("FUSERMOUNT_PATH", &trap).output().unwrap().into()
    };
    // The trap works, and the privilege is dropped.
    if bounded(&["sh", "-c", "fusermount3; ! mount -t tmpfs none mnt"]).code != 0 {
        return skipped("a right cannot be given up here");
    }
    assert_eq!(fs::read_to_string(&ran).unwrap(), "ran\n");
    fs::remove_file(&ran).unwrap();
    let lacuna = env!("CARGO_BIN_EXE_lacuna");
    for open in [&["v", "mnt"][..], &["disk.img", "mnt", "--raw"]] {
        let said = bounded(&[&[lacuna, "open"], open, &["--key-file", "key"]].concat());
        assert!(!ran.exists(), "{open:?} ran the planted program: {}", said.stderr);
        assert!(said.code > 0 && said.stderr.contains("fusermount3"), "{open:?}: {}", said.stderr);
    }
}

#[test]
fn the_rights_of_a_set_user_id_file_are_refused() {
    skip_unless!(is_root() && is_program_available("setpriv"));
    let scene = Scene::new();
    let program = scene.path("lacuna");
    fs::copy(env!("CARGO_BIN_EXE_lacuna"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(scene.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |program: &Path| {
        let person = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let mut command = Command::new("setpriv");
        command.args(person).arg(program).arg("status").env("XDG_RUNTIME_DIR", scene.path("."));
        command.output().unwrap()
    };
    let refused = run(&program);
    if refused.status.success()
        && rustix::fs::statvfs(&program).unwrap().f_flag.contains(StatVfsMountFlags::NOSUID)
    {
        return skipped("set-user-ID bits count for nothing here");
    }
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("set-user-ID"), "{said}");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(run(&program).status.success());
}
