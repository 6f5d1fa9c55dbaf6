//! The writer: changes objects before a commit says so. It writes, cuts and removes.
//!
//! One write of pages to an object writes all of them, or for want of space none. A write that
//! finds no space may have changed what lies before the place at which it stopped: a file has
//! holes, a file system that writes nothing over itself needs space for what is there already, and
//! so does one with a quota. So whatever a write may overwrite is read before, and put back if it
//! fails. Pages that were zeros are punched, which many file systems do without space. Nothing is
//! noted before all of it is written.

use crate::content::MOST_PAGES;
use crate::ids::PAGE;
use crate::interval::Changed;
use crate::journal::Place;
use crate::object::{COPIED, Entry, Layer, Object, Source, Target};
use crate::object_table::may_have_file;
use crate::page_range::{pages_of, range};
use crate::parts::Parts;
use crate::read::read_known;
use crate::reclaimer::Reclaimer;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::FolderFile;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of a write that go to one place, one after the other.
struct Piece {
    first: u64,
    count: u64,
    to: Goal,
}

/// Where a piece goes.
enum Goal {
    /// To its place, past everything that was written so far.
    Past,
    /// To its place, where pages were written since the last commit, or a hole was left.
    Inside,
    /// Over itself in the journal.
    Again(Place),
    /// To new pages of the journal.
    Append(Place),
}

/// What lies in the way of a write, to be put back if it fails.
enum Old {
    Own { first: u64, bytes: Vec<u8> },
    Journal { place: Place, bytes: Vec<u8> },
}

/// What a write may have changed so far.
#[derive(Default)]
struct Begun {
    /// The object's file, once it was needed.
    file: Option<Arc<dyn FolderFile>>,
    /// Whether something may stand past the end.
    past: bool,
    old: Vec<Old>,
}

/// Changes the objects of an open store.
pub(crate) struct Writer {
    parts: Arc<Parts>,
    reclaimer: Arc<Reclaimer>,
    /// Of the next page that is written to the journal.
    sequence: AtomicU64,
    /// The longest that a file of the folder may become, in pages.
    longest: u64,
}

impl Writer {
    /// A writer for files that may become `longest` pages long.
    pub(crate) fn new(parts: Arc<Parts>, reclaimer: Arc<Reclaimer>, longest: u64) -> Writer {
        Writer { parts, reclaimer, sequence: AtomicU64::new(0), longest }
    }

    /// See [`crate::Store::longest`].
    pub(crate) fn longest(&self) -> u64 {
        self.longest
    }

