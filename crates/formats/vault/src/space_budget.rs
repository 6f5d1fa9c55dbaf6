//! Admission: whether the backing directory has space for one more change: for what it writes, for
//! the record of the commit that makes it durable, and for the places that the journal's pages go
//! to.
//!
//! Invariant: a change that adds something is let in only if everything so far, and all that the
//! transactions under way may add, can be committed, and then brought to its place. So a full file
//! system refuses what is new, and never what was acknowledged; what removes something is let in,
//! and finds the space that is left free here.
//!
//! A [`Reservation`] counts what its transaction may take from before the check until the
//! transaction ends. What the transaction puts meanwhile is counted twice, and never not at all:
//! the sums of the reservations are read before the figures that follow from the changes, and a
//! transaction renews these figures before it gives its reservation back. So these figures are too
//! high for a change that begins beside others: of two that begin at once each may count the other,
//! and what a write overwrites, or fails to write, it does not take. None is refused for that: a
//! change that does not fit beside others is measured once more when it is the only one
//! (`group_commit.rs`). The journal file that was prepared is the one that is written to: a commit
//! with a root goes to the other file, and none does while a reservation lives.
//!
//! The pages of content that a write takes from the journal count as space of the file system.
//! Where other programs take that space first, the write is refused, or the next one; each taking
//! of pages leaves a step of the journal behind it (`Store::journal_step`), which holds the record
//! of a usual commit. A larger record waits until there is space. Two kinds of changes reserve
//! without a check: the reclaim after a last handle, and a removal whose record finds no space even
//! after a commit. Times of access reserve nothing: they are noted only while the last write found
//! space and few inodes are changed, and may take that step.
//!
//! No lock is held here. The figures of the namespace and of the inodes are atomic copies, which
//! their owners renew under their own locks, and the store is asked once for the journal's part.

use crate::BLOCK;
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
/// What the tags of content that was written since the last commit take in it: a quarter of the
/// content at most, and not more than this.
const TAGS: u64 = 4 << 20;
/// Bytes that a change which adds nothing leaves for those that remove something.
const SPARE: u64 = 64 << 10;
/// Bytes above what must stay free, below which the file system is asked at each change. Beyond,
/// changes take a part of it before it is asked again.
const MUCH: u64 = 256 << 20;
/// That part.
const PART: u64 = 8;
/// Files of which as much is said.
const MANY: u64 = 1 << 15;

/// What a transaction reserves when it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// Space for something new of about this many bytes.
    Write(u64),
    /// Space for a change that takes little more than there was before.
    Metadata,
    /// Space for its part of the record alone: a removal makes space.
    Removal,
}

impl Reserve {
    /// Bytes of puts in the next commit, and bytes of the file system, that it may take at most.
    fn most(self) -> (u64, u64) {
        match self {
            Reserve::Write(bytes) => (bytes.min(PUTS) + CHANGE, bytes.saturating_add(CHANGE)),
            Reserve::Metadata | Reserve::Removal => (CHANGE, 0),
        }
    }
}

/// What a transaction may take, counted until this is dropped.
pub(crate) struct Reservation<'a> {
    budget: &'a SpaceBudget,
    change: Reserve,
}

impl Reservation<'_> {
    /// Whether there is room for the change, beside everything so far and all other reservations.
    pub(crate) fn fits(&self) -> Result<bool> {
        match self.change {
            Reserve::Write(_) => self.budget.has_room_for_write(self.change.most().1),
            // Some is left for changes that remove something.
            Reserve::Metadata => self.budget.has_room_for_record(0, SPARE, 0),
            Reserve::Removal => self.budget.has_room_for_record(0, 0, 0),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let (puts, content) = self.change.most();
        self.budget.reserved_puts.fetch_sub(puts, Ordering::AcqRel);
        if content > 0 {
            self.budget.reserved_content.fetch_sub(content, Ordering::AcqRel);
        }
    }
}

/// The space budget of an open vault.
pub(crate) struct SpaceBudget {
    store: Arc<Store>,
    namespace: Arc<Namespace>,
    inodes: Arc<Inodes>,
    /// Sums of what the reservations may take: bytes of puts, and bytes of the file system.
    reserved_puts: AtomicU64,
    reserved_content: AtomicU64,
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
            reserved_puts: AtomicU64::new(0),
            reserved_content: AtomicU64::new(0),
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

    /// Bytes that one transaction writes at most, whole blocks: all of them may go to the journal,
    /// which holds about twice as much.
    pub(crate) fn most_of_write(&self) -> usize {
        (self.store.journal_most() / 2).max(1).next_multiple_of(BLOCK as u64) as usize
    }

