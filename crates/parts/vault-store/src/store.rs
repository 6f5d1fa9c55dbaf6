//! `Store`: an open store, and the interface for its callers.

use crate::anchor::AnchorState;
use crate::commits::codec::{Commit, CommitState};
use crate::ids::{CommitInfo, ObjectId, PAGE};
use crate::journal::{self, Journal};
use crate::keys::StoreKeys;
use crate::objects::change_collector::CommitRequest;
use crate::objects::copies::PageCopy;
use crate::objects::doubled::ExtraFile;
use crate::opening::assembly::Assembly;
use crate::opening::recovered::Recovered;
use crate::opening::recovery::{self, PendingActivation};
use crate::opening::superblock::{self, SuperblockFiles};
use crate::options::{StoreBacking, StoreOptions};
use crate::worker::StoreWorker;
use lacuna_contracts::{Error, Kind, Result, Status, StatusItem};
use lacuna_medium::FsSpace;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::Arc;

/// The files of a store, except those of objects, which are in subfolders of two hexadecimal
/// digits.
pub const FILES: [&str; 5] =
    [superblock::NAMES[0], superblock::NAMES[1], journal::NAMES[0], journal::NAMES[1], superblock::THIRD];

/// With less free space than this, in bytes, the space of removed files matters.
const LITTLE: u64 = 64 << 20;

/// An open store, for concurrent callers.
pub struct Store {
    assembly: Assembly,
    worker: Mutex<Option<StoreWorker>>,
    /// The work left for [`Store::activate`].
    pending_activation: Mutex<Option<PendingActivation>>,
}

impl Store {
    /// Makes a store in a folder without one. Files of an existing store are overwritten.
    ///
    /// Errors: [`Kind::Exists`] if the anchor remembers a vault already.
    pub fn create(base: StoreBacking, keys: StoreKeys, options: &StoreOptions) -> Result<Store> {
        if base.anchor.load()?.is_some() {
            return Err(Error::new(Kind::Exists, "cannot make a vault")
                .found("an anchor that remembers one")
                .expected("an anchor of its own"));
        }
        let commit =
            Commit { machine: base.draw(), number: 1, digest: base.draw(), previous_digest: [0; 32] };
        let facts = CommitState {
            machine: commit.machine,
            time: (base.clock)(),
            next_object: 1,
            object_limit: 1025,
            ..CommitState::default()
        };
        let first = AnchorState {
            uuid: base.uuid,
            machine: commit.machine,
            number: 1,
            digest: commit.digest,
            time: facts.time,
        };
        let keys = Arc::new(keys);
        Journal::create(&*base.folder, options.journal, keys.clone())?;
        let mut superblock = SuperblockFiles::create(base.folder.clone(), keys.clone(), base.random.clone())?;
        superblock.write(&commit, &facts, None, 0)?;
        base.folder.sync_names("")?;
        base.anchor.advance(None, &first)?;
        let (store, _) = Store::probe_with(base, keys, options)?;
        store.activate()?;
        Ok(store)
    }

    /// Opens the store of a folder in its newest state.
    ///
    /// Errors: [`Kind::RolledBack`] if that state does not descend from the anchored state,
    /// [`Kind::Corrupt`] if no superblock verifies.
    pub fn open(base: StoreBacking, keys: StoreKeys, options: &StoreOptions) -> Result<(Store, Recovered)> {
        let (store, found) = Store::probe(base, keys, options)?;
        store.activate()?;
        Ok((store, found))
    }

    /// Like [`Store::open`], but changes neither the folder nor the anchor before
    /// [`Store::activate`]: until then the store is only for reading. So a state that turns out to
    /// be incomplete leaves no trace.
    pub fn probe(base: StoreBacking, keys: StoreKeys, options: &StoreOptions) -> Result<(Store, Recovered)> {
        Store::probe_with(base, Arc::new(keys), options)
    }

    fn probe_with(
        base: StoreBacking,
        keys: Arc<StoreKeys>,
        options: &StoreOptions,
    ) -> Result<(Store, Recovered)> {
        let (assembly, found, untaken) = recovery::probe(base, keys, options)?;
        let untaken = Mutex::new(Some(untaken).filter(|_| !options.read_only));
        Ok((Store { assembly, worker: Mutex::new(None), pending_activation: untaken }, found))
    }

