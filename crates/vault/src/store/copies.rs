//! Reading the copies of a page: of a doubled object one by one, and of any object what a checkpoint that was cut short brought to its place.

use super::engine::{Engine, range};
use super::object::{Entry, Object, Source};
use super::{ObjectId, PAGE, Store};
use lacuna_core::Result;

/// A place in which a page of a doubled object may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCopy {
    /// Where reads find it: in the journal, or in the first file.
    Current,
    /// In the second file.
    Second,
    /// In the first file, where reads find it in the journal or cut: a checkpoint that was cut short may have brought it there, or another
    /// root may have it.
    Behind,
}

impl PageCopy {
    /// All of them, the likeliest first.
    pub const ALL: [PageCopy; 3] = [PageCopy::Current, PageCopy::Second, PageCopy::Behind];
}

impl Engine {
    /// Whether a page is as a record lists it.
    pub(super) fn is_listed(&self, entry: &Entry, page: &[u8]) -> bool {
        self.keys.is_page(entry.sequence, page, &entry.tag)
    }

    /// Puts pages that are not in the journal as they were written right, if a checkpoint that was cut short brought them to their places.
    /// For a store that nothing is written to: others find them there when that checkpoint is done.
    pub(super) fn take_brought(
        &self,
        known: &Object,
        object: u64,
        first: u64,
        pages: &mut [u8],
    ) -> Result<()> {
        let mut brought = [0; PAGE];
        for (page, bytes) in (first..).zip(pages.chunks_exact_mut(PAGE)) {
            let Some(entry) = known.entry(page).filter(|entry| !self.is_listed(entry, bytes)) else {
                continue;
            };
            self.read_own(object, page, &mut brought)?;
            if self.is_listed(entry, &brought) {
                bytes.copy_from_slice(&brought);
            }
        }
        Ok(())
    }
}

impl Store {
    /// From now on an object is doubled. To be said before the first write to it, and at each opening before the store is taken up.
    pub fn double(&self, object: ObjectId) {
        self.engine.doubled.add(object.0);
    }

    /// Reads one copy of a page of a doubled object; false if there is no such copy.
    pub fn read_copy(&self, object: ObjectId, page: u64, copy: PageCopy, out: &mut [u8]) -> Result<bool> {
        let (engine, number) = (&self.engine, object.0);
        range(page, 1)?;
        let shared = engine.objects.get(number);
        // Held while it is read: what the journal holds of it stays there.
        let known = shared.as_ref().map(|shared| shared.read());
        let source = known.as_ref().map_or(Source::Own, |known| known.source(page));
        match (copy, source) {
            (PageCopy::Current, Source::Journal(place)) => engine.journal.read(place, out)?,
            (PageCopy::Current, Source::Own) | (PageCopy::Behind, Source::Journal(_) | Source::Zeros) => {
                engine.read_own(number, page, out)?;
            }
            (PageCopy::Current, Source::Zeros) => out.fill(0),
            (PageCopy::Second, _) => match engine.doubled.file(number)? {
                Some(file) => file.read_at(page * PAGE as u64, out)?,
                None => return Ok(false),
            },
            (PageCopy::Behind, Source::Own) => return Ok(false),
        }
        Ok(true)
    }

    /// Whether both files of a doubled object hold the same page, or a checkpoint is still to bring it there.
    pub fn is_in_both_files(&self, object: ObjectId, page: u64) -> bool {
        let known = self.engine.objects.get(object.0);
        let settled = known.is_none_or(|known| known.read().source(page) == Source::Own);
        let (mut first, mut second) = ([0; PAGE], [0; PAGE]);
        // A file that is not there and one that ends before read alike: as zeros.
        let is_read = |copy, out: &mut [u8]| self.read_copy(object, page, copy, out).is_ok();
        !settled
            || is_read(PageCopy::Current, &mut first)
                && is_read(PageCopy::Second, &mut second)
                && first == second
    }

    /// Pages of a doubled object that the longer of its files and the journal have.
    pub fn pages(&self, object: ObjectId) -> Result<u64> {
        let engine = &self.engine;
        let files = [engine.objects.file(object.0)?, engine.doubled.file(object.0)?];
        let known = engine.objects.get(object.0).map_or(0, |known| known.read().journaled_end());
        let mut lens = files.into_iter().flatten().map(|file| file.len());
        lens.try_fold(known, |most, len| Ok(most.max(len?.div_ceil(PAGE as u64))))
    }

    /// Name of a doubled object's second file in the folder.
    pub fn second_name(&self, object: ObjectId) -> String {
        self.engine.doubled.name(object.0)
    }

    /// The tag by which a page of an object of the namespace's parts is told from a damaged one. It says nothing of its age.
    pub fn part_tag(&self, object: ObjectId, page: u64, bytes: &[u8]) -> [u8; 16] {
        self.engine.keys.part_tag(object.0, page, bytes)
    }
}
