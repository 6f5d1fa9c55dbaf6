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
pub use replay::Before;

use commit::Request;
use content::{Commit, Facts};
use engine::Engine;
use journal::Need;
use lacuna_core::{Error, Kind, Result, Status, StatusItem, closed};
use lacuna_crypto::RandomSource;
use lacuna_medium::{Folder, Space};
use parking_lot::Mutex;
use recovery::Untaken;
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

/// Tells the time: seconds since 1970, for what people read of commits.
pub type Now = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a store rests on.
#[derive(Clone)]
pub struct StoreBase {
    /// The directory of ciphertext.
    pub folder: Arc<dyn Folder>,
    /// Where this machine remembers its last commit.
    pub anchor: Arc<dyn Anchor>,
    /// Where randomness comes from.
    pub random: Arc<dyn RandomSource>,
    /// What time it is.
    pub now: Now,
    /// The vault's UUID.
    pub uuid: [u8; 16],
}

/// Whether a state is to be accepted that does not descend from what the anchor remembers.
#[derive(Clone)]
pub struct Consent(pub(crate) Agrees);

type Agrees = Arc<dyn Fn(Error) -> Result<()> + Send + Sync>;

impl Consent {
    /// Asks: it is given the refusal of the state that was found, and an error of its own is that of the opening.
    pub fn asked(agrees: impl Fn(Error) -> Result<()> + Send + Sync + 'static) -> Consent {
        Consent(Arc::new(agrees))
    }

    /// Whatever state it is.
    pub fn given() -> Consent {
        Consent::asked(|_| Ok(()))
    }
}

/// How a store is opened.
#[derive(Clone, Default)]
pub struct StoreOptions {
    /// Refuses every change. The anchor is compared with and stays as it is.
    pub read_only: bool,
    /// Takes the state that is there, although it does not descend from what the anchor remembers, and commits it anew.
    pub accept: Option<Consent>,
    /// Checkpoints are finished, and files of removed objects are removed, by a thread, while commits go on. Without it, by the
    /// commit.
    pub background: bool,
    /// How large the journal may become.
    pub journal: JournalSize,
}

/// The number and time of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// Commits are numbered from 1; an accepted state leaves a gap.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
}

/// What an opened store found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The root given with the last checkpoint.
    pub root: Option<Vec<u8>>,
    /// The batches committed since, oldest first, without empty ones.
    pub puts: Vec<Vec<u8>>,
    /// The state before the checkpoint that was not finished, if there is one.
    pub before: Option<Before>,
    /// No anchor was there: nobody can tell whether this is the newest state.
    pub first_opening: bool,
    /// The state does not descend from what the anchor remembered, and was accepted.
    pub accepted: bool,
    /// The state.
    pub state: CommitInfo,
    /// Commits that were read from the journal; none after an orderly end.
    pub records: u64,
    /// The two superblocks.
    pub superblocks: Superblocks,
    /// Why one of them does not count, with the name of its file.
    pub superblock_fault: Option<String>,
}

/// What an opening found of the two superblocks, of which it needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Superblocks {
    /// Both verify.
    Whole,
    /// One does not verify. A crash leaves that while a checkpoint writes it; damage may as well.
    Torn,
    /// One does not verify, and no checkpoint was writing it, or it is known to have been written whole. Only a crash at the very end of a
    /// checkpoint, while the second one was written, leaves that as well.
    Damaged,
}

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
    /// Errors: [`Kind::NoSpace`] if there is no space, or none in the journal: all pages are as they were, and the store goes on.
    /// Anything else is fail-stop, and so is no space for putting back what was overwritten.
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
    /// may be empty: a later opening gives it back. With a root, at most [`ROOT_MAX`] bytes, all batches so far are forgotten,
    /// this one as well, and a checkpoint begins.
    ///
    /// Errors: [`Kind::NoSpace`] before anything was committed; the store goes on. Anything else is fail-stop.
    pub fn commit(&self, puts: &[u8], root: Option<&[u8]>) -> Result<()> {
        self.commit_then(puts, root, &mut || ())
    }

    /// The same; `noted` is called as soon as changes belong to the next commit, before this one is durable. It is not called
    /// if there is no space.
    pub fn commit_then(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        self.with_space(|| self.commit_once(puts, root, noted))
    }

    /// Acts; if there is no space, acts once more after the files of removed objects are gone.
    fn with_space(&self, mut act: impl FnMut() -> Result<()>) -> Result<()> {
        match act() {
            Err(e) if e.kind() == Kind::NoSpace && self.engine.background => {
                self.unlink_leaving()?;
                act()
            }
            done => done,
        }
    }

    /// Removes the files of removed objects now.
    fn unlink_leaving(&self) -> Result<()> {
        self.engine.unlink_leaving().map_err(|e| self.engine.broken(e))
    }

    fn commit_once(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let asked = Request { puts, root, anyway: false };
        if root.is_none() {
            commit::commit(&self.engine, &asked, noted)?;
            if !self.engine.leaving.is_empty() {
                self.wake();
            }
            return Ok(());
        }
        let mut frozen = self.engine.frozen.lock();
        checkpoint::finish(&self.engine, &mut frozen)?;
        *frozen = commit::commit(&self.engine, &asked, noted)?;
        if self.engine.background {
            drop(frozen);
            self.wake();
            return Ok(());
        }
        match checkpoint::finish(&self.engine, &mut frozen) {
            // The commit is durable; the checkpoint is tried again before the next.
            Err(e) if e.kind() != Kind::NoSpace => Err(e),
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

    /// Finishes a checkpoint that began, so that the next commit with a root need not.
    pub fn finish_checkpoint(&self) -> Result<()> {
        checkpoint::finish(&self.engine, &mut self.engine.frozen.lock())
    }

    /// The same, and gives back most of the space of the journal file that nothing is written to.
    pub fn finish_and_shrink(&self) -> Result<()> {
        let engine = &self.engine;
        engine.may_change()?;
        let mut frozen = engine.frozen.lock();
        checkpoint::finish(engine, &mut frozen)?;
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

    /// Takes space in the journal for writes of so many bytes and for the commit with a root that follows, as long as nobody else
    /// writes: at most what the journal may have.
    ///
    /// Errors: [`Kind::NoSpace`] if there is not as much; nothing has changed then.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        self.engine.may_change()?;
        let (pages, record) = commit::room(&self.engine, bytes.div_ceil(PAGE as u64), 0);
        self.with_space(|| self.engine.journal.reserve(pages, record).map_err(|e| self.engine.refused(e)))
    }

    /// How much space [`Store::reserve`] takes from the file system, in bytes.
    pub fn lacks(&self, bytes: u64) -> u64 {
        let (pages, record) = commit::room(&self.engine, bytes.div_ceil(PAGE as u64), 0);
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
        if journal.holds(record + spare, beside) {
            return Ok(());
        }
        self.with_space(|| journal.reserve_record(record + spare, beside).map_err(|e| self.engine.refused(e)))
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
        self.unlink_leaving()?;
        self.engine.folder.space()
    }

    /// Number of the last durable commit.
    pub fn last_number(&self) -> u64 {
        self.engine.durable.load(Ordering::Acquire)
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
        checkpoint::finish(engine, &mut frozen)?;
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
