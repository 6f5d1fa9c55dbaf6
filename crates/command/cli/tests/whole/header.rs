//! The header of a disk is destroyed, in single copies and completely, and restored; other programs
//! recognise the disk.

use crate::harness::{Scene, Terminal, noise, skipped};
use crate::nbd_client::Client;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The positions of the copies on the medium.
fn copies(scene: &Scene) -> [u64; 3] {
    let len = fs::metadata(scene.path("disk.img")).unwrap().len();
    [0, 524_288, (len / 65_536 - 1) * 65_536]
}

fn destroy(scene: &Scene, which: &[usize]) {
    let file = OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    let places = copies(scene);
    which.iter().for_each(|copy| file.write_all_at(&[0xa5; 16384], places[*copy]).unwrap());
}

#[test]
fn a_disk_opens_without_one_or_two_copies_and_is_repaired() {
    for format in ["sealed", "deniable", "oblivious"] {
        let scene = Scene::with_disk(&["--size", "64M", "--format", format]);
        let before = fs::read(scene.path("disk.img")).unwrap();
        for gone in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2]] {
            destroy(&scene, gone);
            let info = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json();
            assert_eq!(info["notes"].as_array().unwrap().len(), gone.len(), "{info}");
            let check = scene.lacuna(&["check", "disk.img", "--read-only", "--key-file", "key"]).code(0);
            assert!(check.stderr.contains("`lacuna header repair` rewrites all copies"), "{}", check.stderr);
            scene.lacuna(&["header", "repair", "disk.img", "--key-file", "key"]).code(0);
            assert!(fs::read(scene.path("disk.img")).unwrap() == before, "{format} {gone:?}");
        }
    }
}

#[test]
fn a_backup_brings_the_header_back_and_an_old_one_is_refused() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::write(scene.path("second"), "second").unwrap();
    let backup = |file: &str| scene.lacuna(&["header", "backup", "disk.img", file]);
    let restore = |file: &str, more: &[&str]| {
        scene.lacuna(&[&["header", "restore", "disk.img", file, "--key-file", "key"][..], more].concat())
    };
    // Also while the disk is served.
    let server = scene.serve(&[]);
    backup("old").code(0);
    restore("old", &[]).code(5);
    assert_eq!(server.stop(), 0);
    backup("old").code(1);
    scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--new-key-file", "second"]).code(0);
    backup("new").code(0);

    let ran = restore("old", &[]).code(11);
    assert!(ran.stderr.contains("generation 1 in the backup, 2 on the disk"), "{}", ran.stderr);
    // Without a terminal the question cannot be repeated, so one option is not enough.
    restore("old", &["--older"]).code(1);
    restore("new", &["--key-file", "wrong"]).code(1);
    restore("new", &[]).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "second"]).code(0);

    destroy(&scene, &[0, 1, 2]);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(4);
    restore("new", &[]).code(1);
    restore("new", &["--yes"]).code(0);
    let check = scene.lacuna(&["check", "disk.img", "--key-file", "second"]).code(0);
    assert!(check.stderr.is_empty(), "{}", check.stderr);
    restore("old", &["--older", "--yes"]).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "second"]).code(2);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);

    // The backup of another disk, and files that are not backups.
    scene.create("disk.img", &["--size", "64M", "--force"]).code(0);
    backup("present").code(0);
    assert!(restore("new", &["--yes"]).code(1).stderr.contains("another disk"));
    restore("new", &["--replace"]).code(1);
    restore("new", &["--replace", "--yes"]).code(0);
    restore("present", &["--replace", "--yes"]).code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    // The added part of the disk would be lost.
    scene.lacuna(&["resize", "disk.img", "--size", "128M", "--key-file", "key"]).code(0);
    assert!(restore("present", &["--older", "--yes"]).code(11).stderr.contains("has grown"));
    assert!(restore("key", &["--yes"]).code(4).stderr.contains("no backup of a header"));
    fs::write(scene.path("damaged"), [&fs::read(scene.path("new")).unwrap()[..9000], &[0; 7384]].concat())
        .unwrap();
    restore("damaged", &["--yes"]).code(10);
}

