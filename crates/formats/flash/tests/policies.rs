//! When purges happen: by period, by threshold, for sensitive blocks, on request, before closing.
//! Also the status that reports them, and the errors of purges that were refused or could not be
//! completed. The tests move the clock.

mod fixture;

use fixture::{TestDisk, counter, master, overwrite, write};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_flash::{FlashDisk, OpenOptions, PurgePolicy, PurgeStatus};
use lacuna_kept_memory::KeptMemory;
use lacuna_nand::PowerCut;
use lacuna_sim::versions::run_content;
use lacuna_sim::{Fault, OpKind, Rng};
use std::collections::BTreeSet;
use std::time::Duration;

/// Short enough that the thread checks all the time.
const PERIOD: Duration = Duration::from_millis(20);
const NEVER: PurgePolicy = PurgePolicy { period: Duration::from_secs(1 << 40), max_recoverable: u64::MAX };

/// Waits for another thread, without a time limit.
fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives the purge thread time for a wrong purge.
fn let_the_thread_check() {
    std::thread::sleep(5 * PERIOD);
}

#[test]
fn the_policy_purges_by_period() {
    let mut test_disk = TestDisk::small(1);
    test_disk.policy = Some(PurgePolicy { period: PERIOD, ..NEVER });
    let disk = test_disk.open();
    test_disk.clock.advance(10 * PERIOD);
    overwrite(&disk, 0, 5);
    test_disk.clock.advance(Duration::from_millis(19));
    let_the_thread_check();
    assert_eq!((disk.recoverable(), disk.purge_status().purges), (5, 0));
    test_disk.clock.advance(Duration::from_millis(1));
    wait_until(|| disk.purge_status().purges == 1);
    assert_eq!(disk.recoverable(), 0);
    // Nothing to purge, so nothing is purged.
    test_disk.clock.advance(100 * PERIOD);
    let_the_thread_check();
    assert_eq!(disk.purge_status().purges, 1);
}

#[test]
fn the_period_covers_buffered_writes() {
    let mut test_disk = TestDisk::small(2);
    test_disk.policy = Some(PurgePolicy { period: PERIOD, ..NEVER });
    let disk = test_disk.open();
    write(&disk, 0, 5, 1).unwrap();
    disk.flush().unwrap();
    write(&disk, 0, 5, 2).unwrap();
    assert_eq!(disk.recoverable(), 5);
    test_disk.clock.advance(PERIOD);
    wait_until(|| disk.purge_status().purges == 1);
    assert_eq!(disk.recoverable(), 0);
}

#[test]
fn the_policy_purges_at_the_threshold() {
    let mut test_disk = TestDisk::small(3);
    test_disk.policy = Some(PurgePolicy { period: Duration::from_secs(900), max_recoverable: 10 });
    let disk = test_disk.open();
    overwrite(&disk, 0, 10);
    assert_eq!((disk.recoverable(), disk.purge_status().purges), (10, 0));
    disk.discard(BlockAddr(3), 1).unwrap();
    wait_until(|| disk.purge_status().purges == 1);
    assert_eq!(disk.recoverable(), 0);
}

#[test]
fn a_requested_purge_is_reported() {
    let mut test_disk = TestDisk::small(4);
    test_disk.policy = Some(PurgePolicy::default());
    let disk = test_disk.open();
    assert_eq!(disk.purge_status(), PurgeStatus::default());
    write(&disk, 0, 30, 1).unwrap();
    disk.flush().unwrap();
    assert_eq!(disk.purge_status(), PurgeStatus::default(), "new blocks delete nothing");
    test_disk.clock.advance(Duration::from_secs(1000));
    write(&disk, 0, 20, 2).unwrap();
    disk.flush().unwrap();
    test_disk.clock.advance(Duration::from_secs(100));
    disk.discard(BlockAddr(25), 2).unwrap();
    let waiting = PurgeStatus {
        recoverable: 22,
        recoverable_known: 22,
        recoverable_for: Some(100),
        purge_in: Some(800),
        ..PurgeStatus::default()
    };
    assert_eq!(disk.purge_status(), waiting);
    assert_eq!(counter(&disk, "recoverable_for"), Some(100));
    assert_eq!(counter(&disk, "purge_in"), Some(800));
    let purged = disk.purge().unwrap();
    assert_eq!(purged.keys, 22);
    let done = PurgeStatus {
        purges: 1,
        epoch: 1,
        last_purge_keys: 22,
        last_purge_known: 22,
        last_purge_key_blocks: purged.key_blocks,
        ..PurgeStatus::default()
    };
    assert_eq!(disk.purge_status(), done);
    let counters = ["recoverable", "purges", "epoch", "last_purge_keys", "last_purge_key_blocks"];
    assert_eq!(counters.map(|name| counter(&disk, name)), [0, 1, 1, 22, purged.key_blocks].map(Some));
    assert_eq!((counter(&disk, "recoverable_for"), counter(&disk, "purge_in")), (None, None));
}

