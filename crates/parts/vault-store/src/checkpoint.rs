//! The checkpointer: writes the pages of one journal file back to their places while the other file
//! takes new ones, and then writes the superblock.

use crate::commit_log::{CommitLog, Frozen, Request};
use crate::doubled::Further;
use crate::ids::PAGE;
use crate::journal::{NAMES, Need};
use crate::object::{Entry, Layer};
use crate::parts::Parts;
use crate::read::is_listed;
use crate::reclaimer::Reclaimer;
use crate::superblock::SuperFiles;
use lacuna_contracts::{Action, Advice, Error, Kind, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::FolderFile;
use parking_lot::Mutex;
use std::sync::Arc;

/// Pages per write call.
const AT_ONCE: usize = 64;

/// The checkpoints of an open store.
pub(crate) struct Checkpointer {
    parts: Arc<Parts>,
    reclaimer: Arc<Reclaimer>,
    log: Arc<CommitLog>,
    random: Arc<dyn RandomSource>,
    superblock: Mutex<SuperFiles>,
    /// A checkpoint that began. The thread that works on it holds the lock.
    frozen: Mutex<Option<Frozen>>,
}

impl Checkpointer {
    /// The checkpoints of a store with this superblock, and with the unfinished checkpoint that a
    /// recovery found.
    pub(crate) fn new(
        parts: Arc<Parts>,
        reclaimer: Arc<Reclaimer>,
        log: Arc<CommitLog>,
        random: Arc<dyn RandomSource>,
        superblock: SuperFiles,
        frozen: Option<Frozen>,
    ) -> Checkpointer {
        let (superblock, frozen) = (Mutex::new(superblock), Mutex::new(frozen));
        Checkpointer { parts, reclaimer, log, random, superblock, frozen }
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
        self.complete_superblock().map_err(|e| self.parts.health.refused(e))?;
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
        let Parts { health, journal, .. } = &*self.parts;
        let mut frozen = self.frozen.lock();
        self.settle(&mut frozen)?;
        if !journal.is_idle_large() {
            return Ok(());
        }
        self.give_back(|| journal.shrink_idle()).map_err(|e| health.broken(e))
    }

    /// Finishes pending checkpoints, and shrinks the journal if there was no commit since.
    pub(crate) fn close(&self) -> Result<()> {
        let Parts { health, journal, .. } = &*self.parts;
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
        self.superblock.lock().make_lost(&*self.parts.folder)
    }

    /// Writes the newest superblock to the files that do not hold it.
    pub(crate) fn complete_superblock(&self) -> Result<()> {
        self.superblock.lock().complete(&self.parts.keys, &*self.random)
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
        let health = &self.parts.health;
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
        let Parts { keys, objects, interval, .. } = &*self.parts;
        // First: a recovery that begins at the new superblock does not see these removals.
        self.reclaimer.reclaim()?;
        let epoch = interval.epoch();
        let mut brought = Vec::new();
        for &id in &begun.objects {
            let Some(object) = objects.get(id) else { continue };
            let (layer, file) = {
                let mut object = object.write();
                object.turn(epoch);
                let Some(layer) = object.frozen.clone().filter(|_| !object.gone) else { continue };
                let file = if layer.pages.is_empty() {
                    objects.file(id)?
                } else {
                    Some(objects.file_or_make(id, &mut object, interval.is_new(id))?)
                };
                (layer, file)
            };
            if let Some(file) = file {
                self.bring_object(id, &layer, &*file)?;
                brought.push(id);
            }
        }
        objects.sync(&brought)?;
        objects.sync_names()?;
        let (commit, facts, root) = (&begun.commit, &begun.facts, begun.root.as_deref());
        // Once the second files are written to, neither file has the previous root whole. So the
        // new root must be in a superblock by then, not only in its record.
        self.superblock.lock().begin(keys, &*self.random, commit, facts, root, 1 - begun.left)?;
        for which in Further::ALL {
            self.bring_further(&begun.objects, which)?;
        }
        self.complete_superblock()
    }

    /// Writes the pages of doubled objects back to one of their further files, after they are
    /// durable in the file before it, and makes them durable there.
    fn bring_further(&self, frozen: &[u64], which: Further) -> Result<()> {
        let objects = &self.parts.objects;
        let mut files = Vec::new();
        for &id in frozen.iter().filter(|id| objects.doubled.has(**id)) {
            let Some(object) = objects.get(id) else { continue };
            let layer = {
                let object = object.read();
                object.frozen.clone().filter(|_| !object.gone)
            };
            let Some(layer) = layer else { continue };
            let file = objects.further_or_make(id, which)?;
            self.bring_object(id, &layer, &*file)?;
            files.push(file);
        }
        files.iter().try_for_each(|file| file.sync()).map_err(Error::of_sync)?;
        objects.sync_names()
    }

    /// Writes one object's pages back to a file. No other thread writes to these places meanwhile,
    /// and a truncated object is written only to the journal.
    fn bring_object(&self, id: u64, layer: &Layer, file: &dyn FolderFile) -> Result<()> {
        if let Some(cut) = layer.cut
            && file.len()? > cut * PAGE as u64
        {
            file.set_len(cut * PAGE as u64)?;
        }
        let mut pages = layer.pages.iter().peekable();
        let mut run = Vec::with_capacity(AT_ONCE * PAGE);
        while let Some((&first, entry)) = pages.next() {
            run.clear();
            self.append(id, first, entry, &mut run)?;
            let mut next = first + 1;
            while run.len() < AT_ONCE * PAGE
                && let Some((_, entry)) = pages.next_if(|(page, _)| **page == next)
            {
                self.append(id, next, entry, &mut run)?;
                next += 1;
            }
            file.write_at(first * PAGE as u64, &run)?;
        }
        Ok(())
    }

    /// Reads a page from the journal. If it does not match, an interrupted checkpoint may have
    /// written it to the object's first file already. If that does not match either: a file's page
    /// is written back as it is, and is an error of that block alone. A doubled object's page must
    /// not be: its second file has the pages of the previous root, which gives the same state
    /// together with the changes since.
    fn append(&self, object: u64, page: u64, entry: &Entry, run: &mut Vec<u8>) -> Result<()> {
        let Parts { keys, objects, journal, .. } = &*self.parts;
        let from = run.len();
        run.resize(from + PAGE, 0);
        let bytes = &mut run[from..];
        journal.read(entry.place, bytes)?;
        if is_listed(keys, entry, bytes) {
            return Ok(());
        }
        let mut brought = [0; PAGE];
        objects.read(object, page, &mut brought)?;
        if is_listed(keys, entry, &brought) {
            bytes.copy_from_slice(&brought);
            return Ok(());
        }
        if !objects.doubled.has(object) {
            return Ok(());
        }
        Err(Error::new(Kind::Corrupt, "cannot finish a checkpoint of the vault")
            .found(format!(
                "page {} of {}, with a page of the names that does not verify",
                entry.place.page,
                NAMES[usize::from(entry.place.area)]
            ))
            .expected("what was written there")
            .remedy(
                Advice::from("bring the journal files back as they were, or bring everything out with ")
                    .action(Action("vault::rescue"))
                    .text(
                        " and make the vault anew; nothing is lost by this alone, as long as nothing writes to the directory",
                    ),
            ))
    }

    /// Drops the written layer, and shrinks the journal file.
    fn release(&self, begun: &Frozen) -> Result<()> {
        let Parts { objects, interval, journal, .. } = &*self.parts;
        for id in &begun.objects {
            if let Some(object) = objects.get(*id) {
                object.write().frozen = None;
            }
        }
        journal.settled();
        if journal.is_longer(begun.left) {
            self.give_back(|| journal.shrink(begun.left, Need::Usual))?;
        }
        let _alone = interval.alone();
        objects.forget_idle(&begun.objects, interval.commit());
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
