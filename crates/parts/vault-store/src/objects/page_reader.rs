//! The page reader: reads pages of objects from their files, from the journal, or as zeros where an
//! object was cut; and single copies of a page of a doubled object.

use crate::ids::PAGE;
use crate::journal::Journal;
use crate::journal::size::JournalPlace;
use crate::objects::copies::PageCopy;
use crate::objects::doubled::ExtraFile;
use crate::objects::object::{JournalEntry, Object, ReadSource};
use crate::objects::page_range::{check_whole_pages, range};
use crate::objects::table::ObjectTable;
use lacuna_contracts::{Error, Kind, Result};
use std::ops::Range;
use std::sync::Arc;

/// What to do about a journaled page that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnreadablePage {
    /// Report the error: a later read may succeed.
    Refused,
    /// Give the page up: it becomes zeros, which do not verify.
    GivenUp,
}

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
                ReadSource::Journal(place) => match self.journal.read(place, now) {
                    // A writable store finishes an interrupted checkpoint.
                    Ok(()) if !self.is_read_only => {}
                    Ok(()) => self.use_written_back(known, object, page, now)?,
                    // The others of these pages may be readable, or be in their places already.
                    Err(e) if e.kind() == Kind::Io && self.is_read_only => {
                        self.read_one_by_one(known, object, page, now)?;
                    }
                    Err(e) => return Err(e),
                },
                ReadSource::Zeros => now.fill(0),
            }
            rest = later;
            page += count;
        }
        Ok(())
    }

    /// Reads a journaled page: from the journal or, if that page does not match the entry or cannot
    /// be read twice, from the object's first file, where an interrupted checkpoint may have
    /// written it already. Returns whether one of them matches; otherwise `out` has the page of the
    /// journal, or zeros for one that is given up.
    pub(crate) fn read_listed(
        &self,
        object: u64,
        page: u64,
        entry: &JournalEntry,
        unreadable: UnreadablePage,
        out: &mut [u8],
    ) -> Result<bool> {
        let unread = match self.read_journal_twice(entry.place, out) {
            Err(e) if e.kind() != Kind::Io => return Err(e),
            Err(e) => {
                out.fill(0);
                Some(e)
            }
            Ok(()) => None,
        };
        let failed = match self.match_listed(object, page, entry, out) {
            Err(e) if e.kind() != Kind::Io => return Err(e),
            Err(e) => Some(e),
            Ok(true) => return Ok(true),
            Ok(false) => unread,
        };
        failed.filter(|_| unreadable == UnreadablePage::Refused).map_or(Ok(false), Err)
    }

    /// Reads a page of the journal, and tries again if the medium reports an error.
    fn read_journal_twice(&self, place: JournalPlace, out: &mut [u8]) -> Result<()> {
        match self.journal.read(place, out) {
            Err(e) if e.kind() == Kind::Io => self.journal.read(place, out),
            read => read,
        }
    }

    /// Reads journaled pages, each from the journal or from its place.
    fn read_one_by_one(&self, known: &Object, object: u64, first: u64, pages: &mut [u8]) -> Result<()> {
        for (page, bytes) in (first..).zip(pages.chunks_exact_mut(PAGE)) {
            if let Some(entry) = known.entry(page) {
                self.read_listed(object, page, entry, UnreadablePage::Refused, bytes)?;
            }
        }
        Ok(())
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
    use lacuna_sim::{CrashFolder, FolderOp};

    const RIGHT: [u8; PAGE] = [1; PAGE];
    const WRONG: [u8; PAGE] = [2; PAGE];
    const OTHER: [u8; PAGE] = [3; PAGE];

    /// A reader, and an entry for the page [`RIGHT`] of an object.
    struct ListedPage {
        folder: CrashFolder,
        journal: Arc<Journal>,
        objects: Arc<ObjectTable>,
        entry: JournalEntry,
    }

    impl ListedPage {
        const OBJECT: u64 = 7;
        const PAGE: u64 = 2;

        fn new() -> ListedPage {
            let folder = CrashFolder::new();
            let keys = Arc::new(StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16]));
            let journal = Arc::new(Journal::create(&folder, JournalSize::default(), keys.clone()).unwrap());
            let objects = Arc::new(ObjectTable::new(Arc::new(folder.clone()), keys));
            let entry = journal.tags().entry(journal.take(1).unwrap(), &RIGHT, 1);
            ListedPage { folder, journal, objects, entry }
        }

        fn write(&self, in_journal: &[u8], in_file: &[u8]) {
            self.journal.write(self.entry.place, in_journal).unwrap();
            let file = self.objects.file_or_make(Self::OBJECT, &mut Object::default(), true).unwrap();
            file.write_at(Self::PAGE * PAGE as u64, in_file).unwrap();
        }

        /// Makes the next reads fail.
        fn fail_reads(&self, count: u32) {
            (0..count).for_each(|_| self.folder.fail(FolderOp::Read, 0, Kind::Io, false));
        }

        fn read(&self, unreadable: UnreadablePage) -> Result<(bool, [u8; PAGE])> {
            let reader = PageReader::new(self.objects.clone(), self.journal.clone(), false);
            let mut out = [9; PAGE];
            let matches = reader.read_listed(Self::OBJECT, Self::PAGE, &self.entry, unreadable, &mut out)?;
            Ok((matches, out))
        }
    }

    /// If neither the journal nor the file has the listed page, the reader returns that of the
    /// journal, and says so.
    #[test]
    fn a_listed_page_is_read_from_the_journal_or_else_from_the_file() {
        let listed = ListedPage::new();
        for unreadable in [UnreadablePage::Refused, UnreadablePage::GivenUp] {
            for (in_journal, in_file, expected) in
                [(RIGHT, WRONG, (true, RIGHT)), (WRONG, RIGHT, (true, RIGHT)), (WRONG, OTHER, (false, WRONG))]
            {
                listed.write(&in_journal, &in_file);
                assert!(listed.read(unreadable).unwrap() == expected, "{unreadable:?}");
            }
        }
    }

    /// One failed read of the journal does not matter. A page that cannot be read is taken from its
    /// place; if it is not there, it is an error, unless the page is to be given up.
    #[test]
    fn a_listed_page_that_cannot_be_read_is_in_its_place_or_is_given_up_by_request() {
        let listed = ListedPage::new();
        for unreadable in [UnreadablePage::Refused, UnreadablePage::GivenUp] {
            listed.write(&RIGHT, &WRONG);
            listed.fail_reads(1);
            assert!(listed.read(unreadable).unwrap() == (true, RIGHT), "{unreadable:?}");
            listed.write(&OTHER, &RIGHT);
            listed.fail_reads(2);
            assert!(listed.read(unreadable).unwrap() == (true, RIGHT), "{unreadable:?}");
        }
        // The first failures are of the journal, the third of the place.
        for failing in [2, 3] {
            listed.write(&RIGHT, &WRONG);
            listed.fail_reads(failing);
            let refused = listed.read(UnreadablePage::Refused).unwrap_err();
            assert!(refused.kind() == Kind::Io && refused.changed_nothing(), "{refused}");
            listed.fail_reads(failing);
            assert!(listed.read(UnreadablePage::GivenUp).unwrap() == (false, [0; PAGE]));
        }
    }
}