#[test]
fn sensitive_blocks_are_purged_at_once() {
    let disk = TestDisk::small(5).open();
    disk.mark_sensitive(10..20);
    disk.mark_sensitive(50..60);
    let purges = || disk.purge_status().purges;
    write(&disk, 0, 60, 1).unwrap();
    disk.flush().unwrap();
    assert_eq!(purges(), 0, "the first version deletes nothing");
    write(&disk, 0, 10, 2).unwrap();
    disk.discard(BlockAddr(20), 30).unwrap();
    assert_eq!(purges(), 0, "blocks beside them");
    write(&disk, 19, 1, 3).unwrap();
    assert_eq!((purges(), disk.recoverable()), (1, 0), "an overwrite, and all that waited");
    write(&disk, 5, 55, 4).unwrap();
    assert_eq!((purges(), disk.recoverable()), (2, 0), "many in one call, in one purge");
    disk.discard(BlockAddr(10), 45).unwrap();
    assert_eq!((purges(), disk.recoverable()), (3, 0), "the same of a discard");
    disk.discard(BlockAddr(10), 10).unwrap();
    assert_eq!(purges(), 3, "holes");
    write(&disk, 10, 10, 5).unwrap();
    assert_eq!(purges(), 3, "the first version once more");
    let mut found = vec![0; 10 * BLOCK_SIZE];
    disk.read(BlockAddr(10), &mut found).unwrap();
    assert!(found == run_content(10, 10, 5));
}

/// If the flash refuses the purge of a discard, repeating the discard purges, even though its
/// blocks are holes by then.
#[test]
fn a_refused_purge_of_sensitive_blocks_is_owed() {
    let mut owed = 0;
    for nth in 1..100 {
        let mut test_disk = TestDisk::small(9);
        let disk = test_disk.open();
        disk.mark_sensitive(10..20);
        write(&disk, 0, 60, 1).unwrap();
        disk.flush().unwrap();
        test_disk.faults.add(Fault::FailNth { op: OpKind::Write, nth, error: Kind::NoSpace });
        if disk.discard(BlockAddr(10), 10).is_ok() {
            break;
        }
        match disk.discard(BlockAddr(10), 10) {
            Ok(()) => {
                owed += 1;
                assert_eq!(disk.recoverable(), 0, "write {nth}");
            }
            Err(e) => assert_eq!(e.kind(), Kind::FailStop, "write {nth}: {e}"),
        }
    }
    assert!(owed > 4, "{owed}");
}

/// If the flash refuses the purge of a write, the blocks are in the buffer. The flush or close that
/// deletes their older versions purges them too.
#[test]
fn a_refused_sensitive_write_is_purged_by_flush_or_close() {
    let mut owed = [0; 2];
    for (nth, closes) in (1..100).flat_map(|nth| [(nth, false), (nth, true)]) {
        let mut test_disk = TestDisk::small(17);
        let disk = test_disk.open();
        disk.mark_sensitive(10..20);
        write(&disk, 0, 60, 1).unwrap();
        disk.flush().unwrap();
        test_disk.faults.add(Fault::FailNth { op: OpKind::Write, nth, error: Kind::NoSpace });
        if write(&disk, 10, 10, 2).is_ok() {
            break;
        }
        let what = format!("write {nth}, closes: {closes}");
        let done = if closes { disk.close() } else { disk.flush() };
        match done {
            Ok(()) => {
                owed[usize::from(closes)] += 1;
                assert_eq!(disk.recoverable(), 0, "{what}");
                let mut found = vec![0; 10 * BLOCK_SIZE];
                disk.read(BlockAddr(10), &mut found).unwrap();
                assert!(found == run_content(10, 10, 2), "{what}");
            }
            Err(e) => assert!(matches!(e.kind(), Kind::FailStop | Kind::PurgeIncomplete), "{what}: {e}"),
        }
    }
    assert!(owed.iter().all(|owed| *owed > 4), "{owed:?}");
}

