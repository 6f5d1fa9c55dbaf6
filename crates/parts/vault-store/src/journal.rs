//! The journal: two files; one grows while the pages of the other are written back.
//!
//! A file is prepared with zeros before it is used, a piece at a time, and then overwritten in
//! place: a sync then only has to write data. No page is overwritten that is still read: if the
//! host refuses such a write, it may have altered the page, and may refuse to restore it as well.

pub(crate) mod page_tags;
pub(crate) mod size;

use crate::ids::PAGE;
use crate::journal::page_tags::PageTags;
use crate::journal::size::{JournalPlace, JournalSize, ShrinkTo};
use crate::keys::StoreKeys;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The names of the files.
pub(crate) const NAMES: [&str; 2] = ["journal.0", "journal.1"];

/// Pages that a file keeps when the store is closed, and that are prepared after a record if there
/// is space.
const KEPT: u64 = 16;

/// How often as long as `max` a lifted file may be, for a checkpoint.
const RAISED_FACTOR: u64 = 4;

struct Cursor {
    active: u8,
    /// The next free page.
    tail: u64,
    /// The page after the last record.
    record_end: u64,
    /// Pages between the last record and the tail that are not in use.
    spare: VecDeque<u32>,
    /// Pages of each file that were written at least once.
    prepared: [u64; 2],
    /// Pages and objects of the file that a checkpoint is writing back.
    in_checkpoint: (u64, u64),
}

impl Cursor {
    /// Goes on at this page, behind the last record. The next record lists no pages before it, so
    /// none of them is spare.
    fn go_on(&mut self, area: u8, tail: u64) {
        (self.active, self.tail, self.record_end) = (area, tail, tail);
        self.spare.clear();
    }
}

/// Both files, the tail, and the tags of pages.
pub(crate) struct Journal {
    files: [OnceLock<Arc<dyn FolderFile>>; 2],
    cursor: Mutex<Cursor>,
    size: JournalSize,
    tags: PageTags,
    /// Whether a file may become [`RAISED_FACTOR`] times as long, for the writes of a checkpoint.
    is_limit_raised: AtomicBool,
}

impl Journal {
    /// Two new, empty files.
    pub(crate) fn create(folder: &dyn Folder, size: JournalSize, keys: Arc<StoreKeys>) -> Result<Journal> {
        let [first, second] = NAMES;
        let files = [folder.create(first)?, folder.create(second)?];
        let zeros = vec![0; size.step_pages() as usize * PAGE];
        files.iter().try_for_each(|file| file.write_at(0, &zeros))?;
        Ok(Journal::new(files.map(OnceLock::from), [size.step_pages(); 2], size, keys))
    }

    /// Opens the existing files. If the journal is writable, all that is read from it is durable.
    pub(crate) fn open(
        folder: &dyn Folder,
        size: JournalSize,
        writable: bool,
        keys: Arc<StoreKeys>,
    ) -> Result<Journal> {
        let (mut prepared, files) = ([0; 2], [OnceLock::new(), OnceLock::new()]);
        for (area, place) in files.iter().enumerate() {
            let file = match folder.open(NAMES[area]) {
                Err(e) if e.kind() == Kind::NotFound => continue,
                other => other?,
            };
            if writable {
                file.forget_cached()?;
            }
            prepared[area] = file.len()? / PAGE as u64;
            place.get_or_init(|| file);
        }
        Ok(Journal::new(files, prepared, size, keys))
    }

    /// The journal in these files, with this number of prepared pages in each.
    fn new(
        files: [OnceLock<Arc<dyn FolderFile>>; 2],
        prepared: [u64; 2],
        size: JournalSize,
        keys: Arc<StoreKeys>,
    ) -> Journal {
        let (spare, left) = (VecDeque::new(), (0, 0));
        let cursor =
            Mutex::new(Cursor { active: 0, tail: 0, record_end: 0, spare, prepared, in_checkpoint: left });
        Journal { files, cursor, size, tags: PageTags::new(keys), is_limit_raised: AtomicBool::new(false) }
    }

