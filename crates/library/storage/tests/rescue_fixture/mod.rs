//! A vault in a folder that can be damaged, killed and cut short, its expected content, and the
//! comparison with the output of a rescue.
#![allow(dead_code)]

use lacuna_contracts::{Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_integrity::Choice;
use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_storage::vault::{Rescue, RescueReport, rescue};
use lacuna_vault::store::{Anchor, JournalSize, MemoryAnchor, PAGE};
use lacuna_vault::{NewNode, ROOT, Time, Vault, VaultBacking, VaultOpenOptions, VaultOptions, WallClock};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const UUID: [u8; 16] = [0x2e; 16];

/// The content of each file, by its path.
pub(crate) type ExpectedFiles = BTreeMap<String, Vec<u8>>;

/// A backing file and the index of a block in it.
pub(crate) type Block = (String, u64);

struct FixedClock;

impl WallClock for FixedClock {
    fn now(&self) -> Time {
        Time { secs: 1_700_000_000, nanos: 0 }
    }
}

/// A folder and the anchor of one machine.
pub(crate) struct RescueFixture {
    pub(crate) folder: CrashFolder,
    pub(crate) anchor: Arc<MemoryAnchor>,
    pub(crate) sessions: AtomicU64,
}

impl RescueFixture {
    pub(crate) fn new() -> RescueFixture {
        RescueFixture { folder: CrashFolder::new(), anchor: Arc::default(), sessions: AtomicU64::new(0) }
    }

    pub(crate) fn backing(&self) -> VaultBacking {
        VaultBacking {
            folder: Arc::new(self.folder.clone()),
            anchor: self.anchor.clone(),
            random: Arc::new(SeededRandom::new(1 + self.sessions.fetch_add(1, Ordering::Relaxed))),
            clock: Arc::new(FixedClock),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.anchor.load().unwrap().unwrap().number
    }

    pub(crate) fn create(&self) -> Vault {
        let options = VaultOptions { choice: Choice::Auto, open: options(), ..VaultOptions::default() };
        Vault::create(self.backing(), &master(), UUID, &options).unwrap()
    }

    pub(crate) fn open(&self, read_only: bool) -> Result<Vault> {
        Vault::open(self.backing(), &master(), UUID, &VaultOpenOptions { read_only, ..options() })
    }

    pub(crate) fn open_to_rescue(&mut self, image: &FolderImage) -> Result<Rescue> {
        self.open_to_rescue_without(image, &[])
    }

    /// Opens a directory with blocks that cannot be read.
    pub(crate) fn open_to_rescue_without(
        &mut self,
        image: &FolderImage,
        unreadable: &[Block],
    ) -> Result<Rescue> {
        self.folder = CrashFolder::from_image(image);
        self.folder.set_read_only(true);
        unreadable.iter().for_each(|(name, page)| self.folder.spoil_page(name, *page));
        Rescue::open(self.backing(), &master(), UUID, &options())
    }
}

pub(crate) fn master() -> Secret<32> {
    Secret::copy_from(&[0x31; 32])
}

pub(crate) fn options() -> VaultOpenOptions {
    let journal = JournalSize { checkpoint_at: 512 * PAGE as u64, max: 4096 * PAGE as u64 };
    VaultOpenOptions { commit_period: None, journal, ..VaultOpenOptions::default() }
}

pub(crate) fn directory(vault: &Vault, name: &str) -> u64 {
    match vault.lookup(ROOT, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => vault.create_node(ROOT, name.as_bytes(), NewNode::Directory, 0o750, 0, 0).unwrap().ino,
    }
}

pub(crate) fn write(vault: &Vault, expected_files: &mut ExpectedFiles, path: &str, content: &[u8]) {
    let (parent, name) = path.split_once('/').unwrap();
    let parent = directory(vault, parent);
    let ino = match vault.lookup(parent, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => vault.create_node(parent, name.as_bytes(), NewNode::File, 0o640, 0, 0).unwrap().ino,
    };
    vault.write(ino, 0, content).unwrap();
    let holds = expected_files.entry(path.to_owned()).or_default();
    holds.resize(holds.len().max(content.len()), 0);
    holds[..content.len()].copy_from_slice(content);
}

pub(crate) fn content(path: &str, round: u64, rng: &mut Rng) -> Vec<u8> {
    format!("{path}, round {round}. ").into_bytes().repeat(1 + rng.below(600) as usize)
}

/// The number of blocks of a rescued file that differ from the expected ones: they must be zeros.
/// Panics on any other difference.
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

/// Compares the output of a rescue with the expected content. Returns the missing files, and the
/// number of missing blocks in existing ones.
pub(crate) fn compare(target: &Path, expected_files: &ExpectedFiles, context: &str) -> (Vec<String>, u64) {
    let (mut absent, mut bad) = (Vec::new(), 0);
    for (path, expected) in expected_files {
        match std::fs::read(target.join(path)) {
            Ok(found) => bad += holes(&found, expected, &format!("{context}: {path}")),
            Err(_) => absent.push(path.clone()),
        }
    }
    (absent, bad)
}

pub(crate) fn rescue_to_temp(damaged: &Rescue) -> (tempfile::TempDir, RescueReport) {
    let target = tempfile::tempdir().unwrap();
    let report = rescue(damaged, target.path(), &mut |_| ()).unwrap();
    assert_eq!(report.lost as usize, report.missing.len());
    (target, report)
}

pub(crate) fn destroy_page(image: &mut FolderImage, name: &str, page: u64, rng: &mut Rng) {
    let bytes = if rng.chance(1, 2) { vec![0; PAGE] } else { rng.bytes(PAGE) };
    assert!(image.alter(name, |file| {
        let at = page as usize * PAGE;
        let end = file.len().min(at + PAGE);
        file[at..end].copy_from_slice(&bytes[..end - at]);
    }));
}

/// A vault of a process that was killed, and its content at each commit.
pub(crate) struct KilledVault {
    pub(crate) fixture: RescueFixture,
    pub(crate) image: FolderImage,
    pub(crate) states: BTreeMap<u64, ExpectedFiles>,
    /// The last commit.
    pub(crate) newest: u64,
}

impl KilledVault {
    /// A vault with a file, closed once, and then with a commit in each of these rounds.
    pub(crate) fn new(rounds: Range<u64>, rng: &mut Rng) -> KilledVault {
        let (fixture, mut expected_files) = (RescueFixture::new(), ExpectedFiles::new());
        let vault = fixture.create();
        write(&vault, &mut expected_files, "a/first", b"first");
        vault.close().unwrap();
        drop(vault);
        let vault = fixture.open(false).unwrap();
        let mut states = BTreeMap::from([(fixture.number(), expected_files.clone())]);
        for round in rounds {
            for n in 0..=rng.below(3) {
                let path = format!("{}/file {}", ["a", "b"][(n % 2) as usize], rng.below(12));
                let content = content(&path, round, rng);
                write(&vault, &mut expected_files, &path, &content);
            }
            vault.sync().unwrap();
            states.insert(fixture.number(), expected_files.clone());
        }
        let newest = fixture.number();
        drop(vault);
        let image = fixture.folder.snapshot();
        KilledVault { fixture, image, states, newest }
    }
}

/// A vault with a power cut during its last commit, a checkpoint with a new root; and its content
/// at each commit.
pub(crate) struct InterruptedVault {
    pub(crate) fixture: RescueFixture,
    pub(crate) image: FolderImage,
    pub(crate) states: BTreeMap<u64, ExpectedFiles>,
    /// Operations since the beginning of that commit.
    pub(crate) operations: u64,
}

impl InterruptedVault {
    /// A vault with a power cut in the operation after `cut` further ones.
    pub(crate) fn new(cut: u64) -> InterruptedVault {
        let (fixture, mut expected_files, mut rng) =
            (RescueFixture::new(), ExpectedFiles::new(), Rng::new(100));
        let mut round = |vault: &Vault, expected_files: &mut ExpectedFiles, round: u64| {
            for n in 0..12 {
                let path = format!("{}/a file with a longer name, number {n}", ["a", "b"][n % 2]);
                let content = content(&path, round, &mut rng);
                write(vault, expected_files, &path, &content[..content.len().min(6000)]);
            }
            write(vault, expected_files, &format!("c/made in round {round}"), b"new");
        };
        let vault = fixture.create();
        round(&vault, &mut expected_files, 0);
        vault.close().unwrap();
        drop(vault);
        let vault = fixture.open(false).unwrap();
        let mut states = BTreeMap::from([(fixture.number(), expected_files.clone())]);
        for nth in 1..4 {
            round(&vault, &mut expected_files, nth);
            if nth < 3 {
                vault.sync().unwrap();
                states.insert(fixture.number(), expected_files.clone());
            }
        }
        // The checkpoint has changes of its own.
        states.insert(fixture.number() + 1, expected_files);
        let before = fixture.folder.ops();
        fixture.folder.cut_after(cut);
        let _failed = vault.close();
        let operations = fixture.folder.ops() - before;
        fixture.folder.cut_now();
        drop(vault);
        let image = fixture.folder.after_cut(&mut Rng::new(cut));
        InterruptedVault { fixture, image, states, operations }
    }

    /// The largest number of blocks that one commit after the state `from` changed.
    pub(crate) fn changed_at_once(&self, from: u64) -> u64 {
        let later = self.states.range(from..).map(|(_, expected_files)| expected_files);
        later.clone().zip(later.skip(1)).map(|(earlier, later)| changed(earlier, later)).max().unwrap_or(0)
    }
}

/// Blocks of files that differ in the later of two states.
pub(crate) fn changed(earlier: &ExpectedFiles, later: &ExpectedFiles) -> u64 {
    let blocks = |path: &String, content: &[u8]| {
        let before = earlier.get(path).map_or(&[][..], Vec::as_slice);
        let block_before = |nth: usize| before.chunks(PAGE).nth(nth);
        content.chunks(PAGE).enumerate().filter(|(nth, block)| block_before(*nth) != Some(*block)).count()
            as u64
    };
    later.iter().map(|(path, content)| blocks(path, content)).sum()
}
