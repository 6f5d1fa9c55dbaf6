//! Attacks that the version table detects, crashes that it must tolerate, and its memory bound.

use super::*;
use crate::version_book::{OBJECT_PAGES, PAGE_SEGMENTS};
use crate::version_page::PAGE_LEN;
use crate::version_pages::SESSION_COUNTERS;
use lacuna_medium::{MemoryObject, MemoryObjects, ObjectStore, Step, Transaction};
use std::sync::Arc;

const MASTER: [u8; 32] = [5; 32];
const UUID: [u8; 16] = [6; 16];
const SEGMENTS: u64 = 2000;

/// The two families of objects of one disk, and the options of its sessions.
struct Fixture {
    book: Arc<MemoryObjects>,
    data: Arc<MemoryObjects>,
    place: SealPlace,
    segments: u64,
    number: u32,
}

impl Fixture {
    fn new(place: SealPlace, segments: u64) -> Fixture {
        let (book, data) = (Arc::new(MemoryObjects::new(true)), Arc::new(MemoryObjects::new(true)));
        VersionBook::create(&*book, segments, &Secret::copy_from(&MASTER), &UUID).unwrap();
        Fixture { book, data, place, segments, number: 0 }
    }

    fn try_open(&self, read_only: bool) -> Result<VersionTable> {
        let options = VersionTableOptions {
            stores: Stores { book: self.book.clone(), data: self.data.clone() },
            place: self.place,
            segments: self.segments,
            binds: self.place == SealPlace::Key,
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
    fn cut(&self) -> Fixture {
        Fixture { book: Arc::new(self.book.copied()), data: Arc::new(self.data.copied()), ..*self }
    }

    /// One transaction on an object.
    fn write(&self, version_table: &VersionTable, object: u64) -> Result<()> {
        let mut ticket = version_table.begin(Segment(object))?;
        let data = object.to_le_bytes();
        let steps = vec![Step::Write { offset: 0, data: &data }, ticket.place_step(Tails::default())];
        let answer = self.data.apply_one(Transaction { object, steps });
        ticket.ended(answer).map(drop)
    }

    /// The result of a session's touch of an object after its replacement by `state`.
    fn found_with(&self, object: u64, state: Option<MemoryObject>) -> Result<()> {
        let cut = self.cut();
        cut.data.replace(object, state);
        cut.open().touch(Segment(object))
    }
}

fn assert_corrupt(found: Result<()>, says: &str) {
    let error = found.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn older_missing_and_foreign_objects_are_noticed() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let f = Fixture::new(place, SEGMENTS);
        let version_table = f.open();
        f.write(&version_table, 7).unwrap();
        let old = f.data.object(7);
        f.write(&version_table, 7).unwrap();
        f.write(&version_table, 8).unwrap();
        f.write(&version_table, 8).unwrap();
        version_table.checkpoint().unwrap();
        let check = |f: &Fixture| {
            assert_corrupt(f.found_with(7, old.clone()), "object 0000000000000007 is an older version");
            assert_corrupt(f.found_with(7, None), "object 0000000000000007 is missing");
            assert_corrupt(
                f.found_with(7, f.data.object(8)),
                "object 0000000000000007: its seal does not verify",
            );
            assert_corrupt(
                f.found_with(7, Some(MemoryObject::default())),
                "object 0000000000000007 is missing",
            );
            f.found_with(7, f.data.object(7)).unwrap();
            f.open().touch(Segment(9)).unwrap();
        };
        check(&f);
        version_table.close().unwrap();
        check(&f);
        // An object without a counter, replaced by another one's, does not verify either.
        assert_corrupt(f.found_with(9, f.data.object(8)), "its seal does not verify");
    }
}

#[test]
fn a_cut_anywhere_is_no_attack_and_the_next_close_counts_again() {
    let f = Fixture::new(SealPlace::Key, SEGMENTS);
    let mut version_table = f.open();
    for round in 0..40 {
        f.write(&version_table, round % 3 * 700).unwrap();
        if round % 5 == 2 {
            version_table.checkpoint().unwrap();
        }
        let cut = f.cut();
        let after = cut.open();
        (0..3).for_each(|n| after.touch(Segment(n * 700)).unwrap());
        // One object of each page is written, its neighbours are not, and the pages still end
        // exact.
        (0..3).for_each(|n| cut.write(&after, n * 700 + 1).unwrap());
        after.close().unwrap();
        assert!(
            (0..1500).all(|segment| cut.open().objects.pages.entry(Segment(segment)).unwrap().exact),
            "round {round}"
        );
        (0..3).for_each(|n| cut.open().touch(Segment(n * 700)).unwrap());
        if round % 13 == 7 {
            version_table.close().unwrap();
            version_table = f.open();
        }
    }
}

#[test]
fn after_a_close_nothing_may_be_ahead() {
    let f = Fixture::new(SealPlace::Key, SEGMENTS);
    let version_table = f.open();
    f.write(&version_table, 1).unwrap();
    f.write(&version_table, 2).unwrap();
    version_table.close().unwrap();
    let old_book = f.book.copied();
    let version_table = f.open();
    f.write(&version_table, 1).unwrap();
    version_table.close().unwrap();
    let rolled_back = Fixture { book: Arc::new(old_book), data: f.data.clone(), ..f };
    assert_corrupt(rolled_back.open().touch(Segment(1)), "the version table is an older version");
    rolled_back.open().touch(Segment(2)).unwrap();
}

#[test]
fn a_transaction_of_unknown_outcome_takes_its_counter_along() {
    let f = Fixture::new(SealPlace::Key, SEGMENTS);
    for happened in [false, true] {
        let version_table = f.open();
        f.write(&version_table, 5).unwrap();
        let before = f.data.object(5);
        let mut ticket = version_table.begin(Segment(5)).unwrap();
        let lost = ticket.counter();
        f.data
            .apply_one(Transaction { object: 5, steps: vec![ticket.place_step(Tails::default())] })
            .unwrap();
        drop(ticket);
        if !happened {
            f.data.replace(5, before);
        }
        version_table.checkpoint().unwrap();
        f.cut().open().touch(Segment(5)).unwrap();
        assert_eq!(version_table.begin(Segment(5)).unwrap().counter(), lost.next());
        // The page stays open: the transaction may still happen.
        version_table.close().unwrap();
        assert!(!f.open().objects.pages.entry(Segment(5)).unwrap().exact);
    }
}

#[test]
fn what_a_session_left_under_way_never_takes_the_place_of_what_the_next_one_wrote() {
    let f = Fixture::new(SealPlace::Key, SEGMENTS);
    let session = f.open();
    f.write(&session, 5).unwrap();
    let before = f.data.object(5);
    // More transactions than the following sessions write.
    let late = [(); 5].map(|()| {
        let mut ticket = session.begin(Segment(5)).unwrap();
        f.data
            .apply_one(Transaction { object: 5, steps: vec![ticket.place_step(Tails::default())] })
            .unwrap();
        let late = f.data.object(5);
        f.data.replace(5, before.clone());
        late
    });
    // Several sessions end in a power cut, with and without a checkpoint of the version table.
    let mut f = f.cut();
    for checkpoint in [false, true, true] {
        let next = f.open();
        f.write(&next, 5).unwrap();
        if checkpoint {
            next.checkpoint().unwrap();
        }
        f = f.cut();
    }
    f.open().touch(Segment(5)).unwrap();
    for late in late {
        f.data.replace(5, late);
        let refused = f.open().touch(Segment(5)).unwrap_err();
        assert!(refused.to_string().contains("is an older version"), "{refused}");
    }
}

#[test]
fn transactions_of_one_object_wait_for_each_other() {
    let f = Fixture::new(SealPlace::Key, SEGMENTS);
    let version_table = f.open();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|n| f.write(&version_table, n % 3).unwrap()));
        }
    });
    version_table.close().unwrap();
    let after = f.open();
    let counters: Vec<Counter> =
        (0..3).map(|n| after.objects.pages.entry(Segment(n)).unwrap().counter).collect();
    // Counters start at the generation that opened the page.
    assert_eq!(counters, [67, 67, 63].map(|count| Counter(2 * SESSION_COUNTERS + count)));
    (0..3).for_each(|n| after.touch(Segment(n)).unwrap());
}

