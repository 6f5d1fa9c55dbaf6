//! `rescue`: copies all readable blocks of a damaged disk, and writes a map of them.

use crate::harness::{RunOutput, Scene, noise};
use crate::nbd_client::Client;
use crate::pool::{Cluster, POOL, PoolDisk};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

const BLOCK: usize = 4096;
/// Number of written blocks at the begin of the disk: more than a segment. The other blocks are
/// never written.
const WRITTEN: usize = 1152;
/// Bytes at the end of a medium with the last copy of its header.
const TAIL: u64 = 64 << 10;

/// A disk at a location, with the data written on it.
struct DamagedDisk {
    scene: Scene,
    location: &'static str,
    /// The file of the disk.
    file: &'static str,
    key: &'static str,
    export: &'static str,
    content: Vec<u8>,
}

impl DamagedDisk {
    /// Makes a disk with `shape`, and writes the first [`WRITTEN`] blocks of a level.
    fn make(location: &'static str, shape: &[&str], level: u8) -> DamagedDisk {
        let scene = Scene::new();
        let (mut key, mut export) = ("key", "");
        if level > 0 {
            fs::write(scene.path("deep"), "battery staple").unwrap();
            scene.create(location, &[shape, &["--levels", "2", "--key-file", "deep"]].concat()).code(0);
            (key, export) = ("deep", "1");
        } else {
            scene.create(location, shape).code(0);
        }
        let content = noise(7, WRITTEN * BLOCK);
        let file = location.strip_prefix("nand:").unwrap_or(location);
        let damaged = DamagedDisk { scene, location, file, key, export, content };
        damaged.write(0, &damaged.content);
        damaged
    }

    fn write(&self, block: usize, data: &[u8]) {
        let words = ["serve", self.location, "--socket", "nbd.sock", "--key-file", self.key];
        let server = self.scene.serve_command(&mut self.scene.command(&words));
        let mut client = Client::connect_to(&server.socket, self.export).unwrap();
        for (at, part) in data.chunks(1 << 18).enumerate() {
            client.write_at((block * BLOCK + (at << 18)) as u64, part).unwrap();
        }
        client.flush().unwrap();
        drop(client);
        assert_eq!(server.stop(), 0);
    }

    fn medium(&self) -> fs::File {
        fs::OpenOptions::new().read(true).write(true).open(self.scene.path(self.file)).unwrap()
    }

    /// The pages of the medium that hold the data.
    fn body(&self) -> Range<usize> {
        let info = self.scene.lacuna(&["info", self.location, "--json"]).code(0).json();
        let len = self.medium().metadata().unwrap().len();
        // Without the parts that all other data depends on.
        let is_log = info["header"]["format"] == "deniable";
        let from = info["data_offset"].as_u64().unwrap_or(if is_log { 2 << 20 } else { len / 4 });
        from as usize / BLOCK..(len - TAIL) as usize / BLOCK
    }

    /// Overwrites `pieces` used pages of the medium, spread evenly; each `turn` selects different
    /// pages.
    fn destroy(&self, pieces: usize, turn: usize) {
        let medium = fs::read(self.scene.path(self.file)).unwrap();
        let used = |page: &usize| medium[page * BLOCK..][..BLOCK].iter().any(|byte| *byte != 0);
        let held: Vec<usize> = self.body().filter(used).collect();
        assert!(held.len() > pieces, "{} pages of {} hold something", held.len(), self.location);
        let file = self.medium();
        for piece in 0..pieces {
            let page = held[(piece * held.len() / pieces + turn) % held.len()];
            file.write_all_at(&noise(page as u64 + 1, BLOCK), (page * BLOCK) as u64).unwrap();
        }
    }

    fn rescue(&self, options: &[&str]) -> RunOutput {
        let words = ["rescue", self.location, "image", "--key-file", self.key];
        self.scene.lacuna(&[&words[..], options].concat())
    }

