//! When the vault commits, and that what it commits is one state of everything.
//!
//! Whatever changes the vault does so in a [`Transaction`]. A commit waits until all transactions
//! have ended, brings every changed inode and TS into the namespace, and lets others go on as soon
//! as the store has noted what the commit says; they do not wait for the medium. Several callers
//! that ask for a commit at the same time share one.
//!
//! A transaction reserves its space under the gate that it holds until it ends, and gives the
//! reservation back before it leaves the gate ([`Reservation`]). A commit holds the gate alone
//! while it collects, and leaves it only once the store has noted it and, if it has a root, gone on
//! in the other journal file. So no commit comes between a reservation and the end of its
//! transaction: the file that was prepared is the one that takes the record, and the figures that
//! were checked grow by what is reserved alone. What is due is committed before the gate is
//! entered, so it takes none of the reserved space; if it becomes due again meanwhile, the next
//! transaction commits it. One figure grows beside the gate: what a commit notes and the host then
//! refuses is pending again. The place of that record is taken, the next commit writes it first,
//! and whatever began before still has its space for the record after it, or waits with it for
//! space.
//!
//! A change that does not fit beside the reservations of others is not refused for them. It leaves
//! the gate, because a thread that shares the gate would wait for itself, takes `one`, and waits
//! for the gate alone ([`GroupCommit::begin_alone`]). Then every other transaction has ended and
//! none begins: its own reservation is the only one that is counted, and the space that the others
//! left has its true size. If that is not enough, it commits with the gate kept, and looks again.
//! So a refusal says what the host has for this change alone, after everything acknowledged is
//! committed.
//!
//! No thread waits for ever for that. It holds `one` and nothing else while it waits for the gate,
//! in the order in which a commit takes them. What it waits for are transactions under way: these
//! take neither `one` nor the gate again, and all other locks in the order below, whose holders
//! wait for neither, so each of them ends. The gate lets no transaction in before a thread that
//! waits for it alone, so it comes to its turn however many others begin. The check and the commit
//! with the gate kept take locks of the namespace and the store alone, whose holders, the store's
//! thread among them, never wait for the gate.
//!
//! The last commit, of an orderly end, keeps the gate until the vault refuses what follows: a
//! change that began as soon as that commit is noted would be acknowledged, and in no commit. A
//! thread that waits for the gate or for `one` looks at the health once it has it.
//!
//! Under the shared gate, [`GroupCommit::begin`] also writes inodes back when too many are changed.
//! Other transactions are half way then, and what is written back may be too. That is no state of a
//! commit: nothing of it is durable before the next commit, which holds the gate alone and finds
//! again every inode that was touched since ([`Inodes::write_back`] says what it relies on). A
//! failure there is one of the next commit as well, and ends writing like that
//! ([`Services::commit_failed`]).
//!
//! Order of locks, the first one first: `one`; `gate`; `Tree::changes`; the body of one inode; the
//! counts of open handles, the cache of open files, a shard of the inodes; what the namespace knows
//! of the next inode; in the namespace `applying`, `layers`, the database, its backend; then the
//! store, which takes none of these. The lists of changed inodes and of pending changes are the
//! last ones: no other lock is taken under them.

use crate::contents::Contents;
use crate::fs_error::errno;
use crate::inodes::Inodes;
use crate::namespace::Namespace;
use crate::open_handles::OpenHandles;
use crate::services::Services;
use crate::space_budget::{Reservation, Reserve, SpaceBudget};
use crate::{FsError, FsResult};
use lacuna_contracts::{Error, Result};
use lacuna_vault_store::Store;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a batch from which on a commit is due, and beyond which changes are refused while
/// commits fail.
const BATCH: usize = 2 << 20;
const BATCH_MOST: usize = 12 * BATCH;
/// Bytes of file content that are written between two commits, about.
const CONTENT: u64 = 512 << 20;
/// No checkpoint was refused.
const NEVER: u64 = u64::MAX;
/// Bytes that the journal grows by before a checkpoint that found no space is tried for a change
/// again.
const AGAIN: u64 = 1 << 20;
/// How often room is made for one change, at most. Where a commit is refused, space of the journal
/// is given back, and the next one finds some; it frees what it says is removed; then a checkpoint
/// may find space, and gives the other file of the journal back.
const ROOMS: u32 = 3;

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
    /// Commits that became durable.
    made: AtomicU64,
    /// Something may have changed since the last commit began.
    changed: AtomicBool,
    /// Bytes of the journal when a checkpoint found no space last; [`NEVER`] if the last one found
    /// some.
    refused: AtomicU64,
}

