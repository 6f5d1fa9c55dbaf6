//! Admission: whether the backing directory has space for one more change: for what it writes, for the record of the commit that makes it
//! durable, and for the places that the journal's pages go to.
//!
//! Invariant: a change that adds something is let in only if everything so far can be committed, and then brought to its place. So a
//! full file system refuses what is new, and never what was acknowledged; what removes something is let in, and finds the space that is
//! left free here. Where others take that too, what was let in can still be committed: the journal has the space for its record.
//!
//! No lock is held here. The figures of the namespace and of the inodes are atomic copies, which their owners renew under their own locks,
//! and the store is asked once for the journal's part.

use crate::inodes::Inodes;
use crate::namespace::Namespace;
use lacuna_contracts::Result;
use lacuna_medium::Space;
use lacuna_vault_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Bytes of puts for a changed inode that is not written back yet.
const RECORD: u64 = 512;
/// Bytes that any change may take beside its content.
const CHANGE: u64 = 16 << 10;
/// Bytes of puts for content, at most: blocks go elsewhere.
const PUTS: u64 = 64 << 10;
/// What the tags of content that was written since the last commit take in it: a quarter of the content at most, and not more than this.
const TAGS: u64 = 4 << 20;
/// Bytes that a change which adds nothing leaves for those that remove something.
const SPARE: u64 = 64 << 10;
/// Bytes above what must stay free, below which the file system is asked at each change. Beyond, changes take a part of it before it is
/// asked again.
const MUCH: u64 = 256 << 20;
/// That part.
const PART: u64 = 8;
/// Files of which as much is said.
const MANY: u64 = 1 << 15;

/// The space budget of an open vault.
pub(crate) struct SpaceBudget {
    store: Arc<Store>,
    namespace: Arc<Namespace>,
    inodes: Arc<Inodes>,
    /// Bytes of file content that were written since the last commit.
    written: AtomicU64,
    /// There was no space for the last write that asked: what need not be written is not.
    short: AtomicBool,
    /// Bytes that may be taken before the file system is asked again.
    known: AtomicU64,
    /// The number of the system for the last want of room.
    lacking: AtomicI32,
}

impl SpaceBudget {
    pub(crate) fn new(store: Arc<Store>, namespace: Arc<Namespace>, inodes: Arc<Inodes>) -> SpaceBudget {
        SpaceBudget {
            store,
            namespace,
            inodes,
            written: AtomicU64::new(0),
            short: AtomicBool::new(false),
            known: AtomicU64::new(0),
            lacking: AtomicI32::new(libc::ENOSPC),
        }
    }

    /// Notes file content that was written, in bytes.
    pub(crate) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of file content that were written since the last commit.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// A commit takes what was written.
    pub(crate) fn commit_written(&self) {
        self.written.store(0, Ordering::Relaxed);
    }

    /// Whether there was no space for the last write that asked.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Whether there is room for a change of so many bytes. Takes the journal's part of it.
    pub(crate) fn reserve_write(&self, bytes: u64) -> Result<bool> {
        let store = &self.store;
        let is = self.is_free(bytes + CHANGE)? && {
            let beside = self.namespace.owed() / 3 + bytes;
            self.is_space(store.reserve_commit(
                self.puts() + bytes.min(PUTS) + CHANGE,
                store.journal_step(),
                beside,
            ))?
        };
        self.short.store(!is, Ordering::Relaxed);
        Ok(is)
    }

    /// Whether the journal has, or finds, space for the commit of what changed so far and of a change that adds nothing.
    pub(crate) fn reserve_metadata(&self) -> Result<bool> {
        self.is_space(self.store.reserve_commit(self.puts() + CHANGE, SPARE, 0))
    }

    /// The same for a change that removes something: nothing need be left.
    pub(crate) fn reserve_commit(&self) -> Result<bool> {
        self.is_space(self.store.reserve_commit(self.puts() + CHANGE, 0, 0))
    }

    /// What the system calls the want of room that was met last: ENOSPC, or EDQUOT where there is a quota.
    pub(crate) fn lacking(&self) -> i32 {
        self.lacking.load(Ordering::Relaxed)
    }

    /// The file system is asked again before the next change: others may have filled it.
    pub(crate) fn look_again(&self) {
        self.known.store(0, Ordering::Release);
        self.short.store(false, Ordering::Relaxed);
    }

    /// Space of the backing file system, less what must stay free.
    pub(crate) fn space(&self) -> Result<Space> {
        let space = self.store.space()?;
        let (owed, files) = self.owed();
        Ok(Space {
            free_bytes: space.free_bytes.saturating_sub(owed),
            free_files: space.free_files.saturating_sub(files),
            ..space
        })
    }

    /// Whether the file system has so many bytes beside what must stay free.
    fn is_free(&self, bytes: u64) -> Result<bool> {
        let taken =
            self.known.fetch_update(Ordering::AcqRel, Ordering::Acquire, |known| known.checked_sub(bytes));
        if taken.is_ok() {
            return Ok(true);
        }
        let space = self.store.space()?;
        let (owed, files) = self.owed();
        let counted = space.total_files > 0;
        if space.free_bytes < owed.saturating_add(bytes) || (counted && space.free_files < files) {
            self.lacking.store(libc::ENOSPC, Ordering::Relaxed);
            return Ok(false);
        }
        let more = space.free_bytes - owed;
        let much = more >= MUCH && (!counted || space.free_files - files >= MANY);
        self.known.store(if much { more / PART } else { 0 }, Ordering::Release);
        Ok(true)
    }

    /// Bytes of the next commit's puts, about.
    fn puts(&self) -> u64 {
        let tags = (self.written() / 4).min(TAGS);
        self.namespace.pending_bytes() as u64 + RECORD * self.inodes.changed() as u64 + tags
    }

    /// What must stay free: bytes, and files.
    fn owed(&self) -> (u64, u64) {
        let (bytes, files) = self.store.owed();
        (bytes + self.namespace.owed(), files)
    }

    /// Whether space was taken. What the host refuses is not there.
    fn is_space(&self, reserved: Result<()>) -> Result<bool> {
        match reserved {
            Err(e) if e.kind().is_refusal() => {
                self.lacking.store(e.errno(), Ordering::Relaxed);
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }
}