    /// The tags of its pages.
    pub(crate) fn tags(&self) -> &PageTags {
        &self.tags
    }

    /// Recreates lost files; the anchor detects lost commits.
    pub(crate) fn recreate_lost(&self, folder: &dyn Folder) -> Result<()> {
        let mut made = false;
        for (name, place) in NAMES.iter().zip(&self.files) {
            if place.get().is_none() {
                let file = folder.create(name)?;
                place.get_or_init(|| file);
                made = true;
            }
        }
        // Commits sync the files, but not their names.
        if made { folder.sync_names("") } else { Ok(()) }
    }

    fn file(&self, area: u8) -> Result<&Arc<dyn FolderFile>> {
        let file = self.files[usize::from(area)].get();
        file.ok_or_else(|| Error::new(Kind::NotFound, "a file of the vault's journal is lost"))
    }

    /// The largest size of a file of the folder, in bytes.
    pub(crate) fn longest(&self) -> Result<u64> {
        self.files.iter().find_map(OnceLock::get).map_or(Ok(u64::MAX), |file| file.max_len())
    }

    /// Sets the tail.
    pub(crate) fn set_tail(&self, area: u8, tail: u64) {
        self.cursor.lock().go_on(area, tail);
    }

    /// The number of pages that may have content in a file.
    pub(crate) fn pages_in(&self, area: u8) -> u64 {
        self.cursor.lock().prepared[usize::from(area)].min(RAISED_FACTOR * self.size.max / PAGE as u64)
    }

