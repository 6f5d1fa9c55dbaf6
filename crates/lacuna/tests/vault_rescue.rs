//! What `vault rescue` brings out of damaged vaults: everything that is not in the damaged blocks, under its name; and what is missing is
//! listed.

use lacuna::Kind;
use lacuna::vault::{Rescue, RescueReport, rescue};
use lacuna_core::{Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_integrity::Choice;
use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_vault::store::{Anchor, FILES, JournalSize, MemoryAnchor, PAGE};
use lacuna_vault::{Base, NewNode, OpenOptions, ROOT, SetXattr, Time, Vault, VaultOptions, WallClock};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const UUID: [u8; 16] = [0x2e; 16];

/// The content of each file, by its path.
type Truth = BTreeMap<String, Vec<u8>>;

struct FixedClock;

impl WallClock for FixedClock {
    fn now(&self) -> Time {
        Time { secs: 1_700_000_000, nanos: 0 }
    }
}

/// A folder and the anchor of one machine.
struct World {
    folder: CrashFolder,
    anchor: Arc<MemoryAnchor>,
    sessions: AtomicU64,
}

impl World {
    fn new() -> World {
        World { folder: CrashFolder::new(), anchor: Arc::default(), sessions: AtomicU64::new(0) }
    }

    fn base(&self) -> Base {
        Base {
            folder: Arc::new(self.folder.clone()),
            anchor: self.anchor.clone(),
            random: Arc::new(SeededRandom::new(1 + self.sessions.fetch_add(1, Ordering::Relaxed))),
            clock: Arc::new(FixedClock),
        }
    }

    fn number(&self) -> u64 {
        self.anchor.load().unwrap().unwrap().number
    }

    fn create(&self) -> Vault {
        let options = VaultOptions { choice: Choice::Auto, open: options(), ..VaultOptions::default() };
        Vault::create(self.base(), &master(), UUID, &options).unwrap()
    }

    fn open(&self, read_only: bool) -> Result<Vault> {
        Vault::open(self.base(), &master(), UUID, &OpenOptions { read_only, ..options() })
    }

    fn look(&mut self, image: &FolderImage) -> Result<Rescue> {
        self.folder = CrashFolder::from_image(image);
        self.folder.set_read_only(true);
        Rescue::open(self.base(), &master(), UUID, &options())
    }
}

fn master() -> Secret<32> {
    Secret::copy_from(&[0x31; 32])
}

fn options() -> OpenOptions {
    let journal = JournalSize { due: 512 * PAGE as u64, most: 4096 * PAGE as u64 };
    OpenOptions { commit_period: None, journal, ..OpenOptions::default() }
}

fn directory(vault: &Vault, name: &str) -> u64 {
    match vault.lookup(ROOT, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => vault.make(ROOT, name.as_bytes(), NewNode::Directory, 0o750, 0, 0).unwrap().ino,
    }
}

fn write(vault: &Vault, truth: &mut Truth, path: &str, content: &[u8]) {
    let (parent, name) = path.split_once('/').unwrap();
    let parent = directory(vault, parent);
    let ino = match vault.lookup(parent, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => vault.make(parent, name.as_bytes(), NewNode::File, 0o640, 0, 0).unwrap().ino,
    };
    vault.write(ino, 0, content).unwrap();
    let holds = truth.entry(path.to_owned()).or_default();
    holds.resize(holds.len().max(content.len()), 0);
    holds[..content.len()].copy_from_slice(content);
}

fn content(path: &str, round: u64, rng: &mut Rng) -> Vec<u8> {
    format!("{path}, round {round}. ").into_bytes().repeat(1 + rng.below(600) as usize)
}

/// What is missing of a file that was brought out, if it is there: the blocks that differ are zeros. Panics if anything else differs.
fn holes(found: &[u8], expected: &[u8], context: &str) -> u64 {
    assert_eq!(found.len(), expected.len(), "{context}");
    let mut holes = 0;
    for (nth, (found, expected)) in found.chunks(PAGE).zip(expected.chunks(PAGE)).enumerate() {
        if found != expected {
            assert!(found.iter().all(|byte| *byte == 0), "{context}, block {nth}: something else");
            holes += 1;
        }
    }
    holes
}

/// Compares what was brought out with the truth. Gives the files that are not there, and the blocks that are missing of others.
fn compare(target: &Path, truth: &Truth, context: &str) -> (Vec<String>, u64) {
    let (mut absent, mut bad) = (Vec::new(), 0);
    for (path, expected) in truth {
        match std::fs::read(target.join(path)) {
            Ok(found) => bad += holes(&found, expected, &format!("{context}: {path}")),
            Err(_) => absent.push(path.clone()),
        }
    }
    (absent, bad)
}

fn bring_out(damaged: &Rescue) -> (tempfile::TempDir, RescueReport) {
    let target = tempfile::tempdir().unwrap();
    let report = rescue(damaged, target.path(), &mut |_| ()).unwrap();
    assert_eq!(report.lost as usize, report.missing.len());
    (target, report)
}

fn destroy(image: &mut FolderImage, name: &str, page: u64, rng: &mut Rng) {
    let bytes = if rng.chance(1, 2) { vec![0; PAGE] } else { rng.bytes(PAGE) };
    assert!(image.alter(name, |file| {
        let at = page as usize * PAGE;
        let end = file.len().min(at + PAGE);
        file[at..end].copy_from_slice(&bytes[..end - at]);
    }));
}

#[test]
fn all_of_a_whole_vault_comes_out() {
    let (mut world, mut truth, mut rng) = (World::new(), Truth::new(), Rng::new(1));
    let vault = world.create();
    for n in 0..30 {
        let path = format!("directory {}/file {n}", n % 3);
        let content = content(&path, 0, &mut rng);
        write(&vault, &mut truth, &path, &content);
    }
    vault.make(ROOT, b"link", NewNode::Symlink(b"../elsewhere"), 0o777, 0, 0).unwrap();
    vault.make(ROOT, b"pipe", NewNode::Fifo, 0o600, 0, 0).unwrap();
    vault.make(ROOT, b"a\nb\xff", NewNode::File, 0o4755, 0, 0).unwrap();
    let sparse = vault.make(ROOT, b"sparse", NewNode::File, 0o600, 0, 0).unwrap().ino;
    vault.write(sparse, 1 << 30, b"far").unwrap();
    vault.set_xattr(sparse, b"user.colour", b"green", SetXattr::Any).unwrap();
    vault.close().unwrap();
    drop(vault);
    let image = world.folder.snapshot();
    let (target, report) = bring_out(&world.look(&image).unwrap());
    // Not every file system has extended attributes.
    assert!(
        report.missing.iter().all(|missing| missing.what.contains("user.colour")),
        "{:?}",
        report.missing
    );
    assert_eq!((report.files, report.directories, report.nameless), (34, 3, 0));
    assert_eq!(compare(target.path(), &truth, "whole"), (vec![], 0));
    assert_eq!(std::fs::read_link(target.path().join("link")).unwrap(), Path::new("../elsewhere"));
    let mode =
        |name: &str| std::fs::metadata(target.path().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("directory 1"), mode("directory 1/file 1")), (0o750, 0o640));
    let odd = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"a\nb\xff");
    // Nobody gets to act as its owner by it.
    assert_eq!(std::fs::metadata(target.path().join(odd)).unwrap().permissions().mode() & 0o7777, 0o755);
    let about = std::fs::metadata(target.path().join("sparse")).unwrap();
    assert_eq!(about.len(), (1 << 30) + 3);
    assert!(report.bytes < 1 << 20, "{}", report.bytes);
    // A second time there is something in the way.
    let refused = rescue(&world.look(&image).unwrap(), target.path(), &mut |_| ()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Exists);
}

