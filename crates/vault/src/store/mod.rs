//! Where a vault's ciphertext rests: backing objects in a folder, changed by commits that are durable whole or not at all, and
//! an anchor by which an older state of the folder is noticed.
//!
//! Objects are arrays of pages. What no commit refers to is written to its place at once; what the last commit refers to is
//! never overwritten before the next is durable: its new version goes to the journal, and a checkpoint brings it to its place.
//! `docs/format/vault.md` has the bytes and the argument for every crash.
//!
//! Invariants kept here:
//! - After a crash the folder is exactly as at the last commit that returned, or at one that was under way.
//! - A commit has returned only if the anchor remembers it; a state that does not descend from what the anchor remembers is
//!   [`lacuna_core::Kind::RolledBack`]. A crash never is.
//! - Pages are given in as ciphertext and come out unverified: who reads them verifies them. Records and superblocks are
//!   sealed and verified here.
//! - Memory is bounded by the journal, not by the vault.

mod anchor;
mod anchor_file;
mod checkpoint;
mod commit;
mod content;
mod copies;
mod doubled;
mod engine;
mod freshness;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod journal;
mod keys;
mod object;
mod objects;
mod opening;
mod record;
mod recovery;
mod replay;
mod session;
mod superblock;
mod worker;
mod write;

pub use anchor::{Anchor, AnchorState, MemoryAnchor};
pub use anchor_file::{FileAnchor, default_anchor_path};
pub use content::ROOT_MAX;
pub use copies::PageCopy;
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::{fuzz_commits, fuzz_journal};
pub use journal::JournalSize;
pub use keys::StoreKeys;
pub use opening::{CommitInfo, Consent, Now, Recovered, StoreBase, StoreOptions, Superblocks};
pub use replay::Before;

use checkpoint::Frozen;
use commit::Request;
use content::{Commit, Facts};
use engine::Engine;
use journal::Need;
use lacuna_core::{Error, Kind, Result, Status, StatusItem, closed};
use lacuna_medium::Space;
use parking_lot::Mutex;
use recovery::Untaken;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use worker::Worker;

/// The files of a store beside those of objects, which are in subfolders of two hexadecimal digits.
pub const FILES: [&str; 4] =
    [superblock::NAMES[0], superblock::NAMES[1], journal::NAMES[0], journal::NAMES[1]];

/// Bytes of a page of an object.
pub const PAGE: usize = 4096;

/// Free space in bytes below which what removed files still take matters.
const LITTLE: u64 = 64 << 20;

/// The number of a backing object. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId(pub u64);

