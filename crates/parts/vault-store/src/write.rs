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

use crate::content::MOST_PAGES;
use crate::health::Health;
use crate::ids::PAGE;
use crate::interval::{Changed, Interval};
use crate::journal::Journal;
use crate::journal_size::Place;
use crate::object::{COPIED, Layer, Object, Source, Target};
use crate::object_table::{ObjectTable, may_have_file};
use crate::page_range::{pages_of, range};
use crate::page_reader::PageReader;
use crate::reclaimer::Reclaimer;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::FolderFile;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Consecutive pages of a write with one destination.
struct Piece {
    first: u64,
    count: u64,
    to: Goal,
}

/// The destination of a piece.
enum Goal {
    /// In place, past all pages written so far.
    Past,
    /// In place, over pages written since the last commit or over a hole.
    Inside,
    /// To a page of the journal, instead of the page `old`, which no record lists.
    Again { place: Place, old: Place },
    /// To new pages of the journal.
    Append(Place),
}

/// Overwritten pages of a file, to be restored if the write fails.
struct Old {
    first: u64,
    bytes: Vec<u8>,
}

/// The possible changes of a write so far.
#[derive(Default)]
struct Begun {
    /// The object's file, once it was needed.
    file: Option<Arc<dyn FolderFile>>,
    /// Whether there may be pages past the end.
    past: bool,
    old: Vec<Old>,
}

/// Changes the objects of an open store.
pub(crate) struct Writer {
    health: Arc<Health>,
    objects: Arc<ObjectTable>,
    interval: Arc<Interval>,
    journal: Arc<Journal>,
    reader: Arc<PageReader>,
    reclaimer: Arc<Reclaimer>,
    /// The largest size of a file of the folder, in pages.
    longest: u64,
}

impl Writer {
    /// A writer of these objects, for files of at most `longest` pages.
    pub(crate) fn new(
        health: Arc<Health>,
        objects: Arc<ObjectTable>,
        interval: Arc<Interval>,
        journal: Arc<Journal>,
        reader: Arc<PageReader>,
        reclaimer: Arc<Reclaimer>,
        longest: u64,
    ) -> Writer {
        Writer { health, objects, interval, journal, reader, reclaimer, longest }
    }

    /// See [`crate::Store::longest`].
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// Called before a change of an object: notes the object as changed.
    fn begin(&self, number: u64, object: &mut Object) -> Result<()> {
        let Writer { objects, interval, .. } = self;
        if object.removed {
            return Err(Error::new(Kind::NotFound, "the object of the vault was removed")
                .found(format!("object {number}")));
        }
        if object.begin(interval.commit(), interval.epoch()) {
            interval.touch(number);
        }
        if object.stable.is_none() {
            let file = if interval.is_new(number) { None } else { objects.file(number)? };
            let written = file.map_or(Ok(0), |file| file.len())?.div_ceil(PAGE as u64);
            // The file may have trailing garbage; no commit refers to it.
            object.stable = Some(written.max(object.end).min(MOST_PAGES - 1));
        }
        Ok(())
    }

    /// See [`crate::Store::truncate`].
    pub(crate) fn truncate(&self, number: u64, pages: u64) -> Result<()> {
        let Writer { health, objects, interval, .. } = self;
        health.may_change()?;
        let pages = pages.min(MOST_PAGES - 1);
        let _shared = interval.enter();
        let shared = objects.get_or_make(number);
        let mut object = shared.write();
        self.begin(number, &mut object)?;
        if !object.cut(pages) {
            interval.note_journaled(number);
            return Ok(());
        }
        match self.shorten(number, &mut object, pages) {
            // The object is already shorter, even if its file is not.
            Err(e) if e.changed_nothing() => self.cut_by_commit(number, &mut object, pages),
            done => done.map_err(|e| health.broken(e))?,
        }
        Ok(())
    }

    /// Truncates the file of an object, if it is longer.
    fn shorten(&self, number: u64, object: &mut Object, pages: u64) -> Result<()> {
        let new = self.interval.is_new(number);
        if let Some(file) = self.objects.file_of(number, object, new)?
            && file.len()? > pages * PAGE as u64
        {
            object.fresh.shrunk = true;
            file.set_len(pages * PAGE as u64)?;
        }
        Ok(())
    }

    /// Truncates a removed object to the pages that commits refer to. Do it at once: a host that
    /// refuses more space may have none for the commit of the removal.
    fn shorten_removed(&self, number: u64, object: &mut Object) -> Result<()> {
        let Some(stable) = object.stable.filter(|stable| object.end > *stable) else { return Ok(()) };
        match self.shorten(number, object, stable) {
            Err(e) if e.changed_nothing() => Ok(()),
            done => done.map_err(|e| self.health.broken(e)),
        }
    }