/// A process ends without a word. Without any one block of its journal everything up to it comes out, and the rest is named.
#[test]
fn without_a_block_of_the_journal_all_up_to_it_comes_out() {
    let (mut world, mut truth, mut rng) = (World::new(), Truth::new(), Rng::new(2));
    let vault = world.create();
    write(&vault, &mut truth, "a/first", b"first");
    vault.close().unwrap();
    drop(vault);
    let vault = world.open(false).unwrap();
    let mut states = BTreeMap::from([(world.number(), truth.clone())]);
    for round in 0..14 {
        for n in 0..=rng.below(3) {
            let path = format!("{}/file {}", ["a", "b"][(n % 2) as usize], rng.below(12));
            let content = content(&path, round, &mut rng);
            write(&vault, &mut truth, &path, &content);
        }
        vault.sync().unwrap();
        states.insert(world.number(), truth.clone());
    }
    let newest = world.number();
    drop(vault);
    let image = world.folder.snapshot();
    let (mut cut_short, mut named, mut blocks) = (0, 0, 0);
    for name in &FILES[2..] {
        for page in image.files[*name].written_pages().collect::<Vec<_>>() {
            let context = format!("page {page} of {name}");
            let mut damaged = image.clone();
            destroy(&mut damaged, name, page, &mut rng);
            let seen = world.look(&damaged).unwrap_or_else(|e| panic!("{context}: {e}"));
            let state = seen.vault().found().state.number;
            let (target, report) = bring_out(&seen);
            let (absent, bad) = compare(target.path(), &states[&state], &context);
            assert!(absent.is_empty() && bad <= 1, "{context}: {absent:?}, {bad} blocks");
            assert!(report.lost >= bad + u64::from(state < newest), "{context}: {report:?}");
            let refused = world.open(true).err().map(|e| e.kind());
            if state == newest {
                assert_eq!(refused, None, "{context}");
                blocks += bad;
                continue;
            }
            cut_short += 1;
            let kinds = if state + 1 == newest {
                vec![Kind::RolledBack]
            } else {
                vec![Kind::Corrupt, Kind::RolledBack]
            };
            assert!(refused.is_some_and(|kind| kinds.contains(&kind)), "{context}: {refused:?}");
            // The commit whose record is lost tells nothing; those after it do.
            let missing: BTreeSet<&str> = report.missing.iter().map(|missing| &*missing.path).collect();
            let Some(next) = states.range(state + 1..).next().map(|(number, _)| *number) else { continue };
            let changed =
                states[&newest].iter().filter(|(path, content)| states[&next].get(*path) != Some(content));
            let (known, unknown): (Vec<_>, Vec<_>) =
                changed.partition(|(path, _)| missing.contains(&*format!("/{path}")));
            named += known.len();
            // A file whose name stood in the lost record alone is told by its number.
            let by_number = missing.iter().filter(|path| path.starts_with("(inode")).count();
            assert!(unknown.len() <= by_number, "{context}: {unknown:?} are not named: {missing:?}");
        }
    }
    println!("{cut_short} states cut short, {named} files named, {blocks} blocks of files");
    assert!(cut_short > 5 && named > 20 && blocks > 5);
}

