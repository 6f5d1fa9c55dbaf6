//! A disk under other names than its own, names with a meaning for a shell, and names with control
//! characters for a terminal.

use crate::harness::{CHEAP, Device, Scene, can_mount, is_program_available, skip_unless};
use crate::vault_harness::VaultScene;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// A name that would clear a terminal and forge a line of a log.
const EVIL: &str = "evil\u{1b}[2J\u{7}\nlacuna: a line that was never said";
/// The same name as it may be printed.
const TAMED: &str = "evil\\u{1b}[2J\\u{7}\\nlacuna: a line that was never said";

#[track_caller]
fn assert_tame(said: &str) {
    assert!(!said.contains('\u{1b}') && !said.contains("\nlacuna: a line"), "{said:?}");
}

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
    skip_unless!(can_mount("/dev/fuse") && is_program_available("fusermount3"));
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

/// The names of the process that claimed a disk and of one that uses a mount are chosen by their
/// makers.
#[test]
fn names_of_processes_reach_no_terminal_with_control_characters() {
    let Some(vault) = VaultScene::new(&[]) else { return };
    let scene = &vault.0;
    // The kernel keeps 15 bytes of a process's name.
    let (evil, tamed) = ("\u{1b}[2J\u{7}\nlacuna:", "\\u{1b}[2J\\u{7}\\nlacuna:");
    let copy = |program: &Path, dir: &str| {
        fs::create_dir(scene.path(dir)).unwrap();
        let at = scene.path(dir).join(evil);
        fs::hard_link(program, &at).or_else(|_| fs::copy(program, &at).map(drop)).unwrap();
        at
    };
    let sleep = copy(Path::new("/bin/sleep"), "a");
    vault.open().code(0);
    let mut user = Command::new(&sleep).arg("1000").current_dir(scene.path("mnt")).spawn().unwrap();
    let busy = vault.close();
    let _ = user.kill();
    user.wait().unwrap();
    let busy = busy.code(5).stderr;
    assert!(!busy.contains('\u{1b}') && busy.contains(tamed), "{busy:?}");
    vault.close().code(0);

    // A copy has the UUID of the disk that the other program has claimed.
    scene.create("disk.img", &["--size", "16M"]).code(0);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    let mut command = Command::new(copy(Path::new(env!("CARGO_BIN_EXE_lacuna")), "b"));
    command.args(["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key"]);
    let server = scene.serve_command(&mut command);
    let refused = scene.create("copy.img", &["--size", "16M", "--force"]).code(5).stderr;
    assert!(refused.contains(&format!("process {}", server.process())), "{refused:?}");
    assert!(!refused.contains('\u{1b}') && refused.contains(tamed), "{refused:?}");
    assert_eq!(server.stop(), 0);
}

/// A user of a vault chooses the names in it, and an adversary with access to its directory decides
/// when they are printed.
#[test]
fn names_in_a_vault_reach_no_log_and_no_terminal_with_control_characters() {
    let Some(vault) = VaultScene::new(&["--integrity", "mt"]) else { return };
    vault.open().code(0);
    vault.write(EVIL, &[7; 3 * 4096]);
    let backing = vault.backing(EVIL);
    vault.close().code(0);
    let mut bytes = fs::read(&backing).unwrap();
    bytes[4096] ^= 1;
    fs::write(&backing, bytes).unwrap();

    let server = vault.open_in_foreground(&[]);
    assert_eq!(vault.read(EVIL).unwrap_err().raw_os_error(), Some(libc::EIO));
    vault.close().code(0);
    assert_eq!(server.wait(), 0);
    let log = vault.log_text();
    assert_tame(&log);
    assert!(log.contains(TAMED), "{log:?}");
    for words in [&["vault", "check", "v"][..], &["vault", "rescue", "v", "out"]] {
        let ran = vault.keyed(words).code(10);
        assert_tame(&ran.stdout);
        assert_tame(&ran.stderr);
        assert!(ran.stdout.contains(TAMED), "{words:?}: {:?}", ran.stdout);
    }
}

/// Tables, results, notes and prompts name disks, backups and vaults.
#[test]
fn names_of_disks_reach_no_terminal_with_control_characters() {
    let scene = Scene::new();
    let (backup, vault) = (format!("{EVIL}.hdr"), format!("{EVIL}.vault"));
    let ran = |words: &[&[&str]]| {
        let ran = scene.lacuna(&words.concat()).code(0);
        for said in [&ran.stdout, &ran.stderr] {
            assert_tame(said);
            assert!(!said.contains('\u{7}'), "{said:?}");
        }
        assert!(ran.stdout.contains(TAMED) || ran.stderr.contains(TAMED), "{words:?}: {:?}", ran.stdout);
        ran
    };
    let key = ["--key-file", "key"];
    ran(&[&["create", EVIL, "--size", "16M"], &key, &CHEAP]);
    ran(&[&["info", EVIL]]);
    ran(&[&["doctor", EVIL]]);
    ran(&[&["header", "backup", EVIL, &backup]]);
    ran(&[&["header", "check", &backup], &key]);
    ran(&[&["header", "restore", EVIL, &backup, "--yes"], &key]);
    ran(&[&["vault", "init", &vault], &key, &CHEAP]);
    ran(&[&["info", &vault]]);
    // A note about a damaged copy.
    let disk = fs::OpenOptions::new().write(true).open(scene.path(EVIL)).unwrap();
    disk.write_all_at(&[0; 16_384], 0).unwrap();
    assert!(ran(&[&["header", "backup", EVIL, &format!("{backup}2")]]).stderr.contains("copy A"));

    fs::write(scene.path("ask"), "#!/bin/sh\nprintf %s \"$1\" >asked\ncat key\n").unwrap();
    fs::set_permissions(scene.path("ask"), fs::Permissions::from_mode(0o755)).unwrap();
    ran(&[&["header", "repair", EVIL, "--askpass", "./ask"]]);
    let asked = fs::read_to_string(scene.path("asked")).unwrap();
    assert!(asked.contains(TAMED) && !asked.contains('\u{1b}'), "{asked:?}");
    ran(&[&["erase", EVIL, "--yes"]]);
}

#[test]
fn names_of_certificates_reach_no_terminal_with_control_characters() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    fs::create_dir(scene.path(EVIL)).unwrap();
    let serve = ["serve", "disk.img", "--listen", "127.0.0.1:0", "--tls-dir", EVIL, "--key-file", "key"];
    let refused = || {
        let ran = scene.lacuna(&serve);
        assert!(ran.code > 0, "{:?}", ran.stdout);
        assert_tame(&ran.stderr);
        assert!(!cfg!(feature = "tls") || ran.stderr.contains(TAMED), "{:?}", ran.stderr);
    };
    // Missing certificates, and invalid ones.
    refused();
    for name in ["ca-cert.pem", "server-cert.pem", "server-key.pem"] {
        fs::write(scene.path(EVIL).join(name), "-----BEGIN \u{1b}[2J-----\nlacuna: a line\n").unwrap();
    }
    refused();
}
