//! The writer: changes objects before a commit records the changes. It writes, truncates and
//! removes.
//!
//! One write of pages to an object writes all of them or, for lack of space, none. A write that
//! finds no space may have changed pages before the place where it stopped: a file has holes, and a
//! copy-on-write file system or one with a quota needs space even to overwrite. So the writer reads
//! all pages of a file that a write may overwrite, and restores them if it fails. Pages that were
//! zeros are punched, which many file systems do without space. In the journal it overwrites no
//! page: new content goes to another one, and the old page is free afterwards. Nothing is noted
//! before everything is written.

use crate::commits::codec::MOST_PAGES;
use crate::commits::commit_interval::{ChangedObjects, CommitInterval};
use crate::health::StoreHealth;
use crate::ids::PAGE;
use crate::journal::Journal;
use crate::journal::size::JournalPlace;
use crate::objects::object::{JournalLayer, MAX_COPIED_PAGES, Object, ReadSource, WriteTarget};
use crate::objects::page_range::{check_whole_pages, range};
use crate::objects::page_reader::PageReader;
use crate::objects::reclaimer::Reclaimer;
use crate::objects::table::{ObjectTable, may_have_file};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::FolderFile;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Consecutive pages of a write with one destination.
struct WritePiece {
    first: u64,
    count: u64,
    to: PieceTarget,
}

/// The destination of a piece.
enum PieceTarget {
    /// In place, past all pages written so far.
    Extend,
    /// In place, over pages written since the last commit or over a hole.
    InPlace,
    /// To a page of the journal, instead of the page `old`, which no record lists.
    JournalOverwrite { place: JournalPlace, old: JournalPlace },
    /// To new pages of the journal.
    JournalAppend(JournalPlace),
}

/// Overwritten pages of a file, to be restored if the write fails.
struct Old {
    first: u64,
    bytes: Vec<u8>,
}

/// The possible changes of a write so far.
#[derive(Default)]
struct UndoLog {
    /// The object's file, once it was needed.
    file: Option<Arc<dyn FolderFile>>,
    /// Whether there may be pages past the end.
    has_extended: bool,
    old: Vec<Old>,
}

/// Changes the objects of an open store.
pub(crate) struct ObjectWriter {
    health: Arc<StoreHealth>,
    objects: Arc<ObjectTable>,
    interval: Arc<CommitInterval>,
    journal: Arc<Journal>,
    reader: Arc<PageReader>,
    reclaimer: Arc<Reclaimer>,
    /// The largest size of a file of the folder, in pages.
    max_pages: u64,
}

impl ObjectWriter {
    /// A writer of these objects, for files of at most `longest` pages.
    pub(crate) fn new(
        health: Arc<StoreHealth>,
        objects: Arc<ObjectTable>,
        interval: Arc<CommitInterval>,
        journal: Arc<Journal>,
        reader: Arc<PageReader>,
        reclaimer: Arc<Reclaimer>,
        longest: u64,
    ) -> ObjectWriter {
        ObjectWriter { health, objects, interval, journal, reader, reclaimer, max_pages: longest }
    }

    /// See [`crate::Store::max_object_pages`].
    pub(crate) fn max_pages(&self) -> u64 {
        self.max_pages
    }

    /// Called before a change of an object: notes the object as changed.
    fn begin(&self, number: u64, object: &mut Object) -> Result<()> {
        let ObjectWriter { objects, interval, .. } = self;
        if object.removed {
            return Err(Error::new(Kind::NotFound, "the object of the vault was removed")
                .found(format!("object {number}")));
        }
        if object.begin(interval.commit(), interval.epoch()) {
            interval.touch(number);
        }
        if object.committed_end.is_none() {
            let file = if interval.is_new(number) { None } else { objects.file(number)? };
            let written = file.map_or(Ok(0), |file| file.len())?.div_ceil(PAGE as u64);
            // The file may have trailing garbage; no commit refers to it.
            object.committed_end = Some(written.max(object.end).min(MOST_PAGES - 1));
        }
        Ok(())
    }

    /// See [`crate::Store::truncate`].
    pub(crate) fn truncate(&self, number: u64, pages: u64) -> Result<()> {
        let ObjectWriter { health, objects, interval, .. } = self;
        health.check_writable()?;
        let pages = pages.min(MOST_PAGES - 1);
        let _shared = interval.lock_shared();
        let shared = objects.get_or_make(number);
        let mut object = shared.write();
        self.begin(number, &mut object)?;
        if !object.truncate(pages) {
            interval.note_journaled(number);
            return Ok(());
        }
        match self.shorten(number, &mut object, pages) {
            // The object is already shorter, even if its file is not.
            Err(e) if e.changed_nothing() => self.truncate_by_commit(number, &mut object, pages),
            done => done.map_err(|e| health.fail_stop(e))?,
        }
        Ok(())
    }

