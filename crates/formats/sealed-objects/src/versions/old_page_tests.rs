//! Old pages of the version table that an adversary puts back: what exposes them, and what does
//! not.

use super::*;

/// A disk after a session that wrote object 7. The book and the object are those of the moment
/// before the session was closed.
fn first_session(place: SealPlace) -> (VersionTableFixture, MemoryObjects, Option<MemoryObject>) {
    let f = VersionTableFixture::new(place, SEGMENTS);
    let session = f.open();
    f.write(&session, 7).unwrap();
    let (book, object) = (f.book.copied(), f.data.object(7));
    session.close().unwrap();
    (f, book, object)
}

/// An old open page exposes replays of later sessions' objects and removals, as long as one object
/// under it is in its present state.
#[test]
fn a_replayed_open_page_is_detected() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let (f, kept, first_of_seven) = first_session(place);
        let mut of_session = Vec::new();
        for _ in 0..9 {
            let table = f.open();
            [7, 8, 9].iter().for_each(|object| f.write(&table, *object).unwrap());
            table.close().unwrap();
            of_session.push(f.data.object(7));
        }
        let with_kept = |put: &[(u64, Option<MemoryObject>)]| {
            let cut = f.with_book(&kept);
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
        let never_written = f.book.copied();
        session(&[6, 7]);
        let kept = f.book.copied();
        session(&[7, 9, 600]);
        for (book, unchanged) in [(&never_written, false), (&kept, true)] {
            for first in [false, true] {
                let cut = f.with_book(book);
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

/// A neighbour that cannot be read does not keep another one from exposing an old page, and exposes
/// the page itself as soon as it can be read. Meanwhile no transaction opens the page again.
#[test]
fn an_unreadable_neighbour_does_not_hide_an_old_page() {
    for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
        let (f, kept, first_of_seven) = first_session(place);
        let later = f.open();
        [7, 8].iter().for_each(|object| f.write(&later, *object).unwrap());
        later.close().unwrap();
        let replayed = || {
            let cut = f.with_book(&kept);
            cut.data.replace(7, first_of_seven.clone());
            cut
        };
        let cut = replayed();
        cut.timeouts.set_objects(&[0]);
        let table = cut.open();
        assert_corrupt(table.verify_object(Segment(7)), "is an older version");
        assert_corrupt(cut.write(&table, 7), "is an older version");

        let cut = replayed();
        cut.timeouts.set_objects(&[8]);
        let table = cut.open();
        table.verify_object(Segment(7)).unwrap();
        let refused = cut.write(&table, 7).unwrap_err();
        assert!(refused.kind() == Kind::TimedOut && refused.changed_nothing(), "{refused}");
        cut.timeouts.set_objects(&[]);
        assert_corrupt(table.verify_object(Segment(9)), "is an older version");
        assert_corrupt(table.verify_object(Segment(7)), "is an older version");
        assert_corrupt(cut.write(&table, 7), "is an older version");
        table.close().unwrap();
        assert_corrupt(cut.open().verify_object(Segment(7)), "is an older version");

        // After a crash, nothing but the write waits for the neighbour.
        let table = f.open();
        [7, 8].iter().for_each(|object| f.write(&table, *object).unwrap());
        let cut = f.after_power_cut();
        cut.timeouts.set_objects(&[8]);
        let after = cut.open();
        after.verify_object(Segment(7)).unwrap();
        assert!(cut.write(&after, 7).unwrap_err().changed_nothing());
        cut.timeouts.set_objects(&[]);
        [7, 8].iter().for_each(|object| cut.write(&after, *object).unwrap());
        after.close().unwrap();
        assert!(cut.open().objects.pages.entry(Segment(8)).unwrap().is_exact);
    }
}