/// A flush that cannot complete an owed purge fails every time.
#[test]
fn a_flush_fails_while_its_owed_purge_is_refused() {
    let mut test_disk = TestDisk::small(18);
    let disk = test_disk.open();
    disk.mark_sensitive(10..20);
    write(&disk, 0, 60, 1).unwrap();
    disk.flush().unwrap();
    test_disk.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::NoSpace });
    assert!(write(&disk, 10, 1, 2).unwrap_err().kind().is_refusal());
    for _ in 0..3 {
        assert!(disk.flush().unwrap_err().kind().is_refusal());
        assert!(disk.recoverable() > 0);
    }
    test_disk.faults.heal();
    disk.flush().unwrap();
    assert_eq!((disk.recoverable(), disk.purge_status().purges), (0, 1));
    disk.flush().unwrap();
    assert_eq!(disk.purge_status().purges, 1, "nothing is owed any more");
}

/// The next process does not know the sensitive blocks, and so purges everything that was deleted.
#[test]
fn an_owed_purge_outlives_the_process() {
    for kept in [false, true] {
        let mut test_disk = TestDisk::small(19);
        let layout = FlashDisk::kept_layout(test_disk.options().budget);
        let memory = kept.then(|| KeptMemory::simulated(&layout).unwrap());
        let disk = open_with(&mut test_disk, memory.clone());
        disk.mark_sensitive(10..20);
        for count in [60, 5] {
            write(&disk, 0, count, 1).unwrap();
            disk.flush().unwrap();
        }
        test_disk.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::NoSpace });
        assert!(write(&disk, 10, 1, 2).unwrap_err().kind().is_refusal());
        let left = memory.map(|memory| memory.as_if_died().unwrap());
        drop(disk);
        test_disk.faults.heal();
        let disk = open_with(&mut test_disk, left);
        disk.flush().unwrap();
        assert!(disk.recoverable() > 0, "without sensitive blocks nothing is owed");
        disk.mark_sensitive(10..20);
        disk.flush().unwrap();
        assert_eq!((disk.recoverable(), disk.purge_status().purges), (0, 1), "kept: {kept}");
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(10), &mut found).unwrap();
        assert!(found == run_content(10, 1, if kept { 2 } else { 1 }), "kept: {kept}");
        write(&disk, 30, 1, 3).unwrap();
        disk.flush().unwrap();
        assert_eq!(disk.purge_status().purges, 1, "nothing is owed any more");
    }
}

/// Opens the disk, with this memory for acknowledged writes.
fn open_with(test_disk: &mut TestDisk, kept: Option<KeptMemory>) -> FlashDisk {
    let options = OpenOptions { kept, ..test_disk.options() };
    FlashDisk::open(test_disk.flash().1, &test_disk.params, &master(), &options).unwrap()
}

/// A refused purge is not retried at each check, since on a full log each attempt writes
/// checkpoints.
#[test]
fn the_purge_thread_backs_off_after_refusals() {
    let mut test_disk = TestDisk::small(16);
    test_disk.policy = Some(PurgePolicy { period: PERIOD, ..NEVER });
    let disk = test_disk.open();
    overwrite(&disk, 0, 9);
    test_disk.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::NoSpace });
    test_disk.clock.advance(PERIOD);
    wait_until(|| test_disk.faults.fired() > 0);
    for pause in [1, 2, 4, 8] {
        let_the_thread_check();
        let tried = test_disk.faults.fired();
        test_disk.clock.advance(Duration::from_millis(pause * 1000 - 100));
        let_the_thread_check();
        assert_eq!(test_disk.faults.fired(), tried, "before {pause} seconds have passed");
        wait_until(|| {
            test_disk.clock.advance(Duration::from_millis(10));
            test_disk.faults.fired() > tried
        });
    }
    let_the_thread_check();
    test_disk.faults.heal();
    let_the_thread_check();
    assert_eq!(disk.purge_status().purges, 0, "the last pause is not over");
    wait_until(|| {
        write(&disk, 20, 1, 1).unwrap();
        disk.flush().unwrap();
        disk.purge_status().purges > 0
    });
}

