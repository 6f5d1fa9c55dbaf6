//! Slips of the hand, and the messages about them.

use crate::harness::{RunOutput, Scene, can_mount, can_mount_ext4, is_program_available, noise, skip_unless};
use crate::pty::PtySession;
use std::fs;
use std::process::{Command, Stdio};

const CHEAP: &str = "--kdf-memory 1M --kdf-passes 1";

#[test]
fn a_user_confirms_before_a_disk_is_overwritten() {
    skip_unless!(is_program_available("script"));
    let scene = Scene::with_disk(&["--size", "64M"]);
    let uuid = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["header"]["uuid"].clone();
    let uuid = uuid.as_str().unwrap();
    let refused = scene.create("disk.img", &["--size", "64M"]).code(1).stderr;
    assert!(refused.contains(&format!("a lacuna disk (UUID {uuid})")), "{refused}");
    let mut typist = PtySession::new(&scene, &format!("create disk.img --size 64M --force {CHEAP}"));
    typist.answer(&format!("a lacuna disk (UUID {uuid}) exists and will be lost\r\nGo on? [y/N] "), "n");
    assert_eq!(typist.end(), 1);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    // A script that gives the passphrase intends the overwriting.
    scene.create("disk.img", &["--size", "64M", "--force"]).code(0);
}

#[test]
fn the_question_names_the_levels_that_will_be_lost() {
    skip_unless!(is_program_available("script"));
    let scene = Scene::with_levels("deniable", &["--size", "64M"]);
    fs::write(scene.path("third"), "third").unwrap();
    let add = |given: &str, last: &str| {
        let words = format!("key add disk.img --key-file {given} --new-key-file third");
        let mut typist = PtySession::new(&scene, &words);
        typist.answer(&format!("{last}\r\nGo on? [y/N] "), "n");
        assert_eq!(typist.end(), 1);
    };
    add(
        "key",
        "you will have level 0, with the 2 passphrases that you give; if there is a level 1 or a deeper one, it is lost for ever",
    );
    add(
        "deep",
        "if there is a level 2 or a deeper one, it is lost for ever; none of these passphrases opens level 0 alone",
    );
    for (key, level) in [("key", 0), ("deep", 1)] {
        let info = scene.lacuna(&["info", "disk.img", "--key-file", key, "--json"]).code(0).json();
        assert_eq!(info["levels"].as_array().unwrap().len(), level + 1);
    }
}

#[test]
fn a_script_is_told_which_option_is_missing_or_out_of_place() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let said = |words: &[&str], code: i32| scene.lacuna(words).code(code).stderr;
    let key = ["--key-file", "key"];
    let add = said(&[&["key", "add", "disk.img", "--askpass", "false"], &key[..]].concat(), 1);
    assert!(add.contains("--new-key-file"), "{add}");
    // Before a passphrase is asked for.
    let cost = said(&["key", "add", "disk.img", "--kdf-memory", "1M", "--askpass", "false"], 1);
    assert!(cost.contains("the cost of one passphrase"), "{cost}");
    let cover =
        said(&["serve", "disk.img", "--socket", "s", "--cover-timeout", "1", "--askpass", "false"], 1);
    assert!(cover.contains("cannot use --cover-timeout here"), "{cover}");
    fs::write(scene.path("wrong"), "wrong").unwrap();
    let wrong = said(&[&["check", "disk.img", "--key-file", "wrong"], &key[..]].concat(), 2);
    assert!(wrong.contains("of the 2 passphrases given, number 1 opens nothing"), "{wrong}");
    let option = said(&["open", "disk.img", "mnt", "--key-fiel", "key"], 1);
    assert!(option.contains("--key-file") && !option.contains("-- --key"), "{option}");
    for word in ["mount", "umount", "unmount", "format"] {
        scene.lacuna(&[word, "--help"]).code(0);
    }
}

