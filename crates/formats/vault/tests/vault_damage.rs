//! Bad blocks: if any one block of a closed vault's backing files is destroyed, everything outside
//! of that block is shown; and an older or altered copy of a page is never taken for the newest.
//! Two bad blocks may be both copies of a page that an opening needs: then a rescue shows
//! everything, by the third copy.
//!
//! `LACUNA_PAIRS` sets the number of pairs of blocks to destroy (default 60), or `all`; if it is
//! set, each single block is destroyed in both ways, in vaults with shorter and longer histories.

mod vault_harness;

use lacuna_integrity::Choice;
use lacuna_sim::{CrashFolder, FolderImage, MediumImage, Rng, env_number};
use lacuna_vault::store::{Anchor, FILES, MemoryAnchor, PAGE};
use lacuna_vault::{FsError, NewNode, ROOT, Rescue, Vault};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vault_harness::{UUID, VaultHarness};

/// The expected content of each path: bytes for files, nothing for directories.
type ExpectedTree = BTreeMap<String, Option<Vec<u8>>>;

/// A closed vault: its directory, its anchor and its expected content.
struct ClosedVault {
    world: VaultHarness,
    image: FolderImage,
    truth: ExpectedTree,
    /// Two of the three backing files of each namespace object, in no certain order, and the third
    /// file, which only a rescue reads.
    firsts: BTreeSet<String>,
    seconds: BTreeSet<String>,
    thirds: BTreeSet<String>,
}

/// The result of comparing an opened vault with its expected content.
#[derive(Default)]
struct ReadBack {
    good: u64,
    /// Blocks of files with errors.
    lost_blocks: u64,
    /// Names, directories and whole files with errors.
    lost: u64,
    wrong: Vec<String>,
}

fn find(vault: &Vault, path: &str) -> Result<u64, FsError> {
    path.split('/').try_fold(ROOT, |ino, name| vault.lookup(ino, name.as_bytes()).map(|attr| attr.ino))
}

fn children(truth: &ExpectedTree, directory: &str) -> BTreeSet<String> {
    let below = |path: &String| Some(path.strip_prefix(directory)?.strip_prefix('/')?.to_owned());
    truth.keys().filter_map(below).filter(|name| !name.contains('/')).collect()
}

/// Compares a vault with its expected content.
fn show(vault: &Vault, truth: &ExpectedTree) -> ReadBack {
    let mut shown = ReadBack::default();
    for (path, content) in truth {
        let ino = match find(vault, path) {
            Ok(ino) => ino,
            Err(FsError::Errno(libc::ENOENT)) => {
                shown.wrong.push(format!("{path} is missing"));
                continue;
            }
            Err(_) => {
                shown.lost += 1;
                continue;
            }
        };
        match content {
            None => {
                let mut names = BTreeSet::new();
                let listed = vault.read_dir(ino, 2, &mut |entry| {
                    names.insert(String::from_utf8_lossy(entry.name).into_owned())
                });
                match listed {
                    Err(_) => shown.lost += 1,
                    Ok(()) if names == children(truth, path) => shown.good += 1,
                    Ok(()) => shown.wrong.push(format!("{path} lists {names:?}")),
                }
            }
            Some(content) => show_file(vault, path, ino, content, &mut shown),
        }
    }
    shown
}

fn show_file(vault: &Vault, path: &str, ino: u64, content: &[u8], shown: &mut ReadBack) {
    match vault.attr(ino) {
        Err(_) => {
            shown.lost += 1;
            return;
        }
        Ok(attr) if attr.size != content.len() as u64 => {
            return shown.wrong.push(format!("{path} has {} bytes", attr.size));
        }
        Ok(_) => {}
    }
    for (nth, block) in (0..).zip(content.chunks(PAGE)) {
        let mut bytes = vec![0; block.len()];
        match vault.read(ino, nth * PAGE as u64, &mut bytes) {
            Err(_) => shown.lost_blocks += 1,
            Ok(read) if read == block.len() && bytes == block => shown.good += 1,
            Ok(_) => shown.wrong.push(format!("block {nth} of {path} reads otherwise")),
        }
    }
}

