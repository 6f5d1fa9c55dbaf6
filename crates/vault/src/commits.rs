//! When the vault commits, and that what it commits is one state of everything.
//!
//! Whatever changes the vault takes a [`Turn`]. A commit waits until all turns have ended, brings every changed inode and TS into
//! the namespace, and lets others go on as soon as the store has noted what the commit says; they do not wait for the
//! medium. Several that ask for a commit at the same time share one.

use crate::contents::Contents;
use crate::fs_error::errno;
use crate::ground::Ground;
use crate::openings::Openings;
use crate::room::Room;
use crate::{FsError, FsResult};
use lacuna_core::{Error, Result, closed};
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
pub(crate) struct Commits {
    ground: Arc<Ground>,
    contents: Arc<Contents>,
    pub(crate) room: Room,
    /// Shared by those who change something; taken alone by a commit while it collects.
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

/// The right to change something.
pub(crate) struct Turn<'a>(#[expect(dead_code, reason = "held until it is dropped")] RwLockReadGuard<'a, ()>);

impl Commits {
    pub(crate) fn new(ground: Arc<Ground>, contents: Arc<Contents>) -> Commits {
        Commits {
            room: Room::new(ground.clone(), contents.clone()),
            ground,
            contents,
            gate: RwLock::default(),
            one: Mutex::default(),
            started: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            changed: AtomicBool::new(false),
            refused: AtomicU64::new(NEVER),
        }
    }

