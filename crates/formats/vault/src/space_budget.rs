//! Admission control: whether the backing directory has space for one more change: for its writes,
//! for the record of the commit that makes it durable, and for writing the journal's pages back.
//!
//! Invariant: a change that adds data is admitted only if everything so far, and everything that
//! running transactions may add, can be committed and then written back. So a full file system
//! refuses new changes, and never acknowledged ones; removals are admitted, and use the space that
//! is kept free here.
//!
//! A [`Reservation`] counts the most that its transaction may take, from before the check until the
//! transaction ends. The transaction's actual changes are counted twice meanwhile, but never not at
//! all: the sums of the reservations are read before the figures that the changes increase, and a
//! transaction updates those figures before it returns its reservation. So the figures are too high
//! for concurrent changes: two that begin at once may each count the other, and overwrites and
//! failed writes are counted although they take no space. No change is refused for that: one that
//! does not fit beside the reservations is checked again when it is alone (`group_commit.rs`). The
//! prepared journal file is the active one: a commit with a root switches to the other file, and
//! none does while a reservation lives.
//!
//! Content pages that a write takes from the journal count as file system space. If other programs
//! take that space first, this write or the next one is refused; each taking of pages keeps one
//! step of the journal free (`Store::journal_step`), which holds the record of a usual commit. A
//! larger record waits for space. Two kinds of changes reserve without a check: the reclaim after a
//! last handle, and a removal when there is no space for its record even after a commit. Times of
//! access reserve nothing: they are noted only while the last write found space and few inodes are
//! changed, and may use that step.
//!
//! No lock is held here. The figures of the namespace and of the inodes are atomic copies, which
//! their owners update under their own locks, and one call to the store checks the journal.

use crate::BLOCK;
use crate::namespace::Namespace;
use crate::nodes::inodes::Inodes;
use lacuna_contracts::Result;
use lacuna_medium::FsSpace;
use lacuna_vault_store::Store;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Bytes of puts for a changed inode that is not written back yet.
const INODE_RECORD_BYTES: u64 = 512;
/// The most bytes of any change besides its content.
const CHANGE_BYTES: u64 = 16 << 10;
/// The most bytes of puts for content: blocks go elsewhere.
const MAX_CONTENT_PUTS: u64 = 64 << 10;
/// The most bytes of tags, in the next commit, for content written since the last one; at most a
/// quarter of that content.
const MAX_TAG_BYTES: u64 = 4 << 20;
/// Bytes that metadata changes leave for removals.
const SPARE_BYTES: u64 = 64 << 10;
/// With less than this many bytes above the required free space, the file system is asked at each
/// change. With more, changes take a part before it is asked again.
const AMPLE_BYTES: u64 = 256 << 20;
/// The divisor for that part.
const AMPLE_SHARE: u64 = 8;
/// The same threshold for the number of files.
const AMPLE_FILES: u64 = 1 << 15;

/// The space that a transaction reserves when it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpaceRequest {
    /// For new data of about this many bytes.
    Write(u64),
    /// For a change that takes little more space than before.
    Metadata,
    /// Only for its part of the record: a removal frees space.
    Removal,
}

impl SpaceRequest {
    /// The most bytes of puts in the next commit, and of file system space.
    fn most(self) -> (u64, u64) {
        match self {
            SpaceRequest::Write(bytes) => {
                (bytes.min(MAX_CONTENT_PUTS) + CHANGE_BYTES, bytes.saturating_add(CHANGE_BYTES))
            }
            SpaceRequest::Metadata | SpaceRequest::Removal => (CHANGE_BYTES, 0),
        }
    }
}

/// A reservation, counted until it is dropped.
pub(crate) struct Reservation<'a> {
    budget: &'a SpaceBudget,
    request: SpaceRequest,
}