    /// Truncates the file of an object, if it is longer.
    fn shorten(&self, number: u64, object: &mut Object, pages: u64) -> Result<()> {
        let new = self.interval.is_new(number);
        if let Some(file) = self.objects.file_of(number, object, new)?
            && file.len()? > pages * PAGE as u64
        {
            object.unrecorded.must_sync = true;
            file.set_len(pages * PAGE as u64)?;
        }
        Ok(())
    }

    /// Truncates a removed object to the pages that commits refer to. Do it at once: a host that
    /// refuses more space may have none for the commit of the removal.
    fn shorten_removed(&self, number: u64, object: &mut Object) -> Result<()> {
        let Some(stable) = object.committed_end.filter(|stable| object.end > *stable) else { return Ok(()) };
        match self.shorten(number, object, stable) {
            Err(e) if e.changed_nothing() => Ok(()),
            done => done.map_err(|e| self.health.fail_stop(e)),
        }
    }

    /// The host refused to truncate the object's file: pages past `pages` read as zeros all the
    /// same, the next commit lists the cut, and a checkpoint truncates the file.
    fn truncate_by_commit(&self, number: u64, object: &mut Object, pages: u64) {
        object.truncate_in_journal(pages);
        self.interval.note_journaled(number);
    }

    /// See [`crate::Store::remove`].
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        let ObjectWriter { health, objects, interval, .. } = self;
        health.check_writable()?;
        let _shared = interval.lock_shared();
        let shared = objects.get_or_make(number);
        let mut object = shared.write();
        if object.removed {
            return Ok(());
        }
        self.begin(number, &mut object)?;
        object.removed = true;
        object.live = JournalLayer::default();
        let new = interval.is_new(number);
        let has_file = may_have_file(&object, new);
        if has_file {
            interval.note_removed(number);
        }
        // No commit refers to a new object.
        if !new {
            return self.shorten_removed(number, &mut object);
        }
        match self.reclaimer.unlink(number, &mut object, has_file) {
            // The object is removed; its file goes after the next commit, like those of committed
            // objects.
            Err(e) if e.changed_nothing() => Ok(()),
            done => done,
        }
    }

    /// See [`crate::Store::write`].
    pub(crate) fn write(&self, number: u64, first: u64, bytes: &[u8]) -> Result<()> {
        let ObjectWriter { health, objects, interval, .. } = self;
        health.check_writable()?;
        let pages = range(first, check_whole_pages(bytes.len())?)?;
        self.check_max_pages(pages.end)?;
        let _shared = interval.lock_shared();
        let shared = objects.get_or_make(number);
        let mut object = shared.write();
        self.begin(number, &mut object)?;
        let mut pieces = Vec::new();
        if let Err(e) = self.divide(number, &object, pages, &mut pieces) {
            self.return_journal_pages(&pieces);
            return Err(health.note_failure(e));
        }
        let bytes_of = |piece: &WritePiece| {
            let from = (piece.first - first) as usize * PAGE;
            &bytes[from..from + piece.count as usize * PAGE]
        };
        let mut undo = UndoLog::default();
        // Last piece first: pages past the end are the likeliest to find no space, and the easiest
        // to take back.
        for piece in pieces.iter().rev() {
            if let Err(e) = self.write_piece(number, &mut object, piece, bytes_of(piece), &mut undo) {
                self.return_journal_pages(&pieces);
                return Err(self.roll_back(number, &mut object, &undo, e));
            }
        }
        for piece in &pieces {
            match piece.to {
                PieceTarget::Extend | PieceTarget::InPlace => {
                    object.note_written_in_place(piece.first..piece.first + piece.count);
                }
                PieceTarget::JournalOverwrite { place, old } => {
                    self.note_journaled(&mut object, piece.first, place, bytes_of(piece));
                    self.journal.return_pages(old, 1);
                }
                PieceTarget::JournalAppend(place) => {
                    self.note_journaled(&mut object, piece.first, place, bytes_of(piece));
                    interval.note_journaled(number);
                }
            }
        }
        Ok(())
    }

    /// Refuses pages past the size limit of the object's file: they would fit into the journal, but
    /// a checkpoint could not write them back.
    fn check_max_pages(&self, end: u64) -> Result<()> {
        if end <= self.max_pages {
            return Ok(());
        }
        let number = std::io::Error::from_raw_os_error(libc::EFBIG);
        Err(Error::io("cannot make a file of the vault's directory longer", &number)
            .expected(format!("at most {} bytes", self.max_pages.saturating_mul(PAGE as u64))))
    }

    /// Divides a write into pieces, and takes pages of the journal for them. After an error
    /// `pieces` has the pieces that got theirs.
    fn divide(
        &self,
        number: u64,
        object: &Object,
        pages: Range<u64>,
        pieces: &mut Vec<WritePiece>,
    ) -> Result<()> {
        let ObjectWriter { objects, interval, journal, .. } = self;
        let (durable, new) = (interval.durable(), interval.is_new(number));
        let doubled = objects.doubled.has(number);
        let target_of = |page| match object.target(page, durable, new) {
            // Only a checkpoint writes the files of a doubled object.
            WriteTarget::InPlace if doubled => WriteTarget::JournalAppend,
            target => target,
        };
        let mut first = pages.start;
        while first < pages.end {
            let target = target_of(first);
            let past = first >= object.end;
            let mut count = 1;
            if !matches!(target, WriteTarget::JournalOverwrite(_)) {
                while first + count < pages.end
                    && (first + count >= object.end) == past
                    && target_of(first + count) == target
                {
                    count += 1;
                }
            }
            let to = match target {
                WriteTarget::InPlace if past => PieceTarget::Extend,
                WriteTarget::InPlace => PieceTarget::InPlace,
                WriteTarget::JournalOverwrite(old) => {
                    PieceTarget::JournalOverwrite { place: journal.take_another()?, old }
                }
                WriteTarget::JournalAppend => PieceTarget::JournalAppend(journal.take(count)?),
            };
            pieces.push(WritePiece { first, count, to });
            first += count;
        }
        Ok(())
    }

    /// Gives journal pages of a refused write back: otherwise repeated writes on a full host would
    /// use up the pages prepared for records. No record is noted during a write, so none lists
    /// them.
    fn return_journal_pages(&self, pieces: &[WritePiece]) {
        for piece in pieces.iter().rev() {
            if let PieceTarget::JournalAppend(place) | PieceTarget::JournalOverwrite { place, .. } = piece.to
            {
                self.journal.return_pages(place, piece.count);
            }
        }
    }

    /// Writes a piece after reading the pages that it may overwrite.
    fn write_piece(
        &self,
        number: u64,
        object: &mut Object,
        piece: &WritePiece,
        bytes: &[u8],
        undo: &mut UndoLog,
    ) -> Result<()> {
        let ObjectWriter { objects, interval, journal, .. } = self;
        match piece.to {
            PieceTarget::JournalAppend(place) | PieceTarget::JournalOverwrite { place, .. } => {
                journal.write(place, bytes)
            }
            PieceTarget::Extend | PieceTarget::InPlace => {
                let file = match &undo.file {
                    Some(file) => file.clone(),
                    None => objects.file_or_make(number, object, interval.is_new(number))?,
                };
                undo.file = Some(file.clone());
                let offset = piece.first * PAGE as u64;
                if matches!(piece.to, PieceTarget::InPlace) {
                    let mut old = vec![0; bytes.len()];
                    file.read_at(offset, &mut old).map_err(Error::of_read)?;
                    // With a quota btrfs can take a part of a write into a hole, and then refuse
                    // zeros, a punch and a truncation. `allocate` takes the space for all of it or
                    // none.
                    if old.chunks_exact(PAGE).any(|page| page.iter().all(|byte| *byte == 0)) {
                        file.allocate(offset, bytes.len() as u64)?;
                    }
                    undo.old.push(Old { first: piece.first, bytes: old });
                } else {
                    undo.has_extended = true;
                }
                file.write_at(offset, bytes)
            }
        }
    }

    /// After a failed write: restores overwritten pages, and truncates pages past the end, so that
    /// every page is as before. Returns the error of the write. Fail-stop if this fails as well, as
    /// when a quota refuses to restore pages that were not zeros.
    fn roll_back(&self, number: u64, object: &mut Object, undo: &UndoLog, e: Error) -> Error {
        let health = &self.health;
        match self.restore(number, object, undo) {
            Ok(()) => health.note_failure(e),
            Err(why) => health
                .fail_stop(e.context(format!("the previous content cannot be restored ({})", why.summary()))),
        }
    }

    fn restore(&self, number: u64, object: &mut Object, undo: &UndoLog) -> Result<()> {
        if let Some(file) = undo.file.as_ref().filter(|_| undo.has_extended) {
            object.unrecorded.must_sync = true;
            let pages = object.committed_end.unwrap_or(0).max(object.end);
            let end = pages * PAGE as u64;
            if file.len()? > end {
                match file.set_len(end) {
                    // With a quota, truncating a file may be refused as well.
                    Err(e) if e.kind().is_refusal() => self.truncate_by_commit(number, object, pages),
                    done => done?,
                }
            }
        }
        let Some(file) = &undo.file else { return Ok(()) };
        for Old { first, bytes } in undo.old.iter().rev() {
            // Only a sync of the object makes the restored pages durable; copies of other pages in
            // the journal do not.
            object.unrecorded.must_sync = true;
            put_back(&**file, *first, bytes)?;
        }
        Ok(())
    }

    /// If few pages were written in place since the last record, copies them to the journal: then
    /// only the journal must be synced. Returns whether it did. The caller ensures that no object
    /// changes meanwhile.
    pub(crate) fn copy_to_journal(&self, changed: &ChangedObjects) -> Result<bool> {
        let ObjectWriter { objects, interval, journal, .. } = self;
        let touched = || changed.touched.iter().filter_map(|id| Some((*id, objects.get(*id)?)));
        let mut total = 0;
        for (_, object) in touched() {
            let object = object.read();
            if !object.removed {
                total += object.unrecorded.in_place_pages;
                if object.unrecorded.must_sync || total > MAX_COPIED_PAGES {
                    return Ok(false);
                }
            }
        }
        let mut bytes = vec![0; PAGE];
        for (id, object) in touched() {
            let mut object = object.write();
            if object.removed {
                continue;
            }
            let pages: BTreeSet<u64> = object.unrecorded.runs.iter().cloned().flatten().collect();
            for page in pages {
                if page < object.end && object.source(page) == ReadSource::File {
                    self.reader.read_changed(&object, id, page..page + 1, &mut bytes)?;
                    let copy = |place| {
                        let written = self.write_journal(&mut object, page, place, &bytes);
                        written.inspect_err(|_| journal.return_pages(place, 1))
                    };
                    match journal.take(1).and_then(copy) {
                        // The pages will be synced in place.
                        Err(e) if e.kind().is_refusal() => return Ok(false),
                        done => done?,
                    }
                    interval.note_journaled(id);
                }
            }
        }
        Ok(true)
    }

    /// Writes a page to its taken place in the journal.
    fn write_journal(&self, object: &mut Object, page: u64, place: JournalPlace, bytes: &[u8]) -> Result<()> {
        self.journal.write(place, bytes)?;
        self.note_journaled(object, page, place, bytes);
        Ok(())
    }

    /// Notes pages that were written to the journal.
    fn note_journaled(&self, object: &mut Object, first: u64, place: JournalPlace, bytes: &[u8]) {
        let commit = self.interval.commit();
        for (nth, page) in (0..).zip(bytes.chunks_exact(PAGE)) {
            let entry =
                self.journal.tags().entry(JournalPlace { page: place.page + nth, ..place }, page, commit);
            object.note_journaled(first + u64::from(nth), entry);
        }
    }
}