/// Fills a vault and its expected content: files of a few blocks in directories, including files
/// without any block.
fn fill(vault: &Vault, truth: &mut ExpectedTree, round: u64) {
    let mut rng = Rng::new(round);
    for directory in ["letters", "pictures"] {
        let parent = match find(vault, directory) {
            Ok(ino) => ino,
            Err(_) => {
                vault.create_node(ROOT, directory.as_bytes(), NewNode::Directory, 0o755, 0, 0).unwrap().ino
            }
        };
        truth.insert(directory.into(), None);
        for n in 0..20 {
            let path = format!("{directory}/a file with a longer name, number {n}");
            let (_, name) = path.split_once('/').unwrap();
            let ino = match find(vault, &path) {
                Ok(ino) => ino,
                Err(_) => vault.create_node(parent, name.as_bytes(), NewNode::File, 0o644, 0, 0).unwrap().ino,
            };
            let content = format!("round {round}, {path} ").into_bytes().repeat(rng.below(400) as usize);
            vault.write(ino, 0, &content).unwrap();
            let holds = truth.entry(path).or_default().get_or_insert_default();
            holds.resize(holds.len().max(content.len()), 0);
            holds[..content.len()].copy_from_slice(&content);
        }
        // Each round has its own commit, so that the counters of the namespace's blocks differ.
        vault.sync().unwrap();
    }
}

/// A vault that was used, closed, used again, and closed.
fn closed(rounds: u64) -> ClosedVault {
    let mut world = VaultHarness::new(rounds);
    let (mut vault, mut truth) = (world.create(Choice::Auto), ExpectedTree::new());
    for round in 0..rounds {
        fill(&vault, &mut truth, round);
        vault = world.reopen(vault);
    }
    let files = truth.keys().filter_map(|path| vault.file_stat(find(&vault, path).unwrap()).ok());
    let of_files: BTreeSet<String> = files.filter_map(|stat| stat.backing).collect();
    vault.close().unwrap();
    drop(vault);
    let image = world.folder.snapshot();
    let known = |name: &&str| FILES.contains(name) || of_files.contains(*name);
    let of_namespace: Vec<String> = image.names().filter(|name| !known(name)).map(str::to_owned).collect();
    let mut alike = BTreeMap::<Vec<u8>, Vec<String>>::new();
    for name in of_namespace {
        alike.entry(image.files[&name].to_vec()).or_default().push(name);
    }
    // Three files have the same content. The check does not miss the third; the order of the other
    // two does not matter.
    let (mut firsts, mut seconds, mut thirds) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for three in alike.into_values() {
        assert_eq!(three.len(), 3, "files of each object of the namespace");
        let (unmissed, others): (Vec<_>, Vec<_>) =
            three.into_iter().partition(|name| is_unmissed(&mut world, &image, name));
        let [third] = unmissed.try_into().expect("one of three that nothing misses");
        let [one, other] = others.try_into().expect("two files that are checked");
        firsts.insert(one);
        seconds.insert(other);
        thirds.insert(third);
    }
    ClosedVault { world, image, truth, firsts, seconds, thirds }
}

/// Whether a check finds every page twice without this file.
fn is_unmissed(world: &mut VaultHarness, image: &FolderImage, name: &str) -> bool {
    let mut without = image.clone();
    without.files.remove(name);
    world.folder = CrashFolder::from_image(&without);
    let vault = world.open_with(|options| options.read_only = true).unwrap();
    vault.check(&mut |_, _| ()).unwrap().single_copy_pages == 0
}

impl ClosedVault {
    /// Opens a copy of the directory read-only.
    fn open_read_only(&mut self, image: &FolderImage) -> lacuna_contracts::Result<Vault> {
        self.world.folder = CrashFolder::from_image(image);
        self.world.open_with(|options| options.read_only = true)
    }

    /// Opens a copy of the directory for rescue.
    fn rescue(&mut self, image: &FolderImage) -> lacuna_contracts::Result<Rescue> {
        self.world.folder = CrashFolder::from_image(image);
        self.world.folder.set_read_only(true);
        let options = self.world.options();
        Rescue::open(self.world.base(), &VaultHarness::master(), UUID, &options)
    }

    /// The other file with the same pages, of the two that an opening uses.
    fn twin(&self, name: &str) -> Option<String> {
        let (one, other): (Vec<_>, Vec<_>) = (self.firsts.iter().collect(), self.seconds.iter().collect());
        let of = |name: &str| self.image.files[name].to_vec();
        match name {
            "super.0" => Some("super.1".into()),
            "super.1" => Some("super.0".into()),
            _ => one.into_iter().chain(other).find(|twin| *twin != name && of(twin) == of(name)).cloned(),
        }
        .filter(|_| FILES[..2].contains(&name) || self.firsts.contains(name) || self.seconds.contains(name))
    }