impl Reservation<'_> {
    /// Whether the change fits beside everything so far and all other reservations.
    pub(crate) fn fits(&self) -> Result<bool> {
        match self.request {
            SpaceRequest::Write(_) => self.budget.has_room_for_write(self.request.most().1),
            // Keeps some space for removals.
            SpaceRequest::Metadata => self.budget.has_room_for_record(0, SPARE_BYTES, 0),
            SpaceRequest::Removal => self.budget.has_room_for_record(0, 0, 0),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let (puts, content) = self.request.most();
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
    /// Sums of all reservations: bytes of puts, and bytes of file system space.
    reserved_puts: AtomicU64,
    reserved_content: AtomicU64,
    /// Bytes of file content written since the last commit.
    written: AtomicU64,
    /// Whether the last write that was checked found no space; optional writes are then skipped.
    short: AtomicBool,
    /// Bytes that may be taken before the file system is asked again.
    known_free: AtomicU64,
    /// The error number of the last lack of space.
    last_errno: AtomicI32,
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
            known_free: AtomicU64::new(0),
            last_errno: AtomicI32::new(libc::ENOSPC),
        }
    }

    /// Adds written file content, in bytes.
    pub(crate) fn note_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of file content written since the last commit.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Resets the count of written content, because a commit includes it.
    pub(crate) fn commit_written(&self) {
        self.written.store(0, Ordering::Relaxed);
    }

    /// Whether the last write that was checked found no space.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// The most bytes that one transaction writes, in whole blocks: all of them may go to the
    /// journal, which holds about twice this much.
    pub(crate) fn max_write_len(&self) -> usize {
        (self.store.journal_limit() / 2).max(1).next_multiple_of(BLOCK as u64) as usize
    }

    /// Reserves space for a change. [`Reservation::fits`] tells whether there is enough.
    pub(crate) fn reserve(&self, change: SpaceRequest) -> Reservation<'_> {
        let (puts, content) = change.most();
        self.reserved_puts.fetch_add(puts, Ordering::AcqRel);
        if content > 0 {
            self.reserved_content.fetch_add(content, Ordering::AcqRel);
        }
        Reservation { budget: self, request: change }
    }

    /// Whether the journal has or finds space for the record of a commit of everything so far.
    pub(crate) fn has_room_for_commit(&self) -> Result<bool> {
        self.has_room_for_record(CHANGE_BYTES, 0, 0)
    }

    /// Whether there is space for a write that reserved `own` bytes of the file system.
    fn has_room_for_write(&self, own: u64) -> Result<bool> {
        let has_room = self.is_free(own)? && {
            // Its pages may go to the journal first. The part besides content is in the puts.
            let content = self.reserved_content.load(Ordering::Acquire).saturating_sub(CHANGE_BYTES);
            let extra = (self.namespace.checkpoint_space() / 4).saturating_add(content);
            self.has_room_for_record(0, self.store.journal_step(), extra)?
        };
        self.short.store(!has_room, Ordering::Relaxed);
        Ok(has_room)
    }

    /// Whether the journal has or finds space for the record of everything so far, of all
    /// reservations and of `more` bytes of puts, with `spare` bytes after it, and may take `extra`
    /// more bytes.
    fn has_room_for_record(&self, more: u64, spare: u64, extra: u64) -> Result<bool> {
        self.is_prepared(self.store.prepare_record(self.puts() + more, spare, extra))
    }

    /// The error number of the last lack of space: ENOSPC, or EDQUOT with a quota.
    pub(crate) fn last_errno(&self) -> i32 {
        self.last_errno.load(Ordering::Relaxed)
    }

    /// Forgets the known free space: other programs may have filled the file system, so it is asked
    /// again before the next change; or they may have freed space, so it does not count as short
    /// until a write finds none.
    pub(crate) fn forget_space(&self) {
        self.known_free.store(0, Ordering::Release);
        self.short.store(false, Ordering::Relaxed);
    }

    /// The space of the backing file system, less the space that must stay free.
    pub(crate) fn space(&self) -> Result<FsSpace> {
        let space = self.store.space()?;
        let (owed, files) = self.required_free();
        Ok(FsSpace {
            free_bytes: space.free_bytes.saturating_sub(owed),
            free_files: space.free_files.saturating_sub(files),
            ..space
        })
    }

    /// Whether the file system has `own` bytes, which are reserved, besides the space that must
    /// stay free and all other reservations.
    fn is_free(&self, own: u64) -> Result<bool> {
        let taken =
            self.known_free.fetch_update(Ordering::AcqRel, Ordering::Acquire, |known| known.checked_sub(own));
        if taken.is_ok() {
            return Ok(true);
        }
        // Read first: space of a reservation that is returned later is already missing from the
        // free space.
        let bytes = self.reserved_content.load(Ordering::Acquire);
        let space = self.store.space()?;
        let (owed, files) = self.required_free();
        let counted = space.total_files > 0;
        if space.free_bytes < owed.saturating_add(bytes) || (counted && space.free_files < files) {
            self.last_errno.store(libc::ENOSPC, Ordering::Relaxed);
            return Ok(false);
        }
        let more = space.free_bytes - owed - bytes;
        let much = more >= AMPLE_BYTES && (!counted || space.free_files - files >= AMPLE_FILES);
        self.known_free.store(if much { more / AMPLE_SHARE } else { 0 }, Ordering::Release);
        Ok(true)
    }

    /// The approximate bytes of the next commit's puts, including reserved ones. The order of the
    /// reads matters, because each figure turns into the next: reservations, changed inodes,
    /// pending bytes.
    fn puts(&self) -> u64 {
        let reserved = self.reserved_puts.load(Ordering::Acquire);
        let records = INODE_RECORD_BYTES * self.inodes.changed_count() as u64;
        let tags = (self.written() / 4).min(MAX_TAG_BYTES);
        reserved + records + tags + self.namespace.pending_bytes() as u64
    }

    /// The space that must stay free: bytes, and files.
    fn required_free(&self) -> (u64, u64) {
        let (bytes, files) = self.store.write_back_space();
        (bytes + self.namespace.checkpoint_space(), files)
    }

    /// Whether space was prepared. A refusal of the host means no space.
    fn is_prepared(&self, prepared: Result<()>) -> Result<bool> {
        match prepared {
            Err(e) if e.kind().is_refusal() => {
                self.last_errno.store(e.errno(), Ordering::Relaxed);
                Ok(false)
            }
            done => done.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NewNode;
    use crate::ROOT;
    use crate::SystemWallClock;
    use crate::Vault;
    use crate::VaultBacking;
    use crate::VaultOpenOptions;
    use crate::VaultOptions;
    use lacuna_contracts::{Error, Kind, Secret};
    use lacuna_crypto::SeededRandom;
    use lacuna_sim::CrashFolder;
    use lacuna_vault_store::MemoryAnchor;

    fn new_vault(folder: &CrashFolder) -> Vault {
        let base = VaultBacking {
            folder: Arc::new(folder.clone()),
            anchor: Arc::new(MemoryAnchor::default()),
            random: Arc::new(SeededRandom::new(1)),
            clock: Arc::new(SystemWallClock),
        };
        let open = VaultOpenOptions { commit_period: None, ..VaultOpenOptions::default() };
        let options = VaultOptions { open, ..VaultOptions::default() };
        Vault::create(base, &Secret::copy_from(&[7; 32]), [5; 16], &options).unwrap()
    }

    /// Two changes that begin at the same time do not reserve the same space.
    #[test]
    fn reserved_space_is_not_available_to_other_changes() {
        let folder = CrashFolder::new();
        let vault = new_vault(&folder);
        let contents = vault.contents();
        let (store, namespace) = (contents.store.clone(), contents.namespace.clone());
        let space = SpaceBudget::new(store, namespace, contents.inodes.clone());
        folder.set_capacity(folder.used() + (30 << 20));
        let first = space.reserve(SpaceRequest::Write(20 << 20));
        assert!(first.fits().unwrap());
        let second = space.reserve(SpaceRequest::Write(20 << 20));
        assert!(!second.fits().unwrap() && space.is_short());
        // A change without file system space has its place in the journal.
        assert!(space.reserve(SpaceRequest::Removal).fits().unwrap());
        drop(first);
        assert!(second.fits().unwrap() && !space.is_short());
        drop(second);
        let left = [&space.reserved_puts, &space.reserved_content].map(|sum| sum.load(Ordering::Acquire));
        assert_eq!(left, [0; 2]);
    }

    /// An inode being written back still counts as changed: other changes may begin meanwhile.
    #[test]
    fn an_inode_counts_as_changed_until_the_namespace_has_it() {
        let vault = new_vault(&CrashFolder::new());
        let inodes = &vault.contents().inodes;
        for name in [b"a", b"b", b"c"] {
            vault.create_node(ROOT, name, NewNode::File, 0o644, 0, 0).unwrap();
        }
        let all = inodes.changed_count();
        assert!(all >= 3);
        let mut counts = vec![];
        let refusal = || Error::new(Kind::NoSpace, "no space");
        let failed = inodes.write_back(|_, _| {
            counts.push(inodes.changed_count());
            if counts.len() < 2 { Ok(()) } else { Err(refusal()) }
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::NoSpace);
        assert_eq!((counts, inodes.changed_count()), (vec![all, all - 1], all - 1));
        inodes.write_back(|_, _| Ok(())).unwrap();
        assert_eq!(inodes.changed_count(), 0);
    }
}
