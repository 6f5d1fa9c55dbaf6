//! When the vault commits, and that what it commits is one state of everything.
//!
//! Whatever changes the vault does so in a [`Transaction`]. A commit waits until all transactions have ended, brings every changed inode
//! and TS into the namespace, and lets others go on as soon as the store has noted what the commit says; they do not wait for the
//! medium. Several callers that ask for a commit at the same time share one.
//!
//! Order of locks, the first one first: `one`; `gate`; `Tree::changes`; the body of one inode; the counts of open handles, the cache of
//! open files, a shard of the inodes; in the namespace `applying`, `layers`, the database, its backend; then the store. The lists of
//! changed inodes and of pending changes are the last ones: no other lock is taken under them.

use crate::contents::Contents;
use crate::fs_error::errno;
use crate::inodes::Inodes;
use crate::namespace::Namespace;
use crate::open_handles::OpenHandles;
use crate::services::Services;
use crate::space_budget::SpaceBudget;
use crate::{FsError, FsResult};
use lacuna_contracts::{Error, Result, closed};
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
    /// Something may have changed since the last commit began.
    changed: AtomicBool,
    /// Bytes of the journal when a checkpoint found no space last; [`NEVER`] if the last one found some.
    refused: AtomicU64,
}

/// What a transaction reserves when it begins.
#[derive(Clone, Copy)]
pub(crate) enum Reserve {
    /// Space for something new of about this many bytes.
    Write(u64),
    /// Space for a change that takes little more than there was before.
    Metadata,
    /// Nothing: a removal makes space.
    Removal,
}

/// The right to change something, until it is dropped.
pub(crate) struct Transaction<'a>(
    #[expect(dead_code, reason = "held until it is dropped")] RwLockReadGuard<'a, ()>,
);

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
            changed: AtomicBool::new(false),
            refused: AtomicU64::new(NEVER),
        }
    }

    /// Begins a transaction once the space that it may take is reserved.
    ///
    /// Errors: EROFS, and the standing refusal after a failure. ENOSPC or EDQUOT if there is no space for a write, or if it is not certain
    /// that a change of metadata can be committed. A removal is refused only if too much is pending for a commit that finds no space.
    pub(crate) fn begin(&self, reserve: Reserve) -> FsResult<Transaction<'_>> {
        self.get_ready()?;
        let commit_fits = match reserve {
            // Twice, for each gives one of the journal's two files back.
            Reserve::Write(bytes) => {
                self.reserve(2, |space| space.reserve_write(bytes))?;
                true
            }
            Reserve::Metadata => {
                self.reserve(1, SpaceBudget::reserve_metadata)?;
                true
            }
            Reserve::Removal => self.has_space(SpaceBudget::reserve_commit)?,
        };
        // What was reserved for a write or a change of metadata holds the commit of everything so far.
        if (self.is_due() || !commit_fits)
            && let Err(e) = self.commit()
            && (!e.kind().is_refusal() || self.namespace.pending_bytes() >= BATCH_MOST)
        {
            return Err(e.into());
        }
        let transaction = Transaction(self.gate.read());
        // A commit may have failed while this waited.
        self.services.health.check()?;
        self.changed.store(true, Ordering::Release);
        if self.inodes.too_many_changed() {
            self.inodes.write_back(|inode, body| self.contents.finish(inode, body))?;
        }
        Ok(transaction)
    }

    /// Reserves space; makes space where there is none, and tries again, `times` times. Errors: ENOSPC or EDQUOT if there is none then.
    fn reserve(&self, times: u32, take: impl Fn(&SpaceBudget) -> Result<bool>) -> FsResult<()> {
        for _ in 0..times {
            if self.has_space(&take)? {
                return Ok(());
            }
            self.make_room()?;
        }
        if self.has_space(&take)? { Ok(()) } else { errno(self.space.lacking()) }
    }

    fn has_space(&self, take: impl FnOnce(&SpaceBudget) -> Result<bool>) -> Result<bool> {
        take(&self.space).map_err(|e| self.failed(e))
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
            return self.namespace.apply().map_err(|e| self.failed(e));
        }
        Ok(())
    }

    /// Brings everything to its place, so that the journal owes nothing, and gives the space of the journal file back that held it; as far
    /// as there is space for that.
    fn make_room(&self) -> FsResult<()> {
        let store = &self.store;
        // Also waits for another that makes room.
        let _one = self.one.lock();
        self.services.health.check()?;
        let nothing = !self.has_changes() && store.journal_bytes() == 0 && !store.is_journal_large();
        let done = if nothing { Ok(()) } else { self.run(true) };
        let done = done.and_then(|()| store.finish_and_shrink().map_err(|e| self.failed(e)));
        match done {
            Err(e) if !e.kind().is_refusal() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Begins a transaction even while commits are due, for what must not fail: the end of an opening.
    pub(crate) fn begin_forced(&self) -> Option<Transaction<'_>> {
        if self.services.read_only || !self.services.health.is_alive() {
            return None;
        }
        let transaction = Transaction(self.gate.read());
        self.changed.store(true, Ordering::Release);
        Some(transaction)
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
        // Reads change times of access, and nobody else may bring those there.
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
        self.run(due || (!self.has_space(SpaceBudget::reserve_commit)? && self.may_checkpoint()))
    }

    /// Commits with a root, so that the next opening has nothing to apply, and refuses whatever follows.
    pub(crate) fn close(&self) -> Result<()> {
        let _one = self.one.lock();
        if self.services.read_only {
            return Ok(());
        }
        self.services.health.check()?;
        self.run(true)?;
        self.services.health.fail(closed());
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

    /// How many commits there were.
    pub(crate) fn count(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
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
            // Not while others wait to begin.
            self.store.finish_checkpoint().map_err(|e| self.failed(e))?;
        }
        let mut alone = Some(self.gate.write());
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.store(false, Ordering::Release);
        self.space.look_again();
        let result = self.collect(root, &mut || drop(alone.take()));
        drop(alone);
        match result {
            Ok(()) => {
                self.durable.store(number, Ordering::Release);
                Ok(())
            }
            Err(e) => {
                self.changed.store(true, Ordering::Release);
                Err(self.failed(e))
            }
        }
    }

    /// Brings everything together and commits it. `noted` lets others go on.
    fn collect(&self, root: bool, noted: &mut dyn FnMut()) -> Result<()> {
        let (store, namespace) = (&self.store, &self.namespace);
        self.inodes.write_back(|inode, body| self.contents.finish(inode, body))?;
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

    /// What the host refuses, for want of space above all, is no failure: everything waits here for the next commit.
    fn failed(&self, e: Error) -> Error {
        if e.kind().is_refusal() { e } else { self.services.health.fail(e) }
    }
}

/// After the last handle of a file was released: reclaims it, in a transaction of its own. A failure is one of the next commit as well.
pub(crate) fn reclaim_after(commits: &GroupCommit, handles: &OpenHandles, ino: u64) {
    if let Some(_transaction) = commits.begin_forced()
        && let Err(FsError::Storage(e)) = handles.reclaim(ino)
        && !e.kind().is_refusal()
    {
        commits.services.health.fail(e);
    }
}
