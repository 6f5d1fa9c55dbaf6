//! Content of other programs in the place of a disk: every command names it, and none overwrites it
//! unless it is told to.

use crate::harness::{Device, Scene, can_mount, is_program_available, noise, skip_unless};
use std::fs;
use std::os::unix::fs::FileExt;

/// The length of the media: more than that of the disk with the restored header.
const LEN: u64 = 128 << 20;

/// A file with these bytes at the beginning.
fn image(scene: &Scene, name: &str, start: &[u8]) {
    let file = fs::File::create(scene.path(name)).unwrap();
    file.set_len(LEN).unwrap();
    file.write_all_at(start, 0).unwrap();
}

/// The start of a LUKS volume: the magic number, the version, and the salts and keys behind it.
fn luks(version: u8) -> Vec<u8> {
    [&b"LUKS\xba\xbe\x00"[..], &[version], &[0x5a; 4096]].concat()
}

/// Media with content of other programs, by file, and the names of that content.
fn media(scene: &Scene) -> Vec<(&'static str, &'static str)> {
    image(scene, "luks1.img", &luks(1));
    image(scene, "luks2.img", &luks(2));
    let mut media = vec![("luks1.img", "a LUKS volume"), ("luks2.img", "a LUKS volume")];
    if is_program_available("mkfs.ext4") {
        image(scene, "ext4.img", &[]);
        scene.tool("mkfs.ext4", &["-q", "-F", "ext4.img"]);
        media.push(("ext4.img", "an ext4 file system"));
    }
    media
}

#[test]
fn a_foreign_volume_is_named_and_stays_as_it_is() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    scene.lacuna(&["header", "backup", "disk.img", "disk.hdr"]).code(0);
    for (file, content) in media(&scene) {
        let before = fs::read(scene.path(file)).unwrap();
        let restore = ["header", "restore", file, "disk.hdr", "--key-file", "key"];
        let refused = scene.lacuna(&[&restore[..], &["--yes"]].concat()).code(1).stderr;
        assert!(
            refused.contains(&format!("cannot restore the header of {file}; found: {content}"))
                && refused.contains("--replace"),
            "{refused}"
        );
        // The question names it, too.
        let asked = scene.lacuna(&[&restore[..], &["--replace"]].concat()).code(1).stderr;
        assert!(asked.contains(&format!("{content} is there, and is overwritten")), "{asked}");

        let doctor = scene.lacuna(&["doctor", file]).code(4).stdout;
        assert!(doctor.contains(&format!("{content}, and no lacuna disk")), "{doctor}");
        assert!(doctor.contains("-> check the path") && !doctor.contains("header restore"), "{doctor}");
        for words in [
            &["info", file][..],
            &["check", file, "--key-file", "key"],
            &["header", "backup", file, "x"],
            &["erase", file, "--yes"],
        ] {
            let said = scene.lacuna(words).code(4).stderr;
            assert!(said.contains(&format!("found: {content}")) && said.contains("check the path"), "{said}");
        }
        let refused = scene.create(file, &["--size", "64M"]).code(1).stderr;
        assert!(refused.contains(&format!("found: a file with {content}")), "{refused}");
        assert!(fs::read(scene.path(file)).unwrap() == before, "{file} was changed");

        scene.lacuna(&[&restore[..], &["--replace", "--yes"]].concat()).code(0);
        let uuid =
            |file: &str| scene.lacuna(&["info", file, "--json"]).code(0).json()["header"]["uuid"].clone();
        assert_eq!(uuid(file), uuid("disk.img"));
        let forced = scene.create(file, &["--size", "64M", "--force"]).code(0).stderr;
        assert!(forced.contains("a lacuna disk (UUID"), "{forced}");
    }
}

