//! `--expect`: a disk other than the expected one is refused, although the same passphrase opens
//! it.

use crate::harness::{CHEAP, CloseOnDrop, RunOutput, Scene, can_mount, skip_unless};
use crate::pool::{Cluster, PoolDisk};
use crate::vault_harness::VaultScene;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// An ID that no disk has.
const OTHER: &str = "00112233445566778899aabbccddeeff";

/// The ID that `create` printed.
fn printed_id(created: &RunOutput) -> String {
    let line = created.stdout.lines().find_map(|line| line.strip_prefix("ID "));
    line.unwrap_or_else(|| panic!("no ID in {}", created.stdout)).to_owned()
}

/// Checks the error for a disk with the ID `found` where `expected` was expected.
#[track_caller]
fn is_refused(ran: RunOutput, found: &str, expected: &str) {
    let said = ran.code(10).stderr;
    assert!(said.contains(found) && said.contains(expected), "{said}");
    assert!(said.contains("another disk than the expected one"), "{said}");
}

/// [`is_refused`] for a vault: the message says nothing of disks.
#[track_caller]
fn vault_is_refused(ran: RunOutput, found: &str, expected: &str) {
    let said = ran.code(10).stderr;
    assert!(said.contains(found) && said.contains(expected), "{said}");
    assert!(said.contains("another vault than the expected one") && !said.contains("disk"), "{said}");
}

