//! What a vault is made and opened with, and what it reports of itself.

use crate::Time;
use lacuna_contracts::Budget;
use lacuna_integrity::{Choice, Scheme};
use lacuna_vault_store::{Consent, JournalSize};
use std::sync::Arc;
use std::time::Duration;

/// Where a vault says what a person should know: one line at a time, without a newline.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// The time between two commits if nobody asks for one sooner.
pub const COMMIT_PERIOD: Duration = Duration::from_secs(5);

/// How to make a vault.
#[derive(Clone)]
pub struct VaultOptions {
    /// The scheme of files whose directory names none.
    pub choice: Choice,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u16,
    /// How the new vault is open.
    pub open: OpenOptions,
}

impl Default for VaultOptions {
    fn default() -> Self {
        VaultOptions { choice: Choice::Auto, uid: 0, gid: 0, mode: 0o755, open: OpenOptions::default() }
    }
}

/// How to open a vault.
#[derive(Clone)]
pub struct OpenOptions {
    /// Refuse every change.
    pub read_only: bool,
    /// Accept what is there although the anchor knows of another state: a backup that was restored
    /// on purpose.
    pub accept: Option<Consent>,
    /// Memory of all caches.
    pub budget: Budget,
    /// Time between commits that nobody asked for; without it there is no timer and no thread.
    pub commit_period: Option<Duration>,
    /// How large the journal may become.
    pub journal: JournalSize,
    /// Where findings go.
    pub log: Log,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            read_only: false,
            accept: None,
            budget: Budget::default(),
            commit_period: Some(COMMIT_PERIOD),
            journal: JournalSize::default(),
            log: Arc::new(|_| ()),
        }
    }
}

/// How one file is protected: paper 002's amounts of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The scheme that protects it now.
    pub scheme: Scheme,
    /// What it was asked to be.
    pub choice: Choice,
    /// Bytes of trusted storage: what the namespace keeps of its integrity.
    pub trusted_bytes: u64,
    /// Bytes of untrusted storage beside the blocks: tree, positions, counters.
    pub untrusted_bytes: u64,
    /// Blocks, holes among them.
    pub blocks: u64,
    /// Blocks that look random or do not compress.
    pub random_looking: u64,
    /// Intervals of equal write counters.
    pub intervals: u64,
    /// Name of its backing file in the vault's directory; none before its first write.
    pub backing: Option<String>,
    /// When its content was last changed.
    pub mtime: Time,
}

/// What [`crate::Vault::check`] found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Files that were read.
    pub files: u64,
    /// Blocks that verify, holes among them.
    pub blocks: u64,
    /// Blocks, and whole files, that do not verify.
    pub places: u64,
    /// Pages of the namespace that verify, and that only one of their two backing files holds.
    pub single: u64,
    /// Whether one of the two superblocks does not verify, and no crash explains it.
    pub lacks_superblock: bool,
    /// What does not verify, in the order in which it was found: at most [`CheckReport::NAMED`] of
    /// them.
    pub bad: Vec<BadFile>,
}

impl CheckReport {
    /// Bad places that are named one by one. A lost backing file of any length is one.
    pub const NAMED: usize = 65536;

    /// Takes note of a bad place. Neighbours with one verdict become one.
    pub(crate) fn add(&mut self, found: BadFile) {
        self.places += found.blocks;
        if let Some(last) = self.bad.last_mut().filter(|last| last.is_followed_by(&found)) {
            last.blocks += found.blocks;
        } else if self.bad.len() < Self::NAMED {
            self.bad.push(found);
        }
    }

    /// Whether every bad place is named.
    pub fn is_whole(&self) -> bool {
        self.bad.iter().map(|bad| bad.blocks).sum::<u64>() == self.places
    }
}

/// A run of blocks, or a file, that does not verify.
#[derive(Clone, Debug)]
pub struct BadFile {
    /// Its plain path in the vault.
    pub path: String,
    /// Its backing file; empty if it has none.
    pub backing: String,
    /// The first of its bad blocks; none if the whole of it cannot be read.
    pub block: Option<u64>,
    /// How many blocks from there on; one for a whole file.
    pub blocks: u64,
    /// What is wrong with it.
    pub why: String,
}

impl BadFile {
    fn is_followed_by(&self, next: &BadFile) -> bool {
        let neighbours = self.block.is_some_and(|first| next.block == Some(first + self.blocks));
        neighbours && self.why == next.why && self.path == next.path && self.backing == next.backing
    }
}