    /// Whether a checkpoint is due.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        self.cursor.lock().tail * PAGE as u64 >= self.size.checkpoint_at
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.cursor.lock().tail * PAGE as u64
    }

    /// Shrinks the inactive file to [`ShrinkTo::Minimum`].
    pub(crate) fn shrink_idle(&self) -> Result<()> {
        let idle = 1 - self.cursor.lock().active;
        self.shrink(idle, ShrinkTo::Minimum)
    }

    /// An upper bound of the pages to be written back, and the number of objects in the file that
    /// was left.
    pub(crate) fn pages_to_write_back(&self) -> (u64, u64) {
        let cursor = self.cursor.lock();
        (cursor.tail + cursor.in_checkpoint.0, cursor.in_checkpoint.1)
    }

    /// Notes a checkpoint that writes back this many pages and objects.
    pub(crate) fn note_checkpoint(&self, pages: u64, objects: u64) {
        self.cursor.lock().in_checkpoint = (pages, objects);
    }

    /// Notes that the checkpoint is complete.
    pub(crate) fn note_checkpoint_done(&self) {
        self.cursor.lock().in_checkpoint = (0, 0);
    }

    /// Whether `pages` more pages are prepared in the active file, and `extra` more allowed.
    pub(crate) fn has_room(&self, pages: u64, extra: u64) -> bool {
        let cursor = self.cursor.lock();
        let end = cursor.tail + pages;
        end <= cursor.prepared[usize::from(cursor.active)] && end + extra <= self.most_pages()
    }

    /// Prepares the active file for `pages` more pages, if it may have `extra` more after them.
    /// With `probes`, writes zeros to them: a copy-on-write host with limits of its own refuses now
    /// or never.
    pub(crate) fn prepare_record(&self, pages: u64, extra: u64, probes: bool) -> Result<()> {
        let mut cursor = self.cursor.lock();
        let end = cursor.tail + pages;
        if end + extra > self.most_pages() {
            return Err(self.full(&cursor));
        }
        self.prepare(&mut cursor, end, end)?;
        if !probes {
            return Ok(());
        }
        // Taken pages lie before the tail.
        self.probe_space(JournalPlace { area: cursor.active, page: cursor.tail as u32 }, pages)
    }

    fn most_pages(&self) -> u64 {
        let lifted = if self.is_limit_raised.load(Ordering::Acquire) { RAISED_FACTOR } else { 1 };
        lifted * self.size.max / PAGE as u64
    }

    /// Raises or restores the limit of the active file: a checkpoint must find space whatever the
    /// file holds. No other thread writes meanwhile.
    pub(crate) fn set_limit_raised(&self, lifted: bool) {
        self.is_limit_raised.store(lifted, Ordering::Release);
    }

    /// Whether a file is longer than usual.
    pub(crate) fn is_longer(&self, area: u8) -> bool {
        self.cursor.lock().prepared[usize::from(area)] > self.usual()
    }

    fn usual(&self) -> u64 {
        (self.size.checkpoint_at + self.size.checkpoint_at / 3) / PAGE as u64
    }

    /// A file with more pages than this may be shrunk.
    fn little(&self) -> u64 {
        2 * self.size.step_pages() + KEPT
    }

    /// Whether the inactive file may be shrunk.
    pub(crate) fn is_idle_large(&self) -> bool {
        let cursor = self.cursor.lock();
        cursor.prepared[usize::from(1 - cursor.active)] > self.little()
    }

    /// Whether a file has more than twice the pages of [`Journal::little`].
    pub(crate) fn is_large(&self) -> bool {
        self.cursor.lock().prepared.iter().any(|pages| *pages > 2 * self.little())
    }

    /// The limit of a file in bytes, unless it is lifted.
    pub(crate) fn max_bytes(&self) -> u64 {
        self.size.max
    }

    /// Bytes that are prepared at once.
    pub(crate) fn prepared_at_once(&self) -> u64 {
        self.size.step_pages() * PAGE as u64
    }

    /// Takes consecutive pages at the tail, and keeps prepared pages after them for a record: on a
    /// full file system a commit that frees space must still fit.
    ///
    /// Errors: [`Kind::NoSpace`] if the file system or the journal is full: no page is taken then.
    pub(crate) fn take(&self, pages: u64) -> Result<JournalPlace> {
        self.take_before(pages, self.size.step_pages())
    }

    /// Takes pages for a record, which may use the pages that [`Journal::take`] keeps. With
    /// `probes`, writes zeros there: a host with limits of its own refuses now. No other thread
    /// takes pages meanwhile.
    pub(crate) fn take_record(&self, pages: u64, probes: bool) -> Result<JournalPlace> {
        let place = self.take_before(pages, 0)?;
        let asked = if probes { self.write_record(place, &vec![0; pages as usize * PAGE]) } else { Ok(true) };
        let mut cursor = self.cursor.lock();
        let has_space = asked.inspect_err(|_| cursor.tail = place.page.into())?;
        let (area, tail) = (cursor.active, cursor.tail);
        cursor.go_on(area, tail);
        if !has_space {
            return Ok(place);
        }
        match self.prepare(&mut cursor, tail + KEPT, tail + self.size.step_pages()) {
            Err(e) if !e.kind().is_refusal() => Err(e),
            _ => Ok(place),
        }
    }

    /// Prepares the active file for `pages` pages and a record of `record` pages after them, within
    /// the limit of the journal. They are guaranteed as long as no other thread takes any: zeros
    /// are written to all of them, because a copy-on-write host may have limits that no call
    /// reports, and refuses now.
    pub(crate) fn reserve(&self, pages: u64, record: u64) -> Result<()> {
        let mut cursor = self.cursor.lock();
        let end = self.reserved(&cursor, pages, record);
        self.prepare(&mut cursor, end, end)?;
        self.probe_space(
            JournalPlace { area: cursor.active, page: cursor.tail as u32 },
            end.saturating_sub(cursor.tail),
        )
    }

    /// Writes zeros to unused pages, in one call: with several calls a copy-on-write host could put
    /// each part in the space that the one before freed.
    fn probe_space(&self, place: JournalPlace, pages: u64) -> Result<()> {
        self.write(place, &vec![0; pages as usize * PAGE])
    }

    /// About how many pages [`Journal::reserve`] must prepare.
    pub(crate) fn missing_pages(&self, pages: u64, record: u64) -> u64 {
        let cursor = self.cursor.lock();
        let lacking =
            self.reserved(&cursor, pages, record).saturating_sub(cursor.prepared[usize::from(cursor.active)]);
        lacking.next_multiple_of(self.size.step_pages())
    }

    fn reserved(&self, cursor: &Cursor, pages: u64, record: u64) -> u64 {
        let end = cursor.tail + pages + record.max(self.size.step_pages());
        end.min(self.most_pages())
    }

    /// The pages taken since the last record, among them all that the next record lists.
    pub(crate) fn pages_since_record(&self) -> u64 {
        let cursor = self.cursor.lock();
        cursor.tail - cursor.record_end
    }

    fn take_before(&self, pages: u64, reserve: u64) -> Result<JournalPlace> {
        let mut cursor = self.cursor.lock();
        let end = cursor.tail + pages;
        // The last part is for records: a record takes about a hundredth of the pages that it
        // lists.
        let kept = if reserve > 0 { reserve.max(self.size.max / PAGE as u64 / 64) } else { 0 };
        if end + kept > self.most_pages() {
            return Err(self.full(&cursor));
        }
        self.prepare(&mut cursor, end + reserve, end + reserve)?;
        let place = JournalPlace { area: cursor.active, page: cursor.tail as u32 };
        cursor.tail = end;
        Ok(place)
    }

    /// Takes a page for one that was taken since the last record and is written again.
    pub(crate) fn take_another(&self) -> Result<JournalPlace> {
        let mut cursor = self.cursor.lock();
        if let Some(page) = cursor.spare.pop_front() {
            return Ok(JournalPlace { area: cursor.active, page });
        }
        drop(cursor);
        self.take(1)
    }

    /// Gives back pages that were taken since the last record, and that nothing refers to.
    pub(crate) fn return_pages(&self, place: JournalPlace, pages: u64) {
        let mut cursor = self.cursor.lock();
        debug_assert_eq!(cursor.active, place.area, "a record was noted since");
        if cursor.tail == u64::from(place.page) + pages {
            cursor.tail = place.page.into();
        } else {
            cursor.spare.extend(place.page..place.page + pages as u32);
        }
    }

    fn full(&self, cursor: &Cursor) -> Error {
        Error::new(Kind::NoSpace, "the journal of the vault is full")
            .found(format!("{} bytes in use", cursor.tail * PAGE as u64))
            .expected(format!("at most {} bytes between two checkpoints", self.size.max))
            .hint("free space on the file system that holds the vault's directory, so that a checkpoint can be written")
    }

    /// Prepares the active file up to page `end`, in large pieces; if there is no space, up to page
    /// `least`.
    fn prepare(&self, cursor: &mut Cursor, least: u64, end: u64) -> Result<()> {
        while cursor.prepared[usize::from(cursor.active)] < end {
            let from = cursor.prepared[usize::from(cursor.active)];
            match self.grow(cursor, from + self.size.step_pages()) {
                Err(e) if e.kind().is_refusal() => return self.grow(cursor, least),
                done => done?,
            }
        }
        Ok(())
    }

    /// Writes zeros to the active file up to page `to`: all of them or, for lack of space, none.
    fn grow(&self, cursor: &mut Cursor, to: u64) -> Result<()> {
        let prepared = &mut cursor.prepared[usize::from(cursor.active)];
        let (file, from) = (self.file(cursor.active)?, *prepared);
        if from >= to {
            return Ok(());
        }
        // Not with `allocate`: the first write to allocated space changes metadata, which a sync
        // must write too.
        let zeros = vec![0; (to - from) as usize * PAGE];
        file.write_at(from * PAGE as u64, &zeros).inspect_err(|_| {
            // Free the space of a partial write. A failure leaves a longer file, which is harmless.
            let _shorter = file.set_len(from * PAGE as u64);
        })?;
        *prepared = to;
        Ok(())
    }

    /// Writes to taken pages.
    pub(crate) fn write(&self, place: JournalPlace, bytes: &[u8]) -> Result<()> {
        self.file(place.area)?.write_at(place.offset(), bytes)
    }

    /// Writes a record, or the zeros of a probe for it. If the host refuses, frees the pages
    /// prepared after the taken ones and tries once more: the record is the way to free space.
    /// Returns whether the host had the space at once.
    pub(crate) fn write_record(&self, place: JournalPlace, bytes: &[u8]) -> Result<bool> {
        let pages = (bytes.len() / PAGE) as u64;
        match self.write(place, bytes) {
            Err(e) if e.kind().is_refusal() && self.free_prepared(place, pages)? => {
                self.write(place, bytes).map(|()| false)
            }
            done => done.map(|()| true),
        }
    }

    /// Frees the pages that are not prepared for this record. Returns whether there were any.
    fn free_prepared(&self, record: JournalPlace, pages: u64) -> Result<bool> {
        let mut cursor = self.cursor.lock();
        let active = (cursor.active, cursor.tail);
        // A record that begins a checkpoint is the last of its file; the other file is active by
        // now.
        let mut keeps = vec![active];
        if record.area != active.0 {
            keeps.push((record.area, u64::from(record.page) + pages));
        }
        let mut given = false;
        for (area, keep) in keeps {
            if cursor.prepared[usize::from(area)] <= keep {
                continue;
            }
            match self.file(area)?.set_len(keep * PAGE as u64) {
                // With a quota, truncating a file may be refused as well.
                Err(e) if e.kind().is_refusal() => {}
                done => {
                    done?;
                    cursor.prepared[usize::from(area)] = keep;
                    given = true;
                }
            }
        }
        Ok(given)
    }

    /// Reads pages; pages that were never written are zeros.
    pub(crate) fn read(&self, place: JournalPlace, out: &mut [u8]) -> Result<()> {
        if let Some(file) = self.files[usize::from(place.area)].get() {
            return file.read_at(place.offset(), out).map_err(Error::of_read);
        }
        out.fill(0);
        Ok(())
    }

    /// Returns when a file is durable.
    ///
    /// Errors: [`Kind::Io`], also if the file was unlinked: its content is lost when it is closed.
    pub(crate) fn sync(&self, area: u8) -> Result<()> {
        let file = self.file(area)?;
        file.sync().map_err(Error::of_sync)?;
        if file.has_name()? {
            return Ok(());
        }
        Err(Error::new(Kind::Io, "the journal of the vault is gone from its directory")
            .found(format!("{} was removed while the vault is open", NAMES[usize::from(area)]))
            .hint("close the vault, restore the directory from a copy, and open it again"))
    }

    /// Moves the tail to the start of the other file. Returns the file that was left, with pages of
    /// `objects` objects.
    pub(crate) fn switch(&self, objects: u64) -> u8 {
        let mut cursor = self.cursor.lock();
        let left = cursor.active;
        cursor.in_checkpoint = (cursor.tail, objects);
        cursor.go_on(1 - left, 0);
        self.set_limit_raised(false);
        left
    }

    /// Shrinks an unused file. Keeps pages that were taken since the caller looked.
    pub(crate) fn shrink(&self, area: u8, need: ShrinkTo) -> Result<()> {
        let keep = match need {
            ShrinkTo::Normal => self.usual(),
            ShrinkTo::Minimum => self.little(),
            ShrinkTo::Closed => KEPT,
        };
        let mut cursor = self.cursor.lock();
        let keep = if area == cursor.active { keep.max(cursor.tail) } else { keep };
        if cursor.prepared[usize::from(area)] > keep {
            self.file(area)?.set_len(keep * PAGE as u64)?;
            cursor.prepared[usize::from(area)] = keep;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
