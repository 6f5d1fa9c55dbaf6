//! Attacks that the version table detects, crashes that it must tolerate, and its memory bound.

use super::*;
use crate::versions::page::PAGE_LEN;
use crate::versions::pages::SESSION_COUNTERS;
use crate::versions::store::{OBJECT_PAGES, PAGE_SEGMENTS};
use lacuna_medium::{MemoryObject, MemoryObjects, ObjectStep, ObjectStore, ObjectTransaction};
use std::sync::Arc;

const MASTER: [u8; 32] = [5; 32];
const UUID: [u8; 16] = [6; 16];
const SEGMENTS: u64 = 2000;

/// The two families of objects of one disk, and the options of its sessions.
struct VersionTableFixture {
    book: Arc<MemoryObjects>,
    data: Arc<MemoryObjects>,
    place: SealPlace,
    segments: u64,
    number: u32,
}

impl VersionTableFixture {
    fn new(place: SealPlace, segments: u64) -> VersionTableFixture {
        let (book, data) = (Arc::new(MemoryObjects::new(true)), Arc::new(MemoryObjects::new(true)));
        VersionStore::create(&*book, segments, &Secret::copy_from(&MASTER), &UUID).unwrap();
        VersionTableFixture { book, data, place, segments, number: 0 }
    }

    fn try_open(&self, read_only: bool) -> Result<VersionTable> {
        let options = VersionTableOptions {
            stores: Stores { book: self.book.clone(), data: self.data.clone() },
            place: self.place,
            segments: self.segments,
            binds_entries: self.place == SealPlace::Key,
            budget: Budget::bytes(0),
            read_only,
            view: None,
            newest: NewestSnapshot::new(SnapshotNumber(self.number)),
        };
        VersionTable::open(options, &Secret::copy_from(&MASTER), &UUID)
    }

    fn open(&self) -> VersionTable {
        self.try_open(false).unwrap()
    }

    /// A power cut now: a copy of everything in its present state.
    fn after_power_cut(&self) -> VersionTableFixture {
        VersionTableFixture {
            book: Arc::new(self.book.copied()),
            data: Arc::new(self.data.copied()),
            ..*self
        }
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

/// An old open page exposes replays of later sessions' objects and removals, as long as one object
/// under it is in its present state.
#[test]
fn a_replayed_open_page_is_detected() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let f = VersionTableFixture::new(place, SEGMENTS);
        let first = f.open();
        f.write(&first, 7).unwrap();
        let (kept, first_of_seven) = (Arc::new(f.book.copied()), f.data.object(7));
        first.close().unwrap();
        let mut of_session = Vec::new();
        for _ in 0..9 {
            let table = f.open();
            [7, 8, 9].iter().for_each(|object| f.write(&table, *object).unwrap());
            table.close().unwrap();
            of_session.push(f.data.object(7));
        }
        let with_kept = |put: &[(u64, Option<MemoryObject>)]| {
            let cut = VersionTableFixture { book: Arc::new(kept.copied()), ..f.after_power_cut() };
            put.iter().for_each(|(object, state)| cut.data.replace(*object, state.clone()));
            cut
        };
        for old in &of_session {
            assert_corrupt(
                with_kept(&[(7, old.clone())]).open().verify_object(Segment(7)),
                "is an older version",
            );
        }
        // A missing object is detected, and nothing is written under such a page.
        let cut = with_kept(&[(9, None)]);
        let table = cut.open();
        assert_corrupt(table.verify_object(Segment(9)), "is an older version");
        assert_corrupt(cut.write(&table, 9), "is an older version");
        assert_corrupt(cut.write(&table, 8), "is an older version");
        table.close().unwrap();
        assert_corrupt(cut.open().verify_object(Segment(9)), "is an older version");
        // An object of the page's own session is refused as well, for its neighbours are of later
        // sessions.
        assert_corrupt(
            with_kept(&[(7, first_of_seven.clone())]).open().verify_object(Segment(7)),
            "is an older version",
        );
        // A session that crashed is not mistaken for an attack.
        let table = f.open();
        [7, 8].iter().for_each(|object| f.write(&table, *object).unwrap());
        let cut = f.after_power_cut();
        let after = cut.open();
        (7..12).for_each(|object| after.verify_object(Segment(object)).unwrap());
        (7..12).for_each(|object| cut.write(&after, object).unwrap());
        after.close().unwrap();
    }
}

/// A replayed closed page does not hide the removal of an object that it counts as absent.
#[test]
fn a_replayed_closed_page_hides_no_removal() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let f = VersionTableFixture::new(place, SEGMENTS);
        let session = |objects: &[u64]| {
            let table = f.open();
            objects.iter().for_each(|object| f.write(&table, *object).unwrap());
            table.close().unwrap();
        };
        let never_written = Arc::new(f.book.copied());
        session(&[6, 7]);
        let kept = Arc::new(f.book.copied());
        session(&[7, 9, 600]);
        for (book, unchanged) in [(&never_written, false), (&kept, true)] {
            for first in [false, true] {
                let cut = VersionTableFixture { book: Arc::new(book.copied()), ..f.after_power_cut() };
                cut.data.replace(9, None);
                let table = cut.open();
                if first && unchanged {
                    // The same if this session has opened the page before.
                    cut.write(&table, 6).unwrap();
                }
                assert_corrupt(table.verify_object(Segment(9)), "is an older version");
                // An existing object is compared with its own counter alone.
                assert_corrupt(table.verify_object(Segment(7)), "newer than the version table");
                assert_eq!(table.verify_object(Segment(6)).is_ok(), unchanged);
                assert_corrupt(table.verify_object(Segment(9)), "is an older version");
                // An object with an absence that is not accepted is written like a refused one.
                assert!(table.begin(Segment(9)).unwrap().refusal().is_some());
                cut.write(&table, 9).unwrap();
                table.verify_object(Segment(9)).unwrap();
                table.close().unwrap();
            }
        }
        // Objects of this session expose nothing, and neither does a page that counts nothing yet.
        let table = f.open();
        (7..12).for_each(|object| f.write(&table, object).unwrap());
        (0..20).for_each(|object| table.verify_object(Segment(object)).unwrap());
        (1100..1105).for_each(|object| table.verify_object(Segment(object)).unwrap());
        table.close().unwrap();
    }
}
