//! The page reader: reads pages of objects from their files, from the journal, or as zeros where an
//! object was cut; and single copies of a page of a doubled object.

use crate::ids::PAGE;
use crate::journal::Journal;
use crate::objects::copies::PageCopy;
use crate::objects::doubled::ExtraFile;
use crate::objects::object::{JournalEntry, Object, ReadSource};
use crate::objects::page_range::{check_whole_pages, range};
use crate::objects::table::ObjectTable;
use lacuna_contracts::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Reads the pages of the objects of an open store.
pub(crate) struct PageReader {
    objects: Arc<ObjectTable>,
    journal: Arc<Journal>,
    is_read_only: bool,
}

impl PageReader {
    /// A reader of these objects and this journal, of a store that is open read-only or not.
    pub(crate) fn new(objects: Arc<ObjectTable>, journal: Arc<Journal>, is_read_only: bool) -> PageReader {
        PageReader { objects, journal, is_read_only }
    }

    /// See [`crate::Store::read`].
    pub(crate) fn read(&self, object: u64, first: u64, out: &mut [u8]) -> Result<()> {
        let pages = range(first, check_whole_pages(out.len())?)?;
        match self.objects.get(object) {
            Some(known) => self.read_changed(&known.read(), object, pages, out),
            None => self.objects.read(object, first, out),
        }
    }

