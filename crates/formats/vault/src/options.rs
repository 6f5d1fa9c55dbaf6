//! The options for making and opening a vault, and its reports.

use crate::Time;
use lacuna_contracts::{Budget, Kind};
use lacuna_integrity::{Choice, Scheme};
use lacuna_vault_store::{JournalSize, RollbackPolicy};
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

/// The log of a vault, for messages to the user: one line per call, without a newline.
pub type VaultLog = Arc<dyn Fn(&str) + Send + Sync>;

/// The default time between automatic commits.
pub const COMMIT_PERIOD: Duration = Duration::from_secs(5);

/// The options for making a vault.
#[derive(Clone)]
pub struct VaultOptions {
    /// The scheme of files without a choice of their directory.
    pub choice: Choice,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Permission bits of the root directory.
    pub mode: u16,
    /// The options for the open vault.
    pub open: VaultOpenOptions,
}

impl Default for VaultOptions {
    fn default() -> Self {
        VaultOptions { choice: Choice::Auto, uid: 0, gid: 0, mode: 0o755, open: VaultOpenOptions::default() }
    }
}

/// The options for opening a vault.
#[derive(Clone)]
pub struct VaultOpenOptions {
    /// Refuses every change.
    pub read_only: bool,
    /// Accepts a state that does not descend from the anchored state, such as a restored backup.
    pub on_rollback: Option<RollbackPolicy>,
    /// The memory of all caches.
    pub budget: Budget,
    /// The time between automatic commits; `None` for no timer and no thread.
    pub commit_period: Option<Duration>,
    /// The size limits of the journal.
    pub journal: JournalSize,
    /// The log.
    pub log: VaultLog,
}

impl Default for VaultOpenOptions {
    fn default() -> Self {
        VaultOpenOptions {
            read_only: false,
            on_rollback: None,
            budget: Budget::default(),
            commit_period: Some(COMMIT_PERIOD),
            journal: JournalSize::default(),
            log: Arc::new(|_| ()),
        }
    }
}

/// The protection of one file: paper 002's amounts of storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStat {
    /// The current scheme.
    pub scheme: Scheme,
    /// The chosen scheme.
    pub choice: Choice,
    /// Bytes of trusted storage for integrity, in the namespace.
    pub trusted_bytes: u64,
    /// Bytes of untrusted storage besides the blocks: tree, positions, counters.
    pub untrusted_bytes: u64,
    /// The number of blocks, including holes.
    pub blocks: u64,
    /// Blocks that look random (RAND-EINT) or do not compress (COMP-EINT), or an estimate of the
    /// random-looking ones (MT-EINT). `None` if they are not counted.
    pub random_looking: Option<u64>,
    /// Intervals of equal write counters.
    pub intervals: u64,
    /// The name of its backing file in the vault's directory; `None` before its first write.
    pub backing: Option<String>,
    /// The time of the last change of content.
    pub mtime: Time,
}

/// The result of [`crate::Vault::check`].
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The number of files that were read.
    pub files: u64,
    /// Blocks that verify, including holes.
    pub blocks: u64,
    /// Blocks, and whole files, that do not verify.
    pub bad_count: u64,
    /// Pages of the namespace that verify, but only in one of their two backing files.
    pub single_copy_pages: u64,
    /// Whether one of the two superblocks does not verify although no crash explains it.
    pub lacks_superblock: bool,
    /// Blocks and files that do not verify, in the order of the check: at most
    /// [`CheckReport::MAX_LISTED`].
    pub bad: Vec<BadFile>,
}

impl CheckReport {
    /// The most bad places that are listed. A lost backing file of any length is one place.
    pub const MAX_LISTED: usize = 65536;

    /// Adds a bad place. Adjacent blocks with the same reason become one run.
    pub(crate) fn add(&mut self, found: BadFile) {
        self.bad_count += found.blocks;
        if let Some(last) = self.bad.last_mut().filter(|last| last.is_followed_by(&found)) {
            last.blocks += found.blocks;
        } else if self.bad.len() < Self::MAX_LISTED {
            self.bad.push(found);
        }
    }

    /// Whether every bad place is listed.
    pub fn lists_all(&self) -> bool {
        self.bad.iter().map(|bad| bad.blocks).sum::<u64>() == self.bad_count
    }
}

/// A run of blocks, or a file, that does not verify.
#[derive(Clone, Debug)]
pub struct BadFile {
    /// The plain path in the vault, which need not be UTF-8.
    pub path: OsString,
    /// The backing file; empty if it has none.
    pub backing: String,
    /// The first bad block; `None` if the whole file cannot be read.
    pub block: Option<u64>,
    /// The number of bad blocks; 1 for a whole file.
    pub blocks: u64,
    /// The kind of the error.
    pub kind: Kind,
    /// The reason, for the first block.
    pub reason: String,
}

impl BadFile {
    fn is_followed_by(&self, next: &BadFile) -> bool {
        let neighbours = self.block.is_some_and(|first| next.block == Some(first + self.blocks));
        // The system's message of a failed read names its position, which differs from block to
        // block.
        let alike = self.kind == next.kind && (self.kind != Kind::Corrupt || self.reason == next.reason);
        neighbours && alike && self.path == next.path && self.backing == next.backing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_blocks_are_one_run_unless_the_damage_differs() {
        let mut report = CheckReport::default();
        let mut add = |path: &str, block: u64, kind: Kind, reason: &str| {
            let (path, backing, reason) = (path.into(), "aa/bb".to_owned(), reason.to_owned());
            report.add(BadFile { path, backing, block: Some(block), blocks: 1, kind, reason });
        };
        (3..6)
            .for_each(|block| add("/a", block, Kind::Io, &format!("cannot read 4096 bytes at byte {block}")));
        add("/a", 6, Kind::Corrupt, "does not verify");
        add("/a", 7, Kind::Corrupt, "does not verify");
        add("/a", 8, Kind::Corrupt, "page 1 of the tree of tags does not verify");
        add("/a", 10, Kind::Corrupt, "page 1 of the tree of tags does not verify");
        add("/b", 11, Kind::Corrupt, "page 1 of the tree of tags does not verify");
        let runs: Vec<_> = report.bad.iter().map(|bad| (bad.block.unwrap(), bad.blocks)).collect();
        assert_eq!(runs, [(3, 3), (6, 2), (8, 1), (10, 1), (11, 1)]);
        assert!(report.bad_count == 8 && report.lists_all());
        assert_eq!(report.bad[0].reason, "cannot read 4096 bytes at byte 3");
    }
}
