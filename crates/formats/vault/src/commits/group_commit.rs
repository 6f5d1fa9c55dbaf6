//! Group commit: decides when the vault commits, and makes each commit one consistent state of the
//! whole vault.
//!
//! Every change happens in a [`Transaction`]. A commit waits until all transactions have ended,
//! writes every changed inode and TS to the namespace, and admits new transactions as soon as the
//! store has noted the commit; they do not wait for the medium. Concurrent callers share one
//! commit.
//!
//! Space: A transaction reserves its space under the shared gate, which it holds until it ends, and
//! returns the reservation before it releases the gate ([`Reservation`]). A commit holds the gate
//! exclusively while it collects, and releases it only after the store has noted the commit and,
//! with a root, has switched to the other journal file. So no commit comes between a reservation
//! and the end of its transaction: the record goes to the prepared journal file, and the checked
//! figures grow only by the reservations. A commit that is due runs before the gate is taken, so it
//! takes no reserved space; if another becomes due meanwhile, the next transaction runs it. One
//! figure grows without the gate: if the host refuses a noted commit, its notes are pending again.
//! The place of its record is taken already, and the next commit writes it first. Transactions that
//! began before still have their space for the record after it, or wait with it for space.
//!
//! Waiting for space: A change is not refused because of the reservations of other transactions. If
//! it does not fit beside them, it releases the gate (holding it shared would be a deadlock), takes
//! `commit_lock`, and then takes the gate exclusively ([`GroupCommit::begin_exclusive`]). Now every
//! other transaction has ended and none can begin, so only its own reservation counts, and the free
//! space has its true size. If that is not enough, it commits with the gate held, and checks again.
//! So a refusal reports the space that the host has for this change alone, after every acknowledged
//! change is committed.
//!
//! No deadlock: While a thread waits for the gate exclusively, it holds only `commit_lock`; a
//! commit takes the two in the same order. It waits for running transactions. These take neither
//! `commit_lock` nor the gate again, and take all other locks in the order below; holders of those
//! locks wait for neither. So each transaction ends. The gate admits no transaction before a
//! waiting exclusive locker, so the thread does not starve. The check and the commit with the gate
//! held take only locks of the namespace and the store, and their holders, including the store's
//! thread, never wait for the gate.
//!
//! Close: The last commit, in an orderly close, holds the gate until the vault refuses changes: a
//! change that began after that commit was noted would be acknowledged but in no commit. A thread
//! that waited for the gate or for `commit_lock` checks the health once it has it.
//!
//! Write-back: Under the shared gate, [`GroupCommit::begin`] also writes inodes back if too many
//! are changed. Other transactions are incomplete then, and so may be the written inodes. That is
//! no committed state: nothing of it is durable before the next commit, which holds the gate
//! exclusively and writes back every inode that was touched since ([`Inodes::write_back`] explains
//! why). A failure of this write-back would fail the next commit as well, and ends writing in the
//! same way ([`Services::commit_failed`]).
//!
//! Lock order, first to last: `commit_lock`; `gate`; `Tree::change_lock`; the body of one inode;
//! the counts of open handles, the cache of open files, a shard of the inodes; the namespace's
//! value of the next inode; in the namespace `applying`, `layers`, the database, its backend; then
//! the store, which takes none of these. The lists of changed inodes and of pending changes are
//! last: no other lock is taken under them.

use crate::content::file_contents::FileContents;
use crate::fs_error::errno;
use crate::namespace::Namespace;
use crate::nodes::inodes::Inodes;
use crate::nodes::open_handles::OpenHandles;
use crate::services::Services;
use crate::space_budget::{Reservation, SpaceBudget, SpaceRequest};
use crate::{FsError, FsResult};
use lacuna_contracts::{Error, Result};
use lacuna_vault_store::Store;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a batch at which a commit is due, and beyond which changes are refused while commits
/// fail.
const BATCH: usize = 2 << 20;
const BATCH_MOST: usize = 12 * BATCH;
/// Bytes of file content at which a commit is due.
const CONTENT: u64 = 512 << 20;
/// No checkpoint was refused.
const NOT_REFUSED: u64 = u64::MAX;
/// After a checkpoint found no space, a change tries another one only after the journal grew by
/// this number of bytes.
const RETRY_GROWTH: u64 = 1 << 20;
/// The most attempts to free space for one change. A refused commit gives journal space back, so
/// the next one finds some; that commit frees removed objects; then a checkpoint may find space,
/// and frees the other journal file.
const MAX_FREE_ATTEMPTS: u32 = 3;

