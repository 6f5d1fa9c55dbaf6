//! The version table's objects in the book: reads a page, and writes several with their head in one
//! transaction.
//!
//! Object 1 + k of the book holds the counters of data objects 252000 * k and up, as 500 pages of
//! 504 counters. The first page is the head, with the generations of the other pages as its
//! numbers, so pages of different times cannot be mixed. The head of the first object also holds
//! the number of such objects, so that a missing one is detected, and the least generation of the
//! table of snapshots, so that an older table is detected.

use crate::segment::Segment;
use crate::snapshots::table::FIRST_GENERATION;
use crate::versions::page::{
    Generation, HeadsTag, PAGE_ENTRIES, PAGE_LEN, PageAddress, VersionPage, VersionPageKey, bad_page,
};
use crate::versions::seal::WriteCounter;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_medium::{KeySelection, ObjectStep, ObjectStore, ObjectTransaction, Query, ReadExtent};
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of counters in an object of the version table.
pub(crate) const OBJECT_PAGES: u64 = 500;
/// Segments with counters in one page.
pub(crate) const PAGE_SEGMENTS: u64 = PAGE_ENTRIES as u64;
/// The first object of the version table in the book.
const FIRST_OBJECT: u64 = 1;
/// The entry of the first head that holds the number of objects.
const COUNT_ENTRY: usize = OBJECT_PAGES as usize;
/// The entry of the first head that holds the least generation of the table of snapshots.
const TABLE_ENTRY: usize = COUNT_ENTRY + 1;

/// The number of a page of counters, across all objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageNumber(pub(crate) u64);

impl PageNumber {
    /// The page that holds a segment's counter.
    pub(crate) fn of(segment: Segment) -> PageNumber {
        PageNumber(segment.0 / PAGE_SEGMENTS)
    }

    /// The object of the version table that it is in, counted from 0.
    pub(crate) fn object_index(self) -> u64 {
        self.0 / OBJECT_PAGES
    }

    /// The segments that it counts.
    pub(crate) fn segments(self) -> Range<u64> {
        self.0 * PAGE_SEGMENTS..(self.0 + 1) * PAGE_SEGMENTS
    }

    /// The error for this page, if an object proves that it is old.
    pub(crate) fn older_page_error(self, segment: Segment, counter: WriteCounter) -> Error {
        let found = format!("{segment} with write number {}", counter.0);
        bad_page(
            self.address(),
            "is an older version",
            found,
            "the page of that write, or a later one".into(),
        )
    }

    fn address(self) -> PageAddress {
        PageAddress { object: FIRST_OBJECT + self.object_index(), page: (self.0 % OBJECT_PAGES) as u32 + 1 }
    }
}

fn head_address(index: u64) -> PageAddress {
    PageAddress { object: FIRST_OBJECT + index, page: 0 }
}

/// The number of version table objects for `segments` segments.
pub(crate) fn objects_for(segments: u64) -> u64 {
    segments.div_ceil(PAGE_SEGMENTS * OBJECT_PAGES)
}

/// The present head of one object.
struct VersionHead {
    page: VersionPage,
    version: u64,
}

/// The version table in the book.
pub(crate) struct VersionStore {
    store: Arc<dyn ObjectStore>,
    key: VersionPageKey,
    /// In the order of the objects: one at least.
    objects: Vec<VersionObject>,
    /// The least generation of the table of snapshots, for the next head of the first object.
    least_table: AtomicU64,
}

/// One object of the version table.
struct VersionObject {
    head: Mutex<VersionHead>,
    /// Held during a write of the object.
    write_lock: Mutex<()>,
}

impl VersionObject {
    fn new(head: VersionHead) -> VersionObject {
        VersionObject { head: Mutex::new(head), write_lock: Mutex::default() }
    }

    /// A copy of the head, and the version of the object.
    fn head(&self) -> (VersionPage, u64) {
        let head = self.head.lock();
        (head.page.clone(), head.version)
    }
}

/// The right to write one object of the version table.
pub(crate) struct ObjectWriteLock<'a> {
    version_store: &'a VersionStore,
    index: u64,
    object: &'a VersionObject,
    _lock: MutexGuard<'a, ()>,
}

impl VersionStore {
    /// Creates the version table of a new disk.
    pub(crate) fn create(
        store: &dyn ObjectStore,
        segments: u64,
        master: &Secret<32>,
        uuid: &[u8; 16],
    ) -> Result<()> {
        let key = VersionPageKey::new(master, uuid);
        let count = objects_for(segments);
        // The first object is written last: the version table exists only after that.
        (0..count).rev().try_for_each(|index| write_empty_object(store, &key, index, count))
    }