    /// Waits for a turn to add something of about so many bytes. EROFS, and the standing refusal after a failure; ENOSPC or EDQUOT if there
    /// is no room for it.
    pub(crate) fn enter_to_add(&self, bytes: u64) -> FsResult<Turn<'_>> {
        self.get_ready()?;
        // Twice, for each gives one of the journal's two files back.
        for _ in 0..2 {
            if self.is_room(|room| room.is_for(bytes))? {
                return self.enter();
            }
            self.make_room()?;
        }
        if self.is_room(|room| room.is_for(bytes))? { self.enter() } else { errno(self.room.lacking()) }
    }

    /// Waits for a turn to change something that takes little more space than before. ENOSPC or EDQUOT if it is not certain that it can
    /// be committed.
    pub(crate) fn enter_to_change(&self) -> FsResult<Turn<'_>> {
        self.get_ready()?;
        if !self.is_room(Room::is_for_change)? {
            self.make_room()?;
            if !self.is_room(Room::is_for_change)? {
                return errno(self.room.lacking());
            }
        }
        self.enter()
    }

    /// Waits for a turn, which what removes something gets however little space there is. ENOSPC all the same if too much waits for
    /// a commit that finds no space.
    pub(crate) fn enter(&self) -> FsResult<Turn<'_>> {
        self.get_ready()?;
        if (self.is_due() || !self.is_room(Room::is_for_commit)?)
            && let Err(e) = self.commit()
            && (!e.kind().is_refusal() || self.ground.namespace.pending_bytes() >= BATCH_MOST)
        {
            return Err(e.into());
        }
        let turn = Turn(self.gate.read());
        // It may have failed while this waited.
        self.ground.health.check()?;
        self.changed.store(true, Ordering::Release);
        if self.ground.inodes.too_many_changed() {
            let contents = &self.contents;
            self.ground.inodes.write_back(|inode, body| contents.finish(inode, body))?;
        }
        Ok(turn)
    }

    fn is_room(&self, ask: impl FnOnce(&Room) -> Result<bool>) -> Result<bool> {
        ask(&self.room).map_err(|e| self.failed(e))
    }

    /// Refuses changes where there are none, and brings recent ones into the database.
    fn get_ready(&self) -> FsResult<()> {
        if self.ground.read_only {
            return errno(libc::EROFS);
        }
        self.ground.health.check()?;
        Ok(self.apply()?)
    }

    fn apply(&self) -> Result<()> {
        if self.ground.namespace.wants_apply() {
            return self.ground.namespace.apply().map_err(|e| self.failed(e));
        }
        Ok(())
    }

    /// Brings everything to its place, so that the journal owes nothing, and gives the space of the journal file back that held it; as far
    /// as there is space for that.
    fn make_room(&self) -> FsResult<()> {
        let store = &self.ground.store;
        // Also waits for another that makes room.
        let _one = self.one.lock();
        self.ground.health.check()?;
        let nothing = !self.has_changes() && store.journal_bytes() == 0 && !store.is_journal_large();
        let done = if nothing { Ok(()) } else { self.run(true) };
        let done = done.and_then(|()| store.finish_and_shrink().map_err(|e| self.failed(e)));
        match done {
            Err(e) if !e.kind().is_refusal() => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// A turn even while commits are due, for what must not fail: the end of an opening.
    pub(crate) fn enter_anyway(&self) -> Option<Turn<'_>> {
        if self.ground.read_only || !self.ground.health.is_alive() {
            return None;
        }
        let turn = Turn(self.gate.read());
        self.changed.store(true, Ordering::Release);
        Some(turn)
    }

    /// Returns when everything that ended its turn before is durable.
    pub(crate) fn sync(&self) -> FsResult<()> {
        if self.ground.read_only {
            return Ok(());
        }
        self.commit().map_err(FsError::from)
    }

    /// Commits what changed, if anything did.
    pub(crate) fn commit(&self) -> Result<()> {
        self.ground.health.check()?;
        // Reads change times of access, and nobody else may bring those there.
        self.apply()?;
        let enough = self.started.load(Ordering::Acquire) + 1;
        let _one = self.one.lock();
        self.ground.health.check()?;
        let shared = self.durable.load(Ordering::Acquire) >= enough;
        if shared || !self.has_changes() {
            return Ok(());
        }
        let Ground { store, namespace, .. } = &*self.ground;
        let due = store.needs_checkpoint() || namespace.wants_checkpoint();
        self.run(due || (!self.is_room(Room::is_for_commit)? && self.may_checkpoint()))
    }

    /// Commits with a root, so that the next opening has nothing to apply, and refuses whatever follows.
    pub(crate) fn close(&self) -> Result<()> {
        let _one = self.one.lock();
        if self.ground.read_only {
            return Ok(());
        }
        self.ground.health.check()?;
        self.run(true)?;
        self.ground.health.fail(closed());
        Ok(())
    }

    /// The first commit of a new vault, or that of a recovery.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = self.one.lock();
        self.run(true)
    }

    /// Whether something changed since the last commit.
    pub(crate) fn has_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire) || self.ground.inodes.changed() > 0
    }

    /// How many commits there were.
    pub(crate) fn count(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn is_due(&self) -> bool {
        let Ground { store, namespace, .. } = &*self.ground;
        let checkpoint = store.needs_checkpoint() || namespace.wants_checkpoint();
        (checkpoint && self.may_checkpoint())
            || store.needs_commit()
            || namespace.pending_bytes() >= BATCH
            || self.contents.written() >= CONTENT
    }

    /// Whether a checkpoint is to be tried for a change. One that found no space is not tried for each: the records of the tries would
    /// take what is left.
    fn may_checkpoint(&self) -> bool {
        let (refused, used) = (self.refused.load(Ordering::Relaxed), self.ground.store.journal_bytes());
        refused == NEVER || used < refused || used - refused >= AGAIN
    }

    /// Commits; with a root if there is space for one.
    fn run(&self, root: bool) -> Result<()> {
        if root {
            let done = self.attempt(true);
            let full = done.as_ref().is_err_and(|e| e.kind().is_refusal());
            let refused = if full { self.ground.store.journal_bytes() } else { NEVER };
            self.refused.store(refused, Ordering::Relaxed);
            if !full || self.ground.namespace.needs_root() {
                return done;
            }
        }
        self.attempt(false)
    }

    fn attempt(&self, root: bool) -> Result<()> {
        if root {
            // Not while others wait for their turns.
            self.ground.store.finish_checkpoint().map_err(|e| self.failed(e))?;
        }
        let mut alone = Some(self.gate.write());
        let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        self.changed.store(false, Ordering::Release);
        self.room.look_again();
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
        let Ground { store, namespace, inodes, .. } = &*self.ground;
        inodes.write_back(|inode, body| self.contents.finish(inode, body))?;
        self.contents.take_written();
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
        if e.kind().is_refusal() { e } else { self.ground.health.fail(e) }
    }
}

/// After an opening ended: tidies up after a file, in a turn of its own. A failure is one of the next commit as well.
pub(crate) fn tidy_after(commits: &Commits, openings: &Openings, ino: u64) {
    if let Some(_turn) = commits.enter_anyway()
        && let Err(FsError::Storage(e)) = openings.tidy(ino)
        && !e.kind().is_refusal()
    {
        commits.ground.health.fail(e);
    }
}