    /// Every block of every backing file that was ever written, and some unwritten blocks.
    fn blocks(&self) -> Vec<(String, u64)> {
        let mut blocks = Vec::new();
        for (name, content) in &self.image.files {
            let written: BTreeSet<u64> = content.written_pages().collect();
            let all = 0..content.len().div_ceil(PAGE as u64);
            let wanted = all.filter(|page| written.contains(page) || page % 37 == 5);
            blocks.extend(wanted.map(|page| (name.clone(), page)));
        }
        blocks
    }
}

fn destroy(image: &mut FolderImage, name: &str, page: u64, rng: &mut Rng) {
    let bytes = if rng.chance(1, 2) { vec![0; PAGE] } else { rng.bytes(PAGE) };
    overwrite(image, name, page, &bytes);
}

fn overwrite(image: &mut FolderImage, name: &str, page: u64, bytes: &[u8]) {
    assert!(image.alter(name, |file| {
        let at = page as usize * PAGE;
        let end = file.len().min(at + PAGE);
        file[at..end].copy_from_slice(&bytes[..end - at]);
    }));
}

/// The variable for the number of pairs of bad blocks, or `all`.
const PAIRS: &str = "LACUNA_PAIRS";

#[test]
fn one_bad_block_loses_only_its_own_data() {
    let mut rng = Rng::new(1);
    let all = std::env::var_os(PAIRS).is_some();
    for rounds in if all { 1..=4 } else { 2..=2 } {
        let mut closed = closed(rounds);
        let (blocks, mut lost) = (closed.blocks(), 0);
        for (name, page) in &blocks {
            let ways = [vec![0; PAGE], rng.bytes(PAGE)];
            let one = rng.below(2) as usize;
            for bytes in if all { &ways[..] } else { &ways[one..=one] } {
                let mut image = closed.image.clone();
                overwrite(&mut image, name, *page, bytes);
                let context = format!("{rounds} rounds, page {page} of {name}");
                let vault = closed.open_read_only(&image).unwrap_or_else(|e| panic!("{context}: {e}"));
                let ReadBack { lost_blocks, lost: names, wrong, .. } = show(&vault, &closed.truth);
                let of_file = !FILES.contains(&name.as_str())
                    && closed.twin(name).is_none()
                    && !closed.thirds.contains(name);
                assert!(wrong.is_empty() && names == 0, "{context}: {wrong:?}, {names} names");
                assert!(lost_blocks <= u64::from(of_file), "{context}: {lost_blocks} blocks");
                lost += lost_blocks;
            }
        }
        println!("{rounds} rounds: {} blocks, {lost} errors", blocks.len());
        assert!(lost > 20 && blocks.len() as u64 > 70, "{lost}");
    }
}

#[test]
fn two_bad_blocks_lose_only_their_own_data() {
    let mut closed = closed(2);
    let mut rng = Rng::new(2);
    let blocks = closed.blocks();
    let pairs: Vec<(usize, usize)> = if std::env::var(PAIRS).as_deref() == Ok("all") {
        let each = 0..blocks.len();
        each.flat_map(|one| (0..one).map(move |other| (one, other))).collect()
    } else {
        let pairs = env_number(PAIRS, 60);
        let mut any = || rng.below(blocks.len() as u64) as usize;
        let drawn: Vec<(usize, usize)> = (0..pairs).map(|_| (any(), any())).collect();
        // All pairs of copies of one page.
        let twin_of = |(name, page): &(String, u64)| {
            let twin = (closed.twin(name)?, *page);
            blocks.iter().position(|block| *block == twin)
        };
        let twins = blocks.iter().enumerate().filter_map(|(nth, block)| Some((nth, twin_of(block)?)));
        drawn.into_iter().chain(twins.filter(|(one, other)| one < other)).collect()
    };
    let mut twins = 0;
    for (one, other) in pairs {
        let (one, other) = (blocks[one].clone(), blocks[other].clone());
        let mut image = closed.image.clone();
        [&one, &other].into_iter().for_each(|(name, page)| destroy(&mut image, name, *page, &mut rng));
        let context = format!("{one:?} and {other:?}");
        let rescued = closed.rescue(&image).unwrap_or_else(|e| panic!("{context}: {e}"));
        let ReadBack { lost_blocks, lost, wrong, .. } = show(rescued.vault(), &closed.truth);
        assert!(wrong.is_empty() && lost == 0 && lost_blocks <= 2, "{context}: {wrong:?}, {lost} names");
        // Both copies of a page that an opening needs.
        let is_twin = closed.twin(&one.0).is_some_and(|twin| twin == other.0);
        let is_needed = is_twin && (one.1 == other.1 || FILES.contains(&one.0.as_str()));
        twins += u64::from(is_needed);
        match closed.open_read_only(&image) {
            Ok(vault) => {
                let ReadBack { lost_blocks, lost, wrong, .. } = show(&vault, &closed.truth);
                assert!(wrong.is_empty(), "{context}: {wrong:?}");
                assert!(is_needed || (lost == 0 && lost_blocks <= 2), "{context}: {lost} names");
            }
            Err(e) => assert!(is_needed, "{context}: {e}"),
        }
    }
    assert!(twins > 10, "{twins}");
}

