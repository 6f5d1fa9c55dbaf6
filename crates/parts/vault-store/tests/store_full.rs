//! A full folder under the store alone. A write that finds no space leaves every page unchanged, or
//! ends all writing; committed pages survive in either case.

mod store_harness;

use lacuna_contracts::Kind;
use lacuna_sim::{CrashFolder, FolderOp, Rng};
use lacuna_vault_store::{MemoryAnchor, ObjectId, PAGE, Store, StoreOptions};
use std::sync::Arc;
use store_harness::{StoreHarness, base, keys, options, page};

/// The bytes of pages with these stamps.
fn pages(stamps: impl IntoIterator<Item = u64>) -> Vec<u8> {
    stamps.into_iter().flat_map(page).collect()
}

/// A new store in an empty folder, with one object.
fn new_store(options: &StoreOptions) -> (CrashFolder, Arc<MemoryAnchor>, Store, ObjectId) {
    let (folder, anchor) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
    let store = Store::create(base(&folder, &anchor, 1), keys(), options).unwrap();
    let object = store.new_object().unwrap();
    (folder, anchor, store, object)
}

fn read(store: &Store, object: ObjectId, first: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![1; count * PAGE];
    store.read(object, first, &mut bytes).unwrap();
    bytes
}

/// A write finds no space where pages were written in place and a hole follows them, also on a file
/// system that cannot punch: the pages stay unchanged.
#[test]
fn no_space_in_a_hole_leaves_the_pages_before_it() {
    for (free, punches) in (0..13).flat_map(|free| [(free, true), (free, false)]) {
        let (folder, anchor, store, object) = new_store(&options());
        store.write(object, 1000, &page(7)).unwrap();
        store.write(object, 50, &pages(1..=3)).unwrap();
        folder.set_capacity(folder.used() + free * PAGE as u64);
        if !punches {
            folder.fail(FolderOp::Punch, 0, Kind::Other, true);
        }
        let refused = store.write(object, 50, &pages(100..116)).unwrap_err();
        assert_eq!(refused.kind(), Kind::NoSpace, "{refused}");
        folder.set_capacity(u64::MAX);
        let expected = pages((1..=3).chain([0; 13]));
        assert!(read(&store, object, 50, 16) == expected, "{free} pages free");
        assert!(store.failure().is_none());
        store.commit(b"said", None).unwrap();
        drop(store);
        let (store, _) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
        assert!(read(&store, object, 50, 16) == expected, "{free} pages free");
        assert_eq!(read(&store, object, 1000, 1), page(7));
    }
}

/// Out-of-order writes leave a hole. An unreported quota takes the first pages of the write that
/// fills it, and then refuses zeros in their place: they are punched, the store stays usable, and
/// no power cut brings them back.
#[test]
fn a_quota_reached_in_a_hole_leaves_the_store_usable() {
    for room in 1..16 {
        let context = format!("room for {room} pages");
        let (folder, anchor, store, object) = new_store(&options());
        store.write(object, 1000, &page(7)).unwrap();
        folder.set_quota(folder.used() + room * PAGE as u64);
        for _ in 0..2 {
            let refused = store.write(object, 50, &pages(100..116)).unwrap_err();
            assert_eq!(refused.kind(), Kind::NoSpace, "{context}: {refused}");
            assert!(store.failure().is_none(), "{context}");
            assert!(read(&store, object, 50, 16) == pages([0; 16]), "{context}");
        }
        folder.set_quota(u64::MAX);
        store.commit(b"said", None).unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(store);
        for seed in 0..20 {
            // Opening read-only does not move the anchor.
            let left = CrashFolder::from_image(&folder.after_cut(&mut Rng::new(seed)));
            let looking = StoreOptions { read_only: true, ..options() };
            let (store, _) = Store::open(base(&left, &anchor, 2), keys(), &looking).unwrap();
            assert!(read(&store, object, 50, 16) == pages([0; 16]), "{context}, seed {seed}");
            assert_eq!(read(&store, object, 1000, 1), page(7), "{context}, seed {seed}");
        }
    }
}

