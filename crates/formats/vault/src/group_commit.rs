//! When the vault commits, and that what it commits is one state of everything.
//!
//! Whatever changes the vault does so in a [`Transaction`]. A commit waits until all transactions have ended, brings every changed inode
//! and TS into the namespace, and lets others go on as soon as the store has noted what the commit says; they do not wait for the
//! medium. Several callers that ask for a commit at the same time share one.
//!
//! A transaction reserves its space under the gate that it holds until it ends, and gives the reservation back before it leaves the gate
//! ([`Reservation`]). A commit holds the gate alone while it collects, and leaves it only once the store has noted it and, if it has a
//! root, gone on in the other journal file. So no commit comes between a reservation and the end of its transaction: the file that was
//! prepared is the one that takes the record, and the figures that were checked grow by what is reserved alone. What is due is committed
//! before the gate is entered, so it takes none of the reserved space; if it becomes due again meanwhile, the next transaction commits it.
//! A transaction that finds no space leaves the gate before it makes room or commits: both need the gate alone, and a thread that shares
//! the gate would wait for itself. Its check does not: below the gate it takes locks of the store alone, whose holders wait for no gate. One
//! figure grows beside the gate: what a commit notes and the host then refuses is pending again. The place of that record is taken, the next
//! commit writes it first, and whatever began before still has its space for the record after it, or waits with it for space.
//!
//! Under the shared gate, [`GroupCommit::begin`] also writes inodes back when too many are changed. Other transactions are half way then,
//! and what is written back may be too. That is no state of a commit: nothing of it is durable before the next commit, which holds the gate
//! alone and finds again every inode that was touched since ([`Inodes::write_back`] says what it relies on). A failure there is one of the
//! next commit as well, and ends writing like that ([`Services::commit_failed`]).
//!
//! Order of locks, the first one first: `one`; `gate`; `Tree::changes`; the body of one inode; the counts of open handles, the cache of
//! open files, a shard of the inodes; what the namespace knows of the next inode; in the namespace `applying`, `layers`, the database, its
//! backend; then the store, which takes none of these. The lists of changed inodes and of pending changes are the last ones: no other lock
//! is taken under them.

use crate::contents::Contents;
use crate::fs_error::errno;
use crate::inodes::Inodes;
use crate::namespace::Namespace;
use crate::open_handles::OpenHandles;
use crate::services::Services;
use crate::space_budget::{Reservation, Reserve, SpaceBudget};
use crate::{FsError, FsResult};
use lacuna_contracts::Result;
use lacuna_vault_store::Store;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a batch from which on a commit is due, and beyond which changes are refused while commits fail.
const BATCH: usize = 2 << 20;
const BATCH_MOST: usize = 12 * BATCH;
/// Bytes of file content that are written between two commits, about.
const CONTENT: u64 = 512 << 20;
/// No checkpoint was refused.
const NEVER: u64 = u64::MAX;
/// Bytes that the journal grows by before a checkpoint that found no space is tried for a change again.
const AGAIN: u64 = 1 << 20;

/// The commits of an open vault.
pub(crate) struct GroupCommit {
    services: Arc<Services>,
    store: Arc<Store>,
    namespace: Arc<Namespace>,
    inodes: Arc<Inodes>,
    contents: Arc<Contents>,
    pub(crate) space: Arc<SpaceBudget>,
    /// Shared by transactions; taken alone by a commit while it collects.
    gate: RwLock<()>,
    /// Taken by one commit at a time.
    one: Mutex<()>,
    /// Commits that began to collect, and the last of them that is durable.
    started: AtomicU64,
    durable: AtomicU64,
    /// Commits that succeeded.
    made: AtomicU64,
    /// Something may have changed since the last commit began.
    changed: AtomicBool,
    /// Bytes of the journal when a checkpoint found no space last; [`NEVER`] if the last one found some.
    refused: AtomicU64,
}

/// The right to change something, and the space for it, until it is dropped.
pub(crate) struct Transaction<'a> {
    /// Given back before the gate is left: what a commit collects is in no reservation any more.
    _reserved: Reservation<'a>,
    _gate: RwLockReadGuard<'a, ()>,
}