    /// Reads an object that was changed since the last checkpoint.
    pub(crate) fn read_changed(
        &self,
        known: &Object,
        object: u64,
        pages: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        if known.is_unlinked {
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
                ReadSource::File => self.objects.read(object, page, now)?,
                ReadSource::Journal(place) => {
                    self.journal.read(place, now)?;
                    // A writable store finishes an interrupted checkpoint.
                    if self.is_read_only {
                        self.use_written_back(known, object, page, now)?;
                    }
                }
                ReadSource::Zeros => now.fill(0),
            }
            rest = later;
            page += count;
        }
        Ok(())
    }

    /// Reads a journaled page: from the journal or, if that page does not match the entry, from the
    /// object's first file, where an interrupted checkpoint may have written it already. Returns
    /// whether one of them matches; otherwise `out` has the page of the journal.
    pub(crate) fn read_listed(
        &self,
        object: u64,
        page: u64,
        entry: &JournalEntry,
        out: &mut [u8],
    ) -> Result<bool> {
        self.journal.read(entry.place, out)?;
        self.match_listed(object, page, entry, out)
    }

    /// Replaces pages that were read from the journal and do not match by their copies in place, if
    /// those match.
    fn use_written_back(&self, known: &Object, object: u64, first: u64, pages: &mut [u8]) -> Result<()> {
        for (page, bytes) in (first..).zip(pages.chunks_exact_mut(PAGE)) {
            if let Some(entry) = known.entry(page) {
                self.match_listed(object, page, entry, bytes)?;
            }
        }
        Ok(())
    }

    /// Replaces a page that was read from the journal and does not match its entry by the page in
    /// the object's first file, if that matches. Returns whether one of them matches.
    fn match_listed(&self, object: u64, page: u64, entry: &JournalEntry, bytes: &mut [u8]) -> Result<bool> {
        let tags = self.journal.tags();
        if tags.matches(entry, bytes) {
            return Ok(true);
        }
        let mut written_back = [0; PAGE];
        self.objects.read(object, page, &mut written_back)?;
        let matches = tags.matches(entry, &written_back);
        if matches {
            bytes.copy_from_slice(&written_back);
        }
        Ok(matches)
    }

    /// See [`crate::Store::read_copy`].
    pub(crate) fn read_copy(&self, object: u64, page: u64, copy: PageCopy, out: &mut [u8]) -> Result<bool> {
        range(page, 1)?;
        let shared = self.objects.get(object);
        // Held during the read, so that the journal keeps the page.
        let known = shared.as_ref().map(|shared| shared.read());
        let source = known.as_ref().map_or(ReadSource::File, |known| known.source(page));
        match (copy, source) {
            (PageCopy::Current, ReadSource::Journal(place)) => self.journal.read(place, out)?,
            (PageCopy::Current, ReadSource::File)
            | (PageCopy::FirstFile, ReadSource::Journal(_) | ReadSource::Zeros) => {
                self.objects.read(object, page, out)?;
            }
            (PageCopy::Current, ReadSource::Zeros) => out.fill(0),
            (PageCopy::Second, _) => return self.read_extra(object, ExtraFile::Second, page, out),
            (PageCopy::Third, _) => return self.read_extra(object, ExtraFile::Third, page, out),
            (PageCopy::FirstFile, ReadSource::File) => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a page of a further file; `false` if there is no such file.
    fn read_extra(&self, object: u64, which: ExtraFile, page: u64, out: &mut [u8]) -> Result<bool> {
        let Some(file) = self.objects.doubled.file(object, which)? else { return Ok(false) };
        file.read_at(page * PAGE as u64, out).map_err(Error::of_read)?;
        Ok(true)
    }

    /// See [`crate::Store::is_in_both_files`].
    pub(crate) fn is_in_both_files(&self, object: u64, page: u64) -> bool {
        self.are_alike(object, page, &[PageCopy::Second])
    }

    /// See [`crate::Store::is_in_all_files`].
    pub(crate) fn is_in_all_files(&self, object: u64, page: u64) -> bool {
        self.are_alike(object, page, &[PageCopy::Second, PageCopy::Third])
    }

    /// Whether these copies of a page equal that of the first file, or a checkpoint has yet to
    /// write it.
    fn are_alike(&self, object: u64, page: u64, copies: &[PageCopy]) -> bool {
        let known = self.objects.get(object);
        if known.is_some_and(|known| known.read().source(page) != ReadSource::File) {
            return true;
        }
        let mut first = [0; PAGE];
        // A missing file and one that ends before the page both read as zeros.
        let is_alike = |copy: &PageCopy, first: &[u8; PAGE]| {
            let mut other = [0; PAGE];
            self.read_copy(object, page, *copy, &mut other).is_ok() && *first == other
        };
        self.read_copy(object, page, PageCopy::Current, &mut first).is_ok()
            && copies.iter().all(|copy| is_alike(copy, &first))
    }

    /// See [`crate::Store::pages`].
    pub(crate) fn pages(&self, object: u64) -> Result<u64> {
        let files = [self.objects.file(object)?, self.objects.doubled.file(object, ExtraFile::Second)?];
        let known = self.objects.get(object).map_or(0, |known| known.read().journaled_end());
        let mut lens = files.into_iter().flatten().map(|file| file.len());
        lens.try_fold(known, |most, len| Ok(most.max(len?.div_ceil(PAGE as u64))))
    }
}

/// Whether the page `count` pages after a source continues its run.
fn follows(source: ReadSource, count: u64, next: ReadSource) -> bool {
    match (source, next) {
        (ReadSource::Journal(first), ReadSource::Journal(next)) => {
            first.area == next.area && u64::from(first.page) + count == u64::from(next.page)
        }
        _ => source == next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::size::JournalSize;
    use crate::keys::StoreKeys;
    use lacuna_contracts::Secret;
    use lacuna_sim::CrashFolder;

    /// If neither the journal nor the file has the listed page, the reader returns that of the
    /// journal, and says so.
    #[test]
    fn a_listed_page_is_read_from_the_journal_or_else_from_the_file() {
        let folder = CrashFolder::new();
        let keys = Arc::new(StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16]));
        let journal = Arc::new(Journal::create(&folder, JournalSize::default(), keys.clone()).unwrap());
        let objects = Arc::new(ObjectTable::new(Arc::new(folder.clone()), keys));
        let reader = PageReader::new(objects.clone(), journal.clone(), false);
        let (right, wrong, other) = ([1_u8; PAGE], [2_u8; PAGE], [3_u8; PAGE]);
        let place = journal.take(1).unwrap();
        let entry = journal.tags().entry(place, &right, 1);
        let file = objects.file_or_make(7, &mut Object::default(), true).unwrap();
        let read = |in_journal: &[u8], in_file: &[u8]| {
            journal.write(place, in_journal).unwrap();
            file.write_at(2 * PAGE as u64, in_file).unwrap();
            let mut out = [0_u8; PAGE];
            let matches = reader.read_listed(7, 2, &entry, &mut out).unwrap();
            (matches, out)
        };
        assert!(read(&right, &wrong) == (true, right));
        assert!(read(&wrong, &right) == (true, right));
        assert!(read(&wrong, &other) == (false, wrong));
    }
}