/// A restored header makes a copy of an open disk, or any other medium, the same disk.
#[test]
fn a_header_is_not_restored_beside_the_open_disk() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.lacuna(&["header", "backup", "disk.img", "hdr"]).code(0);
    fs::copy(scene.path("disk.img"), scene.path("copy.img")).unwrap();
    // Without a header nothing at the location tells which disk it is.
    fs::copy(scene.path("disk.img"), scene.path("wiped.img")).unwrap();
    let wiped = OpenOptions::new().write(true).open(scene.path("wiped.img")).unwrap();
    copies(&scene).iter().for_each(|place| wiped.write_all_at(&[0; 16_384], *place).unwrap());
    let server = scene.serve(&[]);
    let original = fs::canonicalize(scene.path("disk.img")).unwrap();
    for file in ["copy.img", "wiped.img"] {
        let restore = ["header", "restore", file, "hdr", "--yes", "--key-file", "key"];
        let said = scene.lacuna(&restore).code(5).stderr;
        assert!(said.contains("a copy has the same UUID"), "{said}");
        assert!(said.contains(&format!("this user has it open as {}", original.display())), "{said}");
        assert!(said.contains("`lacuna close ") && !said.contains("no server of this user"), "{said}");
        assert!(!said.contains("nbdcopy") && !said.contains("--read-only"), "{said}");
    }
    assert_eq!(server.stop(), 0);
    let restore = ["header", "restore", "wiped.img", "hdr", "--yes", "--key-file", "key"];
    scene.lacuna(&restore).code(0);
    scene.lacuna(&["check", "wiped.img", "--key-file", "key"]).code(0);
}

#[test]
fn a_backup_goes_through_a_pipe_and_is_checked() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.lacuna(&["header", "backup", "disk.img", "hdr"]).code(0);
    let saved = fs::read(scene.path("hdr")).unwrap();
    let to_stream = ["header", "backup", "disk.img", "-"];
    let piped = scene.command(&to_stream).output().unwrap();
    assert!(piped.status.success() && piped.stdout == saved);
    let said = String::from_utf8(piped.stderr).unwrap();
    assert!(said.contains("to standard output") && said.contains("keep it as safe as the disk"), "{said}");
    assert!(!scene.path("-").exists());
    let terminal = Terminal::new();
    let refused = scene.command(&to_stream).stdout(terminal.stdio()).stderr(Stdio::null()).status().unwrap();
    assert_eq!(refused.code(), Some(1));
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let refused = scene.command(&to_stream).stdout(full).stderr(Stdio::null()).status().unwrap();
    assert_eq!(refused.code(), Some(13), "a backup that was not written");

    let from_stream = |words: &[&str]| {
        let mut command = scene.command(words);
        command.stdin(fs::File::open(scene.path("hdr")).unwrap()).output().unwrap()
    };
    assert!(from_stream(&["header", "check", "-", "--key-file", "key"]).status.success());
    assert_eq!(from_stream(&["header", "check", "-", "--key-file", "-"]).status.code(), Some(1));
    destroy(&scene, &[0, 1, 2]);
    let restored = from_stream(&["header", "restore", "disk.img", "-", "--key-file", "key", "--yes"]);
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

#[test]
fn a_check_of_a_backup_tells_whole_from_damaged_and_wrong() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::write(scene.path("wrong"), "wrong").unwrap();
    scene.lacuna(&["header", "backup", "disk.img", "hdr"]).code(0);
    let check = |file: &str, more: &[&str]| scene.lacuna(&[&["header", "check", file][..], more].concat());
    let uuid = scene.lacuna(&["info", "disk.img", "--json"]).code(0).json()["header"]["uuid"].clone();
    let words = check("hdr", &[]).code(0).stdout;
    for expected in [uuid.as_str().unwrap(), "hdr, whole", "sealed", "64 MiB", "none was tried"] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    let json = check("hdr", &["--json"]).code(0).json();
    assert!(json["header"]["uuid"] == uuid && json["opened"] == false && json["id"].is_null(), "{json}");
    let json = check("hdr", &["--json", "--key-file", "key"]).code(0).json();
    assert!(json["opened"] == true && json["size"] == 64 << 20, "{json}");
    let id = scene.lacuna(&["info", "disk.img", "--json", "--key-file", "key"]).code(0).json()["id"].clone();
    assert_eq!(json["id"], id);
    check("hdr", &["--key-file", "wrong"]).code(2);

    let mut damaged = fs::read(scene.path("hdr")).unwrap();
    damaged[5000] ^= 1;
    fs::write(scene.path("damaged"), &damaged).unwrap();
    fs::write(scene.path("short"), &damaged[..9000]).unwrap();
    for file in ["damaged", "short"] {
        check(file, &[]).code(10);
    }
    assert!(check("key", &[]).code(4).stderr.contains("no backup of a header"));
    check("missing", &[]).code(4);
    assert!(check("disk.img", &[]).code(4).stderr.contains("lacuna doctor"));

    // A backup in the place of a disk.
    let doctor = scene.lacuna(&["doctor", "hdr"]).code(0).stdout;
    for expected in
        ["a backup of the header of a disk, whole", uuid.as_str().unwrap(), "64 MiB, format sealed"]
    {
        assert!(doctor.contains(expected), "{expected}: {doctor}");
    }
    assert!(doctor.contains("`lacuna header check hdr`") && !doctor.contains("WRONG"), "{doctor}");
    assert!(!doctor.contains("header repair") && !doctor.contains("truncate"), "{doctor}");
    assert_eq!(scene.lacuna(&["doctor", "hdr", "--json"]).code(0).json()["healthy"], true);
    assert!(scene.lacuna(&["doctor", "damaged"]).code(10).stdout.contains("no backup of a header"));
    let info = scene.lacuna(&["info", "hdr"]).code(0).stdout;
    for expected in [
        "a backup of the header of a disk, whole",
        uuid.as_str().unwrap(),
        "sealed version",
        "`lacuna header check hdr`",
        "`lacuna header restore LOCATION hdr`",
    ] {
        assert!(info.contains(expected), "{expected}: {info}");
    }
    let json = scene.lacuna(&["info", "hdr", "--json", "--key-file", "key"]).code(0).json();
    assert!(json["backup"] == true && json["header"]["uuid"] == uuid && json["id"] == id, "{json}");
    assert!(json["size"] == 64 << 20 && json["changed"].is_u64(), "{json}");
    scene.lacuna(&["info", "hdr", "--key-file", "wrong"]).code(2);
    assert!(scene.lacuna(&["info", "damaged"]).code(10).stderr.contains("no backup of a header"));
}