#[test]
fn pages_come_and_go_within_the_budget() {
    let f = Fixture::new(SealPlace::Key, 40 * PAGE_SEGMENTS);
    let version_table = f.open();
    for round in 0..3 {
        for page in 0..40 {
            f.write(&version_table, page * PAGE_SEGMENTS + round).unwrap();
            assert!(version_table.objects.pages.in_memory() <= LEAST_PAGES as usize);
        }
    }
    version_table.close().unwrap();
    let after = f.open();
    for page in 0..40 {
        let entry = after.objects.pages.entry(Segment(page * PAGE_SEGMENTS + 1)).unwrap();
        assert!(entry.counter.0 > SESSION_COUNTERS && entry.exact);
    }
    let reader = f.try_open(true).unwrap();
    (0..40).for_each(|page| reader.touch(Segment(page * PAGE_SEGMENTS)).unwrap());
    assert!(reader.objects.pages.in_memory() <= LEAST_PAGES as usize);
}

#[test]
fn the_book_is_guarded_too() {
    let f = Fixture::new(SealPlace::Key, SEGMENTS);
    let version_table = f.open();
    f.write(&version_table, 7).unwrap();
    version_table.close().unwrap();
    let altered = |offset: u64| {
        let cut = f.cut();
        let mut byte = [cut.book.object(1).unwrap().bytes()[offset as usize]];
        byte[0] ^= 4;
        let steps = vec![Step::Write { offset, data: &byte }];
        cut.book.apply_one(Transaction { object: 1, steps }).unwrap();
        cut
    };
    // The page that counts segment 7: only its objects are in doubt.
    let cut = altered(PAGE_LEN as u64 + 100);
    assert_corrupt(cut.open().touch(Segment(7)), "page 1 of object 1 of the book");
    assert_corrupt(cut.open().begin(Segment(7)).map(drop), "object 0000000000000007");
    cut.open().touch(Segment(PAGE_SEGMENTS)).unwrap();
    // The head, or the whole object: nothing can be trusted.
    assert_corrupt(altered(100).try_open(false).map(drop), "page 0 of object 1 of the book");
    f.book.replace(1, None);
    assert_corrupt(f.try_open(true).map(drop), "object 1 of the book is not there");
}