#[test]
fn closing_purges() {
    let mut test_disk = TestDisk::small(6);
    let disk = test_disk.open();
    overwrite(&disk, 0, 9);
    disk.close().unwrap();
    assert_eq!((disk.recoverable(), disk.purge_status().epoch), (0, 1));
    let disk = test_disk.open();
    assert_eq!((disk.recoverable(), disk.purge_status().epoch), (0, 1));
    disk.close().unwrap();
    assert_eq!(disk.purge_status().epoch, 1, "nothing to purge");
}

#[test]
fn deleted_data_counts_as_recoverable_after_a_crash() {
    let mut test_disk = TestDisk::small(7);
    let disk = test_disk.open();
    overwrite(&disk, 0, 9);
    drop(disk);
    let disk = test_disk.open();
    test_disk.clock.advance(Duration::from_secs(70));
    let status = disk.purge_status();
    assert!(status.recoverable >= 9 && status.recoverable_for == Some(70), "{status:?}");
    assert_eq!((status.purges, status.purge_wanted), (0, false), "no purge was cut");
}

/// While a disk is open, exactly the deleted versions count as recoverable, whatever keys were
/// assigned for them.
#[test]
fn recoverable_versions_are_counted_exactly_until_a_crash() {
    let mut test_disk = TestDisk::small(15);
    let disk = test_disk.open();
    let mut rng = Rng::new(15);
    let mut written = BTreeSet::new();
    let mut deleted = 0;
    for round in 0..400 {
        let count = 1 + rng.below(60);
        let first = rng.below(disk.blocks() - count);
        let blocks = first..first + count;
        deleted += written.range(blocks.clone()).count() as u64;
        if round % 5 == 4 {
            disk.discard(BlockAddr(first), count).unwrap();
            written.retain(|block| !blocks.contains(block));
        } else {
            write(&disk, first, count, round).unwrap();
            disk.flush().unwrap();
            written.extend(blocks);
        }
        let status = disk.purge_status();
        assert_eq!((status.recoverable, status.recoverable_known), (deleted, deleted), "round {round}");
        if round % 50 == 49 {
            let purged = disk.purge().unwrap();
            assert_eq!((purged.keys, purged.known), (deleted, deleted), "round {round}");
            deleted = 0;
        }
    }
    overwrite(&disk, 0, 30);
    let known = disk.recoverable();
    drop(disk);
    // Fresh keys may have encrypted writes that were never acknowledged: they count, but
    // separately, however often the disk crashes.
    for _ in 0..3 {
        let status = test_disk.open().purge_status();
        assert!(status.recoverable > known && status.recoverable_known == known, "{known} of {status:?}");
    }
    let disk = test_disk.open();
    let most = disk.recoverable();
    let purged = disk.purge().unwrap();
    assert_eq!((purged.keys, purged.known, disk.recoverable()), (most, known, 0));
    let done = disk.purge_status();
    assert_eq!((done.last_purge_keys, done.last_purge_known, done.recoverable_known), (most, known, 0));
}

/// A chip with a disk that has an interrupted purge.
fn with_a_cut_purge(seed: u64) -> TestDisk {
    let mut test_disk = TestDisk::small(seed);
    let opened = test_disk.open_after(|_, _| {});
    let disk = opened.disk.unwrap();
    overwrite(&disk, 0, 9);
    opened.chip.cut_power(PowerCut { after: 2, seed: 1 });
    assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
    test_disk
}

#[test]
fn an_interrupted_purge_is_finished_at_the_next_opening() {
    for policy in [None, Some(NEVER), Some(PurgePolicy::default())] {
        let mut test_disk = with_a_cut_purge(13);
        test_disk.read_only = true;
        let disk = test_disk.open();
        assert_eq!(counter(&disk, "purge_wanted"), Some(1));
        assert!(disk.recoverable() >= 9, "nothing is purged by reading");
        drop(disk);
        test_disk.read_only = false;
        test_disk.policy = policy;
        let disk = test_disk.open();
        let status = disk.purge_status();
        assert_eq!(
            (status.recoverable, status.purges, status.epoch, status.purge_wanted),
            (0, 1, 1, false),
            "{policy:?}"
        );
        assert_eq!((status.recoverable_for, counter(&disk, "purge_wanted")), (None, Some(0)));
        assert!(status.last_purge_keys >= 9);
        let answered = [disk.purge().unwrap(), disk.purge().unwrap()].map(|purged| purged.keys);
        assert_eq!(answered, [status.last_purge_keys, 0], "a caller gets the keys once");
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run_content(0, 9, 2));
        disk.close().unwrap();
        assert_eq!(disk.purge_status().purges, 3, "{policy:?}");
    }
}

