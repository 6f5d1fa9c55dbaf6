//! A vault in a folder that can be damaged, its expected content, and the comparison with the
//! output of a rescue.
#![allow(dead_code)]

use lacuna_contracts::{Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_integrity::Choice;
use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_storage::vault::{Rescue, RescueReport, rescue};
use lacuna_vault::store::{Anchor, JournalSize, MemoryAnchor, PAGE};
use lacuna_vault::{Base, NewNode, OpenOptions, ROOT, Time, Vault, VaultOptions, WallClock};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const UUID: [u8; 16] = [0x2e; 16];

/// The content of each file, by its path.
pub(crate) type Truth = BTreeMap<String, Vec<u8>>;

struct FixedClock;

impl WallClock for FixedClock {
    fn now(&self) -> Time {
        Time { secs: 1_700_000_000, nanos: 0 }
    }
}

/// A folder and the anchor of one machine.
pub(crate) struct World {
    pub(crate) folder: CrashFolder,
    pub(crate) anchor: Arc<MemoryAnchor>,
    pub(crate) sessions: AtomicU64,
}

impl World {
    pub(crate) fn new() -> World {
        World { folder: CrashFolder::new(), anchor: Arc::default(), sessions: AtomicU64::new(0) }
    }

    pub(crate) fn base(&self) -> Base {
        Base {
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
        Vault::create(self.base(), &master(), UUID, &options).unwrap()
    }

    pub(crate) fn open(&self, read_only: bool) -> Result<Vault> {
        Vault::open(self.base(), &master(), UUID, &OpenOptions { read_only, ..options() })
    }

    pub(crate) fn look(&mut self, image: &FolderImage) -> Result<Rescue> {
        self.folder = CrashFolder::from_image(image);
        self.folder.set_read_only(true);
        Rescue::open(self.base(), &master(), UUID, &options())
    }
}

pub(crate) fn master() -> Secret<32> {
    Secret::copy_from(&[0x31; 32])
}

pub(crate) fn options() -> OpenOptions {
    let journal = JournalSize { due: 512 * PAGE as u64, most: 4096 * PAGE as u64 };
    OpenOptions { commit_period: None, journal, ..OpenOptions::default() }
}

pub(crate) fn directory(vault: &Vault, name: &str) -> u64 {
    match vault.lookup(ROOT, name.as_bytes()) {
        Ok(attr) => attr.ino,
        Err(_) => vault.make(ROOT, name.as_bytes(), NewNode::Directory, 0o750, 0, 0).unwrap().ino,
    }
}

pub(crate) fn write(vault: &Vault, truth: &mut Truth, path: &str, content: &[u8]) {
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
pub(crate) fn compare(target: &Path, truth: &Truth, context: &str) -> (Vec<String>, u64) {
    let (mut absent, mut bad) = (Vec::new(), 0);
    for (path, expected) in truth {
        match std::fs::read(target.join(path)) {
            Ok(found) => bad += holes(&found, expected, &format!("{context}: {path}")),
            Err(_) => absent.push(path.clone()),
        }
    }
    (absent, bad)
}

pub(crate) fn bring_out(damaged: &Rescue) -> (tempfile::TempDir, RescueReport) {
    let target = tempfile::tempdir().unwrap();
    let report = rescue(damaged, target.path(), &mut |_| ()).unwrap();
    assert_eq!(report.lost as usize, report.missing.len());
    (target, report)
}

pub(crate) fn destroy(image: &mut FolderImage, name: &str, page: u64, rng: &mut Rng) {
    let bytes = if rng.chance(1, 2) { vec![0; PAGE] } else { rng.bytes(PAGE) };
    assert!(image.alter(name, |file| {
        let at = page as usize * PAGE;
        let end = file.len().min(at + PAGE);
        file[at..end].copy_from_slice(&bytes[..end - at]);
    }));
}