/// Restores pages of a file, starting at `first`.
fn put_back(file: &dyn FolderFile, first: u64, old: &[u8]) -> Result<()> {
    let mut now = vec![0; old.len()];
    file.read_at(first * PAGE as u64, &mut now)?;
    // A hole that was not written stays a hole: there is no space for it.
    let altered = old.chunks_exact(PAGE).zip(now.chunks_exact(PAGE)).map(|(old, now)| old != now);
    let altered: Vec<bool> = altered.collect();
    let bytes_of = |page: usize| &old[page * PAGE..(page + 1) * PAGE];
    let emptied = |page: usize| altered[page] && bytes_of(page).iter().all(|byte| *byte == 0);
    let mut page = 0;
    while page < altered.len() {
        let offset = (first + page as u64) * PAGE as u64;
        let zeros = (page..altered.len()).take_while(|page| emptied(*page)).count();
        if zeros > 0 {
            make_zeros(file, offset, zeros * PAGE)?;
        } else if altered[page] {
            file.write_at(offset, bytes_of(page))?;
        }
        page += zeros.max(1);
    }
    Ok(())
}

/// Zeroes bytes of a file, without using space if the file system can do that.
fn make_zeros(file: &dyn FolderFile, offset: u64, len: usize) -> Result<()> {
    match file.punch(offset, len as u64) {
        // If punching is unsupported or refused, there may be space to write zeros.
        Err(e) if e.kind() == Kind::Other || e.kind().is_refusal() => file.write_at(offset, &vec![0; len]),
        done => done,
    }
}