#[test]
fn a_device_with_foreign_content_is_named_by_create() {
    skip_unless!(can_mount("/dev/loop-control"));
    let scene = Scene::new();
    for (file, content) in media(&scene) {
        let before = fs::read(scene.path(file)).unwrap();
        let device = Device::over(&scene, &[file]);
        let refused = scene.create(&device.0, &[]).code(1).stderr;
        assert!(refused.contains(&format!("found: a device with {content}")), "{refused}");
        drop(device);
        assert!(fs::read(scene.path(file)).unwrap() == before, "{file} was changed");
    }
    // A member of an array with zeros in its first MiB: the superblock is at the end.
    image(&scene, "member.img", &[]);
    let member = fs::OpenOptions::new().write(true).open(scene.path("member.img")).unwrap();
    member.write_all_at(b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00", LEN - 8192).unwrap();
    let device = Device::over(&scene, &["member.img"]);
    let refused = scene.create(&device.0, &[]).code(1).stderr;
    assert!(refused.contains("a member of an MD array"), "{refused}");
    let forced = scene.create(&device.0, &["--force"]).code(0).stderr;
    assert!(forced.contains("a member of an MD array exists"), "{forced}");
}

/// Another program wrote over the first copy of the header, and the rest of the disk is there: the
/// owner decides which of the two counts.
#[test]
fn a_disk_that_was_written_over_is_not_written_without_a_question() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let whole = fs::read(scene.path("disk.img")).unwrap();
    let mut start = vec![0; 16_384];
    start[..4].copy_from_slice(b"XFSB");
    fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap().write_all_at(&start, 0).unwrap();
    let before = fs::read(scene.path("disk.img")).unwrap();
    let key = ["--key-file", "key"];
    for verb in [&["check"][..], &["header", "repair"], &["key", "refresh"]] {
        let refused = scene.lacuna(&[verb, &["disk.img"], &key].concat()).code(1).stderr;
        assert!(refused.contains("an xfs file system in the place of the first copy"), "{refused}");
        assert!(refused.contains("--read-only"), "{refused}");
    }
    let doctor = scene.lacuna(&["doctor", "disk.img"]).code(10).stdout;
    assert!(doctor.contains("an xfs file system") && doctor.contains("2 of 3 copies are whole"), "{doctor}");
    assert!(!doctor.contains("header repair"), "{doctor}");
    // Each command that notes the damage advises the same, and not the repair that is refused.
    for verb in [
        &["check", "disk.img", "--read-only", "--key-file", "key"][..],
        &["info", "disk.img"],
        &["header", "backup", "disk.img", "disk.hdr"],
    ] {
        let noted = scene.lacuna(verb).code(0).stderr;
        assert!(noted.contains("an xfs file system lies in the place of the first copy"), "{noted}");
        assert!(noted.contains("take a backup of its header and restore that"), "{noted}");
        assert!(!noted.contains("header repair"), "{noted}");
    }
    let restore = ["header", "restore", "disk.img", "disk.hdr", "--key-file", "key"];
    let asked = scene.lacuna(&restore).code(1).stderr;
    assert!(asked.contains("an xfs file system lies in the place of the first copy"), "{asked}");
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);
    scene.lacuna(&[&restore[..], &["--yes"]].concat()).code(0);
    assert!(fs::read(scene.path("disk.img")).unwrap() == whole);
}

/// Data that no program is known for lies over the first two copies: they may be those of another
/// part of a device whose last part is the disk.
#[test]
fn data_of_an_unknown_program_is_not_overwritten_without_a_question() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let whole = fs::read(scene.path("disk.img")).unwrap();
    let text = b"These are the figures of the last quarter, in thousands. ".repeat(10_000);
    let file = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
    file.write_all_at(&text, 0).unwrap();
    let before = fs::read(scene.path("disk.img")).unwrap();
    let key = ["--key-file", "key"];
    for verb in [&["header", "repair"][..], &["check"], &["key", "refresh"]] {
        let refused = scene.lacuna(&[verb, &["disk.img"], &key].concat()).code(1).stderr;
        assert!(refused.contains("data of an unknown program where the first two copies"), "{refused}");
        assert!(refused.contains("--read-only") && refused.contains("--replace"), "{refused}");
    }
    let doctor = scene.lacuna(&["doctor", "disk.img"]).code(10).stdout;
    assert!(doctor.contains("data of an unknown program") && !doctor.contains("header repair"), "{doctor}");
    scene.lacuna(&[&["check", "disk.img", "--read-only"], &key[..]].concat()).code(0);
    scene.lacuna(&["header", "backup", "disk.img", "disk.hdr"]).code(0);
    let restore = ["header", "restore", "disk.img", "disk.hdr", "--key-file", "key", "--yes"];
    assert!(scene.lacuna(&restore).code(1).stderr.contains("--replace"));
    assert!(fs::read(scene.path("disk.img")).unwrap() == before);
    scene.lacuna(&[&restore[..], &["--replace"]].concat()).code(0);
    scene.lacuna(&[&["check", "disk.img"], &key[..]].concat()).code(0);

    // Zeros and noise are the traces of damage, and a repair overwrites them.
    for damage in [vec![0; 600_000], noise(7, 600_000)] {
        file.write_all_at(&damage, 0).unwrap();
        scene.lacuna(&["header", "repair", "disk.img", "--key-file", "key"]).code(0);
        let repaired = fs::read(scene.path("disk.img")).unwrap();
        assert!(
            repaired[..16_384] == whole[..16_384] && repaired[524_288..540_672] == whole[524_288..540_672]
        );
    }
}