/// The power fails in a checkpoint. Without any one block of the journal everything comes out that was synced before.
#[test]
#[ignore = "does not hold yet: without a page of the tree that only the journal has, neither state of the names is found whole"]
fn a_checkpoint_that_was_cut_short_loses_nothing_to_a_bad_block_of_the_journal() {
    let (mut looked, mut before) = (0, 0);
    for cut in 0..60 {
        let (mut world, mut truth, mut rng) = (World::new(), Truth::new(), Rng::new(100 + cut));
        let vault = world.create();
        for round in 0..3 {
            for n in 0..30 {
                let path = format!("{}/a file with a longer name, number {n}", ["a", "b"][n % 2]);
                let content = content(&path, round, &mut rng);
                write(&vault, &mut truth, &path, &content[..content.len().min(6000)]);
            }
            vault.sync().unwrap();
        }
        world.folder.cut_after(cut);
        let _failed = vault.close();
        world.folder.cut_now();
        drop(vault);
        let image = world.folder.after_cut(&mut rng);
        for _ in 0..3 {
            let name = *rng.pick(&FILES[2..]);
            let pages: Vec<u64> = image.files[name].written_pages().collect();
            let page = *rng.pick(&pages);
            let mut damaged = image.clone();
            destroy(&mut damaged, name, page, &mut rng);
            let context = format!("cut {cut}, page {page} of {name}");
            let seen = world.look(&damaged).unwrap_or_else(|e| panic!("{context}: {e}"));
            if seen.vault().found().state.number + 1 < world.number() {
                // A record was hit: what comes out then is another test's matter.
                continue;
            }
            let (target, report) = bring_out(&seen);
            let (absent, bad) = compare(target.path(), &truth, &context);
            assert!(absent.is_empty() && bad <= 1, "{context}: {absent:?}, {bad} blocks");
            assert!(report.lost >= bad, "{context}");
            looked += 1;
            before += u64::from(seen.is_before_checkpoint());
        }
    }
    println!("{looked} looked at, {before} as they were before the checkpoint");
    assert!(looked > 60 && before > 3, "{looked}, {before}");
}