#[test]
fn every_format_has_an_id_that_is_checked() {
    for (location, shape) in [
        ("disk.img", &["--size", "4M"][..]),
        ("plain.img", &["--size", "4M", "--cipher", "xts"]),
        ("levels.img", &["--size", "64M", "--format", "deniable"]),
        ("cells.img", &["--size", "64M", "--format", "oblivious"]),
        ("nand:chip.img", &["--size", "8M"]),
    ] {
        let scene = Scene::new();
        let id = printed_id(&scene.create(location, shape).code(0));
        let info = |options: &[&str]| {
            scene.lacuna(&[&["info", location, "--json"], options].concat()).code(0).json()
        };
        assert_eq!(info(&["--key-file", "key"])["id"], *id, "{location}");
        // Without the key the ID is not shown.
        assert!(info(&[])["id"].is_null(), "{location}");
        let words = scene.lacuna(&["info", location, "--key-file", "key"]).code(0).stdout;
        assert!(words.contains(&format!("ID               {id}\n")), "{words}");
        let serve = ["serve", location, "--socket", "s", "--key-file", "key", "--expect", OTHER];
        is_refused(scene.lacuna(&serve), &id, OTHER);
        scene.lacuna(&["serve", location, "--socket", "s", "--key-file", "key", "--expect", "0011"]).code(1);

        let server = scene.serve_disk(location, &["--expect", &id.to_uppercase()]);
        let status = scene.lacuna(&["status", location, "--json"]).code(0).json();
        assert_eq!(status["servers"][0]["id"], *id, "{location}");
        assert!(scene.lacuna(&["-v", "status", location]).code(0).stdout.contains(&id));
        // Its server tells the ID.
        assert_eq!(info(&[])["id"], *id, "{location}");
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn a_level_does_not_show_in_the_id() {
    let scene = Scene::new();
    fs::write(scene.path("deep"), "battery staple").unwrap();
    let shape = ["--format", "deniable", "--size", "64M", "--levels", "2", "--key-file", "deep"];
    let id = printed_id(&scene.create("disk.img", &shape).code(0));
    for key in ["key", "deep"] {
        let info = scene.lacuna(&["info", "disk.img", "--json", "--key-file", key]).code(0).json();
        assert_eq!(info["id"], *id);
        let serve = ["serve", "disk.img", "--socket", "s", "--key-file", key, "--expect", OTHER];
        // The messages are the same, also where a log may keep them.
        is_refused(scene.lacuna(&serve), &id, OTHER);
        let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", key, "--expect", &id];
        let server = scene.serve_command(&mut scene.command(&serve));
        assert_eq!(server.stop(), 0);
    }
    // New passphrases and a new size do not change the ID, and neither does restoring a backup of
    // the header.
    let flat = printed_id(&scene.create("flat.img", &["--size", "8M"]).code(0));
    fs::write(scene.path("new"), "another").unwrap();
    scene.lacuna(&["key", "change", "flat.img", "--key-file", "key", "--new-key-file", "new"]).code(0);
    scene.lacuna(&["resize", "flat.img", "--size", "12M", "--key-file", "new"]).code(0);
    let info = scene.lacuna(&["info", "flat.img", "--json", "--key-file", "new"]).code(0).json();
    assert_eq!(info["id"], *flat);
}

#[test]
fn an_exchanged_disk_is_refused() {
    let scene = Scene::new();
    let mine = printed_id(&scene.create("mine.img", &["--size", "4M"]).code(0));
    let theirs = printed_id(&scene.create("theirs.img", &["--size", "4M"]).code(0));
    assert_ne!(mine, theirs);
    let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key", "--expect", &mine];
    fs::copy(scene.path("mine.img"), scene.path("disk.img")).unwrap();
    // A copy is the same disk.
    assert_eq!(scene.serve_command(&mut scene.command(&serve)).stop(), 0);
    fs::rename(scene.path("theirs.img"), scene.path("disk.img")).unwrap();
    let before = fs::read(scene.path("disk.img")).unwrap();
    is_refused(scene.lacuna(&serve), &theirs, &mine);
    assert!(fs::read(scene.path("disk.img")).unwrap() == before, "a disk that was refused was written to");
}

/// Verbs that check, change or purge a disk accept only the expected disk, open or closed.
#[test]
fn no_verb_takes_another_disk() {
    let scene = Scene::new();
    let id = printed_id(&scene.create("disk.img", &["--size", "4M"]).code(0));
    fs::write(scene.path("new"), "another\n").unwrap();
    let verbs = [
        &["check", "disk.img"][..],
        &["key", "add", "disk.img", "--new-key-file", "new"],
        &["key", "change", "disk.img", "--new-key-file", "new"],
        &["key", "remove", "disk.img", "--remove-key-file", "key"],
        &["key", "refresh", "disk.img", "--yes", "--keep", "1"],
        &["resize", "disk.img", "--size", "8M"],
    ];
    let given =
        |words: &[&str], id: &str| scene.lacuna(&[words, &["--key-file", "key", "--expect", id]].concat());
    let before = fs::read(scene.path("disk.img")).unwrap();
    verbs.iter().for_each(|words| is_refused(given(words, OTHER), &id, OTHER));
    assert!(fs::read(scene.path("disk.img")).unwrap() == before, "a disk that was refused was written to");
    given(verbs[0], &id).code(0);
    let server = scene.serve(&[]);
    verbs.iter().for_each(|words| is_refused(given(words, OTHER), &id, OTHER));
    assert_eq!(scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["size"], 4 << 20);
    for words in [verbs[0], verbs[1], verbs[5]] {
        given(words, &id).code(0);
    }
    assert_eq!(server.stop(), 0);
    scene.lacuna(&["check", "disk.img", "--key-file", "new", "--expect", &id]).code(0);

    let chip = printed_id(&scene.create("nand:chip.img", &["--size", "8M"]).code(0));
    let purge = ["purge", "nand:chip.img"];
    is_refused(given(&purge, OTHER), &chip, OTHER);
    given(&purge, &chip).code(0);
    let server = scene.serve_disk("nand:chip.img", &[]);
    is_refused(given(&purge, OTHER), &chip, OTHER);
    given(&purge, &chip).code(0);
    assert_eq!(server.stop(), 0);
    scene.lacuna(&["purge", "--all", "--expect", &chip]).code(1);
}

/// A program that returns the passphrase, and meanwhile replaces the disk by another file.
fn swapping(scene: &Scene) -> String {
    let script = "#!/bin/sh\n[ -e away.img ] || { mv disk.img away.img; mv theirs.img disk.img; }\ncat key\n";
    fs::write(scene.path("ask"), script).unwrap();
    fs::set_permissions(scene.path("ask"), fs::Permissions::from_mode(0o755)).unwrap();
    "./ask".to_owned()
}

#[test]
fn the_checked_disk_is_the_opened_disk() {
    let scene = Scene::new();
    let mine = printed_id(&scene.create("disk.img", &["--size", "4M"]).code(0));
    let theirs = printed_id(&scene.create("theirs.img", &["--size", "4M"]).code(0));
    let ask = swapping(&scene);
    let untouched = fs::read(scene.path("theirs.img")).unwrap();
    let serve = ["serve", "disk.img", "--socket", "nbd.sock", "--askpass", &ask, "--expect", &mine];
    let server = scene.serve_command(&mut scene.command(&serve));
    // The original disk is open, and is identified by its file.
    let status = scene.lacuna(&["status", "away.img", "--json"]).code(0).json();
    assert_eq!(status["servers"][0]["id"], *mine);
    let path = status["servers"][0]["file"]["path"].as_str().unwrap();
    assert!(path.ends_with("/away.img"), "{path}");
    // The name now belongs to another disk, unknown to that server.
    scene.lacuna(&["check", "disk.img", "--key-file", "key", "--read-only"]).code(0);
    let now = scene.lacuna(&["info", "disk.img", "--json", "--key-file", "key"]).code(0).json();
    assert_eq!(now["id"], *theirs);
    let mut client = crate::nbd_client::Client::connect(&server.socket).unwrap();
    client.write_at(0, &[7; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    assert_eq!(server.stop(), 0);
    assert!(fs::read(scene.path("disk.img")).unwrap() == untouched, "the other disk was written to");
    let away = scene.lacuna(&["check", "away.img", "--key-file", "key", "--json"]).code(0).json();
    assert_eq!(away["good"], 1);
}

#[test]
fn a_vault_has_an_id_too() {
    let Some(scene) = VaultScene::empty() else { return };
    let (one, two) = (printed_id(&scene.init("v", &[]).code(0)), printed_id(&scene.init("w", &[]).code(0)));
    let info = |dir: &str, options: &[&str]| {
        scene.0.lacuna(&[&["info", dir, "--json"], options].concat()).code(0).json()
    };
    let keyed = info("v", &["--key-file", "key"]);
    assert_eq!(keyed["id"], *one);
    assert_eq!(keyed["passphrases"], 1);
    let public = info("v", &[]);
    assert!(public["id"].is_null() && public["passphrases"].is_null(), "{public}");
    vault_is_refused(scene.keyed(&["open", "w", "mnt", "--expect", &one]), &two, &one);
    for words in [
        &["vault", "check", "w"][..],
        &["vault", "accept", "w", "--yes"],
        &["vault", "rescue", "w", "out"],
        &["key", "add", "w", "--new-key-file", "key"],
    ] {
        vault_is_refused(scene.keyed(&[words, &["--expect", &one]].concat()), &two, &one);
    }
    assert!(!scene.0.path("out").exists());
    scene.keyed(&["vault", "check", "w", "--expect", &two]).code(0);
    scene.keyed(&["open", "v", "mnt", "--expect", &one]).code(0);
    assert_eq!(info("v", &[])["id"], *one);
    let status = scene.0.lacuna(&["status", "mnt", "--json"]).code(0).json();
    assert_eq!(status["servers"][0]["id"], *one);
    scene.close().code(0);
    // A vault that replaced another.
    fs::rename(scene.0.path("v"), scene.0.path("away")).unwrap();
    fs::rename(scene.0.path("w"), scene.0.path("v")).unwrap();
    vault_is_refused(scene.keyed(&["open", "v", "mnt", "--expect", &one]), &two, &one);
}

/// As in fstab and in units: the helper of mount(8) takes the option, also for a disk that is
/// already mounted.
#[test]
fn fstab_can_say_which_disk_it_means() {
    skip_unless!(can_mount("/dev/fuse"));
    let scene = Scene::new();
    let id = printed_id(&scene.create("disk.img", &["--size", "4M"]).code(0));
    fs::create_dir(scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&scene, &["mnt"]);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lacuna"), scene.path("mount.lacuna")).unwrap();
    let mount = |expected: &str| -> RunOutput {
        let options = format!("raw,keyfile=key,expect={expected}");
        let mut helper = Command::new(scene.path("mount.lacuna"));
        helper.args(["disk.img", "mnt", "-o", &options]).current_dir(scene.path(""));
        helper.env("XDG_RUNTIME_DIR", scene.path("")).output().unwrap().into()
    };
    // 32 is the exit code of mount(8) for every failed mount.
    let refused = mount(OTHER).code(32).stderr;
    assert!(refused.contains(&id) && refused.contains(OTHER), "{refused}");
    mount(&id).code(0);
    let status = scene.lacuna(&["status", "mnt", "--json"]).code(0).json();
    assert_eq!(status["servers"][0]["id"], *id);
    // `mount -a` does not know that it is already mounted.
    mount(&id).code(0);
    let refused = mount(OTHER).code(32).stderr;
    assert!(refused.contains(&id) && refused.contains(OTHER), "{refused}");
    scene.lacuna(&["close", "mnt"]).code(0);
    // The units pass their options on unchanged.
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/systemd");
    let says = |unit: &str, words: &str| fs::read_to_string(units.join(unit)).unwrap().contains(words);
    assert!(says("lacuna@.service", "-o foreground,${OPTIONS}") && says("lacuna@.service", "expect="));
    assert!(says("lacuna-serve@.service", "$OPTIONS") && says("lacuna-serve@.service", "--expect"));
}

#[test]
fn a_pool_disk_is_not_stolen_before_its_id_is_checked() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::unmade(cluster);
    let made =
        disk.verb(&["create"], &[&["--key-file", "key", "--size", "16M"], &CHEAP[..]].concat()).code(0);
    let id = printed_id(&made);
    assert_eq!(disk.keyed(&["info"], &["--json"]).code(0).json()["id"], *id);
    let holder = disk.serve(&["--expect", &id]);
    assert_eq!(disk.verb(&["info"], &["--json"]).code(0).json()["id"], *id);
    let steal = ["--socket", "stolen.sock", "--steal", "--expect", OTHER];
    is_refused(disk.keyed(&["serve"], &steal), &id, OTHER);
    assert_eq!(disk.lockers(), 1);
    // The first client still holds the disk.
    assert_eq!(holder.stop(), 0);
}