#[test]
fn each_verb_gives_advice_that_fits_it() {
    let scene = Scene::with_disk(&["--size", "16M"]);
    let said = |words: &[&str], code: i32| scene.lacuna(words).code(code).stderr;
    let erase = said(&["erase", "missing", "--yes"], 4);
    assert!(erase.contains("nothing is there to erase") && !erase.contains("lacuna create"), "{erase}");
    let info = said(&["info", "missing"], 4);
    assert!(info.contains("make a disk there with `lacuna create missing`"), "{info}");
    let create = scene.create("no/disk.img", &["--size", "16M"]).code(4).stderr;
    assert!(create.contains("make it first"), "{create}");
    skip_unless!(can_mount("/proc/self/status"));
    // As `nobody`.
    scene.tool("chmod", &["a+rx", "."]);
    scene.tool("chmod", &["a+r", "key"]);
    let as_nobody = |words: &str| {
        let script = format!("exec setpriv --reuid 65534 --clear-groups \"$0\" {words}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, env!("CARGO_BIN_EXE_lacuna")]).current_dir(scene.path("."));
        RunOutput::from(shell.stdin(Stdio::null()).output().unwrap()).code(2).stderr
    };
    let info = as_nobody("info disk.img");
    assert!(info.contains("use sudo, or ask its owner to give you access"), "{info}");
    let create = as_nobody(&format!("create new.img --size 16M --key-file key {CHEAP}"));
    assert!(create.contains("choose a directory that you may write to"), "{create}");
    // On a file system that takes no writes.
    fs::create_dir(scene.path("ro")).unwrap();
    scene.tool("mount", &["-t", "tmpfs", "-o", "ro", "lacuna-test", "ro"]);
    let create = scene.create("ro/new.img", &["--size", "16M"]);
    scene.tool("umount", &["ro"]);
    let create = create.code(20).stderr;
    assert!(
        create.contains("choose a place that can be written") && !create.contains("--read-only"),
        "{create}"
    );
}

#[test]
fn swapped_arguments_are_recognised() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.lacuna(&["header", "backup", "disk.img", "backup"]).code(0);
    let swapped = ["header", "restore", "backup", "disk.img", "--key-file", "key"];
    let swapped = scene.lacuna(&swapped).code(4).stderr;
    assert!(swapped.contains("the disk comes first"), "{swapped}");
}

#[test]
fn a_disk_that_was_cut_short_says_how_long_it_was() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::rename(scene.path("disk.img"), scene.path("my disk.img")).unwrap();
    let disk = fs::File::options().write(true).open(scene.path("my disk.img")).unwrap();
    let len = disk.metadata().unwrap().len();
    disk.set_len(len / 2).unwrap();
    let info = scene.lacuna(&["info", "my disk.img"]).code(10).stderr;
    assert!(info.contains("was cut short") && !info.contains("has it grown?"), "{info}");
    let doctor = scene.lacuna(&["doctor", "my disk.img"]).code(10).stdout;
    let check = scene.lacuna(&["check", "my disk.img", "--key-file", "key"]).code(10).stderr;
    let needed = check.split("truncate -s ").nth(1).and_then(|rest| rest.split(' ').next()).expect(&check);
    assert!(check.contains(&format!("truncate -s {needed} 'my disk.img'`")), "{check}");
    for said in [info, doctor] {
        assert!(said.contains(&format!("truncate -s {needed} 'my disk.img'`")), "{said}");
    }
    disk.set_len(needed.parse().unwrap()).unwrap();
    scene.lacuna(&["check", "my disk.img", "--key-file", "key"]).code(0);
    assert_eq!(needed.parse(), Ok(len));
}

#[test]
fn a_backup_of_a_header_is_no_disk_that_was_cut_short() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.lacuna(&["header", "backup", "disk.img", "hdr"]).code(0);
    let add = ["key", "add", "hdr", "--key-file", "key", "--new-key-file", "key"];
    for words in [&["check", "hdr", "--key-file", "key"][..], &add] {
        let said = scene.lacuna(words).code(10).stderr;
        assert!(said.contains("header restore") && !said.contains("truncate"), "{said}");
    }
}

#[test]
fn an_interrupted_mkfs_is_done_again_and_a_file_system_is_never_overwritten() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    scene.serve(&[]).used_by(|client| client.write_at(1 << 20, &noise(1, 8192)).unwrap());
    let open = ["open", "disk.img", "mnt", "--mkfs", "ext4", "--key-file", "key"];
    let refused = scene.lacuna(&open).code(1).stderr;
    assert!(refused.contains("data of no known kind from byte 1048576") && refused.contains("--force"));
    assert_eq!(refused.matches("cannot mount the disk").count(), 1, "{refused}");
    scene.lacuna(&[&open[..], &["--force"]].concat()).code(0);
    fs::write(scene.path("mnt/file"), "content").unwrap();
    scene.lacuna(&["close", "mnt"]).code(0);
    let refused = scene.lacuna(&[&open[..], &["--force"]].concat()).code(1).stderr;
    assert!(refused.contains("ext4 already on the disk"), "{refused}");
}

#[test]
fn a_copy_whose_journal_cannot_be_replayed_says_how_to_read_it() {
    skip_unless!(can_mount_ext4());
    let scene = Scene::with_disk(&["--size", "64M"]);
    ["mnt", "copied"].iter().for_each(|dir| fs::create_dir(scene.path(dir)).unwrap());
    scene.lacuna(&["open", "disk.img", "mnt", "--mkfs", "ext4", "--key-file", "key"]).code(0);
    fs::write(scene.path("mnt/file"), "content").unwrap();
    scene.tool("sync", &["-f", "mnt/file"]);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    let read = ["open", "copy.img", "copied", "--read-only", "--key-file", "key"];
    let refused = scene.lacuna(&read).code(20).stderr;
    assert!(refused.contains("--mount-options noload"), "{refused}");
    scene.lacuna(&[&read[..], &["--mount-options", "noload"]].concat()).code(0);
    ["copied", "mnt"].iter().for_each(|at| _ = scene.lacuna(&["close", at]).code(0));
}
