//! Attacks that the version table detects, crashes that it must tolerate, and its memory bound.

use super::*;
use crate::versions::page::PAGE_LEN;
use crate::versions::pages::SESSION_COUNTERS;
use crate::versions::store::{OBJECT_PAGES, PAGE_SEGMENTS};
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_sim::{MemoryObject, MemoryObjects, QueryTimeouts};
use std::sync::Arc;

#[path = "old_page_tests.rs"]
mod old_page_tests;

const MASTER: [u8; 32] = [5; 32];
const UUID: [u8; 16] = [6; 16];
const SEGMENTS: u64 = 2000;

/// The two families of objects of one disk, and the options of its sessions.
struct VersionTableFixture {
    book: Arc<MemoryObjects>,
    data: Arc<MemoryObjects>,
    /// The data objects with queries that time out.
    timeouts: QueryTimeouts,
    place: SealPlace,
    segments: u64,
    number: u32,
}

impl VersionTableFixture {
    fn new(place: SealPlace, segments: u64) -> VersionTableFixture {
        let (book, data) = (Arc::new(MemoryObjects::new(true)), Arc::new(MemoryObjects::new(true)));
        VersionStore::create(&*book, segments, &Secret::copy_from(&MASTER), &UUID).unwrap();
        VersionTableFixture { book, data, timeouts: QueryTimeouts::default(), place, segments, number: 0 }
    }

    fn try_open(&self, read_only: bool) -> Result<VersionTable> {
        let options = VersionTableOptions {
            stores: Stores { book: self.book.clone(), data: self.timeouts.wrap(self.data.clone()) },
            place: self.place,
            segments: self.segments,
            binds_entries: self.place == SealPlace::Key,
            budget: Budget::bytes(0),
            read_only,
            view: None,
            newest: NewestSnapshot::new(SnapshotNumber(self.number)),
        };
        let mut version_table = VersionTable::open(options, &Secret::copy_from(&MASTER), &UUID)?;
        if !read_only {
            version_table.extend()?;
        }
        Ok(version_table)
    }

    fn open(&self) -> VersionTable {
        self.try_open(false).unwrap()
    }

    /// A power cut now: a copy of everything in its present state.
    fn after_power_cut(&self) -> VersionTableFixture {
        VersionTableFixture {
            book: Arc::new(self.book.copied()),
            data: Arc::new(self.data.copied()),
            timeouts: QueryTimeouts::default(),
            ..*self
        }
    }

    /// A copy after a power cut, in which an adversary has put back an older book.
    fn with_book(&self, book: &MemoryObjects) -> VersionTableFixture {
        VersionTableFixture { book: Arc::new(book.copied()), ..self.after_power_cut() }
    }

    /// One transaction on an object.
    fn write(&self, version_table: &VersionTable, object: u64) -> Result<()> {
        let mut ticket = version_table.begin(Segment(object))?;
        let data = object.to_le_bytes();
        let steps =
            vec![ObjectStep::Write { offset: 0, data: &data }, ticket.seal_step(ChainTails::default())];
        let answer = self.data.apply_one(ObjectTransaction { object, steps });
        ticket.finish(answer).map(drop)
    }

    /// The result of a session's touch of an object after its replacement by `state`.
    fn verify_replaced(&self, object: u64, state: Option<MemoryObject>) -> Result<()> {
        let cut = self.after_power_cut();
        cut.data.replace(object, state);
        cut.open().verify_object(Segment(object))
    }
}

fn assert_corrupt(found: Result<()>, says: &str) {
    let error = found.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn older_missing_and_foreign_objects_are_refused() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let f = VersionTableFixture::new(place, SEGMENTS);
        let version_table = f.open();
        f.write(&version_table, 7).unwrap();
        let old = f.data.object(7);
        f.write(&version_table, 7).unwrap();
        f.write(&version_table, 8).unwrap();
        f.write(&version_table, 8).unwrap();
        version_table.checkpoint().unwrap();
        let check = |f: &VersionTableFixture| {
            assert_corrupt(f.verify_replaced(7, old.clone()), "object 0000000000000007 is an older version");
            assert_corrupt(f.verify_replaced(7, None), "object 0000000000000007 is missing");
            assert_corrupt(
                f.verify_replaced(7, f.data.object(8)),
                "object 0000000000000007: its seal does not verify",
            );
            assert_corrupt(
                f.verify_replaced(7, Some(MemoryObject::default())),
                "object 0000000000000007 is missing",
            );
            f.verify_replaced(7, f.data.object(7)).unwrap();
            f.open().verify_object(Segment(9)).unwrap();
        };
        check(&f);
        version_table.close().unwrap();
        check(&f);
        // An object without a counter, replaced by another one's, does not verify either.
        assert_corrupt(f.verify_replaced(9, f.data.object(8)), "its seal does not verify");
    }
}