/// An open store. Called from many threads at once.
pub struct Store {
    engine: Arc<Engine>,
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
        let commit = Commit {
            machine: recovery::draw(&base),
            number: 1,
            digest: recovery::draw(&base),
            before: [0; 32],
        };
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
        journal::Journal::create(&*base.folder, options.journal)?;
        let mut superblock = superblock::SuperFiles::create(&*base.folder)?;
        superblock.write(&keys, &*base.random, (&commit, &facts), None, 0)?;
        base.folder.sync_names("")?;
        base.anchor.advance(None, &first)?;
        Store::open(base, keys, options).map(|(store, _)| store)
    }

    /// Opens the store of a folder, in its newest state.
    ///
    /// Errors: [`Kind::RolledBack`] if that state does not descend from what the anchor remembers, [`Kind::Corrupt`] if there
    /// is no superblock that verifies.
    pub fn open(base: StoreBase, keys: StoreKeys, options: &StoreOptions) -> Result<(Store, Recovered)> {
        let (store, found) = Store::look(base, keys, options)?;
        store.take_up()?;
        Ok((store, found))
    }

    /// The same, but nothing is changed before [`Store::take_up`], neither in the folder nor in the anchor: until then it is for reading
    /// alone. So a state that turns out to be incomplete leaves no trace.
    pub fn look(base: StoreBase, keys: StoreKeys, options: &StoreOptions) -> Result<(Store, Recovered)> {
        let (engine, found, untaken) = recovery::look(base, keys, options)?;
        let untaken = Mutex::new(Some(untaken).filter(|_| !options.read_only));
        Ok((Store { engine: Arc::new(engine), worker: Mutex::new(None), untaken }, found))
    }

    /// Goes on from the state that [`Store::look`] found: the anchor remembers it from now on.
    pub fn take_up(&self) -> Result<()> {
        let Some(untaken) = self.untaken.lock().take() else { return Ok(()) };
        recovery::take_up(&self.engine, &untaken)?;
        if self.engine.background {
            *self.worker.lock() = Some(Worker::start(self.engine.clone()));
        }
        if self.engine.frozen.lock().is_some() {
            self.wake();
        }
        Ok(())
    }

    /// Random, new at each opening, and when the machine was resumed from a snapshot.
    pub fn session(&self) -> u64 {
        self.engine.session()
    }

    /// A number for a new object, which has no pages.
    ///
    /// Errors: [`Kind::Busy`] if too many were made since the last commit; [`Store::needs_commit`] says so in time.
    pub fn new_object(&self) -> Result<ObjectId> {
        self.engine.new_object()
    }

    /// Reads whole pages from page `first` on; absent ones are zeros.
    pub fn read(&self, object: ObjectId, first: u64, out: &mut [u8]) -> Result<()> {
        self.engine.read(object.0, first, out)
    }

    /// Writes whole pages from page `first` on. Durable after the next commit.
    ///
    /// Errors: what the host refuses ([`Kind::is_refusal`]), and [`Kind::NoSpace`] if the journal is full: all pages are as they were, and
    /// the store goes on. Anything else is fail-stop, and so is a refusal to put back what was overwritten.
    pub fn write(&self, object: ObjectId, first: u64, pages: &[u8]) -> Result<()> {
        self.with_space(|| self.engine.write(object.0, first, pages))
    }

    /// Cuts an object: pages from `pages` on are zeros from now on, until they are written.
    pub fn truncate(&self, object: ObjectId, pages: u64) -> Result<()> {
        self.engine.truncate(object.0, pages)
    }

    /// Removes an object. What it held is there until the next commit is durable.
    pub fn remove(&self, object: ObjectId) -> Result<()> {
        self.engine.remove(object.0)
    }

    /// Returns when everything that returned before is durable and the anchor has advanced. `puts` is an opaque batch, which
    /// may be empty: a later opening gives it back. With a root, at most [`ROOT_MAX`] bytes, which holds all batches so far and this
    /// one, a checkpoint begins; until that is done an opening that asks gives the root before and these batches ([`Before`]).
    ///
    /// Errors: a refusal of the host ([`Kind::is_refusal`]): the store goes on, and what was to be committed is with the next commit.
    /// Anything else is fail-stop, a sync that failed above all.
    pub fn commit(&self, puts: &[u8], root: Option<&[u8]>) -> Result<()> {
        self.commit_then(puts, root, &mut || ())
    }

    /// The same; `noted` is called as soon as changes belong to the next commit, before this one is durable, and once at most. If it is
    /// not called, nothing is noted.
    pub fn commit_then(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let is_noted = Cell::new(false);
        self.with_space(|| {
            // Others change objects since then, and what they do is not whole: nothing is noted a second time.
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
            Err(e) if e.kind().is_refusal() && self.engine.background => {
                self.unlink_leaving()?;
                act()
            }
            done => done,
        }
    }

    /// Removes the files of removed objects now.
    fn unlink_leaving(&self) -> Result<()> {
        self.engine.unlink_leaving().map_err(|e| self.engine.refused(e))
    }

    fn commit_once(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let asked = Request { puts, root, anyway: false };
        if root.is_none() {
            if self.engine.owes_root.load(Ordering::Acquire) {
                self.complete_noted()?;
            }
            commit::commit(&self.engine, &asked, noted)?;
            if !self.engine.leaving.is_empty() {
                self.wake();
            }
            return Ok(());
        }
        let mut frozen = self.engine.frozen.lock();
        self.settle(&mut frozen)?;
        // An opening that could not write it left the other file as it was; nothing may lead there from the journal file that comes next.
        let mended = self.engine.superblock.lock().complete(&self.engine.keys, &*self.engine.random);
        mended.map_err(|e| self.engine.refused(e))?;
        *frozen = commit::commit(&self.engine, &asked, noted)?;
        if self.engine.background {
            drop(frozen);
            self.wake();
            return Ok(());
        }
        match checkpoint::finish(&self.engine, &mut frozen) {
            // The commit is durable; the checkpoint is tried again before the next.
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(()),
        }
    }

    /// The batches of commits in the journal that are newer than the last one that was found, and that nothing leads to: a block between
    /// is damaged. With their numbers. For a store that was only looked at.
    pub fn unreached(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let (engine, mut batches) = (&self.engine, Vec::new());
        let (last, known) = {
            let history = engine.history.lock();
            (history.last.number, history.anchor.as_ref().map_or(u64::MAX, |known| known.number))
        };
        for area in 0..2 {
            let found = record::unreached(&engine.keys, &engine.journal, area, last)?;
            // What is newer than the anchor was never acknowledged.
            let durable = found.into_iter().filter(|found| found.commit.number <= known);
            batches.extend(durable.map(|found| (found.commit.number, found.changes.puts)));
        }
        batches.sort_by_key(|(number, _)| *number);
        Ok(batches)
    }

    /// Makes a commit durable that was noted and refused. If it has a root, the checkpoint that it begins is left to the thread.
    fn complete_noted(&self) -> Result<()> {
        self.resume(&mut self.engine.frozen.lock())?;
        self.wake();
        Ok(())
    }

    /// Makes a commit durable that was noted before. Where it has a root nothing is frozen yet: it begins a checkpoint.
    fn resume(&self, frozen: &mut Option<Frozen>) -> Result<()> {
        if let Some(begun) = commit::resume(&self.engine)? {
            *frozen = Some(begun);
        }
        Ok(())
    }

    /// Finishes what began: a checkpoint, and that of a commit with a root that was noted and refused. Until then the journal file that
    /// this commit left has what no superblock says is in its place.
    fn settle(&self, frozen: &mut Option<Frozen>) -> Result<()> {
        checkpoint::finish(&self.engine, frozen)?;
        if self.engine.owes_root.load(Ordering::Acquire) {
            self.resume(frozen)?;
            checkpoint::finish(&self.engine, frozen)?;
        }
        Ok(())
    }

    /// Finishes a checkpoint that began, so that the next commit with a root need not.
    pub fn finish_checkpoint(&self) -> Result<()> {
        self.settle(&mut self.engine.frozen.lock())
    }

    /// The same, and gives back most of the space of the journal file that nothing is written to.
    pub fn finish_and_shrink(&self) -> Result<()> {
        let engine = &self.engine;
        engine.may_change()?;
        let mut frozen = engine.frozen.lock();
        self.settle(&mut frozen)?;
        if !engine.journal.is_idle_large() {
            return Ok(());
        }
        engine.give_back(|| engine.journal.shrink_idle()).map_err(|e| engine.broken(e))
    }

    /// Lets the journal become longer for a checkpoint, or no more; a commit with a root ends that. Nobody else writes meanwhile.
    pub fn lift_journal(&self, lifted: bool) {
        self.engine.journal.lift(lifted);
    }

    /// Whether a file of the journal has much more space than commits need now.
    pub fn is_journal_large(&self) -> bool {
        self.engine.journal.is_large()
    }

    fn wake(&self) {
        if let Some(worker) = &*self.worker.lock() {
            worker.wake();
        }
    }

    /// Whether the next commit should come soon: many objects were made since the last. Ask before making objects.
    pub fn needs_commit(&self) -> bool {
        let numbers = &self.engine.numbers;
        let (next, from) = (numbers.next.load(Ordering::Acquire), numbers.new_from.load(Ordering::Acquire));
        let limit = numbers.limit.load(Ordering::Acquire);
        next - from > limit.saturating_sub(from) / 2
    }

    /// Takes space in the journal for writes of so many bytes and for the commit with a root and so many bytes of puts that follows, as
    /// long as nobody else writes: at most what the journal may have.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not as much; nothing has changed then.
    pub fn reserve(&self, bytes: u64, puts: u64) -> Result<()> {
        self.engine.may_change()?;
        let (pages, record) = commit::room(&self.engine, bytes.div_ceil(PAGE as u64), puts);
        self.with_space(|| self.engine.journal.reserve(pages, record).map_err(|e| self.engine.refused(e)))
    }

    /// How much space [`Store::reserve`] takes from the file system, in bytes.
    pub fn lacks(&self, bytes: u64, puts: u64) -> u64 {
        let (pages, record) = commit::room(&self.engine, bytes.div_ceil(PAGE as u64), puts);
        self.engine.journal.lacks(pages, record) * PAGE as u64
    }

    /// Takes space in the journal for the record of a commit with so many bytes of puts, and `spare` bytes behind it. `beside` bytes
    /// that it must be able to take later, at most what a checkpoint writes to it, count against what it may have.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not as much; nothing has changed then.
    pub fn reserve_commit(&self, puts: u64, spare: u64, beside: u64) -> Result<()> {
        self.engine.may_change()?;
        let journal = &self.engine.journal;
        let [spare, beside] = [spare, beside].map(|bytes| bytes.div_ceil(PAGE as u64));
        let (_, record) = commit::room(&self.engine, 0, puts);
        let asks = self.engine.tight.load(Ordering::Relaxed);
        if !asks && journal.holds(record + spare, beside) {
            return Ok(());
        }
        let reserve = || journal.reserve_record(record + spare, beside, asks);
        self.with_space(|| reserve().map_err(|e| self.engine.refused(e)))
    }

    /// What the journal takes at once, in bytes.
    pub fn journal_step(&self) -> u64 {
        self.engine.journal.prepared_at_once()
    }

    /// What the file system must have free, so that what is in the journal finds its places and commits go on meanwhile: bytes, and
    /// files. At most.
    pub fn owed(&self) -> (u64, u64) {
        let (journal, doubled) = (&self.engine.journal, &self.engine.doubled);
        let ((pages, left), (twice, seconds)) = (journal.owed(), doubled.journaled(&self.engine.objects));
        let pages = pages + twice;
        let files = self.engine.journaled.lock().len() as u64 + left + seconds;
        // Each file may be the first of its subfolder, and make it longer.
        let names = (files + 8).min(320) * PAGE as u64;
        (pages * PAGE as u64 + names + 2 * journal.prepared_at_once(), files)
    }

    /// Whether the next commit should come soon and with a root. Ask before each write; what is written meanwhile still fits.
    pub fn needs_checkpoint(&self) -> bool {
        self.engine.journal.is_due()
    }

    /// Space of the file system that holds the folder. Where it is short, what was removed is counted as free.
    pub fn space(&self) -> Result<Space> {
        let space = self.engine.folder.space()?;
        if space.free_bytes >= LITTLE || !self.engine.background {
            return Ok(space);
        }
        match self.unlink_leaving() {
            // What is left of them takes space.
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => self.engine.folder.space(),
        }
    }

    /// Number of the last commit that was noted, durable or not: what is written now belongs to a later one.
    pub fn last_number(&self) -> u64 {
        self.engine.commit.load(Ordering::Acquire) - 1
    }

    /// Name of an object's file in the folder.
    pub fn object_name(&self, object: ObjectId) -> String {
        self.engine.objects.name(object.0)
    }

    /// Bytes of the journal that were used since the last checkpoint.
    pub fn journal_bytes(&self) -> u64 {
        self.engine.journal.used()
    }

    /// The last durable commit.
    pub fn last_commit(&self) -> CommitInfo {
        let history = self.engine.history.lock();
        CommitInfo { number: history.last.number, time: history.facts.time }
    }

    /// Why the store takes no more changes, if it does not.
    pub fn failure(&self) -> Option<Error> {
        self.engine.health.cause()
    }

    /// How many pages an object may have, as far as the file system tells how long a file may be.
    pub fn longest(&self) -> u64 {
        self.engine.longest
    }

    /// Counters for people.
    pub fn status(&self) -> Status {
        let engine = &self.engine;
        let items = vec![
            StatusItem::new("last_commit", engine.durable.load(Ordering::Acquire), "commits"),
            StatusItem::new("checkpoints", engine.epoch.load(Ordering::Acquire), "checkpoints"),
            StatusItem::new("journal_used", engine.journal.used(), "bytes"),
            StatusItem::new("objects_changed", engine.objects.len() as u64, "objects"),
        ];
        Status { items }
    }

    /// Finishes a checkpoint that is under way, gives most of the journal's space back if nothing was committed since, and refuses
    /// whatever follows. Commits nothing: commit with a root before.
    pub fn close(&self) -> Result<()> {
        drop(self.worker.lock().take());
        let engine = &self.engine;
        if engine.read_only || !engine.health.is_alive() {
            return engine.health.cause().map_or(Ok(()), Err);
        }
        let mut frozen = engine.frozen.lock();
        self.settle(&mut frozen)?;
        engine.unlink_leaving()?;
        if engine.journal.used() == 0 {
            engine.give_back(|| {
                engine.journal.shrink(0, Need::Closed)?;
                engine.journal.shrink(1, Need::Closed)
            })?;
        }
        engine.health.fail(closed());
        Ok(())
    }
}
