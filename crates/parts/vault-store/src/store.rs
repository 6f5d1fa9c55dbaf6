//! An open store: what callers use of it, and how its parts work together for them.

use crate::anchor::AnchorState;
use crate::assembly::Assembly;
use crate::commit_log::Request;
use crate::content::{Commit, Facts};
use crate::copies::{self, PageCopy};
use crate::doubled::Further;
use crate::ids::{CommitInfo, ObjectId, PAGE};
use crate::journal::{self, Journal};
use crate::keys::StoreKeys;
use crate::options::{StoreBase, StoreOptions};
use crate::parts::Parts;
use crate::read;
use crate::recovered::Recovered;
use crate::recovery::{self, Untaken};
use crate::superblock::{self, SuperFiles};
use crate::worker::Worker;
use lacuna_contracts::{Error, Kind, Result, Status, StatusItem};
use lacuna_medium::Space;
use parking_lot::Mutex;
use std::cell::Cell;

/// The files of a store beside those of objects, which are in subfolders of two hexadecimal digits.
pub const FILES: [&str; 5] =
    [superblock::NAMES[0], superblock::NAMES[1], journal::NAMES[0], journal::NAMES[1], superblock::THIRD];

/// Free space in bytes below which what removed files still take matters.
const LITTLE: u64 = 64 << 20;

/// An open store. Called from many threads at once.
pub struct Store {
    assembly: Assembly,
    worker: Mutex<Option<Worker>>,
    /// Until it is taken up.
    untaken: Mutex<Option<Untaken>>,
}

impl Store {
    /// Makes a store in a folder that has none. Files of one that is there are gone.
    ///
    /// Errors: [`Kind::Exists`] if the anchor remembers a vault already.
    pub fn create(base: StoreBase, keys: StoreKeys, options: &StoreOptions) -> Result<Store> {
        if base.anchor.load()?.is_some() {
            return Err(Error::new(Kind::Exists, "cannot make a vault")
                .found("an anchor that remembers one")
                .expected("an anchor of its own"));
        }
        let commit = Commit { machine: base.draw(), number: 1, digest: base.draw(), before: [0; 32] };
        let facts = Facts {
            machine: commit.machine,
            time: (base.now)(),
            next_object: 1,
            object_limit: 1025,
            ..Facts::default()
        };
        let first = AnchorState {
            uuid: base.uuid,
            machine: commit.machine,
            number: 1,
            digest: commit.digest,
            time: facts.time,
        };
        Journal::create(&*base.folder, options.journal)?;
        let mut superblock = SuperFiles::create(&*base.folder)?;
        superblock.write(&keys, &*base.random, &commit, &facts, None, 0)?;
        base.folder.sync_names("")?;
        base.anchor.advance(None, &first)?;
        Store::open(base, keys, options).map(|(store, _)| store)
    }

    /// Opens the store of a folder, in its newest state.
    ///
    /// Errors: [`Kind::RolledBack`] if that state does not descend from what the anchor remembers,
    /// [`Kind::Corrupt`] if there is no superblock that verifies.
    pub fn open(base: StoreBase, keys: StoreKeys, options: &StoreOptions) -> Result<(Store, Recovered)> {
        let (store, found) = Store::look(base, keys, options)?;
        store.take_up()?;
        Ok((store, found))
    }

    /// The same, but nothing is changed before [`Store::take_up`], neither in the folder nor in the
    /// anchor: until then it is for reading alone. So a state that turns out to be incomplete
    /// leaves no trace.
    pub fn look(base: StoreBase, keys: StoreKeys, options: &StoreOptions) -> Result<(Store, Recovered)> {
        let (assembly, found, untaken) = recovery::look(base, keys, options)?;
        let untaken = Mutex::new(Some(untaken).filter(|_| !options.read_only));
        Ok((Store { assembly, worker: Mutex::new(None), untaken }, found))
    }

    /// Goes on from the state that [`Store::look`] found: the anchor remembers it from now on.
    pub fn take_up(&self) -> Result<()> {
        let Some(untaken) = self.untaken.lock().take() else { return Ok(()) };
        recovery::take_up(&self.assembly, &untaken)?;
        let Assembly { parts, reclaimer, checkpoints, background, .. } = &self.assembly;
        if *background {
            let (parts, reclaimer, checkpoints) = (parts.clone(), reclaimer.clone(), checkpoints.clone());
            *self.worker.lock() = Some(Worker::start(move || {
                if let Err(e) = reclaimer.reclaim() {
                    parts.health.refused(e);
                }
                // What changed nothing is tried again by the next checkpoint, which tells of it;
                // anything else is fail-stop already.
                let _failure = checkpoints.finish_begun();
            }));
        }
        if checkpoints.is_begun() {
            self.wake();
        }
        Ok(())
    }