/// One bit flipped in each page of the namespace: everything is shown. In both copies: everything
/// is shown, or an error.
#[test]
fn a_flipped_bit_of_a_namespace_page_is_never_silent() {
    let mut closed = closed(2);
    let mut rng = Rng::new(3);
    let names: Vec<String> = closed.firsts.iter().chain(&closed.seconds).cloned().collect();
    let (mut complete, mut refused, mut errors) = (0, 0, 0);
    for name in names {
        let twin = closed.twin(&name).unwrap();
        let pages: Vec<u64> = closed.image.files[&name].written_pages().collect();
        for page in pages {
            let at = page as usize * PAGE + rng.below(PAGE as u64) as usize;
            let flip = |file: &mut Vec<u8>| file[at] ^= 1 << (at % 8);
            let mut image = closed.image.clone();
            assert!(image.alter(&name, flip));
            let context = format!("bit of byte {at} of {name}");
            let vault = closed.open_read_only(&image).unwrap_or_else(|e| panic!("{context}: {e}"));
            let shown = show(&vault, &closed.truth);
            assert!(shown.wrong.is_empty() && shown.lost + shown.lost_blocks == 0, "{context}");
            if closed.seconds.contains(&name) {
                continue;
            }
            assert!(image.alter(&twin, flip));
            match closed.open_read_only(&image) {
                Err(_) => refused += 1,
                Ok(vault) => {
                    let shown = show(&vault, &closed.truth);
                    assert!(shown.wrong.is_empty(), "{context}, in both files: {:?}", shown.wrong);
                    let is_complete = shown.lost + shown.lost_blocks == 0;
                    *(if is_complete { &mut complete } else { &mut errors }) += 1;
                }
            }
        }
    }
    println!("in both files: {complete} complete, {errors} with errors, {refused} refused");
    assert!(refused + errors > 5);
}

/// An older copy never passes as the newest, neither beside a page that does not verify nor in
/// place of both copies.
#[test]
fn an_older_copy_is_never_taken_for_the_newest() {
    let mut closed = closed(2);
    let (older, anchor) = (closed.image.clone(), closed.world.memory.load().unwrap());
    closed.world.folder = CrashFolder::from_image(&older);
    let vault = closed.world.open().unwrap();
    fill(&vault, &mut closed.truth, 77);
    vault.close().unwrap();
    drop(vault);
    assert_ne!(closed.world.memory.load().unwrap(), anchor);
    let newer = closed.world.folder.snapshot();
    let mut rng = Rng::new(4);
    let (mut complete, mut partly) = (0, 0);
    for name in closed.firsts.union(&closed.seconds).cloned().collect::<Vec<_>>() {
        let twin = closed.twin(&name).unwrap();
        for page in newer.files[&name].changed_pages(&older.files[&name]) {
            let back = |image: &mut FolderImage, name: &str| {
                let mut bytes = vec![0; PAGE];
                older.files[name].read(page * PAGE as u64, &mut bytes).unwrap();
                let end = (page as usize + 1) * PAGE;
                assert!(image.alter(name, |file| {
                    file.resize(file.len().max(end), 0);
                    file[end - PAGE..end].copy_from_slice(&bytes);
                }));
            };
            for how in 0..3 {
                let mut image = newer.clone();
                back(&mut image, &name);
                match how {
                    0 => {}
                    1 => destroy(&mut image, &twin, page, &mut rng),
                    _ => back(&mut image, &twin),
                }
                let Ok(vault) = closed.open_read_only(&image) else {
                    assert!(how > 0, "page {page} of {name} is older, and its copy is not");
                    partly += 1;
                    continue;
                };
                let shown = show(&vault, &closed.truth);
                assert!(shown.wrong.is_empty(), "page {page} of {name}, {how}: {:?}", shown.wrong);
                let is_complete = shown.lost + shown.lost_blocks == 0;
                assert!(is_complete || how > 0, "page {page} of {name} is older, and its copy is not");
                *(if is_complete { &mut complete } else { &mut partly }) += 1;
            }
        }
    }
    println!("{complete} complete, {partly} with errors or refused");
    assert!(complete > 10 && partly > 10);
}