/// The commits of an open vault.
pub(crate) struct GroupCommit {
    services: Arc<Services>,
    store: Arc<Store>,
    namespace: Arc<Namespace>,
    inodes: Arc<Inodes>,
    contents: Arc<FileContents>,
    pub(crate) space_budget: Arc<SpaceBudget>,
    /// Shared by transactions; held exclusively by a commit while it collects.
    gate: RwLock<()>,
    /// Held by one commit at a time.
    commit_lock: Mutex<()>,
    /// The number of commits that began to collect, and the last of them that is durable.
    started: AtomicU64,
    durable: AtomicU64,
    /// The number of commits that became durable.
    made: AtomicU64,
    /// Whether anything may have changed since the last commit began.
    changed: AtomicBool,
    /// The bytes of the journal when a checkpoint last found no space; [`NOT_REFUSED`] if the last
    /// one found space.
    refused_at: AtomicU64,
}

/// The exclusively held gate: no transaction runs.
type ExclusiveGate<'a> = RwLockWriteGuard<'a, ()>;

/// Permission to change the vault, and the space for it, until it is dropped.
pub(crate) struct Transaction<'a> {
    /// Dropped before the gate: when a commit collects changes, no reservation counts them.
    _reserved: Reservation<'a>,
    _gate: RwLockReadGuard<'a, ()>,
}

impl GroupCommit {
    pub(crate) fn new(contents: Arc<FileContents>, space: Arc<SpaceBudget>) -> GroupCommit {
        GroupCommit {
            services: contents.services.clone(),
            store: contents.store.clone(),
            namespace: contents.namespace.clone(),
            inodes: contents.inodes.clone(),
            contents,
            space_budget: space,
            gate: RwLock::default(),
            commit_lock: Mutex::default(),
            started: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            made: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            refused_at: AtomicU64::new(NOT_REFUSED),
        }
    }