    /// The host refused to truncate the object's file: pages past `pages` read as zeros all the
    /// same, the next commit lists the cut, and a checkpoint truncates the file.
    fn cut_by_commit(&self, number: u64, object: &mut Object, pages: u64) {
        object.cut_above_file(pages);
        self.interval.note_journaled(number);
    }

    /// See [`crate::Store::remove`].
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        let Writer { health, objects, interval, .. } = self;
        health.may_change()?;
        let _shared = interval.enter();
        let shared = objects.get_or_make(number);
        let mut object = shared.write();
        if object.removed {
            return Ok(());
        }
        self.begin(number, &mut object)?;
        object.removed = true;
        object.live = Layer::default();
        let new = interval.is_new(number);
        let has_file = may_have_file(&object, new);
        if has_file {
            interval.remove(number);
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
        let Writer { health, objects, interval, .. } = self;
        health.may_change()?;
        let pages = range(first, pages_of(bytes.len())?)?;
        self.check_longest(pages.end)?;
        let _shared = interval.enter();
        let shared = objects.get_or_make(number);
        let mut object = shared.write();
        self.begin(number, &mut object)?;
        let mut pieces = Vec::new();
        if let Err(e) = self.divide(number, &object, pages, &mut pieces) {
            self.give_back(&pieces);
            return Err(health.refused(e));
        }
        let bytes_of = |piece: &Piece| {
            let from = (piece.first - first) as usize * PAGE;
            &bytes[from..from + piece.count as usize * PAGE]
        };
        let mut begun = Begun::default();
        // Last piece first: pages past the end are the likeliest to find no space, and the easiest
        // to take back.
        for piece in pieces.iter().rev() {
            if let Err(e) = self.write_piece(number, &mut object, piece, bytes_of(piece), &mut begun) {
                self.give_back(&pieces);
                return Err(self.take_back(number, &mut object, &begun, e));
            }
        }
        for piece in &pieces {
            match piece.to {
                Goal::Past | Goal::Inside => object.note_placed(piece.first..piece.first + piece.count),
                Goal::Again { place, old } => {
                    self.note_journaled(&mut object, piece.first, place, bytes_of(piece));
                    self.journal.give_back(old, 1);
                }
                Goal::Append(place) => {
                    self.note_journaled(&mut object, piece.first, place, bytes_of(piece));
                    interval.note_journaled(number);
                }
            }
        }
        Ok(())
    }

    /// Refuses pages past the size limit of the object's file: they would fit into the journal, but
    /// a checkpoint could not write them back.
    fn check_longest(&self, end: u64) -> Result<()> {
        if end <= self.longest {
            return Ok(());
        }
        let number = std::io::Error::from_raw_os_error(libc::EFBIG);
        Err(Error::io("cannot make a file of the vault's directory longer", &number)
            .expected(format!("at most {} bytes", self.longest.saturating_mul(PAGE as u64))))
    }

    /// Divides a write into pieces, and takes pages of the journal for them. After an error
    /// `pieces` has the pieces that got theirs.
    fn divide(&self, number: u64, object: &Object, pages: Range<u64>, pieces: &mut Vec<Piece>) -> Result<()> {
        let Writer { objects, interval, journal, .. } = self;
        let (durable, new) = (interval.durable(), interval.is_new(number));
        let doubled = objects.doubled.has(number);
        let target_of = |page| match object.target(page, durable, new) {
            // Only a checkpoint writes the files of a doubled object.
            Target::Own if doubled => Target::Append,
            target => target,
        };
        let mut first = pages.start;
        while first < pages.end {
            let target = target_of(first);
            let past = first >= object.end;
            let mut count = 1;
            if !matches!(target, Target::Again(_)) {
                while first + count < pages.end
                    && (first + count >= object.end) == past
                    && target_of(first + count) == target
                {
                    count += 1;
                }
            }
            let to = match target {
                Target::Own if past => Goal::Past,
                Target::Own => Goal::Inside,
                Target::Again(old) => Goal::Again { place: journal.take_another()?, old },
                Target::Append => Goal::Append(journal.take(count)?),
            };
            pieces.push(Piece { first, count, to });
            first += count;
        }
        Ok(())
    }

    /// Gives journal pages of a refused write back: otherwise repeated writes on a full host would
    /// use up the pages prepared for records. No record is noted during a write, so none lists
    /// them.
    fn give_back(&self, pieces: &[Piece]) {
        for piece in pieces.iter().rev() {
            if let Goal::Append(place) | Goal::Again { place, .. } = piece.to {
                self.journal.give_back(place, piece.count);
            }
        }
    }

