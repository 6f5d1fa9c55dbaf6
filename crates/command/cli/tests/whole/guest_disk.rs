//! A virtual machine whose disk is served by lacuna: it uses a mounted ext4 while servers are
//! killed, and QEMU connects again. The guest is that of `systemd_guest.rs`, so this test runs in
//! `make test-long` only.

use crate::harness::{Scene, is_program_available, skip_unless, skipped};
use crate::keeper::serve_kept;
use crate::reconnecting::kill_server;
use crate::systemd_guest::{ACT, Guest, script};
use lacuna_testkit::env_number;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

/// The most rounds in the time that a guest may run.
const MOST_ROUNDS: u64 = 60;

/// The script of the guest. Half of the files of a round are not synced. At the end it reads them
/// from the disk, after a new mount.
const USE_DISK: &str = r#"#!/bin/sh
say() { echo "<2>guest: $*" >/dev/kmsg; }
fail() {
    say "failed: $*"
    systemctl poweroff
    exit 1
}
for word in $(cat /proc/cmdline); do
    case $word in
    guest.rounds=*) rounds=${word#*=} ;;
    esac
done
mount -t ext4 /dev/vdb /srv/disk || fail "the disk cannot be mounted"
cd /srv/disk
round=0
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1))
    say "round $round of $rounds"
    for file in 1 2 3 4 5 6 7 8; do
        head -c 300K /dev/urandom >"f$file" || fail "f$file cannot be written"
        [ "$file" -gt 4 ] || sync "f$file" || fail "f$file cannot be synced"
    done
    sha256sum f? >/run/sums
done
cd /
[ "$(cat /sys/fs/ext4/vdb/errors_count)" = 0 ] || fail "the file system had errors"
umount /srv/disk || fail "the disk cannot be unmounted"
mount -t ext4 /dev/vdb /srv/disk || fail "the disk cannot be mounted again"
(cd /srv/disk && sha256sum --quiet -c /run/sums) || fail "files are not as they were written"
umount /srv/disk || fail "the disk cannot be unmounted again"
e2fsck -f -n /dev/vdb >/dev/null || fail "the file system is damaged"
say "its files are good"
systemctl poweroff
"#;

/// Makes the files that are laid over the root of the guest.
fn lay_out(tree: &Path) {
    let units = tree.join("etc/systemd/system");
    let wants = units.join("multi-user.target.wants");
    for dir in [&wants, &tree.join("guest"), &tree.join("srv/disk")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(units.join("act.service"), ACT).unwrap();
    symlink("../act.service", wants.join("act.service")).unwrap();
    let act = tree.join("guest/act");
    fs::write(&act, USE_DISK).unwrap();
    fs::set_permissions(&act, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_virtual_machine_sees_no_error_while_servers_of_its_disk_die() {
    if std::env::var("LACUNA_SHARE").as_deref() != Ok("all") {
        return skipped("a machine whose servers die: `make test-long` boots it");
    }
    skip_unless!(is_program_available("mke2fs") && is_program_available("qemu-img"));
    let why = String::from_utf8(script().arg("missing").output().unwrap().stdout).unwrap();
    skip_unless!(why.is_empty(), why.trim());
    let kills = env_number("LACUNA_KILLS", 20).min(MOST_ROUNDS);
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    scene.tool("mke2fs", &["-q", "-t", "ext4", "ext4.img", "64M"]);
    scene.tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "ext4.img", &serving.uri]);
    lay_out(&scene.path("tree"));
    assert!(script().arg("pack").arg(scene.path("")).arg(scene.path("tree")).status().unwrap().success());
    let disk = format!("nbd+unix:///?socket={},file.reconnect-delay=60", serving.socket.display());
    let parameters = format!("printk.devkmsg=on guest.rounds={kills}");
    let mut guest = Guest::boot(&scene.path(""), &parameters, &[disk]);
    for round in 1..=kills {
        guest.wait_for(&format!("guest: round {round} of {kills}"));
        kill_server(&serving);
    }
    guest.wait_for("guest: its files are good");
    guest.wait_for("reboot: Power down");
    drop(guest);
    assert_eq!(serving.stop(), 0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}