/// The gate as a thread holds it beside which no transaction runs.
type Alone<'a> = RwLockWriteGuard<'a, ()>;

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
    /// Errors: EROFS, and the standing refusal after a failure. ENOSPC or EDQUOT if there is no
    /// space for a write, or if it is not certain that a change of metadata can be committed, also
    /// after all other transactions have ended and everything is committed. A removal is refused
    /// only if too much is pending for a commit that finds no space.
    pub(crate) fn begin(&self, change: Reserve) -> FsResult<Transaction<'_>> {
        self.get_ready()?;
        if self.is_due() {
            self.commit_before_a_change()?;
        }
        let mut anyway = false;
        loop {
            if let Some(begun) = self.begin_beside_others(change, anyway)? {
                return Ok(begun);
            }
            if change != Reserve::Removal {
                return self.begin_alone(change);
            }
            self.commit_before_a_change()?;
            anyway = true;
        }
    }

    /// Begins a transaction if there is room for it beside everything that others may take; with
    /// `anyway` also if there is none.
    fn begin_beside_others(&self, change: Reserve, anyway: bool) -> FsResult<Option<Transaction<'_>>> {
        let gate = self.gate.read();
        // A commit may have failed while this waited, or have been the last one.
        self.services.health.check()?;
        let reserved = self.space.reserve(change);
        if self.fits(&reserved)? || anyway {
            return self.let_in(gate, reserved).map(Some);
        }
        Ok(None)
    }

    /// Begins a transaction after all others have ended, and makes room for it as long as there is
    /// something to be gained. No other change begins meanwhile, so the space that is lacking then
    /// is not there.
    fn begin_alone(&self, change: Reserve) -> FsResult<Transaction<'_>> {
        // Also waits for another thread that makes room.
        let _one = self.one.lock();
        let alone = self.gate.write();
        let mut rooms = ROOMS;
        loop {
            // A change or a commit may have failed while this waited, and one of its own now.
            self.services.health.check()?;
            let reserved = self.space.reserve(change);
            if self.fits(&reserved)? {
                return self.let_in(RwLockWriteGuard::downgrade(alone), reserved);
            }
            drop(reserved);
            if rooms == 0 {
                return errno(self.space.lacking());
            }
            rooms = if self.make_room(&alone)? { rooms - 1 } else { 0 };
        }
    }

    fn fits(&self, reserved: &Reservation<'_>) -> Result<bool> {
        reserved.fits().map_err(|e| self.services.commit_failed(e))
    }

    /// The transaction of a change that has its space.
    fn let_in<'a>(
        &'a self,
        gate: RwLockReadGuard<'a, ()>,
        reserved: Reservation<'a>,
    ) -> FsResult<Transaction<'a>> {
        let begun = Transaction { _reserved: reserved, _gate: gate };
        self.changed.store(true, Ordering::Release);
        if self.inodes.too_many_changed() {
            self.write_back().map_err(|e| self.services.commit_failed(e))?;
        }
        Ok(begun)
    }

    /// Commits before a change begins. If the host refuses that, everything waits for the next
    /// commit, unless too much waits already.
    fn commit_before_a_change(&self) -> Result<()> {
        match self.commit() {
            Err(e) if e.changed_nothing() && self.namespace.pending_bytes() < BATCH_MOST => Ok(()),
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

    /// Brings everything to its place, so that the journal owes nothing, and gives the space of the
    /// journal file back that held it; as far as there is space for that. Whether there was
    /// something to commit. The caller holds `one`.
    fn make_room(&self, alone: &Alone<'_>) -> Result<bool> {
        let store = &self.store;
        let unless_refused = |done: Result<()>| match done {
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(()),
        };
        let something = self.has_changes() || store.journal_bytes() > 0 || store.is_journal_large();
        if something {
            unless_refused(self.run(true, Some(alone)))?;
        }
        // Also after a commit that was refused: it may find space then.
        unless_refused(store.finish_and_shrink().map_err(|e| self.services.commit_failed(e)))?;
        Ok(something)
    }

    /// Begins a transaction even while commits are due and however little space there is, for a
    /// change that must not fail: the reclaim after a last handle, and at an opening. What it may
    /// take is counted for others.
    pub(crate) fn begin_forced(&self) -> Option<Transaction<'_>> {
        if self.services.read_only {
            return None;
        }
        let gate = self.gate.read();
        // Looked at behind the gate: the last commit may have been made while this waited.
        if !self.services.health.is_alive() {
            return None;
        }
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
        // Reads change times of access, and it may be that no change brings those into the
        // database.
        self.apply()?;
        self.commit_up_to(self.next_to_begin())
    }

    /// The number of the next commit that begins to collect: it has whatever ended before.
    fn next_to_begin(&self) -> u64 {
        self.started.load(Ordering::Acquire) + 1
    }

    /// Returns when the commit of this number, or a later one, is durable, or everything is.
    fn commit_up_to(&self, enough: u64) -> Result<()> {
        let _one = self.one.lock();
        let shared = self.durable.load(Ordering::Acquire) >= enough;
        // What the caller asks for is durable, whatever came while it waited: a failure, or an
        // orderly end.
        if shared || !self.has_changes() {
            return Ok(());
        }
        self.services.health.check()?;
        let (store, namespace) = (&self.store, &self.namespace);
        let due = store.needs_checkpoint() || namespace.wants_checkpoint();
        let holds = || self.space.holds_commit().map_err(|e| self.services.commit_failed(e));
        self.run(due || (!holds()? && self.may_checkpoint()), None)
    }

    /// Commits with a root, so that the next opening has nothing to apply, and refuses whatever
    /// follows. A change that waits for the end is refused; one that was let in before is in the
    /// commit.
    pub(crate) fn close(&self) -> Result<()> {
        let _one = self.one.lock();
        if self.services.read_only {
            return Ok(());
        }
        let alone = self.gate.write();
        self.services.health.check()?;
        self.run(true, Some(&alone))?;
        self.services.health.close();
        Ok(())
    }

    /// The first commit of a new vault, or that of a recovery.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_after(|| Ok(()))
    }

    /// Commits with a root what `work` hands to the store, which without that root is no state: no
    /// other commit comes between. Gives what `work` gives.
    pub(crate) fn checkpoint_after<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _one = self.one.lock();
        self.services.health.check()?;
        let done = work()?;
        self.run(true, None)?;
        Ok(done)
    }

    /// Whether something changed since the last commit.
    pub(crate) fn has_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire) || self.inodes.changed() > 0
    }

    /// How many commits became durable.
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

    /// Whether a checkpoint is to be tried for a change. One that found no space is not tried for
    /// each: the records of the tries would take what is left.
    fn may_checkpoint(&self) -> bool {
        let (refused, used) = (self.refused.load(Ordering::Relaxed), self.store.journal_bytes());
        refused == NEVER || used < refused || used - refused >= AGAIN
    }

    /// Commits; with a root if there is space for one. The caller holds `one`, and may hold the
    /// gate, which it keeps then.
    fn run(&self, root: bool, kept: Option<&Alone<'_>>) -> Result<()> {
        if root {
            let done = self.attempt(true, kept);
            let is_put_off = done.as_ref().is_err_and(Error::changed_nothing);
            let refused = if is_put_off { self.store.journal_bytes() } else { NEVER };
            let before = self.refused.swap(refused, Ordering::Relaxed);
            if let Err(e) = &done
                && is_put_off
                && before == NEVER
                && !e.kind().is_refusal()
            {
                self.services.log(&format!("a checkpoint is put off: {}", e.finding()));
            }
            if !is_put_off || self.namespace.needs_root() {
                return done;
            }
        }
        self.attempt(false, kept)
    }

    fn attempt(&self, root: bool, kept: Option<&Alone<'_>>) -> Result<()> {
        if root {
            // Done before the gate is taken, unless the caller has it: transactions may begin
            // meanwhile.
            self.store.finish_checkpoint().map_err(|e| self.services.commit_failed(e))?;
        }
        let mut alone = kept.is_none().then(|| self.gate.write());
        // A change may have failed while this waited for it: what it left half done is no state.
        self.services.health.check()?;
        let before = self.store.last_commit().number;
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.store(false, Ordering::Release);
        self.space.forget_space();
        let result = self.collect(root, &mut || drop(alone.take()));
        drop(alone);
        // By the store's numbers: it makes no commit where there is nothing to say, and first the
        // one before, if the host refused that.
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

/// After the last handle of a file was released: reclaims it, in a transaction of its own. A
/// failure that ends all writing is one of the next commit as well.
pub(crate) fn reclaim_after(commits: &GroupCommit, handles: &OpenHandles, ino: u64) {
    if let Some(_transaction) = commits.begin_forced()
        && let Err(FsError::Storage(e)) = handles.reclaim(ino)
    {
        let e = commits.services.commit_failed(e);
        if e.changed_nothing() && !e.kind().is_refusal() {
            let found = e.finding();
            commits.services.log(&format!("a file without a name stays until the next opening: {found}"));
        }
    }
}

#[cfg(test)]
#[path = "group_commit_tests.rs"]
mod tests;
