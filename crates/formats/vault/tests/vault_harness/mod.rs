//! A vault on a simulated folder beside a plain model of its expected content.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../../parts/vault-store/tests/cut_anchor/mod.rs"]
mod cut_anchor;
pub mod dump;
pub mod model;
pub mod ops;
pub mod states;

use cut_anchor::CutAnchor;
use lacuna_contracts::{Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_integrity::Choice;
use lacuna_sim::CrashFolder;
use lacuna_vault::store::{Anchor, JournalSize, MemoryAnchor, PAGE};
use lacuna_vault::{Time, Vault, VaultBacking, VaultOpenOptions, VaultOptions, WallClock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub const UUID: [u8; 16] = [0x5e; 16];

/// A clock that advances a little at each reading.
pub struct TestClock(AtomicI64);

impl TestClock {
    pub fn new() -> Arc<TestClock> {
        Arc::new(TestClock(AtomicI64::new(1_700_000_000_000)))
    }

    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1000, Ordering::Relaxed);
    }
}

impl WallClock for TestClock {
    fn now(&self) -> Time {
        let at = self.0.fetch_add(1, Ordering::Relaxed);
        Time { secs: at.div_euclid(1000), nanos: at.rem_euclid(1000) as u32 * 1_000_000 }
    }
}

/// A folder, the anchor of one machine, a clock and a log.
pub struct VaultHarness {
    pub folder: CrashFolder,
    pub memory: Arc<MemoryAnchor>,
    pub clock: Arc<TestClock>,
    pub log: Arc<Mutex<Vec<String>>>,
    pub journal: JournalSize,
    pub seed: u64,
    sessions: u64,
}

impl VaultHarness {
    pub fn new(seed: u64) -> VaultHarness {
        VaultHarness {
            folder: CrashFolder::new(),
            memory: Arc::new(MemoryAnchor::default()),
            clock: TestClock::new(),
            log: Arc::default(),
            journal: JournalSize { checkpoint_at: 64 * PAGE as u64, max: 4096 * PAGE as u64 },
            seed,
            sessions: 0,
        }
    }

    /// The number of the anchored commit.
    pub fn memory_number(&self) -> u64 {
        self.memory.load().unwrap().map_or(0, |state| state.number)
    }

    /// Clears the anchor.
    pub fn forget(&mut self) {
        self.memory = Arc::default();
    }

    /// The master key that the second reader of protected files knows.
    pub fn master() -> Secret<32> {
        Secret::copy_from(&[7; 32])
    }

    pub fn base(&mut self) -> VaultBacking {
        self.sessions += 1;
        VaultBacking {
            folder: Arc::new(self.folder.clone()),
            anchor: Arc::new(CutAnchor { memory: self.memory.clone(), folder: self.folder.clone() }),
            random: Arc::new(SeededRandom::new(self.seed * 1000 + self.sessions)),
            clock: self.clock.clone(),
        }
    }

    pub fn options(&self) -> VaultOpenOptions {
        let log = self.log.clone();
        VaultOpenOptions {
            commit_period: None,
            journal: self.journal,
            log: Arc::new(move |line: &str| log.lock().push(line.to_owned())),
            ..VaultOpenOptions::default()
        }
    }

    pub fn create(&mut self, choice: Choice) -> Vault {
        let options = VaultOptions { choice, open: self.options(), ..VaultOptions::default() };
        Vault::create(self.base(), &VaultHarness::master(), UUID, &options).unwrap()
    }

    pub fn open(&mut self) -> Result<Vault> {
        let options = self.options();
        Vault::open(self.base(), &VaultHarness::master(), UUID, &options)
    }

    /// Closes a vault of this folder and opens it again.
    pub fn reopen(&mut self, vault: Vault) -> Vault {
        vault.close().unwrap();
        drop(vault);
        self.open().unwrap()
    }

    pub fn open_with(&mut self, change: impl FnOnce(&mut VaultOpenOptions)) -> Result<Vault> {
        let mut options = self.options();
        change(&mut options);
        Vault::open(self.base(), &VaultHarness::master(), UUID, &options)
    }
}
