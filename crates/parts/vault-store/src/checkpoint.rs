//! The checkpointer: has the pages of one journal file written back to their places while the other
//! file takes new ones, and then writes the superblock.

use crate::change_collector::Request;
use crate::commit_log::{CommitLog, Frozen};
use crate::doubled::Further;
use crate::health::Health;
use crate::journal::Journal;
use crate::journal_size::Need;
use crate::reclaimer::Reclaimer;
use crate::superblock::SuperFiles;
use crate::write_back::WriteBack;
use lacuna_contracts::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// The checkpoints of an open store.
pub(crate) struct Checkpointer {
    write_back: WriteBack,
    journal: Arc<Journal>,
    health: Arc<Health>,
    reclaimer: Arc<Reclaimer>,
    log: Arc<CommitLog>,
    superblock: Mutex<SuperFiles>,
    /// A checkpoint that began. The thread that works on it holds the lock.
    frozen: Mutex<Option<Frozen>>,
}

impl Checkpointer {
    /// The checkpoints of a store with this superblock, and with the unfinished checkpoint that a
    /// recovery found.
    pub(crate) fn new(
        write_back: WriteBack,
        journal: Arc<Journal>,
        health: Arc<Health>,
        reclaimer: Arc<Reclaimer>,
        log: Arc<CommitLog>,
        superblock: SuperFiles,
        frozen: Option<Frozen>,
    ) -> Checkpointer {
        let (superblock, frozen) = (Mutex::new(superblock), Mutex::new(frozen));
        Checkpointer { write_back, journal, health, reclaimer, log, superblock, frozen }
    }

    /// Whether a checkpoint began and is not finished.
    pub(crate) fn is_begun(&self) -> bool {
        self.frozen.lock().is_some()
    }

    /// Commits with a root after finishing the previous checkpoint: a new checkpoint begins, and
    /// with `finishes` it is finished.
    pub(crate) fn commit(&self, asked: &Request<'_>, noted: &mut dyn FnMut(), finishes: bool) -> Result<()> {
        let mut frozen = self.frozen.lock();
        self.settle(&mut frozen)?;
        // An opening may have failed to write one file of the superblock, which is then stale.
        // Write it first: a stale superblock must not refer to the journal file that is reused now.
        self.complete_superblock().map_err(|e| self.health.refused(e))?;
        *frozen = self.log.commit(asked, noted)?;
        if !finishes {
            return Ok(());
        }
        match self.finish(&mut frozen) {
            // The commit is durable; the checkpoint is tried again before the next one.
            Err(e) if !e.changed_nothing() => Err(e),
            _ => Ok(()),
        }
    }

    /// Makes a commit durable that was noted and refused. If it has a root, the checkpoint that it
    /// begins is left for later.
    pub(crate) fn resume_commit(&self) -> Result<()> {
        self.resume(&mut self.frozen.lock())
    }

    /// Finishes a checkpoint that began.
    ///
    /// Errors: as [`Checkpointer::finish_owed`].
    pub(crate) fn finish_begun(&self) -> Result<()> {
        self.finish(&mut self.frozen.lock())
    }

    /// Finishes a checkpoint that began, and that of a commit with a root that was noted and
    /// refused.
    ///
    /// Errors: if the host refuses a call, mostly for lack of space, the checkpoint stays
    /// unfinished and may be tried again. Fail-stop on any other error.
    pub(crate) fn finish_owed(&self) -> Result<()> {
        self.settle(&mut self.frozen.lock())
    }

    /// See [`crate::Store::finish_and_shrink`].
    pub(crate) fn finish_and_shrink(&self) -> Result<()> {
        let Checkpointer { health, journal, .. } = self;
        let mut frozen = self.frozen.lock();
        self.settle(&mut frozen)?;
        if !journal.is_idle_large() {
            return Ok(());
        }
        self.give_back(|| journal.shrink_idle()).map_err(|e| health.broken(e))
    }

    /// Finishes pending checkpoints, and shrinks the journal if there was no commit since.
    pub(crate) fn close(&self) -> Result<()> {
        let Checkpointer { health, journal, .. } = self;
        let mut frozen = self.frozen.lock();
        self.settle(&mut frozen)?;
        self.reclaimer.reclaim()?;
        if journal.used() == 0 {
            self.give_back(|| {
                journal.shrink(0, Need::Closed)?;
                journal.shrink(1, Need::Closed)
            })?;
        }
        health.close();
        Ok(())
    }

    /// Recreates lost files of the superblock.
    pub(crate) fn make_lost(&self) -> Result<()> {
        self.superblock.lock().make_lost()
    }

    /// Writes the newest superblock to the files that do not hold it.
    pub(crate) fn complete_superblock(&self) -> Result<()> {
        self.superblock.lock().complete()
    }

    /// Makes a noted commit durable. If it has a root, it begins a checkpoint.
    fn resume(&self, frozen: &mut Option<Frozen>) -> Result<()> {
        if let Some(begun) = self.log.resume()? {
            *frozen = Some(begun);
        }
        Ok(())
    }

    /// Finishes a checkpoint that began, and that of a commit with a root that was noted and
    /// refused. Until then the journal file that this commit left has pages that no superblock
    /// covers.
    fn settle(&self, frozen: &mut Option<Frozen>) -> Result<()> {
        self.finish(frozen)?;
        if self.log.owes_root() {
            self.resume(frozen)?;
            self.finish(frozen)?;
        }
        Ok(())
    }

    /// Finishes a checkpoint, if one began.
    fn finish(&self, frozen: &mut Option<Frozen>) -> Result<()> {
        let health = &self.health;
        let Some(begun) = frozen.as_ref() else { return Ok(()) };
        health.check()?;
        self.bring(begun).map_err(|e| health.refused(e))?;
        self.release(begun).map_err(|e| health.broken(e))?;
        *frozen = None;
        // The host had space for everything.
        health.relax();
        Ok(())
    }

    /// Writes the pages back to their places, and then the superblocks.
    fn bring(&self, begun: &Frozen) -> Result<()> {
        // First: a recovery that begins at the new superblock does not see these removals.
        self.reclaimer.reclaim()?;
        self.write_back.write_objects(begun)?;
        let (commit, facts, root) = (&begun.commit, &begun.facts, begun.root.as_deref());
        // Once the second files are written to, neither file has the previous root whole. So the
        // new root must be in a superblock by then, not only in its record.
        self.superblock.lock().begin(commit, facts, root, 1 - begun.left)?;
        self.write_back.write_extra(&begun.objects, Further::Second)?;
        // Once the third files are written to, no file has the previous root whole. Without this,
        // two bad blocks, of the superblock and of the record, would then lose the new root.
        self.superblock.lock().complete_third()?;
        self.write_back.write_extra(&begun.objects, Further::Third)?;
        self.complete_superblock()
    }

    /// Drops the written layer, and shrinks the journal file.
    fn release(&self, begun: &Frozen) -> Result<()> {
        self.write_back.drop_frozen(&begun.objects);
        self.journal.settled();
        if self.journal.is_longer(begun.left) {
            self.give_back(|| self.journal.shrink(begun.left, Need::Usual))?;
        }
        self.reclaimer.drop_idle(&begun.objects);
        Ok(())
    }

    /// Shrinks journal files that are no longer needed, if all superblocks are current: then losing
    /// some of them loses nothing. A copy-on-write file system may refuse for lack of space; then
    /// nothing is shrunk.
    fn give_back(&self, cut: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.superblock.lock().is_in_all() {
            return Ok(());
        }
        match cut() {
            Err(e) if e.kind().is_refusal() => Ok(()),
            done => done,
        }
    }
}