#[test]
fn a_power_cut_is_not_reported_and_the_next_close_is_exact() {
    let f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    let mut version_table = f.open();
    for round in 0..40 {
        f.write(&version_table, round % 3 * 700).unwrap();
        if round % 5 == 2 {
            version_table.checkpoint().unwrap();
        }
        let cut = f.after_power_cut();
        let after = cut.open();
        (0..3).for_each(|n| after.verify_object(Segment(n * 700)).unwrap());
        // One object of each page is written, its neighbours are not, and the pages still end
        // exact.
        (0..3).for_each(|n| cut.write(&after, n * 700 + 1).unwrap());
        after.close().unwrap();
        assert!(
            (0..1500).all(|segment| cut.open().objects.pages.entry(Segment(segment)).unwrap().is_exact),
            "round {round}"
        );
        (0..3).for_each(|n| cut.open().verify_object(Segment(n * 700)).unwrap());
        if round % 13 == 7 {
            version_table.close().unwrap();
            version_table = f.open();
        }
    }
}

#[test]
fn an_object_ahead_of_a_closed_table_is_refused() {
    let f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    let version_table = f.open();
    f.write(&version_table, 1).unwrap();
    f.write(&version_table, 2).unwrap();
    version_table.close().unwrap();
    let old_book = f.book.copied();
    let version_table = f.open();
    f.write(&version_table, 1).unwrap();
    version_table.close().unwrap();
    let rolled_back = VersionTableFixture { book: Arc::new(old_book), data: f.data.clone(), ..f };
    assert_corrupt(rolled_back.open().verify_object(Segment(1)), "the version table is an older version");
    rolled_back.open().verify_object(Segment(2)).unwrap();
}

#[test]
fn the_counter_of_a_transaction_of_unknown_outcome_is_not_reused() {
    let f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    for happened in [false, true] {
        let version_table = f.open();
        f.write(&version_table, 5).unwrap();
        let before = f.data.object(5);
        let mut ticket = version_table.begin(Segment(5)).unwrap();
        let lost = ticket.counter();
        f.data
            .apply_one(ObjectTransaction { object: 5, steps: vec![ticket.seal_step(ChainTails::default())] })
            .unwrap();
        drop(ticket);
        if !happened {
            f.data.replace(5, before);
        }
        version_table.checkpoint().unwrap();
        f.after_power_cut().open().verify_object(Segment(5)).unwrap();
        assert_eq!(version_table.begin(Segment(5)).unwrap().counter(), lost.next());
        // The page stays open: the transaction may still happen.
        version_table.close().unwrap();
        assert!(!f.open().objects.pages.entry(Segment(5)).unwrap().is_exact);
    }
}

#[test]
fn a_late_transaction_of_an_earlier_session_is_refused() {
    let f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    let session = f.open();
    f.write(&session, 5).unwrap();
    let before = f.data.object(5);
    // More transactions than the following sessions write.
    let late = [(); 5].map(|()| {
        let mut ticket = session.begin(Segment(5)).unwrap();
        f.data
            .apply_one(ObjectTransaction { object: 5, steps: vec![ticket.seal_step(ChainTails::default())] })
            .unwrap();
        let late = f.data.object(5);
        f.data.replace(5, before.clone());
        late
    });
    // Several sessions end in a power cut, with and without a checkpoint of the version table.
    let mut f = f.after_power_cut();
    for checkpoint in [false, true, true] {
        let next = f.open();
        f.write(&next, 5).unwrap();
        if checkpoint {
            next.checkpoint().unwrap();
        }
        f = f.after_power_cut();
    }
    f.open().verify_object(Segment(5)).unwrap();
    for late in late {
        f.data.replace(5, late);
        let refused = f.open().verify_object(Segment(5)).unwrap_err();
        assert!(refused.to_string().contains("is an older version"), "{refused}");
    }
}

#[test]
fn transactions_of_one_object_wait_for_each_other() {
    let f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    let version_table = f.open();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|n| f.write(&version_table, n % 3).unwrap()));
        }
    });
    version_table.close().unwrap();
    let after = f.open();
    let counters: Vec<WriteCounter> =
        (0..3).map(|n| after.objects.pages.entry(Segment(n)).unwrap().counter).collect();
    // Counters start at the generation that opened the page.
    assert_eq!(counters, [67, 67, 63].map(|count| WriteCounter(2 * SESSION_COUNTERS + count)));
    (0..3).for_each(|n| after.verify_object(Segment(n)).unwrap());
}