    /// Activates the state that [`Store::probe`] found, and anchors it.
    pub fn activate(&self) -> Result<()> {
        let Some(untaken) = self.pending_activation.lock().take() else { return Ok(()) };
        recovery::activate(&self.assembly, &untaken)?;
        let Assembly { health, reclaimer, checkpoints, background, .. } = &self.assembly;
        if *background {
            let (health, reclaimer, checkpoints) = (health.clone(), reclaimer.clone(), checkpoints.clone());
            *self.worker.lock() = Some(StoreWorker::start(move || {
                if let Err(e) = reclaimer.reclaim() {
                    health.note_failure(e);
                }
                // An error that changed nothing is reported by the next checkpoint, which tries
                // again; any other is fail-stop already.
                let _failure = checkpoints.finish_begun();
            }));
        }
        if checkpoints.is_begun() {
            self.wake();
        }
        Ok(())
    }

    /// The random number of the session: new at each opening, and after the machine was resumed
    /// from a snapshot.
    pub fn session(&self) -> u64 {
        self.assembly.log.session()
    }

    /// A number for a new object, which has no pages.
    ///
    /// Errors: [`Kind::Busy`] if too many were made since the last commit; [`Store::needs_commit`]
    /// warns in time.
    pub fn new_object(&self) -> Result<ObjectId> {
        self.assembly.health.check_writable()?;
        self.assembly.interval.new_object()
    }

    /// Reads whole pages, starting at `first`; absent pages are zeros.
    pub fn read(&self, object: ObjectId, first: u64, out: &mut [u8]) -> Result<()> {
        self.assembly.reader.read(object.0, first, out)
    }

    /// Writes whole pages, starting at `first`. They are durable after the next commit.
    ///
    /// Errors: refusals of the host ([`Kind::is_refusal`]), and [`Kind::NoSpace`] if the journal is
    /// full: all pages are then unchanged, and the store stays usable. Fail-stop on any other
    /// error, and on a refusal to restore overwritten pages.
    pub fn write(&self, object: ObjectId, first: u64, pages: &[u8]) -> Result<()> {
        self.retry_after_reclaim(|| self.assembly.writer.write(object.0, first, pages))
    }

    /// Truncates an object: pages from number `pages` read as zeros until they are written.
    pub fn truncate(&self, object: ObjectId, pages: u64) -> Result<()> {
        self.assembly.writer.truncate(object.0, pages)
    }

    /// Removes an object. Its content stays in the folder until the next commit is durable.
    pub fn remove(&self, object: ObjectId) -> Result<()> {
        self.assembly.writer.remove(object.0)
    }

    /// Returns when all calls that returned before are durable and the anchor has advanced. `puts`
    /// is an opaque batch, which may be empty: a later opening returns it. With a root, of at most
    /// [`crate::ROOT_MAX`] bytes, which covers all batches including this one, a checkpoint begins.
    /// Until the checkpoint is finished, an opening also returns the previous root and the batches
    /// since ([`crate::PreviousRoot`]).
    ///
    /// Errors: after an error that changed nothing, such as a refusal of the host
    /// ([`lacuna_contracts::Error::changed_nothing`]), the store stays usable, and the next commit
    /// includes these changes. Fail-stop on any other error, above all on a failed sync.
    pub fn commit(&self, puts: &[u8], root: Option<&[u8]>) -> Result<()> {
        self.commit_then(puts, root, &mut || ())
    }

    /// Like [`Store::commit`]; calls `noted` at most once, as soon as changes belong to the next
    /// commit, before this one is durable. If it is not called, nothing was noted.
    pub fn commit_then(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let is_noted = Cell::new(false);
        self.retry_after_reclaim(|| {
            // Do not note a second time: other threads have changed objects since, and their
            // changes may be incomplete.
            if is_noted.get() {
                return self.complete_noted();
            }
            self.commit_once(puts, root, &mut || {
                is_noted.set(true);
                noted();
            })
        })
    }

    /// Runs `act`; if there is no space, removes the files of removed objects and runs it once
    /// more.
    fn retry_after_reclaim(&self, mut act: impl FnMut() -> Result<()>) -> Result<()> {
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
        self.assembly.reclaimer.reclaim().map_err(|e| self.assembly.health.note_failure(e))
    }

