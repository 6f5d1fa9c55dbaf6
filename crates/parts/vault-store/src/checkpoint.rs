//! The checkpointer: has the pages of one journal file written back to their places while the other
//! file takes new ones, and then writes the superblock.

use crate::commits::log::{CommitLog, PendingCheckpoint};
use crate::health::StoreHealth;
use crate::journal::Journal;
use crate::journal::size::ShrinkTo;
use crate::objects::change_collector::CommitRequest;
use crate::objects::doubled::ExtraFile;
use crate::objects::reclaimer::Reclaimer;
use crate::opening::superblock::SuperblockFiles;
use crate::write_back::WriteBack;
use lacuna_contracts::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// The checkpoints of an open store.
pub(crate) struct Checkpointer {
    write_back: WriteBack,
    journal: Arc<Journal>,
    health: Arc<StoreHealth>,
    reclaimer: Arc<Reclaimer>,
    log: Arc<CommitLog>,
    superblock: Mutex<SuperblockFiles>,
    /// A checkpoint that began. The thread that works on it holds the lock.
    pending: Mutex<Option<PendingCheckpoint>>,
}

impl Checkpointer {
    /// The checkpoints of a store with this superblock, and with the unfinished checkpoint that a
    /// recovery found.
    pub(crate) fn new(
        write_back: WriteBack,
        journal: Arc<Journal>,
        health: Arc<StoreHealth>,
        reclaimer: Arc<Reclaimer>,
        log: Arc<CommitLog>,
        superblock: SuperblockFiles,
        frozen: Option<PendingCheckpoint>,
    ) -> Checkpointer {
        let (superblock, frozen) = (Mutex::new(superblock), Mutex::new(frozen));
        Checkpointer { write_back, journal, health, reclaimer, log, superblock, pending: frozen }
    }

    /// Whether a checkpoint began and is not finished.
    pub(crate) fn is_begun(&self) -> bool {
        self.pending.lock().is_some()
    }

    /// Commits with a root after finishing the previous checkpoint: a new checkpoint begins, and
    /// with `finishes` it is finished.
    pub(crate) fn commit(
        &self,
        asked: &CommitRequest<'_>,
        noted: &mut dyn FnMut(),
        finishes: bool,
    ) -> Result<()> {
        let mut frozen = self.pending.lock();
        self.finish_all_locked(&mut frozen)?;
        // An opening may have failed to write one file of the superblock, which is then stale.
        // Write it first: a stale superblock must not refer to the journal file that is reused now.
        self.complete_superblock().map_err(|e| self.health.note_failure(e))?;
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
        self.resume(&mut self.pending.lock())
    }

    /// Finishes a checkpoint that began.
    ///
    /// Errors: as [`Checkpointer::finish_all`].
    pub(crate) fn finish_begun(&self) -> Result<()> {
        self.finish(&mut self.pending.lock())
    }

    /// Finishes a checkpoint that began, and that of a commit with a root that was noted and
    /// refused.
    ///
    /// Errors: if the host refuses a call, mostly for lack of space, the checkpoint stays
    /// unfinished and may be tried again. Fail-stop on any other error.
    pub(crate) fn finish_all(&self) -> Result<()> {
        self.finish_all_locked(&mut self.pending.lock())
    }

    /// See [`crate::Store::finish_without_unreadable`].
    pub(crate) fn finish_without_unreadable(&self) -> Result<()> {
        // The lock keeps other threads from writing back meanwhile.
        let mut frozen = self.pending.lock();
        self.write_back.set_gives_up_pages(true);
        let done = self.finish_all_locked(&mut frozen);
        self.write_back.set_gives_up_pages(false);
        done
    }

    /// See [`crate::Store::finish_and_shrink`].
    pub(crate) fn finish_and_shrink(&self) -> Result<()> {
        let Checkpointer { health, journal, .. } = self;
        let mut frozen = self.pending.lock();
        self.finish_all_locked(&mut frozen)?;
        if !journal.is_idle_large() {
            return Ok(());
        }
        self.shrink_if_current(|| journal.shrink_idle()).map_err(|e| health.fail_stop(e))
    }

