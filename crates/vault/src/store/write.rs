//! One write of pages to an object: all of them, or for want of space none.
//!
//! A write that finds no space may have changed what lies before the place at which it stopped: a file has holes, a file system
//! that writes nothing over itself needs space for what is there already, and so does one with a quota. So whatever a write
//! may overwrite is read before, and put back if it fails. Nothing is noted before all of it is written.

use super::PAGE;
use super::engine::{Engine, pages_of, range};
use super::journal::Place;
use super::object::{Entry, Object, Target};
use lacuna_core::{Error, Result};
use lacuna_medium::FolderFile;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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

impl Engine {
    /// See [`super::Store::write`].
    pub(super) fn write(&self, number: u64, first: u64, bytes: &[u8]) -> Result<()> {
        self.may_change()?;
        let pages = range(first, pages_of(bytes.len())?)?;
        self.check_longest(pages.end)?;
        let _shared = self.gate.read();
        let shared = self.objects.get_or_make(number);
        let mut object = shared.write();
        self.begin(number, &mut object)?;
        let pieces = self.pieces(number, &object, pages).map_err(|e| self.refused(e))?;
        let bytes_of = |piece: &Piece| {
            let from = (piece.first - first) as usize * PAGE;
            &bytes[from..from + piece.count as usize * PAGE]
        };
        let mut begun = Begun::default();
        // What comes past the end is the likeliest to find no space, and the easiest to take back.
        for piece in pieces.iter().rev() {
            if let Err(e) = self.write_piece(number, &mut object, piece, bytes_of(piece), &mut begun) {
                return Err(self.take_back(number, &mut object, &begun, e));
            }
        }
        for piece in &pieces {
            match piece.to {
                Goal::Past | Goal::Inside => object.note_placed(piece.first..piece.first + piece.count),
                Goal::Again(place) => self.note_journaled(&mut object, piece.first, place, bytes_of(piece)),
                Goal::Append(place) => {
                    self.note_journaled(&mut object, piece.first, place, bytes_of(piece));
                    self.journaled.lock().insert(number);
                }
            }
        }
        Ok(())
    }

    /// Refuses pages for which the object's file cannot become long enough: they would find place in the journal, and none after it.
    fn check_longest(&self, end: u64) -> Result<()> {
        if end <= self.longest {
            return Ok(());
        }
        let number = std::io::Error::from_raw_os_error(libc::EFBIG);
        Err(Error::io("cannot make a file of the vault's directory longer", &number)
            .expected(format!("at most {} bytes", self.longest.saturating_mul(PAGE as u64))))
    }

    /// What a write consists of. Takes the places in the journal that it needs.
    fn pieces(&self, number: u64, object: &Object, pages: Range<u64>) -> Result<Vec<Piece>> {
        let (durable, new) = (self.durable.load(Ordering::Acquire), self.is_new(number));
        let doubled = self.doubled.has(number);
        let target_of = |page| match object.target(page, durable, new) {
            // Only a checkpoint writes both files.
            Target::Own if doubled => Target::Append,
            target => target,
        };
        let mut pieces = Vec::new();
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
                Target::Append => Goal::Append(self.journal.take(count)?),
            };
            pieces.push(Piece { first, count, to });
            first += count;
        }
        Ok(pieces)
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
        match piece.to {
            Goal::Append(place) => self.journal.write(place, bytes),
            Goal::Again(place) => {
                let mut old = vec![0; bytes.len()];
                self.journal.read(place, &mut old)?;
                begun.old.push(Old::Journal { place, bytes: old });
                self.journal.write(place, bytes)
            }
            Goal::Past | Goal::Inside => {
                let file = match &begun.file {
                    Some(file) => file.clone(),
                    None => self.file_or_make(number, object)?,
                };
                begun.file = Some(file.clone());
                let offset = piece.first * PAGE as u64;
                if matches!(piece.to, Goal::Inside) {
                    let mut old = vec![0; bytes.len()];
                    file.read_at(offset, &mut old)?;
                    begun.old.push(Old::Own { first: piece.first, bytes: old });
                } else {
                    begun.past = true;
                }
                file.write_at(offset, bytes)
            }
        }
    }

    /// After a write that failed: puts back what it may have overwritten, and cuts off what it left past the end, so that every
    /// page is as it was. Gives the error of the write; if this fails as well, the store takes no more changes.
    fn take_back(&self, number: u64, object: &mut Object, begun: &Begun, e: Error) -> Error {
        let restored = self.restore(number, object, begun);
        match restored {
            Ok(()) => self.refused(e),
            Err(why) => self
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
        let mut now = vec![0; PAGE];
        for old in begun.old.iter().rev() {
            match (old, &begun.file) {
                (Old::Own { first, bytes }, Some(file)) => {
                    for (page, bytes) in (*first..).zip(bytes.chunks_exact(PAGE)) {
                        file.read_at(page * PAGE as u64, &mut now)?;
                        // A hole that nothing was written to stays one: there is no space for it.
                        if now != bytes {
                            file.write_at(page * PAGE as u64, bytes)?;
                        }
                    }
                }
                (Old::Own { .. }, None) => {}
                (Old::Journal { place, bytes }, _) => {
                    self.journal.read(*place, &mut now)?;
                    if now != *bytes {
                        self.journal.write(*place, bytes)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes pages to the journal, where their places were taken.
    pub(super) fn write_journal(
        &self,
        object: &mut Object,
        first: u64,
        place: Place,
        bytes: &[u8],
    ) -> Result<()> {
        self.journal.write(place, bytes)?;
        self.note_journaled(object, first, place, bytes);
        Ok(())
    }

    /// Notes pages that were written to the journal.
    fn note_journaled(&self, object: &mut Object, first: u64, place: Place, bytes: &[u8]) {
        let commit = self.commit.load(Ordering::Acquire);
        for (nth, page) in (0..).zip(bytes.chunks_exact(PAGE)) {
            let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
            let tag = self.keys.page_tag(sequence, page);
            let place = Place { page: place.page + nth, ..place };
            object.note_journaled(first + u64::from(nth), Entry { place, sequence, tag, commit });
        }
    }
}