    /// Writes a piece after reading the pages that it may overwrite.
    fn write_piece(
        &self,
        number: u64,
        object: &mut Object,
        piece: &Piece,
        bytes: &[u8],
        begun: &mut Begun,
    ) -> Result<()> {
        let Writer { objects, interval, journal, .. } = self;
        match piece.to {
            Goal::Append(place) | Goal::Again { place, .. } => journal.write(place, bytes),
            Goal::Past | Goal::Inside => {
                let file = match &begun.file {
                    Some(file) => file.clone(),
                    None => objects.file_or_make(number, object, interval.is_new(number))?,
                };
                begun.file = Some(file.clone());
                let offset = piece.first * PAGE as u64;
                if matches!(piece.to, Goal::Inside) {
                    let mut old = vec![0; bytes.len()];
                    file.read_at(offset, &mut old).map_err(Error::of_read)?;
                    // With a quota btrfs can take a part of a write into a hole, and then refuse
                    // zeros, a punch and a truncation. `allocate` takes the space for all of it or
                    // none.
                    if old.chunks_exact(PAGE).any(|page| page.iter().all(|byte| *byte == 0)) {
                        file.allocate(offset, bytes.len() as u64)?;
                    }
                    begun.old.push(Old { first: piece.first, bytes: old });
                } else {
                    begun.past = true;
                }
                file.write_at(offset, bytes)
            }
        }
    }

    /// After a failed write: restores overwritten pages, and truncates pages past the end, so that
    /// every page is as before. Returns the error of the write. Fail-stop if this fails as well, as
    /// when a quota refuses to restore pages that were not zeros.
    fn take_back(&self, number: u64, object: &mut Object, begun: &Begun, e: Error) -> Error {
        let health = &self.health;
        match self.restore(number, object, begun) {
            Ok(()) => health.refused(e),
            Err(why) => health
                .broken(e.context(format!("what was there before cannot be put back ({})", why.finding()))),
        }
    }

    fn restore(&self, number: u64, object: &mut Object, begun: &Begun) -> Result<()> {
        if let Some(file) = begun.file.as_ref().filter(|_| begun.past) {
            object.fresh.shrunk = true;
            let pages = object.stable.unwrap_or(0).max(object.end);
            let end = pages * PAGE as u64;
            if file.len()? > end {
                match file.set_len(end) {
                    // With a quota, truncating a file may be refused as well.
                    Err(e) if e.kind().is_refusal() => self.cut_by_commit(number, object, pages),
                    done => done?,
                }
            }
        }
        let Some(file) = &begun.file else { return Ok(()) };
        for Old { first, bytes } in begun.old.iter().rev() {
            // Only a sync of the object makes the restored pages durable; copies of other pages in
            // the journal do not.
            object.fresh.shrunk = true;
            put_back(&**file, *first, bytes)?;
        }
        Ok(())
    }

    /// If few pages were written in place since the last record, copies them to the journal: then
    /// only the journal must be synced. Returns whether it did. The caller ensures that no object
    /// changes meanwhile.
    pub(crate) fn copy_few(&self, changed: &Changed) -> Result<bool> {
        let Writer { objects, interval, journal, .. } = self;
        let touched = || changed.touched.iter().filter_map(|id| Some((*id, objects.get(*id)?)));
        let mut total = 0;
        for (_, object) in touched() {
            let object = object.read();
            if !object.removed {
                total += object.fresh.placed;
                if object.fresh.shrunk || total > COPIED {
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
            let pages: BTreeSet<u64> = object.fresh.runs.iter().cloned().flatten().collect();
            for page in pages {
                if page < object.end && object.source(page) == Source::Own {
                    self.reader.read_changed(&object, id, page..page + 1, &mut bytes)?;
                    let copy = |place| {
                        let written = self.write_journal(&mut object, page, place, &bytes);
                        written.inspect_err(|_| journal.give_back(place, 1))
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
    fn write_journal(&self, object: &mut Object, page: u64, place: Place, bytes: &[u8]) -> Result<()> {
        self.journal.write(place, bytes)?;
        self.note_journaled(object, page, place, bytes);
        Ok(())
    }

    /// Notes pages that were written to the journal.
    fn note_journaled(&self, object: &mut Object, first: u64, place: Place, bytes: &[u8]) {
        let commit = self.interval.commit();
        for (nth, page) in (0..).zip(bytes.chunks_exact(PAGE)) {
            let entry = self.journal.tags().entry(Place { page: place.page + nth, ..place }, page, commit);
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