/// Pages in place beside unlisted pages in the journal: copy-on-write file systems and quotas may
/// refuse to overwrite them.
#[test]
fn no_space_for_an_overwrite_leaves_the_old_pages() {
    let mut outcomes = [0; 3];
    for (after, forever) in (0..12).flat_map(|after| [(after, false), (after, true)]) {
        let (folder, anchor, store, object) = new_store(&options());
        // The first sixteen go to the journal, the rest in place.
        store.write(object, 0, &pages(1..=20)).unwrap();
        store.commit(b"said", None).unwrap();
        store.write(object, 12, &pages(21..=32)).unwrap();
        folder.fail(FolderOp::Write, after, Kind::NoSpace, forever);
        let refused = store.write(object, 10, &pages(200..220)).err();
        folder.heal();
        let context = format!("after {after} writes, forever: {forever}: {refused:?}");
        let [before, unchanged] = [
            [pages(11..=20), pages([0; 10])].concat(),
            [pages([11, 12]), pages(21..=32), pages([0; 6])].concat(),
        ];
        let (outcome, expected) = match refused.map(|e| e.kind()) {
            // The journal found other space.
            None => (0, pages(200..220)),
            Some(Kind::NoSpace) => (1, unchanged),
            Some(_) => (2, before),
        };
        outcomes[outcome] += 1;
        if outcome < 2 {
            assert!(store.failure().is_none(), "{context}");
            assert!(read(&store, object, 10, 20) == expected, "{context}");
            store.commit(b"more", None).unwrap();
        } else {
            assert!(forever, "{context}");
            assert_eq!(store.commit(b"more", None).unwrap_err().kind(), Kind::FailStop, "{context}");
        }
        drop(store);
        let (store, _) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
        assert!(read(&store, object, 10, 20) == expected, "{context}, opened again");
    }
    assert!(outcomes[1] > 5 && outcomes[2] > 3, "{outcomes:?}");
}

/// Pages in the journal that no commit lists are written again. After some of these writes the host
/// refuses all others, so it would not restore overwritten pages. Only the request fails, and it
/// succeeds when it is repeated later.
#[test]
fn no_space_to_write_the_journal_again_fails_that_write_alone() {
    for (after, rewritten) in (0..12).flat_map(|after| [(after, false), (after, true)]) {
        let context = format!("after {after} writes, written again before: {rewritten}");
        let (folder, anchor, store, object) = new_store(&options());
        store.write(object, 0, &pages(1..=12)).unwrap();
        // Taking these pages needs no write.
        store.reserve(100 * PAGE as u64, 0).unwrap();
        let first = store.journal_bytes();
        if rewritten {
            // The journal grows by the pages of one write, however often it is repeated.
            for stamp in [20, 40, 60] {
                store.write(object, 0, &pages(stamp..stamp + 12)).unwrap();
                assert!(store.journal_bytes() <= first + 12 * PAGE as u64, "{context}");
            }
        }
        let (used, before) = (store.journal_bytes(), if rewritten { 60 } else { 1 });
        folder.fail(FolderOp::Write, after, Kind::NoSpace, true);
        for _ in 0..2 {
            let refused = store.write(object, 0, &pages(100..112)).unwrap_err();
            assert_eq!(
                (refused.kind(), store.journal_bytes()),
                (Kind::NoSpace, used),
                "{context}: {refused}"
            );
            assert!(store.failure().is_none(), "{context}");
            assert!(read(&store, object, 0, 12) == pages(before..before + 12), "{context}");
        }
        folder.heal();
        store.write(object, 0, &pages(100..112)).unwrap_or_else(|e| panic!("{context}: {e}"));
        store.commit(b"said", None).unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(store);
        let (store, _) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
        assert!(read(&store, object, 0, 12) == pages(100..112), "{context}, opened again");
    }
}

/// Writes that are refused after they took pages of the journal give them back for the next write.
#[test]
fn refused_writes_do_not_use_up_the_journal() {
    let (folder, anchor, store, object) = new_store(&options());
    store.write(object, 0, &pages(1..=30)).unwrap();
    store.commit(b"said", None).unwrap();
    // Taking these pages needs no write.
    store.reserve(100 * PAGE as u64, 0).unwrap();
    let used = store.journal_bytes();
    folder.fail(FolderOp::Write, 0, Kind::NoSpace, true);
    for round in 0..4 {
        let refused = store.write(object, 5, &pages(100..120)).unwrap_err();
        assert_eq!((refused.kind(), store.journal_bytes()), (Kind::NoSpace, used), "round {round}");
    }
    folder.heal();
    assert!(read(&store, object, 0, 30) == pages(1..=30));
    store.write(object, 5, &pages(100..120)).unwrap();
    assert_eq!(store.journal_bytes(), used + 20 * PAGE as u64);
    store.commit(b"more", None).unwrap();
    drop(store);
    let (store, _) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
    assert!(read(&store, object, 0, 30) == pages((1..=5).chain(100..120).chain(26..=30)));
}