/// Both copies of a page of the names: what can be reached otherwise comes out, by name or by number, and the rest is listed.
#[test]
fn without_both_copies_of_a_page_of_the_names_the_rest_comes_out() {
    let (mut world, mut truth, mut rng) = (World::new(), Truth::new(), Rng::new(3));
    let vault = world.create();
    let mut of_files = BTreeSet::new();
    for n in 0..160 {
        let path = format!("directory {}/a file with a longer name, number {n}", n % 3);
        let content = format!("{path}. ").into_bytes().repeat(40);
        write(&vault, &mut truth, &path, &content);
    }
    vault.sync().unwrap();
    for path in truth.keys() {
        let (parent, name) = path.split_once('/').unwrap();
        let ino = vault.lookup(directory(&vault, parent), name.as_bytes()).unwrap().ino;
        of_files.extend(vault.file_stat(ino).unwrap().backing);
    }
    vault.close().unwrap();
    drop(vault);
    let image = world.folder.snapshot();
    let of_names = |name: &String| !FILES.contains(&name.as_str()) && !of_files.contains(name);
    let mut alike = BTreeMap::<Vec<u8>, Vec<String>>::new();
    for name in image.files.keys().filter(|name| of_names(name)) {
        alike.entry(image.files[name].to_vec()).or_default().push(name.clone());
    }
    let (mut refused, mut partly, mut nameless) = (0, 0, 0);
    for pair in alike.values() {
        for page in image.files[&pair[0]].written_pages().collect::<Vec<_>>() {
            let mut damaged = image.clone();
            pair.iter().for_each(|name| destroy(&mut damaged, name, page, &mut rng));
            let context = format!("page {page} of {pair:?}");
            let Ok(seen) = world.look(&damaged) else {
                refused += 1;
                continue;
            };
            let (target, report) = bring_out(&seen);
            let (absent, bad) = compare(target.path(), &truth, &context);
            assert!(report.lost >= bad, "{context}");
            let missing: BTreeSet<&str> = report.missing.iter().map(|missing| &*missing.path).collect();
            for path in &absent {
                let (parent, _) = path.split_once('/').unwrap();
                let listed = [format!("/{path}"), format!("/{parent}"), "/".to_owned()];
                assert!(
                    listed.iter().any(|path| missing.contains(&**path)),
                    "{context}: {path} is not listed"
                );
            }
            partly += u64::from(report.lost > 0);
            nameless += report.nameless;
        }
    }
    println!("{refused} refused, {partly} came out in part, {nameless} by number");
    assert!(partly > 5 && nameless > 20, "{partly}, {nameless}");
}
