//! The open files, and the memory budget of each.

use crate::BLOCK;
use crate::content::open_file::OpenFile;
use crate::nodes::inode_record::InodeRecord;
use crate::nodes::inodes::Inode;
use lacuna_contracts::{BoundedCache, Budget, Result, Secret};
use lacuna_integrity::{Choice, FileKeys, ProtectedFile, Session, Trusted};
use parking_lot::Mutex;
use std::sync::Arc;

/// The approximate memory of an open file without cached pages of its untrusted storage.
const FILE_BYTES: u64 = 8 << 10;
/// The bytes of cache per block, for twice the blocks that a file has when it is opened. A page of
/// tags and one of counters have 128 blocks, and take some 2 KiB each in memory. Half of a cache
/// may wait for a commit, so each such page of the file goes into a commit once at most.
const BLOCK_PAGES: u64 = 34;
/// The most open files, however small.
const MOST: usize = 4096;

/// The open files; those unused for about the longest time are closed first.
pub(crate) struct OpenFiles {
    master: Secret<32>,
    /// The scheme of files without a choice of their directory.
    choice: Choice,
    /// The memory of all open files, in bytes.
    total: u64,
    held: Mutex<OpenFilesState>,
}

struct OpenFilesState {
    files: BoundedCache<u64, (Arc<Inode>, u64)>,
    bytes: u64,
}

impl OpenFiles {
    /// Starts without open files. They take a quarter of the budget.
    pub(crate) fn new(master: Secret<32>, choice: Choice, budget: Budget) -> OpenFiles {
        let held = Mutex::new(OpenFilesState { files: BoundedCache::new(MOST), bytes: 0 });
        OpenFiles { master, choice, total: budget.get() / 4, held }
    }

    /// The scheme of files without a choice of their directory.
    pub(crate) fn default_choice(&self) -> Choice {
        self.choice
    }

    /// Opens the content of an inode.
    ///
    /// Errors: [`lacuna_contracts::Kind::Corrupt`] if its trusted storage is malformed.
    pub(crate) fn open(&self, session: Session, ino: u64, record: &InodeRecord) -> Result<OpenFile> {
        let keys = FileKeys::derive(&self.master, ino);
        let choice = record.choice.unwrap_or(self.choice);
        let blocks = record.size.div_ceil(BLOCK as u64);
        let protected = if record.trusted.is_empty() {
            ProtectedFile::init(keys, choice, session)
        } else {
            let trusted = Trusted::parse(&record.trusted)?;
            ProtectedFile::open(keys, &trusted, session, Budget::bytes(self.pages_budget(blocks)))?
        };
        Ok(OpenFile { protected, budgeted_blocks: blocks })
    }

    /// The memory for the pages of a file of this many blocks, in bytes.
    fn pages_budget(&self, blocks: u64) -> u64 {
        (blocks.saturating_mul(BLOCK_PAGES) + 4096).min(self.total / 2)
    }

    /// Notes a use of a file; other files may be closed for it. The caller has locked the file's
    /// inode.
    pub(crate) fn note_use(&self, inode: &Arc<Inode>, open: &mut OpenFile) {
        let blocks = open.protected.blocks();
        let mut held = self.held.lock();
        if blocks <= open.budgeted_blocks && held.files.get(inode.ino).is_some() {
            return;
        }
        open.budgeted_blocks = open.budgeted_blocks.max(blocks.saturating_mul(2));
        let pages = self.pages_budget(open.budgeted_blocks);
        open.protected.set_budget(Budget::bytes(pages));
        let cost = FILE_BYTES + pages;
        if let Some((_, old)) = held.files.put(inode.ino, (inode.clone(), cost)) {
            held.bytes -= old;
        }
        held.bytes += cost;
        held.evict_unused(inode.ino, self.total);
    }

    /// Notes that a file was closed.
    pub(crate) fn note_closed(&self, ino: u64) {
        let mut held = self.held.lock();
        if let Some((_, cost)) = held.files.remove(ino) {
            held.bytes -= cost;
        }
    }

    /// The number of open files.
    pub(crate) fn count(&self) -> usize {
        self.held.lock().files.len()
    }
}

impl OpenFilesState {
    /// Closes files that have no uncommitted changes and that no caller is using.
    fn evict_unused(&mut self, except: u64, most: u64) {
        // Skips a few files that cannot be closed; the next call continues after them.
        for _ in 0..8 {
            if self.bytes <= most && !self.files.is_full() {
                return;
            }
            let Some((ino, (inode, cost))) = self.files.evict(|ino, _| ino != except) else { return };
            let given_up = inode.body.try_write().is_some_and(|mut body| {
                let clean = body.file.as_ref().is_none_or(|open| !open.protected.is_dirty());
                if clean {
                    body.file = None;
                }
                clean
            });
            if given_up {
                self.bytes -= cost;
            } else {
                self.files.put(ino, (inode, cost));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NewNode, ROOT, SystemWallClock, Vault, VaultBacking, VaultOpenOptions, VaultOptions};
    use lacuna_crypto::SeededRandom;
    use lacuna_sim::CrashFolder;
    use lacuna_vault_store::MemoryAnchor;

    /// Blocks with one page of tags, and with one page of counters.
    const PAGE_BLOCKS: u64 = 128;

    /// Writes all over a file that was just opened leave its pages of tags and counters in memory,
    /// so the next commit has each of them once.
    #[test]
    fn changed_pages_of_a_file_wait_for_the_commit() {
        let base = VaultBacking {
            folder: Arc::new(CrashFolder::new()),
            anchor: Arc::new(MemoryAnchor::default()),
            random: Arc::new(SeededRandom::new(1)),
            clock: Arc::new(SystemWallClock),
        };
        let open = VaultOpenOptions { commit_period: None, ..VaultOpenOptions::default() };
        let options = VaultOptions { open: open.clone(), ..VaultOptions::default() };
        let (master, uuid) = (Secret::copy_from(&[7; 32]), [5; 16]);
        let vault = Vault::create(base.clone(), &master, uuid, &options).unwrap();
        let ino = vault.create_node(ROOT, b"a", NewNode::File, 0o644, 0, 0).unwrap().ino;
        // TS does not hold the intervals of counters that these writes make, so pages hold them.
        let write_all_over = |vault: &Vault| {
            for page in 1..=40 {
                let block = page * PAGE_BLOCKS - 1;
                let written = vault.write(ino, block * BLOCK as u64, &[page as u8; BLOCK]);
                assert_eq!(written.unwrap(), BLOCK);
            }
        };
        write_all_over(&vault);
        vault.close().unwrap();
        drop(vault);
        let vault = Vault::open(base, &master, uuid, &open).unwrap();
        let pending = || vault.contents().namespace.pending_bytes();
        let before = pending();
        write_all_over(&vault);
        assert_eq!(pending(), before);
        vault.sync().unwrap();
        assert_eq!(pending(), 0);
    }
}