/// If the chip fails while an opening finishes a purge, the disk is open for reading and reports
/// that the purge is wanted.
#[test]
fn an_unfinished_purge_is_reported_at_the_opening() {
    let whole = with_a_cut_purge(14);
    let mut reported = 0;
    for nth in 1.. {
        let mut test_disk = whole.copied();
        test_disk.faults.add(Fault::FailFrom { op: OpKind::Write, nth, error: Kind::Io });
        let opened = test_disk.open_after(|_, _| {}).disk;
        let Ok(disk) = opened else { continue };
        if !disk.purge_status().purge_wanted {
            break;
        }
        reported += 1;
        // Once the flash is drained, only the record of the finish is missing.
        let recoverable = disk.recoverable();
        assert!((recoverable >= 9 || recoverable == 0) && disk.purge_status().purges == 0, "{recoverable}");
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run_content(0, 9, 2));
        assert_eq!(write(&disk, 0, 1, 7).unwrap_err().kind(), Kind::FailStop);
        assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
        drop(disk);
        test_disk.faults.heal();
        assert_eq!(test_disk.open().recoverable(), 0);
    }
    assert!(reported > 2, "{reported}");
}

#[test]
fn a_failed_purge_is_never_reported_complete() {
    for (kind, nth) in [(OpKind::Write, 2), (OpKind::Read, 1), (OpKind::Discard, 1)] {
        let mut test_disk = TestDisk::small(8);
        overwrite(&test_disk.open(), 0, 9);
        // Opened again, the disk has no keys in memory: the purge reads them.
        let disk = test_disk.open();
        test_disk.faults.add(Fault::FailFrom { op: kind, nth, error: Kind::Io });
        let failed = disk.purge().unwrap_err();
        assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{kind:?}: {failed}");
        let words = failed.to_string();
        assert!(words.contains("still be recoverable: ") && words.contains("destroy this one"), "{words}");
        assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
        assert!(disk.recoverable() >= 9, "{kind:?}");
        let status = disk.purge_status();
        assert!(status.purges == 0 && status.epoch == 0 && status.recoverable_for.is_some(), "{status:?}");
        // A failed read ends nothing else.
        if kind != OpKind::Read {
            assert_eq!(write(&disk, 0, 1, 7).unwrap_err().kind(), Kind::FailStop);
        }
        let closed = disk.close().unwrap_err();
        assert!(closed.kind() == Kind::PurgeIncomplete && closed.to_string().contains("purge"), "{closed}");
        drop(disk);
        test_disk.faults.heal();
        let disk = test_disk.open();
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run_content(0, 9, 2));
        // The opening finishes a purge that had begun.
        assert!(
            if status.purge_wanted { disk.recoverable() == 0 } else { disk.recoverable() >= 9 },
            "{kind:?}"
        );
        disk.purge().unwrap();
        assert_eq!((disk.recoverable(), disk.purge_status().purge_wanted), (0, false));
        disk.close().unwrap();
    }
}

#[test]
fn closing_fails_if_its_purge_fails() {
    let mut test_disk = TestDisk::small(9);
    let disk = test_disk.open();
    overwrite(&disk, 0, 9);
    test_disk.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 3, error: Kind::Io });
    assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
    assert!(disk.recoverable() >= 9);
}

#[test]
fn the_purge_thread_reports_its_failed_purge() {
    let mut test_disk = TestDisk::small(10);
    test_disk.policy = Some(PurgePolicy { period: PERIOD, ..NEVER });
    let disk = test_disk.open();
    overwrite(&disk, 0, 9);
    test_disk.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::Io });
    test_disk.clock.advance(PERIOD);
    wait_until(|| disk.flush().is_err());
    assert!(disk.purge_status().purges == 0 && disk.recoverable() >= 9);
    assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
}