    fn parts(&self) -> &Parts {
        &self.assembly.parts
    }

    /// Random, new at each opening, and when the machine was resumed from a snapshot.
    pub fn session(&self) -> u64 {
        self.assembly.log.session()
    }

    /// A number for a new object, which has no pages.
    ///
    /// Errors: [`Kind::Busy`] if too many were made since the last commit; [`Store::needs_commit`]
    /// says so in time.
    pub fn new_object(&self) -> Result<ObjectId> {
        self.parts().health.may_change()?;
        self.parts().interval.new_object()
    }

    /// Reads whole pages from page `first` on; absent ones are zeros.
    pub fn read(&self, object: ObjectId, first: u64, out: &mut [u8]) -> Result<()> {
        read::read(self.parts(), object.0, first, out)
    }

    /// Writes whole pages from page `first` on. Durable after the next commit.
    ///
    /// Errors: what the host refuses ([`Kind::is_refusal`]), and [`Kind::NoSpace`] if the journal
    /// is full: all pages are as they were, and the store goes on. Anything else is fail-stop, and
    /// so is a refusal to put back what was overwritten.
    pub fn write(&self, object: ObjectId, first: u64, pages: &[u8]) -> Result<()> {
        self.with_space(|| self.assembly.writer.write(object.0, first, pages))
    }

    /// Cuts an object: pages from `pages` on are zeros from now on, until they are written.
    pub fn truncate(&self, object: ObjectId, pages: u64) -> Result<()> {
        self.assembly.writer.truncate(object.0, pages)
    }

    /// Removes an object. What it held is there until the next commit is durable.
    pub fn remove(&self, object: ObjectId) -> Result<()> {
        self.assembly.writer.remove(object.0)
    }

    /// Returns when everything that returned before is durable and the anchor has advanced. `puts`
    /// is an opaque batch, which may be empty: a later opening gives it back. With a root, at most
    /// [`crate::ROOT_MAX`] bytes, which holds all batches so far and this one, a checkpoint begins;
    /// until that is done an opening that asks gives the root before and these batches
    /// ([`crate::Before`]).
    ///
    /// Errors: one that changed nothing, such as a refusal of the host
    /// ([`lacuna_contracts::Error::changed_nothing`]): the store goes on, and what was to be
    /// committed is with the next commit. Anything else is fail-stop, a sync that failed above all.
    pub fn commit(&self, puts: &[u8], root: Option<&[u8]>) -> Result<()> {
        self.commit_then(puts, root, &mut || ())
    }

    /// The same; `noted` is called as soon as changes belong to the next commit, before this one is
    /// durable, and once at most. If it is not called, nothing is noted.
    pub fn commit_then(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let is_noted = Cell::new(false);
        self.with_space(|| {
            // Others change objects since then, and what they do is not whole: nothing is noted a
            // second time.
            if is_noted.get() {
                return self.complete_noted();
            }
            self.commit_once(puts, root, &mut || {
                is_noted.set(true);
                noted();
            })
        })
    }

    /// Acts; if there is no space, acts once more after the files of removed objects are gone.
    fn with_space(&self, mut act: impl FnMut() -> Result<()>) -> Result<()> {
        match act() {
            Err(e) if e.kind().is_refusal() && self.assembly.background => {
                self.reclaim()?;
                act()
            }
            done => done,
        }
    }

    /// Removes the files of removed objects now.
    fn reclaim(&self) -> Result<()> {
        self.assembly.reclaimer.reclaim().map_err(|e| self.parts().health.refused(e))
    }

    fn commit_once(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let Assembly { reclaimer, log, checkpoints, background, .. } = &self.assembly;
        let asked = Request { puts, root, anyway: false };
        if root.is_none() {
            if log.owes_root() {
                self.complete_noted()?;
            }
            log.commit(&asked, noted)?;
            if !reclaimer.is_empty() {
                self.wake();
            }
            return Ok(());
        }
        checkpoints.commit(&asked, noted, !background)?;
        if *background {
            self.wake();
        }
        Ok(())
    }