/// The last partition of a device ends with the device, so the device has the last copy of the
/// header, and other partitions where the first two would be.
#[test]
fn a_device_with_a_disk_as_its_last_partition_keeps_its_other_partitions() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let disk = fs::read(scene.path("disk.img")).unwrap();
    let mut others = noise(1, 8 << 20);
    others[..4096].fill(0);
    others[510..512].copy_from_slice(&[0x55, 0xaa]);
    others[512..520].copy_from_slice(b"EFI PART");
    fs::write(scene.path("dev.img"), [&others, &disk].map(|part| &part[..]).concat()).unwrap();
    let before = fs::read(scene.path("dev.img")).unwrap();
    scene.lacuna(&["header", "backup", "disk.img", "disk.hdr"]).code(0);

    let doctor = scene.lacuna(&["doctor", "dev.img"]).code(10).stdout;
    assert!(doctor.contains("name the partition") && doctor.contains("--replace"), "{doctor}");
    assert!(!doctor.contains("header repair"), "{doctor}");
    let restore = ["header", "restore", "dev.img", "disk.hdr", "--key-file", "key"];
    let refused = scene.lacuna(&[&restore[..], &["--yes"]].concat()).code(1).stderr;
    assert!(refused.contains("the last copy alone") && refused.contains("name the partition"), "{refused}");
    let asked = scene.lacuna(&[&restore[..], &["--replace"]].concat()).code(1).stderr;
    assert!(asked.contains("and is overwritten, with 16 KiB at byte 524288"), "{asked}");
    assert!(fs::read(scene.path("dev.img")).unwrap() == before);
    scene.lacuna(&[&restore[..], &["--replace", "--yes"]].concat()).code(0);
    assert!(fs::read(scene.path("dev.img")).unwrap()[..16_384] == disk[..16_384]);
}

/// The superblock of version 1.2 lies behind the magic number of the first copy, and those of
/// versions 0.90 and 1.0 at the end: in and behind the place of the last copy.
#[test]
fn the_superblock_of_an_array_is_named_and_kept() {
    let newer: &[u8] = b"\xfc\x4e\x2b\xa9\x01\x00\x00\x00";
    let older: &[u8] = b"\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a\x00\x00\x00";
    // The third is a member with a disk on the array, which is shorter than its member.
    let members = [(0, None, newer), (0, Some(65_536), older), (1 << 20, Some(8192), newer)];
    for (more, back, superblock) in members {
        let scene = Scene::with_disk(&["--size", "64M"]);
        let member = fs::OpenOptions::new().write(true).open(scene.path("disk.img")).unwrap();
        let len = member.metadata().unwrap().len() + more;
        member.set_len(len).unwrap();
        member.write_all_at(superblock, back.map_or(4096, |back| len - back)).unwrap();
        let before = fs::read(scene.path("disk.img")).unwrap();

        let doctor = scene.lacuna(&["doctor", "disk.img"]).code(10).stdout;
        assert!(doctor.contains("a member of an MD array"), "{doctor}");
        assert!(!doctor.contains("header repair") && !doctor.contains("lacuna resize"), "{doctor}");
        let key = ["disk.img", "--key-file", "key"];
        for verb in [&["header", "repair"][..], &["check"], &["key", "refresh"]] {
            let refused = scene.lacuna(&[verb, &key].concat()).code(1).stderr;
            assert!(refused.contains("a member of an MD array"), "{refused}");
        }
        assert!(fs::read(scene.path("disk.img")).unwrap() == before);
        scene.lacuna(&[&["check", "--read-only"], &key[..]].concat()).code(0);
        // The owner may decide that the disk counts.
        scene.lacuna(&["header", "backup", "disk.img", "disk.hdr"]).code(0);
        let restore = [&["header", "restore", "disk.img", "disk.hdr"], &key[1..]].concat();
        let asked = scene.lacuna(&restore).code(1).stderr;
        assert!(asked.contains("a member of an MD array lies "), "{asked}");
        scene.lacuna(&[&restore[..], &["--yes"]].concat()).code(0);
        scene.lacuna(&[&["check"], &key[..]].concat()).code(0);
    }
}