impl GroupCommit {
    pub(crate) fn new(contents: Arc<Contents>, space: Arc<SpaceBudget>) -> GroupCommit {
        GroupCommit {
            services: contents.services.clone(),
            store: contents.store.clone(),
            namespace: contents.namespace.clone(),
            inodes: contents.inodes.clone(),
            contents,
            space,
            gate: RwLock::default(),
            one: Mutex::default(),
            started: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            made: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            refused: AtomicU64::new(NEVER),
        }
    }

    /// Begins a transaction for which the space that it may take is reserved until it ends.
    ///
    /// Errors: EROFS, and the standing refusal after a failure. ENOSPC or EDQUOT if there is no space for a write, or if it is not certain
    /// that a change of metadata can be committed. A removal is refused only if too much is pending for a commit that finds no space.
    pub(crate) fn begin(&self, change: Reserve) -> FsResult<Transaction<'_>> {
        self.get_ready()?;
        if self.is_due() {
            self.commit_before_a_change()?;
        }
        let mut tries = match change {
            // Each try gives one of the journal's two files back.
            Reserve::Write(_) => 2,
            Reserve::Metadata | Reserve::Removal => 1,
        };
        loop {
            let gate = self.gate.read();
            // A commit may have failed while this waited.
            self.services.health.check()?;
            let reserved = self.space.reserve(change);
            let fits = reserved.fits().map_err(|e| self.services.commit_failed(e))?;
            if fits || (tries == 0 && change == Reserve::Removal) {
                self.changed.store(true, Ordering::Release);
                if self.inodes.too_many_changed() {
                    self.write_back().map_err(|e| self.services.commit_failed(e))?;
                }
                return Ok(Transaction { _reserved: reserved, _gate: gate });
            }
            drop(reserved);
            drop(gate);
            if tries == 0 {
                return errno(self.space.lacking());
            }
            tries -= 1;
            if change == Reserve::Removal {
                self.commit_before_a_change()?;
            } else {
                self.make_room()?;
            }
        }
    }

    /// Commits before a change begins. If the host refuses that, everything waits for the next commit, unless too much waits already.
    fn commit_before_a_change(&self) -> Result<()> {
        match self.commit() {
            Err(e) if e.kind().is_refusal() && self.namespace.pending_bytes() < BATCH_MOST => Ok(()),
            done => done,
        }
    }

    /// Writes changed inodes to the namespace, and their contents' TS.
    fn write_back(&self) -> Result<()> {
        self.inodes.write_back(|inode, body| self.contents.finish(inode, body))
    }

    /// Refuses changes where there are none, and brings recent ones into the database.
    fn get_ready(&self) -> FsResult<()> {
        if self.services.read_only {
            return errno(libc::EROFS);
        }
        self.services.health.check()?;
        Ok(self.apply()?)
    }

    fn apply(&self) -> Result<()> {
        if self.namespace.wants_apply() {
            return self.namespace.apply().map_err(|e| self.services.commit_failed(e));
        }
        Ok(())
    }

    /// Brings everything to its place, so that the journal owes nothing, and gives the space of the journal file back that held it; as far
    /// as there is space for that.
    fn make_room(&self) -> FsResult<()> {
        let store = &self.store;
        // Also waits for another thread that makes room.
        let _one = self.one.lock();
        self.services.health.check()?;
        let nothing = !self.has_changes() && store.journal_bytes() == 0 && !store.is_journal_large();
        let done = if nothing { Ok(()) } else { self.run(true) };
        let shrink = || store.finish_and_shrink().map_err(|e| self.services.commit_failed(e));
        let done = done.and_then(|()| shrink());
        match done {
            Err(e) if !e.kind().is_refusal() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Begins a transaction even while commits are due and however little space there is, for a change that must not fail: the reclaim
    /// after a last handle, and at an opening. What it may take is counted for others.
    pub(crate) fn begin_forced(&self) -> Option<Transaction<'_>> {
        if self.services.read_only || !self.services.health.is_alive() {
            return None;
        }
        let gate = self.gate.read();
        self.changed.store(true, Ordering::Release);
        Some(Transaction { _reserved: self.space.reserve(Reserve::Removal), _gate: gate })
    }

    /// Returns when every transaction that ended before is durable.
    pub(crate) fn sync(&self) -> FsResult<()> {
        if self.services.read_only {
            return Ok(());
        }
        self.commit().map_err(FsError::from)
    }

    /// Commits what changed, if anything did.
    pub(crate) fn commit(&self) -> Result<()> {
        self.services.health.check()?;
        // Reads change times of access, and it may be that no change brings those into the database.
        self.apply()?;
        let enough = self.started.load(Ordering::Acquire) + 1;
        let _one = self.one.lock();
        self.services.health.check()?;
        let shared = self.durable.load(Ordering::Acquire) >= enough;
        if shared || !self.has_changes() {
            return Ok(());
        }
        let (store, namespace) = (&self.store, &self.namespace);
        let due = store.needs_checkpoint() || namespace.wants_checkpoint();
        let holds = || self.space.holds_commit().map_err(|e| self.services.commit_failed(e));
        self.run(due || (!holds()? && self.may_checkpoint()))
    }

    /// Commits with a root, so that the next opening has nothing to apply, and refuses whatever follows.
    pub(crate) fn close(&self) -> Result<()> {
        let _one = self.one.lock();
        if self.services.read_only {
            return Ok(());
        }
        self.services.health.check()?;
        self.run(true)?;
        self.services.health.close();
        Ok(())
    }

    /// The first commit of a new vault, or that of a recovery.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.one.lock();
        self.run(true)
    }

    /// Whether something changed since the last commit.
    pub(crate) fn has_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire) || self.inodes.changed() > 0
    }

    /// How many commits succeeded.
    pub(crate) fn count(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    fn is_due(&self) -> bool {
        let (store, namespace) = (&self.store, &self.namespace);
        let checkpoint = store.needs_checkpoint() || namespace.wants_checkpoint();
        (checkpoint && self.may_checkpoint())
            || store.needs_commit()
            || namespace.pending_bytes() >= BATCH
            || self.space.written() >= CONTENT
    }

    /// Whether a checkpoint is to be tried for a change. One that found no space is not tried for each: the records of the tries would
    /// take what is left.
    fn may_checkpoint(&self) -> bool {
        let (refused, used) = (self.refused.load(Ordering::Relaxed), self.store.journal_bytes());
        refused == NEVER || used < refused || used - refused >= AGAIN
    }

    /// Commits; with a root if there is space for one.
    fn run(&self, root: bool) -> Result<()> {
        if root {
            let done = self.attempt(true);
            let full = done.as_ref().is_err_and(|e| e.kind().is_refusal());
            let refused = if full { self.store.journal_bytes() } else { NEVER };
            self.refused.store(refused, Ordering::Relaxed);
            if !full || self.namespace.needs_root() {
                return done;
            }
        }
        self.attempt(false)
    }

    fn attempt(&self, root: bool) -> Result<()> {
        if root {
            // Done before the gate is taken: transactions may begin meanwhile.
            self.store.finish_checkpoint().map_err(|e| self.services.commit_failed(e))?;
        }
        let mut alone = Some(self.gate.write());
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.store(false, Ordering::Release);
        self.space.forget_space();
        let result = self.collect(root, &mut || drop(alone.take()));
        drop(alone);
        match result {
            Ok(()) => {
                self.durable.store(number, Ordering::Release);
                self.made.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(e) => {
                self.changed.store(true, Ordering::Release);
                Err(self.services.commit_failed(e))
            }
        }
    }

    /// Brings everything together and commits it. `noted` lets others go on.
    fn collect(&self, root: bool, noted: &mut dyn FnMut()) -> Result<()> {
        let (store, namespace) = (&self.store, &self.namespace);
        self.write_back()?;
        self.space.commit_written();
        if root {
            return namespace.checkpoint(&mut |root, puts| {
                store.commit_then(puts, Some(root), &mut || {
                    namespace.rooted();
                    noted();
                })
            });
        }
        namespace.commit(&mut |puts| store.commit_then(puts, None, noted))
    }
}

/// After the last handle of a file was released: reclaims it, in a transaction of its own. A failure is one of the next commit as well.
pub(crate) fn reclaim_after(commits: &GroupCommit, handles: &OpenHandles, ino: u64) {
    if let Some(_transaction) = commits.begin_forced()
        && let Err(FsError::Storage(e)) = handles.reclaim(ino)
    {
        commits.services.commit_failed(e);
    }
}