    fn commit_once(&self, puts: &[u8], root: Option<&[u8]>, noted: &mut dyn FnMut()) -> Result<()> {
        let Assembly { reclaimer, log, checkpoints, background, .. } = &self.assembly;
        let asked = CommitRequest { puts, root, is_forced: false };
        if root.is_none() {
            if log.has_pending_root() {
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

    /// The batches, with commit numbers, of commits in the journal that are newer than the last one
    /// found and that no chain reaches, because a block between is damaged. For a store that was
    /// opened by [`Store::probe`] and not activated.
    pub fn unreachable_batches(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        self.assembly.log.unreachable_batches()
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
        self.assembly.checkpoints.finish_all()
    }

    /// Like [`Store::finish_checkpoint`], but gives up pages of objects that are not doubled, if
    /// they can be read neither in the journal nor in place: they become zeros. Otherwise such a
    /// page prevents every checkpoint. So the user must agree: a later read might have succeeded.
    pub fn finish_without_unreadable(&self) -> Result<()> {
        self.assembly.health.check_writable()?;
        self.assembly.checkpoints.finish_without_unreadable()
    }

    /// Like [`Store::finish_checkpoint`], and shrinks the inactive journal file.
    pub fn finish_and_shrink(&self) -> Result<()> {
        self.assembly.health.check_writable()?;
        self.assembly.checkpoints.finish_and_shrink()
    }

    /// Raises or restores the limit of the journal, for a checkpoint; a commit with a root restores
    /// it. No other thread writes meanwhile.
    pub fn set_journal_limit_raised(&self, lifted: bool) {
        self.assembly.journal.set_limit_raised(lifted);
    }

    /// Whether a journal file is much larger than commits need now.
    pub fn is_journal_large(&self) -> bool {
        self.assembly.journal.is_large()
    }

    fn wake(&self) {
        if let Some(worker) = &*self.worker.lock() {
            worker.wake();
        }
    }

    /// Whether a commit is due because many objects were made since the last one. Ask before making
    /// objects.
    pub fn needs_commit(&self) -> bool {
        self.assembly.interval.needs_commit()
    }

    /// Prepares the journal for writes of this many bytes and for a later commit with a root and
    /// this many bytes of puts, within the limit of the journal. The space is guaranteed as long as
    /// no other thread writes.
    ///
    /// Errors: [`Kind::NoSpace`] if there is too little; nothing has changed then.
    pub fn reserve(&self, bytes: u64, puts: u64) -> Result<()> {
        let Assembly { health, journal, log, .. } = &self.assembly;
        health.check_writable()?;
        let (pages, record) = log.space_needed(bytes.div_ceil(PAGE as u64), puts);
        self.retry_after_reclaim(|| journal.reserve(pages, record).map_err(|e| health.note_failure(e)))
    }

    /// The file system space that [`Store::reserve`] needs, in bytes.
    pub fn missing_bytes(&self, bytes: u64, puts: u64) -> u64 {
        let Assembly { journal, log, .. } = &self.assembly;
        let (pages, record) = log.space_needed(bytes.div_ceil(PAGE as u64), puts);
        journal.missing_pages(pages, record) * PAGE as u64
    }

    /// Prepares the active journal file for the record of a commit with this many bytes of puts,
    /// and for `spare` bytes after it. `extra` bytes that the file must be able to take later, at
    /// most the writes of a checkpoint, count against its limit. Nothing is taken: a second call
    /// gives the same pages, so the caller adds up the needs of concurrent changes; and a commit
    /// with a root continues in the other file, which is not prepared.
    ///
    /// Errors: [`Kind::NoSpace`] if there is too little; nothing has changed then.
    pub fn prepare_record(&self, puts: u64, spare: u64, extra: u64) -> Result<()> {
        let Assembly { health, journal, log, .. } = &self.assembly;
        health.check_writable()?;
        let [spare, extra] = [spare, extra].map(|bytes| bytes.div_ceil(PAGE as u64));
        let (_, record) = log.space_needed(0, puts);
        let asks = health.has_refusal();
        if !asks && journal.has_room(record + spare, extra) {
            return Ok(());
        }
        let prepare = || journal.prepare_record(record + spare, extra, asks);
        self.retry_after_reclaim(|| prepare().map_err(|e| health.note_failure(e)))
    }

    /// The limit of a journal file in bytes, apart from the writes of a checkpoint.
    pub fn journal_limit(&self) -> u64 {
        self.assembly.journal.max_bytes()
    }

    /// The bytes that the journal prepares at once.
    pub fn journal_step(&self) -> u64 {
        self.assembly.journal.prepared_at_once()
    }

    /// An upper bound of the free space, in bytes and files, that the file system must have to
    /// write the journal back while commits go on.
    pub fn write_back_space(&self) -> (u64, u64) {
        let Assembly { objects, interval, journal, .. } = &self.assembly;
        let ((pages, left), (doubled, objects)) =
            (journal.pages_to_write_back(), objects.doubled_in_journal());
        // Each goes to three files; one is counted already.
        let pages = pages + 2 * doubled;
        let files = interval.journaled() + left + 2 * objects;
        // Each file may be the first of its subfolder, and lengthen the directory.
        let names = (files + 8).min(320) * PAGE as u64;
        (pages * PAGE as u64 + names + 2 * journal.prepared_at_once(), files)
    }

    /// Whether a commit with a root is due. Ask before each write; writes before that commit still
    /// fit.
    pub fn needs_checkpoint(&self) -> bool {
        self.assembly.journal.is_checkpoint_due()
    }

    /// The space of the file system that holds the folder. If free space is short, it first removes
    /// the files of removed objects.
    pub fn space(&self) -> Result<FsSpace> {
        let folder = &self.assembly.folder;
        let space = folder.space()?;
        if space.free_bytes >= LITTLE || !self.assembly.background {
            return Ok(space);
        }
        match self.reclaim() {
            // Files that remain take space.
            Err(e) if !e.changed_nothing() => Err(e),
            _ => folder.space(),
        }
    }

    /// The number of the last commit that was noted, durable or not: current writes belong to a
    /// later one.
    pub fn last_noted_number(&self) -> u64 {
        self.assembly.interval.commit() - 1
    }

    /// Marks an object as doubled. Call it before the first write to the object, and at each
    /// opening before the store is taken up.
    pub fn mark_doubled(&self, object: ObjectId) {
        self.assembly.objects.doubled.add(object.0);
    }

    /// Reads one copy of a page of a doubled object; `false` if that copy does not exist.
    pub fn read_copy(&self, object: ObjectId, page: u64, copy: PageCopy, out: &mut [u8]) -> Result<bool> {
        self.assembly.reader.read_copy(object.0, page, copy, out)
    }

    /// Whether the first two files of a doubled object hold the same page, or a checkpoint has yet
    /// to write it.
    pub fn is_in_both_files(&self, object: ObjectId, page: u64) -> bool {
        self.assembly.reader.is_in_both_files(object.0, page)
    }

    /// Whether all three files of a doubled object hold the same page, or a checkpoint has yet to
    /// write it.
    pub fn is_in_all_files(&self, object: ObjectId, page: u64) -> bool {
        self.assembly.reader.is_in_all_files(object.0, page)
    }

    /// The pages of a doubled object, in the longest of its first two files and the journal.
    pub fn pages(&self, object: ObjectId) -> Result<u64> {
        self.assembly.reader.pages(object.0)
    }

    /// The name of an object's file in the folder.
    pub fn object_name(&self, object: ObjectId) -> String {
        self.assembly.objects.name(object.0)
    }

    /// The name of a doubled object's second file in the folder.
    pub fn second_name(&self, object: ObjectId) -> String {
        self.assembly.objects.doubled.name(object.0, ExtraFile::Second)
    }

    /// The tag that detects damage to a page of the namespace's parts. It does not show the page's
    /// age.
    pub fn part_tag(&self, object: ObjectId, page: u64, bytes: &[u8]) -> [u8; 16] {
        self.assembly.keys.part_tag(object.0, page, bytes)
    }

    /// Bytes of the journal that were used since the last checkpoint.
    pub fn journal_bytes(&self) -> u64 {
        self.assembly.journal.used()
    }

    /// The last durable commit.
    pub fn last_commit(&self) -> CommitInfo {
        self.assembly.log.last()
    }

    /// The failure that ended writing, if any.
    pub fn failure(&self) -> Option<Error> {
        self.assembly.health.cause()
    }

    /// The most pages of an object, as far as the file system reports a limit of file sizes.
    pub fn max_object_pages(&self) -> u64 {
        self.assembly.writer.max_pages()
    }

    /// Counters for users.
    pub fn status(&self) -> Status {
        let Assembly { objects, interval, journal, .. } = &self.assembly;
        let items = vec![
            StatusItem::new("last_commit", interval.durable(), "commits"),
            StatusItem::new("checkpoints", interval.epoch(), "checkpoints"),
            StatusItem::new("journal_used", journal.used(), "bytes"),
            StatusItem::new("objects_changed", objects.len() as u64, "objects"),
        ];
        Status { items }
    }

    /// Finishes a checkpoint in progress, shrinks the journal if nothing was committed since, and
    /// refuses all later changes. Commits nothing: commit with a root first.
    pub fn close(&self) -> Result<()> {
        drop(self.worker.lock().take());
        let health = &self.assembly.health;
        if health.is_read_only() || !health.is_alive() {
            return health.cause().map_or(Ok(()), Err);
        }
        self.assembly.checkpoints.close()
    }
}
