//! When the vault commits, and that what it commits is one state of everything.
//!
//! Whatever changes the vault takes a [`Turn`]. A commit waits until all turns have ended, brings every changed inode and TS into
//! the namespace, and lets others go on as soon as the store has noted what the commit says; they do not wait for the
//! medium. Several that ask for a commit at the same time share one.

use crate::contents::Contents;
use crate::fs_error::errno;
use crate::ground::Ground;
use crate::openings::Openings;
use crate::{FsError, FsResult};
use lacuna_core::{Error, Kind, Result, closed};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a batch from which on a commit is due, and beyond which changes are refused while commits fail.
const BATCH: usize = 2 << 20;
const BATCH_MOST: usize = 12 * BATCH;
/// Bytes of file content that are written between two commits, about.
const CONTENT: u64 = 512 << 20;

/// The commits of an open vault.
pub(crate) struct Commits {
    ground: Arc<Ground>,
    contents: Arc<Contents>,
    /// Shared by those who change something; taken alone by a commit while it collects.
    gate: RwLock<()>,
    /// Taken by one commit at a time.
    one: Mutex<()>,
    /// Commits that began to collect, and the last of them that is durable.
    started: AtomicU64,
    durable: AtomicU64,
    /// Something may have changed since the last commit began.
    changed: AtomicBool,
}

/// The right to change something.
pub(crate) struct Turn<'a>(#[expect(dead_code, reason = "held until it is dropped")] RwLockReadGuard<'a, ()>);

impl Commits {
    pub(crate) fn new(ground: Arc<Ground>, contents: Arc<Contents>) -> Commits {
        Commits {
            ground,
            contents,
            gate: RwLock::default(),
            one: Mutex::default(),
            started: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            changed: AtomicBool::new(false),
        }
    }

    /// Waits for a turn. EROFS, and the standing refusal after a failure; ENOSPC if too much waits for a commit that finds no
    /// space.
    pub(crate) fn enter(&self) -> FsResult<Turn<'_>> {
        if self.ground.read_only {
            return errno(libc::EROFS);
        }
        self.ground.health.check()?;
        if self.ground.namespace.wants_apply() {
            self.ground.namespace.apply()?;
        }
        if self.is_due()
            && let Err(e) = self.commit()
            && (e.kind() != Kind::NoSpace || self.ground.namespace.pending_bytes() >= BATCH_MOST)
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
        let enough = self.started.load(Ordering::Acquire) + 1;
        let _one = self.one.lock();
        self.ground.health.check()?;
        let shared = self.durable.load(Ordering::Acquire) >= enough;
        if shared || !self.has_changes() {
            return Ok(());
        }
        let root = self.ground.store.needs_checkpoint() || self.ground.namespace.wants_checkpoint();
        self.run(root)
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
        store.needs_commit()
            || store.needs_checkpoint()
            || namespace.pending_bytes() >= BATCH
            || namespace.wants_checkpoint()
            || self.contents.written() >= CONTENT
    }

    /// Commits; with a root if there is space for one.
    fn run(&self, root: bool) -> Result<()> {
        if root {
            let done = self.attempt(true);
            let full = done.as_ref().is_err_and(|e| e.kind() == Kind::NoSpace);
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
            return namespace.checkpoint(&mut |root| store.commit_then(&[], Some(root), noted));
        }
        namespace.commit(&mut |puts| store.commit_then(puts, None, noted))
    }

    /// A full backing directory is no failure: everything waits here for the next commit.
    fn failed(&self, e: Error) -> Error {
        if e.kind() == Kind::NoSpace { e } else { self.ground.health.fail(e) }
    }
}

/// After an opening ended: tidies up after a file, in a turn of its own. A failure is one of the next commit as well.
pub(crate) fn tidy_after(commits: &Commits, openings: &Openings, ino: u64) {
    if let Some(_turn) = commits.enter_anyway()
        && let Err(FsError::Storage(e)) = openings.tidy(ino)
        && e.kind() != Kind::NoSpace
    {
        commits.ground.health.fail(e);
    }
}