    /// Begins a transaction and reserves its space until it ends.
    ///
    /// Errors: EROFS, and the permanent refusal after a failure. ENOSPC or EDQUOT if there is no
    /// space for a write, or if a change of metadata might not be committable, even after all other
    /// transactions have ended and everything is committed. A removal is refused only if too much
    /// is pending for a commit that finds no space.
    pub(crate) fn begin(&self, change: SpaceRequest) -> FsResult<Transaction<'_>> {
        self.check_and_apply()?;
        if self.is_due() {
            self.commit_before_a_change()?;
        }
        let mut anyway = false;
        loop {
            if let Some(begun) = self.try_begin(change, anyway)? {
                return Ok(begun);
            }
            if change != SpaceRequest::Removal {
                return self.begin_exclusive(change);
            }
            self.commit_before_a_change()?;
            anyway = true;
        }
    }

    /// Begins a transaction if it fits beside all other reservations; with `anyway`, even if it
    /// does not.
    fn try_begin(&self, change: SpaceRequest, anyway: bool) -> FsResult<Option<Transaction<'_>>> {
        let gate = self.gate.read();
        // While this thread waited, a commit may have failed, or the last commit been made.
        self.services.health.check()?;
        let reserved = self.space_budget.reserve(change);
        if self.fits(&reserved)? || anyway {
            return self.admit(gate, reserved).map(Some);
        }
        Ok(None)
    }

    /// Begins a transaction after all running ones have ended, and frees space for it as long as
    /// that can help. No other change begins meanwhile, so missing space is truly missing.
    fn begin_exclusive(&self, change: SpaceRequest) -> FsResult<Transaction<'_>> {
        // This also waits for another thread that frees space.
        let _one = self.commit_lock.lock();
        let alone = self.gate.write();
        let mut attempts_left = MAX_FREE_ATTEMPTS;
        loop {
            // A change or commit may have failed while this thread waited, or its own commit just
            // now.
            self.services.health.check()?;
            let reserved = self.space_budget.reserve(change);
            if self.fits(&reserved)? {
                return self.admit(RwLockWriteGuard::downgrade(alone), reserved);
            }
            drop(reserved);
            if attempts_left == 0 {
                return errno(self.space_budget.last_errno());
            }
            attempts_left = if self.free_space(&alone)? { attempts_left - 1 } else { 0 };
        }
    }

    fn fits(&self, reserved: &Reservation<'_>) -> Result<bool> {
        reserved.fits().map_err(|e| self.services.commit_failed(e))
    }

    /// Admits a change that has its space.
    fn admit<'a>(
        &'a self,
        gate: RwLockReadGuard<'a, ()>,
        reserved: Reservation<'a>,
    ) -> FsResult<Transaction<'a>> {
        let begun = Transaction { _reserved: reserved, _gate: gate };
        self.changed.store(true, Ordering::Release);
        if self.inodes.has_too_many_changed() {
            self.write_back().map_err(|e| self.services.commit_failed(e))?;
        }
        Ok(begun)
    }

    /// Commits before a change begins. If the host refuses, the changes stay for the next commit,
    /// unless too much is pending already.
    fn commit_before_a_change(&self) -> Result<()> {
        match self.commit() {
            Err(e) if e.changed_nothing() && self.namespace.pending_bytes() < BATCH_MOST => Ok(()),
            done => done,
        }
    }

    /// Writes changed inodes to the namespace, with their contents' TS.
    fn write_back(&self) -> Result<()> {
        self.inodes.write_back(|inode, body| self.contents.save_trusted(inode, body))
    }

    /// Refuses changes of a vault that accepts none, and applies recent changes to the database.
    fn check_and_apply(&self) -> FsResult<()> {
        if self.services.read_only {
            return errno(libc::EROFS);
        }
        self.services.health.check()?;
        Ok(self.apply()?)
    }

    fn apply(&self) -> Result<()> {
        if self.namespace.needs_apply() {
            return self.namespace.apply().map_err(|e| self.services.commit_failed(e));
        }
        Ok(())
    }

    /// Writes everything back to its place, so that nothing is left in the journal, and frees the
    /// space of its idle file, as far as there is space for that. Returns whether there was
    /// anything to commit. The caller holds `commit_lock`.
    fn free_space(&self, alone: &ExclusiveGate<'_>) -> Result<bool> {
        let store = &self.store;
        let unless_refused = |done: Result<()>| match done {
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(()),
        };
        let something = self.has_changes() || store.journal_bytes() > 0 || store.is_journal_large();
        if something {
            unless_refused(self.commit_or_checkpoint(true, Some(alone)))?;
        }
        // Even after a refused commit: it may find space then.
        unless_refused(store.finish_and_shrink().map_err(|e| self.services.commit_failed(e)))?;
        Ok(something)
    }

    /// Begins a transaction even if commits are due and space is short, for changes that must not
    /// fail: the reclaim after the last handle, and at an opening. Other transactions count its
    /// reservation.
    pub(crate) fn begin_forced(&self) -> Option<Transaction<'_>> {
        if self.services.read_only {
            return None;
        }
        let gate = self.gate.read();
        // Checked under the gate: the last commit may have been made while this thread waited.
        if !self.services.health.is_alive() {
            return None;
        }
        self.changed.store(true, Ordering::Release);
        Some(Transaction { _reserved: self.space_budget.reserve(SpaceRequest::Removal), _gate: gate })
    }

    /// Returns when every transaction that ended before is durable.
    pub(crate) fn sync(&self) -> FsResult<()> {
        if self.services.read_only {
            return Ok(());
        }
        self.commit().map_err(FsError::from)
    }

    /// Commits if anything changed.
    pub(crate) fn commit(&self) -> Result<()> {
        self.services.health.check()?;
        // Reads change times of access, and without other changes nothing applies those to the
        // database.
        self.apply()?;
        self.commit_up_to(self.next_to_begin())
    }

    /// The number of the next commit to begin collecting: it includes all transactions that have
    /// ended.
    fn next_to_begin(&self) -> u64 {
        self.started.load(Ordering::Acquire) + 1
    }

    /// Returns when the commit with this number, or a later one, is durable, or there are no
    /// changes.
    fn commit_up_to(&self, enough: u64) -> Result<()> {
        let _one = self.commit_lock.lock();
        let shared = self.durable.load(Ordering::Acquire) >= enough;
        // The caller's changes are durable, even if a failure or an orderly close came meanwhile.
        if shared || !self.has_changes() {
            return Ok(());
        }
        self.services.health.check()?;
        let (store, namespace) = (&self.store, &self.namespace);
        let due = store.needs_checkpoint() || namespace.needs_checkpoint();
        let holds = || self.space_budget.has_room_for_commit().map_err(|e| self.services.commit_failed(e));
        self.commit_or_checkpoint(due || (!holds()? && self.may_checkpoint()), None)
    }

    /// Commits with a root, so that the next opening has nothing to apply, and then refuses all
    /// changes. A waiting change is refused; one that was admitted before is in the commit.
    pub(crate) fn close(&self) -> Result<()> {
        let _one = self.commit_lock.lock();
        if self.services.read_only {
            return Ok(());
        }
        let alone = self.gate.write();
        self.services.health.check()?;
        self.commit_or_checkpoint(true, Some(&alone))?;
        self.services.health.close();
        Ok(())
    }

    /// Makes the first commit of a new vault, or that of a recovery.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_after(|| Ok(()))
    }

    /// Runs `work`, which hands pages to the store that need a new root, and commits with a root;
    /// no other commit comes between. Returns the result of `work`.
    pub(crate) fn checkpoint_after<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _one = self.commit_lock.lock();
        self.services.health.check()?;
        let done = work()?;
        self.commit_or_checkpoint(true, None)?;
        Ok(done)
    }

    /// Whether anything changed since the last commit.
    pub(crate) fn has_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire) || self.inodes.changed_count() > 0
    }

    /// The number of commits that became durable.
    pub(crate) fn count(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    fn is_due(&self) -> bool {
        let (store, namespace) = (&self.store, &self.namespace);
        let checkpoint = store.needs_checkpoint() || namespace.needs_checkpoint();
        (checkpoint && self.may_checkpoint())
            || store.needs_commit()
            || namespace.pending_bytes() >= BATCH
            || self.space_budget.written() >= CONTENT
    }

    /// Whether a change may try a checkpoint. After one that found no space, not every change tries
    /// again: the records of the attempts would use up the remaining space.
    fn may_checkpoint(&self) -> bool {
        let (refused, used) = (self.refused_at.load(Ordering::Relaxed), self.store.journal_bytes());
        refused == NOT_REFUSED || used < refused || used - refused >= RETRY_GROWTH
    }

    /// Commits; with a root if there is space for it. The caller holds `commit_lock`, and may hold
    /// the gate, which it then keeps.
    fn commit_or_checkpoint(&self, root: bool, kept: Option<&ExclusiveGate<'_>>) -> Result<()> {
        if root {
            let done = self.attempt(true, kept);
            let is_put_off = done.as_ref().is_err_and(Error::changed_nothing);
            let refused = if is_put_off { self.store.journal_bytes() } else { NOT_REFUSED };
            let before = self.refused_at.swap(refused, Ordering::Relaxed);
            if let Err(e) = &done
                && is_put_off
                && before == NOT_REFUSED
                && !e.kind().is_refusal()
            {
                self.services.log(&format!("a checkpoint is postponed: {}", e.summary()));
            }
            if !is_put_off || self.namespace.needs_root() {
                return done;
            }
        }
        self.attempt(false, kept)
    }

    fn attempt(&self, root: bool, kept: Option<&ExclusiveGate<'_>>) -> Result<()> {
        if root {
            // Before the gate is taken, unless the caller has it: transactions may begin meanwhile.
            self.store.finish_checkpoint().map_err(|e| self.services.commit_failed(e))?;
        }
        let mut alone = kept.is_none().then(|| self.gate.write());
        // A change may have failed during the wait, and left a partial change that must not be
        // committed.
        self.services.health.check()?;
        let before = self.store.last_commit().number;
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.store(false, Ordering::Release);
        self.space_budget.forget_space();
        let result = self.collect(root, &mut || drop(alone.take()));
        drop(alone);
        // Counted by the store's numbers: it makes no commit if nothing changed, and first
        // completes the previous one if the host had refused it.
        self.made.fetch_add(self.store.last_commit().number - before, Ordering::Relaxed);
        match result {
            Ok(()) => {
                self.durable.store(number, Ordering::Release);
                Ok(())
            }
            Err(e) => {
                self.changed.store(true, Ordering::Release);
                Err(self.services.commit_failed(e))
            }
        }
    }

    /// Collects all changes and commits them. `noted` admits new transactions.
    fn collect(&self, root: bool, noted: &mut dyn FnMut()) -> Result<()> {
        let (store, namespace) = (&self.store, &self.namespace);
        self.write_back()?;
        self.space_budget.commit_written();
        if root {
            return namespace.checkpoint(&mut |root, puts| {
                store.commit_then(puts, Some(root), &mut || {
                    namespace.note_rooted();
                    noted();
                })
            });
        }
        namespace.commit(&mut |puts| store.commit_then(puts, None, noted))
    }
}

/// Called after the last handle of a file is released: reclaims the file, in a transaction of its
/// own. A failure that ends all writing would also be one of the next commit.
pub(crate) fn reclaim_after(commits: &GroupCommit, handles: &OpenHandles, ino: u64) {
    if let Some(_transaction) = commits.begin_forced()
        && let Err(FsError::Storage(e)) = handles.reclaim(ino)
    {
        let e = commits.services.commit_failed(e);
        if e.changed_nothing() && !e.kind().is_refusal() {
            let found = e.summary();
            commits.services.log(&format!("a deleted file stays until the next opening: {found}"));
        }
    }
}

#[cfg(test)]
#[path = "group_commit_tests.rs"]
mod tests;