    /// Opens the version table of a disk of `segments` segments, and writes nothing.
    ///
    /// Errors: [`Kind::Corrupt`] if an object is missing or its head does not verify.
    pub(crate) fn open(
        store: Arc<dyn ObjectStore>,
        segments: u64,
        key: VersionPageKey,
    ) -> Result<VersionStore> {
        let mut book = VersionStore { store, key, objects: Vec::new(), least_table: AtomicU64::new(0) };
        let first = book.read_head(0)?;
        // A head with a larger count than the disk needs is genuine: the disk was longer than the
        // header says. One with a smaller count is extended before the disk is written to.
        let count = first.page.entries[COUNT_ENTRY].min(objects_for(segments));
        book.objects.push(VersionObject::new(first));
        for index in 1..count {
            let head = book.read_head(index)?;
            book.objects.push(VersionObject::new(head));
        }
        Ok(book)
    }

    /// Adds the objects that a disk of `segments` segments needs and that do not exist yet.
    pub(crate) fn extend(&mut self, segments: u64) -> Result<()> {
        let (mut head, version) = self.objects[0].head();
        let (count, needed) = (head.entries[COUNT_ENTRY], objects_for(segments));
        if count < needed {
            (count..needed).try_for_each(|index| write_empty_object(&*self.store, &self.key, index, 0))?;
            head.generation.0 += 1;
            head.entries[COUNT_ENTRY] = needed;
            let version = self.write_pages(0, version, &head, &[])?;
            *self.objects[0].head.lock() = VersionHead { page: head, version };
        }
        for index in self.object_count()..needed {
            let head = self.read_head(index)?;
            self.objects.push(VersionObject::new(head));
        }
        Ok(())
    }

    /// The same disk's version table at a snapshot; `store` is a view of it.
    pub(crate) fn view(&self, store: Arc<dyn ObjectStore>) -> Result<VersionStore> {
        let segments = self.object_count() * OBJECT_PAGES * PAGE_SEGMENTS;
        VersionStore::open(store, segments, self.key.clone())
    }

    /// The least generation of the table of snapshots, according to the stored head.
    pub(crate) fn least_table_generation(&self) -> u64 {
        self.objects[0].head.lock().page.entries[TABLE_ENTRY]
    }

    /// Raises the least generation of the table of snapshots to that of a durable table. The next
    /// write of the first object stores it; such a write is then due even without a page.
    pub(crate) fn raise_least_table_generation(&self, durable: u64) {
        self.least_table.fetch_max(durable, Ordering::AcqRel);
    }

    fn read_head(&self, index: u64) -> Result<VersionHead> {
        let place = head_address(index);
        let (bytes, version) = self.read_page(place)?;
        let version = version.ok_or_else(|| {
            Error::new(Kind::Corrupt, format!("object {} of the book does not exist", place.object))
                .found("no such object")
                .expected("a part of the disk's version table")
                .hint(
                    "restore the object from a backup; without it no data object that it counts can be verified",
                )
        })?;
        Ok(VersionHead { page: self.key.decode(place, &bytes)?, version })
    }

    fn read_page(&self, place: PageAddress) -> Result<(Vec<u8>, Option<u64>)> {
        let mut bytes = vec![0; PAGE_LEN];
        let extents = vec![ReadExtent { offset: offset(place), buf: &mut bytes }];
        let found = self
            .store
            .query_one(Query { object: place.object, extents, keys: KeySelection::None })
            .map_err(|e| e.of_read().context("reading the version table"))?;
        Ok((bytes, found.version))
    }

    /// Reads a page of counters. A page that was never written is all zeros.
    ///
    /// Errors: [`Kind::Corrupt`] if it is not the page of the generation that the head names.
    pub(crate) fn page(&self, page: PageNumber) -> Result<VersionPage> {
        let place = page.address();
        let part = self.objects.get(page.object_index() as usize);
        let generation = part.map_or(0, |part| part.head.lock().page.entries[place.page as usize - 1]);
        if generation == 0 {
            return Ok(VersionPage::default());
        }
        let read = self.key.decode(place, &self.read_page(place)?.0)?;
        if read.generation != Generation(generation) {
            let found = format!("generation {}", read.generation.0);
            return Err(bad_page(place, "is out of date", found, format!("generation {generation}")));
        }
        Ok(read)
    }