#[test]
fn a_check_of_a_backup_says_the_same_for_every_level() {
    let scene = Scene::with_levels("deniable", &["--size", "64M"]);
    scene.lacuna(&["header", "backup", "disk.img", "hdr"]).code(0);
    let check = |key: &str| scene.lacuna(&["header", "check", "hdr", "--key-file", key]).code(0).stdout;
    assert_eq!(check("key"), check("deep"));
}

#[test]
fn a_header_from_before_a_resize_is_refused_until_the_disk_has_its_size() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let write = |at: u64, seed: u64| {
        scene.serve(&[]).used_by(|client| client.write_at(at, &noise(seed, 1 << 20)).unwrap());
    };
    write(1 << 20, 1);
    scene.lacuna(&["header", "backup", "disk.img", "old.hdr"]).code(0);
    let resize = |size: &str| scene.lacuna(&["resize", "disk.img", "--key-file", "key", "--size", size]);
    resize("128M").code(0);
    let grown: Vec<u64> = (16..24).map(|segment| segment * (4 << 20)).collect();
    for (at, seed) in grown.iter().zip(2..) {
        write(*at, seed);
    }
    destroy(&scene, &[0, 1, 2]);
    scene.lacuna(&["-q", "header", "restore", "disk.img", "old.hdr", "--yes", "--key-file", "key"]).code(0);
    let doctor = scene.lacuna(&["doctor", "disk.img"]).code(0);
    assert!(doctor.stdout.contains("before the disk grew"), "{}", doctor.stdout);
    let before = fs::read(scene.path("disk.img")).unwrap();
    for args in [
        &["check", "disk.img"][..],
        &["check", "disk.img", "--read-only"],
        &["serve", "disk.img", "--socket", "s"],
    ] {
        let ran = scene.lacuna(&[args, &["--key-file", "key"]].concat()).code(11);
        assert!(ran.stderr.contains("more than 96468992 bytes"), "{}", ran.stderr);
    }
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);
    // Larger, but not yet the former size.
    resize("80M").code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(11);
    resize("128M").code(0);
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
    let server = scene.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    assert!(client.read_at(1 << 20, 1 << 20).unwrap() == noise(1, 1 << 20));
    for (at, seed) in grown.iter().zip(2..) {
        assert!(client.read_at(*at, 1 << 20).unwrap() == noise(seed, 1 << 20), "at {at}");
    }
    assert_eq!(server.stop(), 0);
}

#[test]
fn copies_are_not_written_to_a_medium_that_was_cut_short() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let file = OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(40 << 20).unwrap();
    let ran = scene.lacuna(&["header", "repair", "disk.img", "--key-file", "key"]).code(10);
    assert!(ran.stderr.contains("cut short"), "{}", ran.stderr);
    let words = scene.lacuna(&["doctor", "disk.img"]).code(10).stdout;
    assert!(words.contains(&format!("was cut short by {} bytes", len - (40 << 20))), "{words}");
    assert!(words.contains("`truncate -s") && !words.contains("may come to take"), "{words}");
    let (short, repair) = (words.find("cut short").unwrap(), words.find("header repair").unwrap());
    assert!(short < repair && words.contains("once the medium is as long as it was"), "{words}");
    // Less than a header is left.
    file.set_len(8192).unwrap();
    let words = scene.lacuna(&["doctor", "disk.img"]).code(10).stdout;
    assert!(words.contains("disk.img was cut short, to 8192 bytes"), "{words}");
}