    /// The lost blocks, from the map. Checks that every other block of the image is as written, and
    /// that the source is unchanged.
    #[track_caller]
    fn rescued(&self, options: &[&str], code: i32) -> (BTreeSet<u64>, Value) {
        let before = fs::read(self.scene.path(self.file)).unwrap();
        let said = self.rescue(&[options, &["--json", "--force"]].concat()).code(code).json();
        assert!(fs::read(self.scene.path(self.file)).unwrap() == before, "the disk was written to");
        let image = fs::read(self.scene.path("image")).unwrap();
        assert_eq!(said["size"], image.len());
        let lost = lost(&self.scene.path("image.map"), image.len() as u64);
        for (block, found) in (0..).zip(image.chunks(BLOCK)) {
            let expected: &[u8] = self.content.chunks(BLOCK).nth(block as usize).unwrap_or(&[0; BLOCK]);
            if lost.contains(&block) {
                assert!(found.iter().all(|byte| *byte == 0), "block {block} is lost, and something is there");
            } else {
                assert!(found == expected, "{}: block {block} is not as written", self.location);
            }
        }
        assert_eq!(said["bad"], lost.len());
        let (good, unwritten) = (said["good"].as_u64().unwrap(), said["unwritten"].as_u64().unwrap());
        assert_eq!(good + unwritten + lost.len() as u64, image.len() as u64 / BLOCK as u64);
        (lost, said)
    }

    /// The bad blocks of the level, from `check`.
    fn checked(&self) -> BTreeSet<u64> {
        let said =
            self.scene.lacuna(&["check", self.location, "--read-only", "--json", "--key-file", self.key]);
        let level = u64::from(!self.export.is_empty());
        let bad = said.json()["bad_blocks"].as_array().unwrap().clone();
        let of_level = |bad: &&Value| bad["level"].as_u64().unwrap_or(level) == level;
        bad.iter().filter(of_level).map(|bad| bad["block"].as_u64().unwrap()).collect()
    }
}

/// The lost blocks in a map file. Checks that its areas cover the disk without gaps.
#[track_caller]
fn lost(map: &Path, len: u64) -> BTreeSet<u64> {
    let text = fs::read_to_string(map).unwrap();
    let number = |word: &str| u64::from_str_radix(word.strip_prefix("0x").unwrap(), 16).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split_whitespace());
    let status: Vec<&str> = lines.next().unwrap().collect();
    assert_eq!((number(status[0]), status[1], status[2]), (len, "+", "1"));
    let (mut end, mut lost) = (0, BTreeSet::new());
    for line in lines {
        let [at, size, kind] = line.collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(number(at), end);
        end += number(size);
        if kind == "-" {
            lost.extend(number(at) / BLOCK as u64..end / BLOCK as u64);
        } else {
            assert_eq!(kind, "+");
        }
    }
    assert_eq!(end, len);
    lost
}