#[test]
fn cached_version_pages_stay_within_the_budget() {
    let f = VersionTableFixture::new(SealPlace::Key, 40 * PAGE_SEGMENTS);
    let version_table = f.open();
    for round in 0..3 {
        for page in 0..40 {
            f.write(&version_table, page * PAGE_SEGMENTS + round).unwrap();
            assert!(version_table.objects.pages.cached_pages() <= MIN_PAGES as usize);
        }
    }
    version_table.close().unwrap();
    let after = f.open();
    for page in 0..40 {
        let entry = after.objects.pages.entry(Segment(page * PAGE_SEGMENTS + 1)).unwrap();
        assert!(entry.counter.0 > SESSION_COUNTERS && entry.is_exact);
    }
    let reader = f.try_open(true).unwrap();
    (0..40).for_each(|page| reader.verify_object(Segment(page * PAGE_SEGMENTS)).unwrap());
    assert!(reader.objects.pages.cached_pages() <= MIN_PAGES as usize);
}

/// The version of an object is dropped with its page; then the object is compared again.
#[test]
fn an_object_of_a_dropped_page_is_not_believed_by_its_version() {
    let f = VersionTableFixture::new(SealPlace::Key, 30 * PAGE_SEGMENTS);
    let version_table = f.open();
    f.write(&version_table, 7).unwrap();
    let old = f.data.object(7);
    [7, 8].iter().for_each(|object| f.write(&version_table, *object).unwrap());
    version_table.close().unwrap();
    for read_only in [false, true] {
        let cut = f.after_power_cut();
        let version_table = cut.try_open(read_only).unwrap();
        [7, 8].iter().for_each(|object| version_table.verify_object(Segment(*object)).unwrap());
        (1..30).for_each(|page| version_table.verify_object(Segment(page * PAGE_SEGMENTS)).unwrap());
        let version = version_table.seals.fetch(Segment(8)).unwrap().version;
        cut.data.replace(7, old.clone());
        assert_corrupt(version_table.verify_object(Segment(7)), "is an older version");
        (1..30).for_each(|page| version_table.verify_object(Segment(page * PAGE_SEGMENTS)).unwrap());
        let compared = Some(StoreVersion::of(version));
        assert!(version_table.is_unchanged(Segment(8), version, compared));
        assert!(!version_table.is_unchanged(Segment(8), Some(1), compared));
        assert!(!version_table.is_unchanged(Segment(8), version, None));
        version_table.verify_object(Segment(8)).unwrap();
    }
}

#[test]
fn an_altered_version_table_is_refused() {
    let f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    let version_table = f.open();
    f.write(&version_table, 7).unwrap();
    version_table.close().unwrap();
    let altered = |offset: u64| {
        let cut = f.after_power_cut();
        let mut byte = [cut.book.object(1).unwrap().bytes()[offset as usize]];
        byte[0] ^= 4;
        let steps = vec![ObjectStep::Write { offset, data: &byte }];
        cut.book.apply_one(ObjectTransaction { object: 1, steps }).unwrap();
        cut
    };
    // The page that counts segment 7: only its objects are in doubt.
    let cut = altered(PAGE_LEN as u64 + 100);
    assert_corrupt(cut.open().verify_object(Segment(7)), "page 1 of object 1 of the book");
    assert_corrupt(cut.open().begin(Segment(7)).map(drop), "object 0000000000000007");
    cut.open().verify_object(Segment(PAGE_SEGMENTS)).unwrap();
    // The head, or the whole object: nothing can be trusted.
    assert_corrupt(altered(100).try_open(false).map(drop), "page 0 of object 1 of the book");
    f.book.replace(1, None);
    assert_corrupt(f.try_open(true).map(drop), "object 1 of the book does not exist");
}

#[test]
fn a_grown_disk_extends_its_version_table_and_then_requires_it() {
    let per_object = OBJECT_PAGES * PAGE_SEGMENTS;
    let mut f = VersionTableFixture::new(SealPlace::Key, per_object);
    assert_eq!(f.book.list().unwrap(), [1]);
    f.segments = per_object + 1;
    f.try_open(true).unwrap().verify_object(Segment(per_object)).unwrap();
    assert_eq!(f.book.list().unwrap(), [1], "a reader writes nothing");
    let version_table = f.open();
    assert_eq!(f.book.list().unwrap(), [1, 2]);
    f.write(&version_table, per_object).unwrap();
    version_table.close().unwrap();
    f.open().verify_object(Segment(per_object)).unwrap();
    f.book.replace(2, None);
    assert_corrupt(f.try_open(false).map(drop), "object 2 of the book does not exist");
}

#[test]
fn seals_contain_the_snapshot_number() {
    let mut f = VersionTableFixture::new(SealPlace::Key, SEGMENTS);
    f.number = 3;
    let version_table = f.open();
    f.write(&version_table, 1).unwrap();
    version_table.close().unwrap();
    f.open().verify_object(Segment(1)).unwrap();
    f.number = 2;
    assert_corrupt(f.open().verify_object(Segment(1)), "the table is an older version");
    for (view, good) in [(3, false), (4, true)] {
        let mut version_table = f.try_open(true).unwrap();
        version_table.seals.view = Some(SnapshotNumber(view));
        assert_eq!(version_table.verify_object(Segment(1)).is_ok(), good);
    }
}