#[test]
fn a_grown_disk_gets_a_longer_version_table_once_and_misses_it_ever_after() {
    let per_object = OBJECT_PAGES * PAGE_SEGMENTS;
    let mut f = Fixture::new(SealPlace::Key, per_object);
    assert_eq!(f.book.list().unwrap(), [1]);
    f.segments = per_object + 1;
    f.try_open(true).unwrap().touch(Segment(per_object)).unwrap();
    assert_eq!(f.book.list().unwrap(), [1], "a reader writes nothing");
    let version_table = f.open();
    assert_eq!(f.book.list().unwrap(), [1, 2]);
    f.write(&version_table, per_object).unwrap();
    version_table.close().unwrap();
    f.open().touch(Segment(per_object)).unwrap();
    f.book.replace(2, None);
    assert_corrupt(f.try_open(false).map(drop), "object 2 of the book is not there");
}

#[test]
fn snapshots_number_the_seals() {
    let mut f = Fixture::new(SealPlace::Key, SEGMENTS);
    f.number = 3;
    let version_table = f.open();
    f.write(&version_table, 1).unwrap();
    version_table.close().unwrap();
    f.open().touch(Segment(1)).unwrap();
    f.number = 2;
    assert_corrupt(f.open().touch(Segment(1)), "the table is an older version");
    for (view, good) in [(3, false), (4, true)] {
        let mut version_table = f.try_open(true).unwrap();
        version_table.seals.view = Some(SnapshotNumber(view));
        assert_eq!(version_table.touch(Segment(1)).is_ok(), good);
    }
}

/// An old open page exposes replays of later sessions' objects and removals, as long as one object
/// under it is in its present state.
#[test]
fn an_open_page_that_was_kept_betrays_itself() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let f = Fixture::new(place, SEGMENTS);
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
            let cut = Fixture { book: Arc::new(kept.copied()), ..f.cut() };
            put.iter().for_each(|(object, state)| cut.data.replace(*object, state.clone()));
            cut
        };
        for old in &of_session {
            assert_corrupt(with_kept(&[(7, old.clone())]).open().touch(Segment(7)), "is an older version");
        }
        // A missing object is detected, and nothing is written under such a page.
        let cut = with_kept(&[(9, None)]);
        let table = cut.open();
        assert_corrupt(table.touch(Segment(9)), "is an older version");
        assert_corrupt(cut.write(&table, 9), "is an older version");
        assert_corrupt(cut.write(&table, 8), "is an older version");
        table.close().unwrap();
        assert_corrupt(cut.open().touch(Segment(9)), "is an older version");
        // An object of the page's own session is refused as well, for its neighbours are of later
        // sessions.
        assert_corrupt(
            with_kept(&[(7, first_of_seven.clone())]).open().touch(Segment(7)),
            "is an older version",
        );
        // A session that crashed is not mistaken for an attack.
        let table = f.open();
        [7, 8].iter().for_each(|object| f.write(&table, *object).unwrap());
        let cut = f.cut();
        let after = cut.open();
        (7..12).for_each(|object| after.touch(Segment(object)).unwrap());
        (7..12).for_each(|object| cut.write(&after, object).unwrap());
        after.close().unwrap();
    }
}

/// A replayed closed page does not hide the removal of an object that it counts as absent.
#[test]
fn a_closed_page_that_was_kept_hides_no_removal() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let f = Fixture::new(place, SEGMENTS);
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
                let cut = Fixture { book: Arc::new(book.copied()), ..f.cut() };
                cut.data.replace(9, None);
                let table = cut.open();
                if first && unchanged {
                    // The same if this session has opened the page before.
                    cut.write(&table, 6).unwrap();
                }
                assert_corrupt(table.touch(Segment(9)), "is an older version");
                // An existing object is compared with its own counter alone.
                assert_corrupt(table.touch(Segment(7)), "newer than the version table");
                assert_eq!(table.touch(Segment(6)).is_ok(), unchanged);
                assert_corrupt(table.touch(Segment(9)), "is an older version");
                // An object with an absence that is not accepted is written like a refused one.
                assert!(table.begin(Segment(9)).unwrap().refusal().is_some());
                cut.write(&table, 9).unwrap();
                table.touch(Segment(9)).unwrap();
                table.close().unwrap();
            }
        }
        // Objects of this session expose nothing, and neither does a page that counts nothing yet.
        let table = f.open();
        (7..12).for_each(|object| f.write(&table, object).unwrap());
        (0..20).for_each(|object| table.touch(Segment(object)).unwrap());
        (1100..1105).for_each(|object| table.touch(Segment(object)).unwrap());
        table.close().unwrap();
    }
}
