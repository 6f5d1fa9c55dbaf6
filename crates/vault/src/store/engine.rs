//! An open store: its parts, and what many threads do with it at once: read, cut and remove. How they write is in `write`.

use super::anchor::{Anchor, AnchorState};
use super::checkpoint::Frozen;
use super::commit::Pending;
use super::content::{Commit, Facts, MOST_PAGES};
use super::doubled::Doubled;
use super::journal::Journal;
use super::keys::StoreKeys;
use super::object::{Layer, Object, Source};
use super::objects::{Objects, subfolder};
use super::session::DrawnSession;
use super::superblock::SuperFiles;
use super::{Now, ObjectId, PAGE};
use lacuna_core::{Error, FailStop, Kind, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Files that are removed before others may go on.
const UNLINKED: usize = 256;

/// What changed since the last record.
#[derive(Default)]
pub(super) struct Interval {
    /// Objects that were written or cut.
    pub(super) touched: Vec<u64>,
    /// Objects that were removed.
    pub(super) removed: Vec<u64>,
}

/// Where the history of commits stands.
pub(super) struct History {
    /// The last durable commit, and what is true after it.
    pub(super) last: Commit,
    pub(super) facts: Facts,
    /// What the anchor remembers.
    pub(super) anchor: Option<AnchorState>,
    pub(super) machine: [u8; 16],
    /// A commit that was noted and is not durable, because the host refused to take its record. The next one makes it durable first.
    pub(super) pending: Option<Pending>,
}

/// The numbers of objects.
pub(super) struct Numbers {
    pub(super) next: AtomicU64,
    /// Objects from here on are in no record.
    pub(super) new_from: AtomicU64,
    /// Objects from here on may not be made before the next commit: a recovery would not find them.
    pub(super) limit: AtomicU64,
}

/// Objects whose removal is durable and whose files are still there.
#[derive(Default)]
pub(super) struct Leaving {
    objects: Mutex<Vec<u64>>,
    /// Held by who removes their files: what is not listed is gone when this is free.
    at_work: Mutex<()>,
}

impl Leaving {
    pub(super) fn add(&self, objects: &[u64]) {
        self.objects.lock().extend(objects);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.lock().is_empty()
    }

    /// Takes at most so many off the list.
    fn take(&self, most: usize) -> Vec<u64> {
        let mut objects = self.objects.lock();
        let from = objects.len().saturating_sub(most);
        objects.split_off(from)
    }
}

/// An open store.
pub(super) struct Engine {
    pub(super) folder: Arc<dyn Folder>,
    pub(super) keys: Arc<StoreKeys>,
    pub(super) anchor: Arc<dyn Anchor>,
    pub(super) random: Arc<dyn RandomSource>,
    pub(super) now: Now,
    pub(super) uuid: [u8; 16],
    pub(super) read_only: bool,
    pub(super) session: DrawnSession,
    pub(super) sequence: AtomicU64,
    pub(super) health: FailStop,
    /// Shared by everything that changes objects; a commit takes it alone while it notes what it says.
    pub(super) gate: RwLock<()>,
    /// Number of the commit that will say what changes now.
    pub(super) commit: AtomicU64,
    /// Number of the last durable commit.
    pub(super) durable: AtomicU64,
    /// Checkpoints that began.
    pub(super) epoch: AtomicU64,
    pub(super) interval: Mutex<Interval>,
    pub(super) numbers: Numbers,
    pub(super) objects: Objects,
    pub(super) doubled: Doubled,
    pub(super) journal: Journal,
    /// Taken by one commit at a time.
    pub(super) history: Mutex<History>,
    /// Objects that have something in the journal since the last checkpoint began.
    pub(super) journaled: Mutex<BTreeSet<u64>>,
    /// Subfolders whose names changed and are not durable yet.
    pub(super) names: Mutex<BTreeSet<String>>,
    pub(super) leaving: Leaving,
    /// Whether a thread finishes what commits leave to it.
    pub(super) background: bool,
    /// Taken by one checkpoint at a time: what it brings to its place.
    pub(super) frozen: Mutex<Option<Frozen>>,
    pub(super) superblock: Mutex<SuperFiles>,
    /// The host refused something since the opening. Where it knows limits that nobody can ask for, such as quotas, space that a commit
    /// needs is taken before anything is noted.
    pub(super) tight: AtomicBool,
    /// A commit with a root was noted and is not durable.
    pub(super) owes_root: AtomicBool,
    /// The longest that a file of the folder may become, in pages.
    pub(super) longest: u64,
}

pub(super) fn pages_of(bytes: usize) -> Result<u64> {
    if bytes.is_multiple_of(PAGE) {
        return Ok((bytes / PAGE) as u64);
    }
    Err(Error::new(Kind::Usage, "cannot read or write part of a page of an object")
        .found(format!("{bytes} bytes"))
        .expected(format!("a multiple of {PAGE}")))
}

/// The pages from `first` on, or an error where they have no offsets.
pub(super) fn range(first: u64, count: u64) -> Result<Range<u64>> {
    let end = first.checked_add(count).filter(|end| *end < MOST_PAGES);
    end.map(|end| first..end).ok_or_else(|| {
        Error::new(Kind::Usage, "an object cannot be this long")
            .found(format!("{count} pages from page {first} on"))
    })
}

impl Engine {
    /// The number of the present session.
    pub(super) fn session(&self) -> u64 {
        self.session.number(&*self.random)
    }

    /// Refuses changes of a store that takes none.
    pub(super) fn may_change(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::new(Kind::ReadOnly, "the vault is open for reading alone"));
        }
        self.health.check()
    }

    /// A failure on the write path ends all writing. A call that the host refuses, for want of space above all, does not, as nothing
    /// that is committed was touched.
    pub(super) fn refused(&self, e: Error) -> Error {
        if e.kind().is_refusal() {
            self.tight.store(true, Ordering::Relaxed);
            return e;
        }
        self.health.fail(e)
    }

    /// A failure that ends all writing, whatever it was: nobody goes on after it as after a write that was refused whole.
    pub(super) fn broken(&self, e: Error) -> Error {
        self.health.fail(e.of_sync())
    }

    pub(super) fn is_new(&self, object: u64) -> bool {
        object >= self.numbers.new_from.load(Ordering::Acquire)
    }

    /// See [`super::Store::new_object`].
    pub(super) fn new_object(&self) -> Result<ObjectId> {
        self.may_change()?;
        let _shared = self.gate.read();
        let limit = self.numbers.limit.load(Ordering::Acquire);
        let given = self
            .numbers
            .next
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |next| (next < limit).then_some(next + 1));
        given.map(ObjectId).map_err(|next| {
            Error::new(Kind::Busy, "no more objects can be made before the next commit")
                .found(format!("object {next}"))
                .expected("a commit before, as `needs_commit` said")
        })
    }

    /// See [`super::Store::read`].
    pub(super) fn read(&self, object: u64, first: u64, out: &mut [u8]) -> Result<()> {
        let pages = range(first, pages_of(out.len())?)?;
        match self.objects.get(object) {
            Some(known) => self.read_known(&known.read(), object, pages, out),
            None => self.read_own(object, first, out),
        }
    }

    /// Reads an object of which something is known.
    pub(super) fn read_known(
        &self,
        known: &Object,
        object: u64,
        pages: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        if known.gone {
            out.fill(0);
            return Ok(());
        }
        let mut page = pages.start;
        let mut rest = out;
        while page < pages.end {
            let source = known.source(page);
            let mut count = 1;
            while page + count < pages.end && follows(source, count, known.source(page + count)) {
                count += 1;
            }
            let (now, later) = rest.split_at_mut(count as usize * PAGE);
            match source {
                Source::Own => self.read_own(object, page, now)?,
                Source::Journal(place) => {
                    self.journal.read(place, now)?;
                    if self.read_only {
                        self.take_brought(known, object, page, now)?;
                    }
                }
                Source::Zeros => now.fill(0),
            }
            rest = later;
            page += count;
        }
        Ok(())
    }

    pub(super) fn read_own(&self, object: u64, first: u64, out: &mut [u8]) -> Result<()> {
        if let Some(file) = self.objects.file(object)? {
            return file.read_at(first * PAGE as u64, out);
        }
        out.fill(0);
        Ok(())
    }

    /// Gives space of journal files back in which nothing is needed any more, if both superblocks say so: then the loss of one loses
    /// nothing. File systems that write nothing over itself may need space for it: without it nothing is given back.
    pub(super) fn give_back(&self, cut: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.superblock.lock().is_in_both() {
            return Ok(());
        }
        match cut() {
            Err(e) if e.kind().is_refusal() => Ok(()),
            done => done,
        }
    }

    /// Before a change of an object: notes that there is one.
    pub(super) fn begin(&self, number: u64, object: &mut Object) -> Result<()> {
        if object.removed {
            return Err(Error::new(Kind::NotFound, "the object of the vault was removed")
                .found(format!("object {number}")));
        }
        let commit = self.commit.load(Ordering::Acquire);
        if object.begin(commit, self.epoch.load(Ordering::Acquire)) {
            self.interval.lock().touched.push(number);
        }
        if object.stable.is_none() {
            let file = if self.is_new(number) { None } else { self.objects.file(number)? };
            let written = file.map_or(Ok(0), |file| file.len())?.div_ceil(PAGE as u64);
            // A file may be longer than any that was written: what lies there is nobody's.
            object.stable = Some(written.max(object.end).min(MOST_PAGES - 1));
        }
        Ok(())
    }

    /// A new object has none before it is made: nothing is gained by looking.
    fn may_have_file(&self, number: u64, object: &Object) -> bool {
        !self.is_new(number) || object.name_unsynced
    }

    /// The file of an object, which is made if there is none.
    pub(super) fn file_or_make(&self, number: u64, object: &mut Object) -> Result<Arc<dyn FolderFile>> {
        if self.may_have_file(number, object)
            && let Some(file) = self.objects.file(number)?
        {
            return Ok(file);
        }
        let file = self.objects.make_file(number)?;
        object.name_unsynced = true;
        Ok(file)
    }

    /// See [`super::Store::truncate`].
    pub(super) fn truncate(&self, number: u64, pages: u64) -> Result<()> {
        self.may_change()?;
        let pages = pages.min(MOST_PAGES - 1);
        let _shared = self.gate.read();
        let shared = self.objects.get_or_make(number);
        let mut object = shared.write();
        self.begin(number, &mut object)?;
        if !object.cut(pages) {
            self.journaled.lock().insert(number);
            return Ok(());
        }
        match self.shorten(number, &mut object, pages) {
            // The object is shorter already, whatever became of its file.
            Err(e) if e.kind().is_refusal() => self.cut_by_commit(number, &mut object, pages),
            done => done.map_err(|e| self.broken(e))?,
        }
        Ok(())
    }

    /// Cuts the file of an object, if it has one that is longer.
    fn shorten(&self, number: u64, object: &mut Object, pages: u64) -> Result<()> {
        if self.may_have_file(number, object)
            && let Some(file) = self.objects.file(number)?
            && file.len()? > pages * PAGE as u64
        {
            object.fresh.shrunk = true;
            file.set_len(pages * PAGE as u64)?;
        }
        Ok(())
    }

    /// What was written past all that commits refer to goes at once with a removed object: a host that refuses more may have no room for
    /// the commit that says so.
    fn shorten_removed(&self, number: u64, object: &mut Object) -> Result<()> {
        let Some(stable) = object.stable.filter(|stable| object.end > *stable) else { return Ok(()) };
        match self.shorten(number, object, stable) {
            Err(e) if e.kind().is_refusal() => Ok(()),
            done => done.map_err(|e| self.broken(e)),
        }
    }

    /// The host does not cut the file of an object: what lies past these pages reads as zeros all the same, the next commit says so, and
    /// a checkpoint cuts the file.
    pub(super) fn cut_by_commit(&self, number: u64, object: &mut Object, pages: u64) {
        object.cut_above_file(pages);
        self.journaled.lock().insert(number);
    }

    /// See [`super::Store::remove`].
    pub(super) fn remove(&self, number: u64) -> Result<()> {
        self.may_change()?;
        let _shared = self.gate.read();
        let shared = self.objects.get_or_make(number);
        let mut object = shared.write();
        if object.removed {
            return Ok(());
        }
        self.begin(number, &mut object)?;
        object.removed = true;
        object.live = Layer::default();
        let has_file = self.may_have_file(number, &object);
        if has_file {
            self.interval.lock().removed.push(number);
        }
        // No commit knows of a new one.
        if !self.is_new(number) {
            return self.shorten_removed(number, &mut object);
        }
        match self.unlink(number, &mut object, has_file) {
            // It is removed; its file goes after the next commit, as those that commits know of.
            Err(e) if e.kind().is_refusal() => Ok(()),
            done => done,
        }
    }

    /// Removes the files of objects whose removal is durable. Where the host refuses that they stay on the list.
    pub(super) fn unlink_leaving(&self) -> Result<()> {
        // Held until it is done: a checkpoint that finds nothing left may go on.
        let _alone = self.leaving.at_work.lock();
        loop {
            let some = self.leaving.take(UNLINKED);
            if some.is_empty() {
                return Ok(());
            }
            let done = some.iter().enumerate().try_for_each(|(nth, id)| {
                let object = self.objects.get_or_make(*id);
                let mut object = object.write();
                if object.gone {
                    return Ok(());
                }
                self.unlink(*id, &mut object, true).inspect_err(|_| self.leaving.add(&some[nth..]))
            });
            let _still = self.gate.write();
            self.objects.forget_idle(&some, self.commit.load(Ordering::Acquire));
            done?;
        }
    }

    /// Removes the file of an object that no commit refers to any more.
    fn unlink(&self, number: u64, object: &mut Object, has_file: bool) -> Result<()> {
        if has_file {
            self.names.lock().insert(subfolder(&self.objects.name(number)).to_owned());
            self.objects.remove_file(number).map_err(|e| self.refused(e))?;
            if self.doubled.has(number) {
                self.names.lock().insert(subfolder(&self.doubled.name(number)).to_owned());
                self.doubled.remove_file(number).map_err(|e| self.refused(e))?;
            }
        }
        object.gone = true;
        object.name_unsynced = false;
        object.appendable = None;
        Ok(())
    }
}

/// Whether what lies `count` pages after a source continues it.
fn follows(source: Source, count: u64, next: Source) -> bool {
    match (source, next) {
        (Source::Journal(first), Source::Journal(next)) => {
            first.area == next.area && u64::from(first.page) + count == u64::from(next.page)
        }
        _ => source == next,
    }
}