    /// The batches of commits in the journal that are newer than the last one that was found, and
    /// that nothing leads to: a block between is damaged. With their numbers. For a store that was
    /// only looked at.
    pub fn unreached(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        self.assembly.log.unreached()
    }

    /// Makes a commit durable that was noted and refused. If it has a root, the checkpoint that it
    /// begins is left to the thread.
    fn complete_noted(&self) -> Result<()> {
        self.assembly.checkpoints.resume_commit()?;
        self.wake();
        Ok(())
    }

    /// Finishes a checkpoint that began, so that the next commit with a root need not.
    pub fn finish_checkpoint(&self) -> Result<()> {
        self.assembly.checkpoints.finish_owed()
    }

    /// The same, and gives back most of the space of the journal file that nothing is written to.
    pub fn finish_and_shrink(&self) -> Result<()> {
        self.parts().health.may_change()?;
        self.assembly.checkpoints.finish_and_shrink()
    }

    /// Lets the journal become longer for a checkpoint, or no more; a commit with a root ends that.
    /// No other thread writes meanwhile.
    pub fn lift_journal(&self, lifted: bool) {
        self.parts().journal.lift(lifted);
    }

    /// Whether a file of the journal has much more space than commits need now.
    pub fn is_journal_large(&self) -> bool {
        self.parts().journal.is_large()
    }

    fn wake(&self) {
        if let Some(worker) = &*self.worker.lock() {
            worker.wake();
        }
    }

    /// Whether the next commit should come soon: many objects were made since the last. Ask before
    /// making objects.
    pub fn needs_commit(&self) -> bool {
        self.parts().interval.needs_commit()
    }

    /// Prepares the journal for writes of this many bytes and for the commit with a root and this
    /// many bytes of puts that follows: at most what the journal may have. It stays theirs as long
    /// as no other thread writes.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not as much; nothing has changed then.
    pub fn reserve(&self, bytes: u64, puts: u64) -> Result<()> {
        let Parts { health, journal, .. } = self.parts();
        health.may_change()?;
        let (pages, record) = self.assembly.log.room(bytes.div_ceil(PAGE as u64), puts);
        self.with_space(|| journal.reserve(pages, record).map_err(|e| health.refused(e)))
    }

    /// How much space of the file system [`Store::reserve`] needs, in bytes.
    pub fn lacks(&self, bytes: u64, puts: u64) -> u64 {
        let (pages, record) = self.assembly.log.room(bytes.div_ceil(PAGE as u64), puts);
        self.parts().journal.lacks(pages, record) * PAGE as u64
    }

    /// Prepares the journal file that is written to for the record of a commit with this many bytes
    /// of puts, and `spare` bytes behind it. `beside` bytes that it must be able to take later, at
    /// most what a checkpoint writes to it, count against what it may have. Nothing is taken: a
    /// second call gives the same pages, so the caller adds up what simultaneous changes need; and
    /// a commit with a root goes on in the other file, for which nothing is prepared.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not as much; nothing has changed then.
    pub fn prepare_record(&self, puts: u64, spare: u64, beside: u64) -> Result<()> {
        let Parts { health, journal, .. } = self.parts();
        health.may_change()?;
        let [spare, beside] = [spare, beside].map(|bytes| bytes.div_ceil(PAGE as u64));
        let (_, record) = self.assembly.log.room(0, puts);
        let asks = health.is_tight();
        if !asks && journal.holds(record + spare, beside) {
            return Ok(());
        }
        let prepare = || journal.prepare_record(record + spare, beside, asks);
        self.with_space(|| prepare().map_err(|e| health.refused(e)))
    }

    /// Bytes that a file of the journal holds at most, what a checkpoint writes to it aside.
    pub fn journal_most(&self) -> u64 {
        self.parts().journal.most()
    }

    /// What the journal takes at once, in bytes.
    pub fn journal_step(&self) -> u64 {
        self.parts().journal.prepared_at_once()
    }

    /// What the file system must have free, so that what is in the journal finds its places and
    /// commits go on meanwhile: bytes, and files. At most.
    pub fn owed(&self) -> (u64, u64) {
        let Parts { objects, interval, journal, .. } = self.parts();
        let ((pages, left), (doubled, objects)) = (journal.owed(), objects.doubled_in_journal());
        // Each goes to three files, of which one is counted already.
        let pages = pages + 2 * doubled;
        let files = interval.journaled() + left + 2 * objects;
        // Each file may be the first of its subfolder, and make it longer.
        let names = (files + 8).min(320) * PAGE as u64;
        (pages * PAGE as u64 + names + 2 * journal.prepared_at_once(), files)
    }