    /// Counts what a change may take from now on. Whether there is room for it,
    /// [`Reservation::fits`] says.
    pub(crate) fn reserve(&self, change: Reserve) -> Reservation<'_> {
        let (puts, content) = change.most();
        self.reserved_puts.fetch_add(puts, Ordering::AcqRel);
        if content > 0 {
            self.reserved_content.fetch_add(content, Ordering::AcqRel);
        }
        Reservation { budget: self, change }
    }

    /// Whether the journal has, or finds, space for the record of a commit of everything so far.
    pub(crate) fn holds_commit(&self) -> Result<bool> {
        self.has_room_for_record(CHANGE, 0, 0)
    }

    /// Whether there is room for a write that reserved so many bytes of the file system.
    fn has_room_for_write(&self, own: u64) -> Result<bool> {
        let is = self.is_free(own)? && {
            // Its pages may go to the journal first. The change beside its content is in the puts.
            let content = self.reserved_content.load(Ordering::Acquire).saturating_sub(CHANGE);
            let beside = (self.namespace.owed() / 4).saturating_add(content);
            self.has_room_for_record(0, self.store.journal_step(), beside)?
        };
        self.short.store(!is, Ordering::Relaxed);
        Ok(is)
    }

    /// Whether the journal has, or finds, space for the record of everything so far, of all
    /// reservations and of `more` bytes of puts, with `spare` bytes behind it, and may take
    /// `beside` more bytes.
    fn has_room_for_record(&self, more: u64, spare: u64, beside: u64) -> Result<bool> {
        self.is_space(self.store.prepare_record(self.puts() + more, spare, beside))
    }

    /// What the system calls the want of room that was met last: ENOSPC, or EDQUOT where there is a
    /// quota.
    pub(crate) fn lacking(&self) -> i32 {
        self.lacking.load(Ordering::Relaxed)
    }

    /// Forgets what was known of the file system: other programs may have filled it, so it is asked
    /// again before the next change; or they may have made space, so it does not count as short
    /// until a write finds none.
    pub(crate) fn forget_space(&self) {
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

    /// Whether the file system has so many bytes, which are reserved, beside what must stay free
    /// and what else is reserved.
    fn is_free(&self, own: u64) -> Result<bool> {
        let taken =
            self.known.fetch_update(Ordering::AcqRel, Ordering::Acquire, |known| known.checked_sub(own));
        if taken.is_ok() {
            return Ok(true);
        }
        // Read first: what a transaction gives back later is missing from the free space already.
        let bytes = self.reserved_content.load(Ordering::Acquire);
        let space = self.store.space()?;
        let (owed, files) = self.owed();
        let counted = space.total_files > 0;
        if space.free_bytes < owed.saturating_add(bytes) || (counted && space.free_files < files) {
            self.lacking.store(libc::ENOSPC, Ordering::Relaxed);
            return Ok(false);
        }
        let more = space.free_bytes - owed - bytes;
        let much = more >= MUCH && (!counted || space.free_files - files >= MANY);
        self.known.store(if much { more / PART } else { 0 }, Ordering::Release);
        Ok(true)
    }

    /// Bytes of the next commit's puts, about, with those that are reserved. What turns into
    /// something else is read before that: a reservation into changed inodes, a changed inode into
    /// pending bytes.
    fn puts(&self) -> u64 {
        let reserved = self.reserved_puts.load(Ordering::Acquire);
        let records = RECORD * self.inodes.changed() as u64;
        let tags = (self.written() / 4).min(TAGS);
        reserved + records + tags + self.namespace.pending_bytes() as u64
    }

    /// What must stay free: bytes, and files.
    fn owed(&self) -> (u64, u64) {
        let (bytes, files) = self.store.owed();
        (bytes + self.namespace.owed(), files)
    }

    /// Whether space was prepared. What the host refuses is not there.
    fn is_space(&self, prepared: Result<()>) -> Result<bool> {
        match prepared {
            Err(e) if e.kind().is_refusal() => {
                self.lacking.store(e.errno(), Ordering::Relaxed);
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Base, NewNode, OpenOptions, ROOT, SystemWallClock, Vault, VaultOptions};
    use lacuna_contracts::{Error, Kind, Secret};
    use lacuna_crypto::SeededRandom;
    use lacuna_sim::CrashFolder;
    use lacuna_vault_store::MemoryAnchor;

    fn new_vault(folder: &CrashFolder) -> Vault {
        let base = Base {
            folder: Arc::new(folder.clone()),
            anchor: Arc::new(MemoryAnchor::default()),
            random: Arc::new(SeededRandom::new(1)),
            clock: Arc::new(SystemWallClock),
        };
        let open = OpenOptions { commit_period: None, ..OpenOptions::default() };
        let options = VaultOptions { open, ..VaultOptions::default() };
        Vault::create(base, &Secret::copy_from(&[7; 32]), [5; 16], &options).unwrap()
    }

    /// Two changes that begin at the same time do not reserve the same space.
    #[test]
    fn space_that_is_reserved_is_not_there_for_others() {
        let folder = CrashFolder::new();
        let vault = new_vault(&folder);
        let contents = vault.contents();
        let (store, namespace) = (contents.store.clone(), contents.namespace.clone());
        let space = SpaceBudget::new(store, namespace, contents.inodes.clone());
        folder.set_capacity(folder.used() + (30 << 20));
        let first = space.reserve(Reserve::Write(20 << 20));
        assert!(first.fits().unwrap());
        let second = space.reserve(Reserve::Write(20 << 20));
        assert!(!second.fits().unwrap() && space.is_short());
        // What takes nothing of the file system has its place in the journal.
        assert!(space.reserve(Reserve::Removal).fits().unwrap());
        drop(first);
        assert!(second.fits().unwrap() && !space.is_short());
        drop(second);
        let left = [&space.reserved_puts, &space.reserved_content].map(|sum| sum.load(Ordering::Acquire));
        assert_eq!(left, [0; 2]);
    }

    /// Other changes may begin while inodes are written back.
    #[test]
    fn an_inode_counts_until_the_namespace_has_it() {
        let vault = new_vault(&CrashFolder::new());
        let inodes = &vault.contents().inodes;
        for name in [b"a", b"b", b"c"] {
            vault.make(ROOT, name, NewNode::File, 0o644, 0, 0).unwrap();
        }
        let all = inodes.changed();
        assert!(all >= 3);
        let mut counts = vec![];
        let refusal = || Error::new(Kind::NoSpace, "no space");
        let failed = inodes.write_back(|_, _| {
            counts.push(inodes.changed());
            if counts.len() < 2 { Ok(()) } else { Err(refusal()) }
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::NoSpace);
        assert_eq!((counts, inodes.changed()), (vec![all, all - 1], all - 1));
        inodes.write_back(|_, _| Ok(())).unwrap();
        assert_eq!(inodes.changed(), 0);
    }
}