    /// Before a change of an object: notes that there is one.
    fn begin(&self, number: u64, object: &mut Object) -> Result<()> {
        let (objects, interval) = (&self.parts.objects, &self.parts.interval);
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
            // The file may have trailing garbage, to which no commit refers.
            object.stable = Some(written.max(object.end).min(MOST_PAGES - 1));
        }
        Ok(())
    }

    /// See [`crate::Store::truncate`].
    pub(crate) fn truncate(&self, number: u64, pages: u64) -> Result<()> {
        let Parts { health, objects, interval, .. } = &*self.parts;
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
            // The object is shorter already, whatever became of its file.
            Err(e) if e.changed_nothing() => self.cut_by_commit(number, &mut object, pages),
            done => done.map_err(|e| health.broken(e))?,
        }
        Ok(())
    }

    /// Cuts the file of an object, if it has one that is longer.
    fn shorten(&self, number: u64, object: &mut Object, pages: u64) -> Result<()> {
        let new = self.parts.interval.is_new(number);
        if let Some(file) = self.parts.objects.file_of(number, object, new)?
            && file.len()? > pages * PAGE as u64
        {
            object.fresh.shrunk = true;
            file.set_len(pages * PAGE as u64)?;
        }
        Ok(())
    }

    /// What was written past all that commits refer to goes at once with a removed object: a host
    /// that refuses more may have no room for the commit that says so.
    fn shorten_removed(&self, number: u64, object: &mut Object) -> Result<()> {
        let Some(stable) = object.stable.filter(|stable| object.end > *stable) else { return Ok(()) };
        match self.shorten(number, object, stable) {
            Err(e) if e.changed_nothing() => Ok(()),
            done => done.map_err(|e| self.parts.health.broken(e)),
        }
    }

    /// The host does not cut the file of an object: the pages past these read as zeros all the
    /// same, the next commit says so, and a checkpoint cuts the file.
    fn cut_by_commit(&self, number: u64, object: &mut Object, pages: u64) {
        object.cut_above_file(pages);
        self.parts.interval.note_journaled(number);
    }

    /// See [`crate::Store::remove`].
    pub(crate) fn remove(&self, number: u64) -> Result<()> {
        let Parts { health, objects, interval, .. } = &*self.parts;
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
        // No commit knows of a new one.
        if !new {
            return self.shorten_removed(number, &mut object);
        }
        match self.reclaimer.unlink(number, &mut object, has_file) {
            // It is removed; its file goes after the next commit, as those that commits know of.
            Err(e) if e.changed_nothing() => Ok(()),
            done => done,
        }
    }

    /// See [`crate::Store::write`].
    pub(crate) fn write(&self, number: u64, first: u64, bytes: &[u8]) -> Result<()> {
        let Parts { health, objects, interval, .. } = &*self.parts;
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
        // What comes past the end is the likeliest to find no space, and the easiest to take back.
        for piece in pieces.iter().rev() {
            if let Err(e) = self.write_piece(number, &mut object, piece, bytes_of(piece), &mut begun) {
                self.give_back(&pieces);
                return Err(self.take_back(number, &mut object, &begun, e));
            }
        }
        for piece in &pieces {
            match piece.to {
                Goal::Past | Goal::Inside => object.note_placed(piece.first..piece.first + piece.count),
                Goal::Again(place) => self.note_journaled(&mut object, piece.first, place, bytes_of(piece)),
                Goal::Append(place) => {
                    self.note_journaled(&mut object, piece.first, place, bytes_of(piece));
                    interval.note_journaled(number);
                }
            }
        }
        Ok(())
    }

    /// Refuses pages for which the object's file cannot become long enough: they would find place
    /// in the journal, and none after it.
    fn check_longest(&self, end: u64) -> Result<()> {
        if end <= self.longest {
            return Ok(());
        }
        let number = std::io::Error::from_raw_os_error(libc::EFBIG);
        Err(Error::io("cannot make a file of the vault's directory longer", &number)
            .expected(format!("at most {} bytes", self.longest.saturating_mul(PAGE as u64))))
    }

    /// Divides a write into pieces, and takes the places in the journal that they need. After an
    /// error `pieces` has those that have theirs.
    fn divide(&self, number: u64, object: &Object, pages: Range<u64>, pieces: &mut Vec<Piece>) -> Result<()> {
        let Parts { objects, interval, journal, .. } = &*self.parts;
        let (durable, new) = (interval.durable(), interval.is_new(number));
        let doubled = objects.doubled.has(number);
        let target_of = |page| match object.target(page, durable, new) {
            // Only a checkpoint writes both files.
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
                Target::Again(place) => Goal::Again(place),
                Target::Append => Goal::Append(journal.take(count)?),
            };
            pieces.push(Piece { first, count, to });
            first += count;
        }
        Ok(())
    }

    /// Gives places in the journal back that a write took which is refused: on a full host, writes
    /// that are tried again and again would use up what is prepared for records. No record is noted
    /// while a write is under way, so none lists them.
    fn give_back(&self, pieces: &[Piece]) {
        for piece in pieces.iter().rev() {
            if let Goal::Append(place) = piece.to {
                self.parts.journal.give_back(place, piece.count);
            }
        }
    }

    /// Writes a piece, after it has read what it may overwrite.
    fn write_piece(
        &self,
        number: u64,
        object: &mut Object,
        piece: &Piece,
        bytes: &[u8],
        begun: &mut Begun,
    ) -> Result<()> {
        let Parts { objects, interval, journal, .. } = &*self.parts;
        match piece.to {
            Goal::Append(place) => journal.write(place, bytes),
            Goal::Again(place) => {
                let mut old = vec![0; bytes.len()];
                journal.read(place, &mut old)?;
                begun.old.push(Old::Journal { place, bytes: old });
                journal.write(place, bytes)
            }
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
                    // With a quota btrfs takes a part of a write into a hole, and then neither
                    // zeros, nor a punch, nor a cut. The space for all of it is taken whole or not
                    // at all.
                    if old.chunks_exact(PAGE).any(|page| page.iter().all(|byte| *byte == 0)) {
                        file.allocate(offset, bytes.len() as u64)?;
                    }
                    begun.old.push(Old::Own { first: piece.first, bytes: old });
                } else {
                    begun.past = true;
                }
                file.write_at(offset, bytes)
            }
        }
    }

    /// After a write that failed: puts back what it may have overwritten, and cuts off what it left
    /// past the end, so that every page is as it was. Gives the error of the write; if this fails
    /// as well, the store takes no more changes: so it is where a quota does not take back pages
    /// that were no zeros.
    fn take_back(&self, number: u64, object: &mut Object, begun: &Begun, e: Error) -> Error {
        let health = &self.parts.health;
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
                    // With a quota, cutting a file may be refused as well.
                    Err(e) if e.kind().is_refusal() => self.cut_by_commit(number, object, pages),
                    done => done?,
                }
            }
        }
        let (journal, mut now) = (&self.parts.journal, vec![0; PAGE]);
        for old in begun.old.iter().rev() {
            match (old, &begun.file) {
                (Old::Own { first, bytes }, Some(file)) => {
                    // Copies of other pages in the journal do not make it durable that these are
                    // back.
                    object.fresh.shrunk = true;
                    put_back(&**file, *first, bytes)?;
                }
                (Old::Own { .. }, None) => {}
                (Old::Journal { place, bytes }, _) => {
                    journal.read(*place, &mut now)?;
                    if now != *bytes {
                        journal.write(*place, bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// If few pages were written in place since the last record, copies them to the journal: then
    /// nothing but the journal must be synced. Gives whether it did. No object changes meanwhile:
    /// the caller sees to that.
    pub(crate) fn copy_few(&self, changed: &Changed) -> Result<bool> {
        let Parts { objects, interval, journal, .. } = &*self.parts;
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
                    read_known(&self.parts, &object, id, page..page + 1, &mut bytes)?;
                    let copy = |place| {
                        let written = self.write_journal(&mut object, page, place, &bytes);
                        written.inspect_err(|_| journal.give_back(place, 1))
                    };
                    match journal.take(1).and_then(copy) {
                        // They are synced where they are.
                        Err(e) if e.kind().is_refusal() => return Ok(false),
                        done => done?,
                    }
                    interval.note_journaled(id);
                }
            }
        }
        Ok(true)
    }

    /// Writes a page to the journal, where its place was taken.
    fn write_journal(&self, object: &mut Object, page: u64, place: Place, bytes: &[u8]) -> Result<()> {
        self.parts.journal.write(place, bytes)?;
        self.note_journaled(object, page, place, bytes);
        Ok(())
    }

    /// Notes pages that were written to the journal.
    fn note_journaled(&self, object: &mut Object, first: u64, place: Place, bytes: &[u8]) {
        let commit = self.parts.interval.commit();
        for (nth, page) in (0..).zip(bytes.chunks_exact(PAGE)) {
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            let tag = self.parts.keys.page_tag(sequence, page);
            let place = Place { page: place.page + nth, ..place };
            object.note_journaled(first + u64::from(nth), Entry { place, sequence, tag, commit });
        }
    }
}

/// Puts pages of a file from `first` on back as they were.
fn put_back(file: &dyn FolderFile, first: u64, old: &[u8]) -> Result<()> {
    let mut now = vec![0; old.len()];
    file.read_at(first * PAGE as u64, &mut now)?;
    // A hole that nothing was written to stays one: there is no space for it.
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

/// Makes bytes of a file zeros, without space for them where the file system can do that.
fn make_zeros(file: &dyn FolderFile, offset: u64, len: usize) -> Result<()> {
    match file.punch(offset, len as u64) {
        // Where that is not known, or refused, there may be space to write them.
        Err(e) if e.kind() == Kind::Other || e.kind().is_refusal() => file.write_at(offset, &vec![0; len]),
        done => done,
    }
}