    /// The pages of counters that were ever written, in order.
    pub(crate) fn written_pages(&self) -> Vec<PageNumber> {
        let of_part = |(index, part): (u64, &VersionObject)| {
            let head = part.head.lock();
            let generations = head.page.entries[..OBJECT_PAGES as usize].iter();
            let written =
                (index * OBJECT_PAGES..).zip(generations).filter(|(_, generation)| **generation > 0);
            written.map(|(page, _)| PageNumber(page)).collect::<Vec<_>>()
        };
        (0..).zip(&self.objects).flat_map(of_part).collect()
    }

    /// The number of objects that this disk uses.
    pub(crate) fn object_count(&self) -> u64 {
        self.objects.len() as u64
    }

    /// The tag of the present heads that cover `segments`.
    pub(crate) fn heads_tag(&self, segments: u64) -> HeadsTag {
        let parts = self.objects.iter().take(objects_for(segments) as usize);
        let heads: Vec<VersionPage> = parts.map(|part| part.head.lock().page.clone()).collect();
        self.key.tag_of_heads((0..).map(head_address).zip(&heads))
    }

    /// Waits for the right to write object `index`, with pages starting at `index * OBJECT_PAGES`.
    pub(crate) fn lock_object(&self, index: u64) -> ObjectWriteLock<'_> {
        let part = &self.objects[index as usize];
        ObjectWriteLock { version_store: self, index, object: part, _lock: part.write_lock.lock() }
    }

    /// Writes a head and pages in one transaction. Returns the version of the object.
    fn write_pages(
        &self,
        index: u64,
        version: u64,
        head: &VersionPage,
        pages: &[(PageAddress, Vec<u8>)],
    ) -> Result<u64> {
        let place = head_address(index);
        let head = self.key.encode(place, head);
        let mut steps = vec![ObjectStep::Expect(version)];
        steps.extend(pages.iter().map(|(place, data)| ObjectStep::Write { offset: offset(*place), data }));
        steps.push(ObjectStep::Write { offset: offset(place), data: &head });
        self.store
            .apply_one(ObjectTransaction { object: place.object, steps })
            .map_err(|e| e.context("writing the version table"))
    }
}

impl ObjectWriteLock<'_> {
    /// Lets later writes have generations above this one.
    pub(crate) fn raise_generation(&self, to: Generation) {
        let generation = &mut self.object.head.lock().page.generation.0;
        *generation = to.0.max(*generation);
    }

    /// The generation of the next write.
    pub(crate) fn next_generation(&self) -> Generation {
        Generation(self.object.head.lock().page.generation.0 + 1)
    }

    /// Writes pages of this object with the head, and sets their generation. Returns it; it is
    /// higher than that of every earlier page of this object.
    pub(crate) fn write(&self, pages: Vec<(PageNumber, VersionPage)>) -> Result<Generation> {
        let (mut head, version) = self.object.head();
        let is_first = self.index == 0;
        let least_table = if is_first { self.version_store.least_table.load(Ordering::Acquire) } else { 0 };
        if pages.is_empty() && head.entries[TABLE_ENTRY] >= least_table {
            return Ok(head.generation);
        }
        head.generation.0 += 1;
        head.entries[TABLE_ENTRY] = least_table.max(head.entries[TABLE_ENTRY]);
        let generation = head.generation;
        let encoded = pages.into_iter().map(|(number, page)| {
            let place = number.address();
            head.entries[place.page as usize - 1] = generation.0;
            (place, self.version_store.key.encode(place, &VersionPage { generation, ..page }))
        });
        let encoded: Vec<_> = encoded.collect();
        let version = self.version_store.write_pages(self.index, version, &head, &encoded)?;
        *self.object.head.lock() = VersionHead { page: head, version };
        Ok(generation)
    }
}

fn offset(place: PageAddress) -> u64 {
    u64::from(place.page) * PAGE_LEN as u64
}

/// Writes an empty object of the version table, replacing remains of an interrupted creation.
fn write_empty_object(store: &dyn ObjectStore, key: &VersionPageKey, index: u64, count: u64) -> Result<()> {
    let mut head = VersionPage { generation: Generation(1), ..VersionPage::default() };
    if index == 0 {
        head.entries[COUNT_ENTRY] = count;
        head.entries[TABLE_ENTRY] = FIRST_GENERATION;
    }
    let place = head_address(index);
    let bytes = key.encode(place, &head);
    let steps = vec![ObjectStep::Truncate(0), ObjectStep::Write { offset: 0, data: &bytes }];
    let laid = store.apply_one(ObjectTransaction { object: place.object, steps });
    laid.map(drop).map_err(|e| e.context("creating the version table"))
}