#[test]
fn of_a_whole_disk_everything_is_rescued() {
    let disk = DamagedDisk::make("disk.img", &["--size", "16M"], 0);
    let words = disk.rescue(&[]).code(0);
    assert!(
        words.stdout.contains("1152 blocks verified (4.5 MiB), 2944 never written, 0 unreadable"),
        "{}",
        words.stdout
    );
    assert_eq!(fs::metadata(disk.scene.path("image")).unwrap().permissions().mode() & 0o777, 0o600);
    let (lost, said) = disk.rescued(&[], 0);
    assert!(lost.is_empty());
    assert_eq!((&said["verified"], &said["journal_damaged"]), (&true.into(), &false.into()));
    // No block is missing, so none is read again.
    let before = fs::read(disk.scene.path("image")).unwrap();
    let again = disk.rescue(&[]).code(0).stdout;
    assert!(again.contains("0 never written, 0 unreadable, 4096 rescued before"), "{again}");
    // Neither existing files nor the targets of symbolic links are overwritten.
    fs::remove_file(disk.scene.path("image.map")).unwrap();
    assert!(disk.rescue(&[]).code(1).stderr.contains("--force"));
    assert!(fs::read(disk.scene.path("image")).unwrap() == before);
    fs::rename(disk.scene.path("image"), disk.scene.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("elsewhere", disk.scene.path("image")).unwrap();
    assert!(disk.rescue(&["--force"]).code(1).stderr.contains("a symbolic link"));
    assert!(fs::read(disk.scene.path("elsewhere")).unwrap() == before);
    let own = ["rescue", "disk.img", "disk.img", "--force", "--key-file", "key"];
    disk.scene.lacuna(&own).code(1);
    // Only the expected disk, and only a closed one.
    fs::remove_file(disk.scene.path("image")).unwrap();
    disk.rescue(&["--expect", "00112233445566778899aabbccddeeff"]).code(10);
    disk.rescue(&["--level", "1"]).code(1);
    assert!(!disk.scene.path("image").exists());
    let server = disk.scene.serve(&[]);
    disk.rescue(&[]).code(5);
    assert_eq!(server.stop(), 0);
}

/// Rescued blocks are not read again, whatever their state on the disk; lost and untried blocks
/// are.
#[test]
fn a_second_run_reads_only_missing_areas() {
    let disk = DamagedDisk::make("disk.img", &["--size", "16M"], 0);
    let whole = fs::read(disk.scene.path("disk.img")).unwrap();
    let blocks = (16 << 20) / BLOCK as u64;
    disk.destroy(12, 0);
    let (lost, _) = disk.rescued(&[], 10);
    assert!(!lost.is_empty());
    // The medium now reads the lost blocks, and does not read other ones.
    disk.medium().write_all_at(&whole, 0).unwrap();
    disk.destroy(12, 1);
    let bad = disk.checked();
    let still: BTreeSet<u64> = lost.intersection(&bad).copied().collect();
    assert!(still.len() < lost.len() && still.len() < bad.len());
    let said = disk.rescue(&["--json"]).code(if still.is_empty() { 0 } else { 10 }).json();
    assert_eq!(said["kept"], blocks - lost.len() as u64);
    assert_eq!((&said["good"], &said["bad"]), (&(lost.len() - still.len()).into(), &still.len().into()));
    let image = || fs::read(disk.scene.path("image")).unwrap();
    for (block, found) in (0..).zip(image().chunks(BLOCK)) {
        let expected: &[u8] = disk.content.chunks(BLOCK).nth(block as usize).unwrap_or(&[0; BLOCK]);
        let expected: &[u8] = if still.contains(&block) { &[0; BLOCK] } else { expected };
        assert!(found == expected, "block {block}");
    }

    // Simulates a killed run: the map ends early, and so does the image.
    disk.medium().write_all_at(&whole, 0).unwrap();
    let map = fs::read_to_string(disk.scene.path("image.map")).unwrap();
    let head: Vec<&str> =
        map.lines().take_while(|line| line.starts_with('#') || line.ends_with('1')).collect();
    let cut = format!("{}\n0x0000000000  0x0000100000  +\n0x0000100000  0x00", head.join("\n"));
    fs::write(disk.scene.path("image.map"), cut).unwrap();
    let file = fs::OpenOptions::new().write(true).open(disk.scene.path("image")).unwrap();
    file.write_all_at(&noise(1, 3 << 20), 1 << 20).unwrap();
    // A rescue of another disk of the same size does not continue it.
    let other = told_id(&disk.scene.create("other.img", &["--size", "16M"]).code(0));
    let other_disk = ["rescue", "other.img", "image", "--key-file", "key"];
    let refused = disk.scene.lacuna(&other_disk).code(1).stderr;
    assert!(refused.contains("another disk or image") && refused.contains(&other), "{refused}");
    let said = disk.rescue(&["--json"]).code(0).json();
    assert_eq!((&said["kept"], &said["good"]), (&256.into(), &(WRITTEN - 256).into()));
    assert!(image()[1 << 20..disk.content.len()] == disk.content[1 << 20..]);
    assert!(image()[disk.content.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(lost_of(&disk), BTreeSet::new());
}

fn told_id(created: &RunOutput) -> String {
    created.stdout.lines().find_map(|line| line.strip_prefix("ID ")).unwrap().to_owned()
}

fn lost_of(disk: &DamagedDisk) -> BTreeSet<u64> {
    lost(&disk.scene.path("image.map"), fs::metadata(disk.scene.path("image")).unwrap().len())
}

/// For each local format, with overwritten places of the medium: the lost blocks are exactly the
/// blocks that `check` names, and there are some.
#[test]
fn all_but_the_destroyed_blocks_are_rescued() {
    for (location, shape, pieces) in [
        ("disk.img", &["--size", "16M"][..], 12),
        ("disk.img", &["--size", "64M", "--format", "deniable", "--cover", "0"], 3),
        ("disk.img", &["--size", "64M", "--format", "oblivious", "--cover", "0"], 40),
        ("nand:chip.img", &["--size", "8M"], 8),
    ] {
        let disk = DamagedDisk::make(location, shape, 0);
        // Most pages of a disk with levels hold no data of level 0.
        let mut turn = 0;
        let checked = loop {
            disk.destroy(pieces, turn);
            let checked = disk.checked();
            if !checked.is_empty() {
                break checked;
            }
            turn += 1;
            assert!(turn < 60, "{shape:?}: nothing is lost");
        };
        let (lost, said) = disk.rescued(&[], 10);
        assert_eq!(lost, checked, "{shape:?}");
        assert_eq!(said["verified"], true);
        assert_eq!(said["level"].as_u64(), shape.contains(&"--format").then_some(0));
    }
}

/// Destroys the ciphertext of one block of a sealed disk: the map names exactly this block.
#[test]
fn the_map_names_exactly_the_destroyed_block() {
    let mut disk = DamagedDisk::make("disk.img", &["--size", "16M"], 0);
    // Rewrites one block; closing the disk empties the journal, so the block is in its segment.
    let before = fs::read(disk.scene.path("disk.img")).unwrap();
    let victim = noise(99, BLOCK);
    disk.write(77, &victim);
    disk.content[77 * BLOCK..][..BLOCK].copy_from_slice(&victim);
    let after = fs::read(disk.scene.path("disk.img")).unwrap();
    let pages = before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate();
    let differs = |(a, b): (&[u8], &[u8])| a.iter().zip(b).filter(|(a, b)| a != b).count() > BLOCK / 2;
    // The last matching page: the journal is before the segments.
    let place = pages.filter(|(_, pair)| differs(*pair)).map(|(page, _)| page).next_back().unwrap();
    disk.medium().write_all_at(&noise(5, 8), (place * BLOCK) as u64).unwrap();
    assert_eq!(disk.rescued(&[], 10).0, BTreeSet::from([77]));
}

#[test]
fn a_hidden_level_is_rescued_by_its_passphrase() {
    let disk = DamagedDisk::make("disk.img", &["--size", "64M", "--format", "deniable", "--cover", "5"], 1);
    let (lost, said) = disk.rescued(&["--level", "1"], 0);
    assert!(lost.is_empty());
    assert_eq!(said["level"], 1);
    disk.destroy(2, 0);
    let checked = disk.checked();
    let code = if checked.is_empty() { 0 } else { 10 };
    assert_eq!(disk.rescued(&["--level", "1"], code).0, checked);
    // Without a terminal, the message does not reveal which levels a passphrase opens.
    let refused =
        disk.scene.lacuna(&["rescue", "disk.img", "other", "--level", "1", "--key-file", "key"]).code(20);
    assert!(!refused.stderr.contains("levels 0 to"), "{}", refused.stderr);
}

#[test]
fn one_copy_of_the_header_is_enough() {
    for shape in [&["--size", "16M"][..], &["--size", "64M", "--format", "deniable"]] {
        let disk = DamagedDisk::make("disk.img", shape, 0);
        let medium = disk.medium();
        let len = medium.metadata().unwrap().len();
        let copies = [0, 512 << 10, len - TAIL];
        let whole = fs::read(disk.scene.path("disk.img")).unwrap();
        for kept in copies {
            for destroyed in copies.into_iter().filter(|copy| *copy != kept) {
                medium.write_all_at(&noise(destroyed + 1, 16 << 10), destroyed).unwrap();
            }
            assert!(disk.rescued(&[], 0).0.is_empty(), "{shape:?}: copy at {kept}");
            medium.write_all_at(&whole, 0).unwrap();
        }
        for copy in copies {
            medium.write_all_at(&noise(copy + 1, 16 << 10), copy).unwrap();
        }
        assert!(disk.rescue(&["--force"]).code != 0);
    }
}

/// Blocks in the missing part are lost, and not zeros, with every cipher.
#[test]
fn of_a_medium_that_was_cut_short_the_rest_is_rescued() {
    for (location, shape) in [
        ("disk.img", &["--size", "16M"][..]),
        ("disk.img", &["--size", "16M", "--cipher", "xts"]),
        ("disk.img", &["--size", "16M", "--cipher", "xts-random"]),
        ("disk.img", &["--size", "64M", "--format", "deniable", "--cover", "0"]),
        ("disk.img", &["--size", "64M", "--format", "oblivious", "--cover", "0"]),
        ("nand:chip.img", &["--size", "8M"]),
    ] {
        let disk = DamagedDisk::make(location, shape, 0);
        let medium = disk.medium();
        let whole = medium.metadata().unwrap().len();
        let len = if shape.contains(&"oblivious") {
            // Its blocks, and the map that leads to them, are at random places.
            whole - TAIL - 32 * BLOCK as u64
        } else if shape.contains(&"deniable") {
            whole / 10 * 9
        } else {
            last_held(&fs::read(disk.scene.path(disk.file)).unwrap()) - 40 * BLOCK as u64
        };
        medium.set_len(len).unwrap();
        if location == "disk.img" {
            assert!(
                disk.scene
                    .lacuna(&["check", "disk.img", "--key-file", "key"])
                    .code(10)
                    .stderr
                    .contains("cut short")
            );
        }
        let lost = lost_when_cut(&disk);
        assert!(lost < WRITTEN, "{shape:?}: {lost} are lost");
        let sealed = location == "disk.img" && !shape.contains(&"--format");
        assert!(!sealed || lost > 0, "{shape:?}");
        let plain = shape.iter().any(|word| word.starts_with("xts"));
        let words = disk.rescue(&["--force"]).stdout;
        assert_eq!(words.contains("cannot tell altered data"), plain, "{words}");
    }
}

/// Number of lost blocks of a disk that was cut short. Checks that all other blocks are as written.
#[track_caller]
fn lost_when_cut(disk: &DamagedDisk) -> usize {
    let code = disk.rescue(&["--force"]).code;
    assert!([0, 10].contains(&code), "{code}");
    let (lost, _) = disk.rescued(&[], code);
    assert_eq!(code == 10, !lost.is_empty());
    lost.iter().filter(|block| **block < WRITTEN as u64).count()
}

/// The end of the data on a medium, without the last copy of the header.
fn last_held(medium: &[u8]) -> u64 {
    let body = &medium[..medium.len() - TAIL as usize];
    let page = body.chunks(BLOCK).rposition(|page| page.iter().any(|byte| *byte != 0)).unwrap();
    ((page + 1) * BLOCK) as u64
}

/// Both records of the end of a closed disk's journal are destroyed: the journal was empty, so no
/// data is lost. The user cannot know that and is warned.
#[test]
fn a_disk_whose_journal_is_gone_is_rescued() {
    let disk = DamagedDisk::make("disk.img", &["--size", "16M"], 0);
    let medium = disk.medium();
    let journal = fs::read(disk.scene.path("disk.img")).unwrap();
    let at = journal.chunks(BLOCK).position(|page| page.starts_with(b"LACRETD1")).unwrap();
    medium.write_all_at(&noise(3, 2 * BLOCK), (at * BLOCK) as u64).unwrap();
    disk.scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(10);
    let (lost, said) = disk.rescued(&[], 10);
    assert!(lost.is_empty());
    assert_eq!(said["journal_damaged"], true);
    assert!(disk.rescue(&["--force"]).stderr.contains("the journal of the disk is damaged"));
}

#[test]
fn a_disk_in_a_pool_is_rescued() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "16M"]);
    let content = noise(7, 2048 * BLOCK);
    disk.serve(&[]).used_by(|client| {
        content
            .chunks(1 << 20)
            .enumerate()
            .for_each(|(at, part)| client.write_at((at << 20) as u64, part).unwrap());
    });
    let rescue = |code: i32| {
        let said = disk.keyed(&["rescue"], &["image", "--force", "--json"]).code(code).json();
        (fs::read(disk.scene.path("image")).unwrap(), said)
    };
    let (image, said) = rescue(0);
    assert!(image[..content.len()] == content && image[content.len()..].iter().all(|byte| *byte == 0));
    assert_eq!(said["good"], 2048);
    // The second object is removed.
    let object = format!("{}.{:016x}", disk.data_prefix(), 1);
    disk.cluster.tool("rados", &["-p", POOL, "rm", &object]);
    let (image, said) = rescue(10);
    assert_eq!(said["bad"], 1024);
    assert!(image[..1024 * BLOCK] == content[..1024 * BLOCK]);
    assert!(image[1024 * BLOCK..].iter().all(|byte| *byte == 0));
    let lost = lost(&disk.scene.path("image.map"), image.len() as u64);
    assert!(lost.into_iter().eq(1024..2048));
}