/// Once a commit is noted, other threads change objects for the next one. If its record is then
/// refused, the same record is written again: the other threads' changes are not complete yet.
#[test]
fn a_retried_commit_records_no_later_changes() {
    for root in [None, Some(&b"root"[..])] {
        // A store without a thread does not retry.
        let background = StoreOptions { background: true, ..options() };
        let (folder, anchor, store, object) = new_store(&background);
        store.write(object, 0, &page(1)).unwrap();
        let (before, mut noted) = (store.last_noted_number(), 0);
        let done = store.commit_then(b"said", root, &mut || {
            noted += 1;
            store.write(object, 1, &page(2)).unwrap();
            folder.fail(FolderOp::Write, 0, Kind::NoSpace, false);
        });
        done.unwrap();
        assert_eq!((noted, store.last_noted_number()), (1, before + 1), "{root:?}");
        assert!(read(&store, object, 0, 2) == pages([1, 2]), "{root:?}");
        drop(store);
        let (store, found) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
        assert_eq!(found.state.number, before + 1, "{root:?}");
        assert!(read(&store, object, 0, 2) == pages([1, 0]), "{root:?}: half of the next commit");
    }
}

/// While a commit with a root is pending for lack of space, the journal file that it left has pages
/// that no checkpoint has written back: no call may free it.
#[test]
fn the_journal_stays_whole_while_a_commit_with_a_root_is_pending() {
    let (folder, anchor, store, object) = new_store(&options());
    for stamp in [1, 101] {
        store.write(object, 0, &pages(stamp..stamp + 30)).unwrap();
        store.commit(b"said", None).unwrap();
    }
    let before = store.last_noted_number();
    let full = &mut || folder.fail(FolderOp::Write, 0, Kind::NoSpace, true);
    let refused = store.commit_then(&[], Some(&b"root"[..]), full).unwrap_err();
    assert!(refused.kind().is_refusal(), "{refused}");
    let refused = store.finish_and_shrink().unwrap_err();
    assert!(refused.kind().is_refusal(), "{refused}");
    folder.heal();
    assert!(read(&store, object, 0, 30) == pages(101..131));
    store.finish_and_shrink().unwrap();
    drop(store);
    let (store, found) = Store::open(base(&folder, &anchor, 2), keys(), &options()).unwrap();
    assert_eq!((found.state.number, found.root.as_deref()), (before + 1, Some(&b"root"[..])));
    assert!(read(&store, object, 0, 30) == pages(101..131));
}

/// Random workloads in nearly full folders that refuse some writes.
#[test]
fn a_full_folder_changes_no_page() {
    let (mut refused, mut failed) = (0, 0);
    for seed in 0..60 {
        let (mut world, mut store) = StoreHarness::new(seed);
        for round in 0..12 {
            world.run_steps(&store, 40).unwrap();
            if world.rng.chance(1, 3) {
                let (after, forever) = (world.rng.below(12), world.rng.chance(1, 4));
                world.folder.fail(FolderOp::Write, after, Kind::NoSpace, forever);
            } else {
                let free = world.rng.below(30) * PAGE as u64;
                world.folder.set_capacity(world.folder.used() + free);
            }
            refused += world.count_refused_steps(&store, 40);
            world.folder.heal();
            world.folder.set_capacity(u64::MAX);
            let context = format!("seed {seed}, round {round}");
            if store.failure().is_some() {
                failed += 1;
                drop(store);
                store = world.open(&options()).unwrap_or_else(|e| panic!("{context}: {e}"));
            }
            world.compare(&store).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
    }
    println!("{refused} refusals, {failed} stores failed");
    assert!(refused > 500 && failed > 0, "{refused} refusals, {failed} failures");
}