    /// Whether the next commit should come soon and with a root. Ask before each write; what is
    /// written meanwhile still fits.
    pub fn needs_checkpoint(&self) -> bool {
        self.parts().journal.is_due()
    }

    /// Space of the file system that holds the folder. Where it is short, what was removed is
    /// counted as free.
    pub fn space(&self) -> Result<Space> {
        let folder = &self.parts().folder;
        let space = folder.space()?;
        if space.free_bytes >= LITTLE || !self.assembly.background {
            return Ok(space);
        }
        match self.reclaim() {
            // What is left of them takes space.
            Err(e) if !e.changed_nothing() => Err(e),
            _ => folder.space(),
        }
    }

    /// Number of the last commit that was noted, durable or not: what is written now belongs to a
    /// later one.
    pub fn last_number(&self) -> u64 {
        self.parts().interval.commit() - 1
    }

    /// From now on an object is doubled. To be said before the first write to it, and at each
    /// opening before the store is taken up.
    pub fn double(&self, object: ObjectId) {
        self.parts().objects.doubled.add(object.0);
    }

    /// Reads one copy of a page of a doubled object; false if there is no such copy.
    pub fn read_copy(&self, object: ObjectId, page: u64, copy: PageCopy, out: &mut [u8]) -> Result<bool> {
        copies::read_copy(self.parts(), object.0, page, copy, out)
    }

    /// Whether both files of a doubled object hold the same page, or a checkpoint is still to bring
    /// it there.
    pub fn is_in_both_files(&self, object: ObjectId, page: u64) -> bool {
        copies::is_in_both_files(self.parts(), object.0, page)
    }

    /// The same of its three files.
    pub fn is_in_all_files(&self, object: ObjectId, page: u64) -> bool {
        copies::is_in_all_files(self.parts(), object.0, page)
    }

    /// Pages of a doubled object that the longer of its files and the journal have.
    pub fn pages(&self, object: ObjectId) -> Result<u64> {
        copies::pages(self.parts(), object.0)
    }

    /// Name of an object's file in the folder.
    pub fn object_name(&self, object: ObjectId) -> String {
        self.parts().objects.name(object.0)
    }

    /// Name of a doubled object's second file in the folder.
    pub fn second_name(&self, object: ObjectId) -> String {
        self.parts().objects.doubled.name(object.0, Further::Second)
    }

    /// The tag by which a page of an object of the namespace's parts is told from a damaged one. It
    /// says nothing of its age.
    pub fn part_tag(&self, object: ObjectId, page: u64, bytes: &[u8]) -> [u8; 16] {
        self.parts().keys.part_tag(object.0, page, bytes)
    }

    /// Bytes of the journal that were used since the last checkpoint.
    pub fn journal_bytes(&self) -> u64 {
        self.parts().journal.used()
    }

    /// The last durable commit.
    pub fn last_commit(&self) -> CommitInfo {
        self.assembly.log.last()
    }

    /// Why the store takes no more changes, if it does not.
    pub fn failure(&self) -> Option<Error> {
        self.parts().health.cause()
    }

    /// How many pages an object may have, as far as the file system tells how long a file may be.
    pub fn longest(&self) -> u64 {
        self.assembly.writer.longest()
    }

    /// Counters for people.
    pub fn status(&self) -> Status {
        let Parts { objects, interval, journal, .. } = self.parts();
        let items = vec![
            StatusItem::new("last_commit", interval.durable(), "commits"),
            StatusItem::new("checkpoints", interval.epoch(), "checkpoints"),
            StatusItem::new("journal_used", journal.used(), "bytes"),
            StatusItem::new("objects_changed", objects.len() as u64, "objects"),
        ];
        Status { items }
    }

    /// Finishes a checkpoint that is under way, gives most of the journal's space back if nothing
    /// was committed since, and refuses whatever follows. Commits nothing: commit with a root
    /// before.
    pub fn close(&self) -> Result<()> {
        drop(self.worker.lock().take());
        let health = &self.parts().health;
        if health.is_read_only() || !health.is_alive() {
            return health.cause().map_or(Ok(()), Err);
        }
        self.assembly.checkpoints.close()
    }
}