#[test]
fn check_counts_single_copies_and_repair_rewrites_them() {
    let mut closed = closed(2);
    let pages: u64 =
        closed.firsts.iter().map(|name| closed.image.files[name].written_pages().count() as u64).sum();
    let firsts: Vec<String> = closed.firsts.iter().cloned().collect();
    let seconds: Vec<String> = closed.seconds.iter().cloned().collect();
    let one = closed.image.files[&firsts[0]].written_pages().next().unwrap();
    for (lost, others, least) in
        [(&firsts, &seconds, pages / 2), (&seconds, &firsts, pages / 2), (&firsts, &seconds, 1)]
    {
        let mut image = closed.image.clone();
        if least == 1 {
            destroy(&mut image, &firsts[0], one, &mut Rng::new(5));
        } else {
            lost.iter().for_each(|name| drop(image.files.remove(name)));
        }
        let report = closed.open_read_only(&image).unwrap().check(&mut |_, _| ()).unwrap();
        assert!(report.bad_count == 0 && (least..=pages).contains(&report.single_copy_pages), "{report:?}");
        assert!(least > 1 || report.single_copy_pages == 1, "{report:?}");
        // After the repair either file is enough.
        closed.world.folder = CrashFolder::from_image(&image);
        let state = closed.world.memory.load().unwrap();
        let vault = closed.world.open().unwrap();
        assert_eq!(vault.repair().unwrap(), report.single_copy_pages);
        vault.close().unwrap();
        drop(vault);
        let repaired = closed.world.folder.snapshot();
        for gone in [lost, others] {
            let mut image = repaired.clone();
            gone.iter().for_each(|name| drop(image.files.insert(name.clone(), MediumImage::new(0))));
            let vault = closed.open_read_only(&image).unwrap();
            let shown = show(&vault, &closed.truth);
            assert!(shown.wrong.is_empty() && shown.lost + shown.lost_blocks == 0);
        }
        let report = closed.open_read_only(&repaired).unwrap().check(&mut |_, _| ()).unwrap();
        assert!(
            report.single_copy_pages == 0 && report.bad.is_empty() && !report.lacks_superblock,
            "{report:?}"
        );
        closed.world.memory = Arc::new(MemoryAnchor::new(state));
    }
}

#[test]
fn a_lost_superblock_is_reported_and_rewritten() {
    let mut closed = closed(1);
    for name in &FILES[..2] {
        let mut image = closed.image.clone();
        destroy(&mut image, name, 0, &mut Rng::new(6));
        closed.world.log.lock().clear();
        let vault = closed.open_read_only(&image).unwrap();
        assert!(vault.check(&mut |_, _| ()).unwrap().lacks_superblock);
        let log = closed.world.log.lock().join("; ");
        assert!(log.contains(name), "{log}");
        drop(vault);
        closed.world.folder = CrashFolder::from_image(&image);
        let state = closed.world.memory.load().unwrap();
        // Opening for writing is enough, even without any write or close.
        drop(closed.world.open().unwrap());
        let mut image = closed.world.folder.snapshot();
        let other = if *name == FILES[0] { FILES[1] } else { FILES[0] };
        drop(image.files.remove(other));
        let vault = closed.open_read_only(&image).unwrap();
        assert!(show(&vault, &closed.truth).wrong.is_empty());
        closed.world.memory = Arc::new(MemoryAnchor::new(state));
    }
}