    /// Finishes pending checkpoints, and shrinks the journal if there was no commit since.
    pub(crate) fn close(&self) -> Result<()> {
        let Checkpointer { health, journal, .. } = self;
        let mut frozen = self.pending.lock();
        self.finish_all_locked(&mut frozen)?;
        self.reclaimer.reclaim()?;
        if journal.used() == 0 {
            self.shrink_if_current(|| {
                journal.shrink(0, ShrinkTo::Closed)?;
                journal.shrink(1, ShrinkTo::Closed)
            })?;
        }
        health.close();
        Ok(())
    }

    /// Recreates lost files of the superblock.
    pub(crate) fn recreate_lost(&self) -> Result<()> {
        self.superblock.lock().recreate_lost()
    }

    /// Writes the newest superblock to the files that do not hold it.
    pub(crate) fn complete_superblock(&self) -> Result<()> {
        self.superblock.lock().write_rest()
    }

    /// Makes a noted commit durable. If it has a root, it begins a checkpoint.
    fn resume(&self, frozen: &mut Option<PendingCheckpoint>) -> Result<()> {
        if let Some(begun) = self.log.resume()? {
            *frozen = Some(begun);
        }
        Ok(())
    }

    /// Finishes a checkpoint that began, and that of a commit with a root that was noted and
    /// refused. Until then the journal file that this commit left has pages that no superblock
    /// covers.
    fn finish_all_locked(&self, frozen: &mut Option<PendingCheckpoint>) -> Result<()> {
        self.finish(frozen)?;
        if self.log.has_pending_root() {
            self.resume(frozen)?;
            self.finish(frozen)?;
        }
        Ok(())
    }

    /// Finishes a checkpoint, if one began.
    fn finish(&self, frozen: &mut Option<PendingCheckpoint>) -> Result<()> {
        let health = &self.health;
        let Some(begun) = frozen.as_ref() else { return Ok(()) };
        health.check()?;
        self.write_back(begun).map_err(|e| health.note_failure(e))?;
        self.release(begun).map_err(|e| health.fail_stop(e))?;
        *frozen = None;
        // The host had space for everything.
        health.clear_refusal();
        Ok(())
    }

    /// Writes the pages back to their places, and then the superblocks.
    fn write_back(&self, begun: &PendingCheckpoint) -> Result<()> {
        // First: a recovery that begins at the new superblock does not see these removals.
        self.reclaimer.reclaim()?;
        self.write_back.write_objects(begun)?;
        let (commit, facts, root) = (&begun.commit, &begun.state, begun.root.as_deref());
        // Once the second files are written to, neither file has the previous root whole. So the
        // new root must be in a superblock by then, not only in its record.
        self.superblock.lock().write_first(commit, facts, root, 1 - begun.journal_file)?;
        self.write_back.write_extra(&begun.objects, ExtraFile::Second)?;
        // Once the third files are written to, no file has the previous root whole. Without this,
        // two bad blocks, of the superblock and of the record, would then lose the new root.
        self.superblock.lock().complete_third()?;
        self.write_back.write_extra(&begun.objects, ExtraFile::Third)?;
        self.complete_superblock()
    }

    /// Drops the written layer, and shrinks the journal file.
    fn release(&self, begun: &PendingCheckpoint) -> Result<()> {
        self.write_back.drop_frozen(&begun.objects);
        self.journal.note_checkpoint_done();
        if self.journal.is_longer(begun.journal_file) {
            self.shrink_if_current(|| self.journal.shrink(begun.journal_file, ShrinkTo::Normal))?;
        }
        self.reclaimer.drop_idle(&begun.objects);
        Ok(())
    }

    /// Shrinks journal files that are no longer needed, if all superblocks are current: then losing
    /// some of them loses nothing. A copy-on-write file system may refuse for lack of space; then
    /// nothing is shrunk.
    fn shrink_if_current(&self, cut: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.superblock.lock().is_in_all() {
            return Ok(());
        }
        match cut() {
            Err(e) if e.kind().is_refusal() => Ok(()),
            done => done,
        }
    }
}