#[test]
fn repair_restores_a_file_that_lost_only_the_last_copy() {
    for format in ["sealed", "deniable", "oblivious"] {
        for lost in [1, 4096, 1 << 16, (1 << 16) + 512] {
            let scene = Scene::with_disk(&["--size", "64M", "--format", format]);
            let before = fs::read(scene.path("disk.img")).unwrap();
            let end = before.len() as u64 - lost;
            OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap().set_len(end).unwrap();
            let repair = ["header", "repair", "disk.img", "--key-file", "key"];
            let words = scene.lacuna(&["doctor", "disk.img"]).code(10).stdout;
            // `oblivious` ends before the last 64 KiB: its cells do not fill the rest.
            if lost > 1 << 16 && format != "oblivious" {
                scene.lacuna(&repair).code(10);
                assert!(words.contains("restore it whole from a backup"), "{format}: {words}");
                continue;
            }
            assert!(words.contains(&format!("was cut short by {lost} bytes")), "{format}: {words}");
            assert!(words.contains("The disk is whole"), "{format} {lost}: {words}");
            scene.lacuna(&repair).code(0);
            assert!(fs::read(scene.path("disk.img")).unwrap() == before, "{format} {lost}");
            scene.lacuna(&["doctor", "disk.img"]).code(0);
        }
    }
}

#[test]
fn a_partition_table_over_the_first_copy_needs_confirmation() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let before = fs::read(scene.path("disk.img")).unwrap();
    let file = OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    let mut table = vec![0; 1 << 20];
    table[510..512].copy_from_slice(&[0x55, 0xaa]);
    file.write_all_at(&table, 0).unwrap();
    let overwritten = fs::read(scene.path("disk.img")).unwrap();
    for verb in [&["header", "repair"][..], &["key", "refresh"], &["check"]] {
        let ran = scene.lacuna(&[verb, &["disk.img", "--key-file", "key"]].concat()).code(1);
        assert!(ran.stderr.contains("name the partition"), "{}", ran.stderr);
    }
    scene.lacuna(&["check", "disk.img", "--read-only", "--key-file", "key"]).code(0);
    scene.lacuna(&["header", "backup", "disk.img", "hdr"]).code(0);
    let restore = ["header", "restore", "disk.img", "hdr", "--key-file", "key"];
    // Only the last copy is left, as on a device with the disk as its last partition.
    for words in [&["--yes"][..], &["--replace"]] {
        assert!(scene.lacuna(&[&restore[..], words].concat()).code(1).stderr.contains("a partition table"));
    }
    assert!(fs::read(scene.path("disk.img")).unwrap() == overwritten);
    scene.lacuna(&[&restore[..], &["--replace", "--yes"]].concat()).code(0);
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);

    // The message names both losses: of the header and of the partition table.
    fs::write(scene.path("second"), "second").unwrap();
    scene.lacuna(&["key", "add", "disk.img", "--key-file", "key", "--new-key-file", "second"]).code(0);
    table.fill(0);
    table[512..520].copy_from_slice(b"EFI PART");
    file.write_all_at(&table, 0).unwrap();
    let older = [&restore[..], &["--older", "--replace"]].concat();
    let said = scene.lacuna(&older).code(1).stderr;
    assert!(said.contains("older than the present one") && said.contains("a partition table"), "{said}");
    scene.lacuna(&[&older[..], &["--yes"]].concat()).code(0);
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);
}

#[test]
fn other_programs_see_that_a_disk_is_there() {
    for format in ["sealed", "deniable", "oblivious"] {
        let scene = Scene::with_disk(&["--size", "64M", "--format", format]);
        for (program, args) in
            [("blkid", &["-p", "disk.img"][..]), ("wipefs", &["disk.img"]), ("file", &["disk.img"])]
        {
            let Some(path) = ["/usr/sbin", "/sbin", "/usr/bin"]
                .map(|dir| Path::new(dir).join(program))
                .into_iter()
                .find(|p| p.exists())
            else {
                skipped(&format!("no {program}"));
                continue;
            };
            let output = Command::new(path).args(args).current_dir(scene.path("")).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.contains("lacuna"), "{program}: {said}");
        }
    }
}
