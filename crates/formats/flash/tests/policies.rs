//! When purges happen: by period, by threshold, for sensitive blocks, on request, before closing.
//! Also the status that reports them, and the errors of purges that were refused or could not be
//! completed. The tests move the clock.

mod fixture;

use fixture::{Bed, counter, overwrite, write};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_flash::{Forgetting, Policy};
use lacuna_nand::PowerCut;
use lacuna_sim::versions::run;
use lacuna_sim::{Fault, OpKind, Rng};
use std::collections::BTreeSet;
use std::time::Duration;

/// Short enough that the thread checks all the time.
const PERIOD: Duration = Duration::from_millis(20);
const NEVER: Policy = Policy { period: Duration::from_secs(1 << 40), most_recoverable: u64::MAX };

/// Waits for another thread, without a time limit.
fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives the purge thread time for a wrong purge.
fn look_some_times() {
    std::thread::sleep(5 * PERIOD);
}

#[test]
fn by_period() {
    let mut bed = Bed::small(1);
    bed.policy = Some(Policy { period: PERIOD, ..NEVER });
    let disk = bed.open();
    bed.clock.advance(10 * PERIOD);
    overwrite(&disk, 0, 5);
    bed.clock.advance(Duration::from_millis(19));
    look_some_times();
    assert_eq!((disk.recoverable(), disk.forgetting().purges), (5, 0));
    bed.clock.advance(Duration::from_millis(1));
    wait_until(|| disk.forgetting().purges == 1);
    assert_eq!(disk.recoverable(), 0);
    // Nothing to purge, so nothing is purged.
    bed.clock.advance(100 * PERIOD);
    look_some_times();
    assert_eq!(disk.forgetting().purges, 1);
}

#[test]
fn by_period_also_for_what_is_in_memory_alone() {
    let mut bed = Bed::small(2);
    bed.policy = Some(Policy { period: PERIOD, ..NEVER });
    let disk = bed.open();
    write(&disk, 0, 5, 1).unwrap();
    disk.flush().unwrap();
    write(&disk, 0, 5, 2).unwrap();
    assert_eq!(disk.recoverable(), 5);
    bed.clock.advance(PERIOD);
    wait_until(|| disk.forgetting().purges == 1);
    assert_eq!(disk.recoverable(), 0);
}

#[test]
fn by_threshold() {
    let mut bed = Bed::small(3);
    bed.policy = Some(Policy { period: Duration::from_secs(900), most_recoverable: 10 });
    let disk = bed.open();
    overwrite(&disk, 0, 10);
    assert_eq!((disk.recoverable(), disk.forgetting().purges), (10, 0));
    disk.discard(BlockAddr(3), 1).unwrap();
    wait_until(|| disk.forgetting().purges == 1);
    assert_eq!(disk.recoverable(), 0);
}

#[test]
fn on_request_and_what_is_said_of_it() {
    let mut bed = Bed::small(4);
    bed.policy = Some(Policy::default());
    let disk = bed.open();
    assert_eq!(disk.forgetting(), Forgetting::default());
    write(&disk, 0, 30, 1).unwrap();
    disk.flush().unwrap();
    assert_eq!(disk.forgetting(), Forgetting::default(), "new blocks delete nothing");
    bed.clock.advance(Duration::from_secs(1000));
    write(&disk, 0, 20, 2).unwrap();
    disk.flush().unwrap();
    bed.clock.advance(Duration::from_secs(100));
    disk.discard(BlockAddr(25), 2).unwrap();
    let waiting = Forgetting {
        recoverable: 22,
        recoverable_known: 22,
        recoverable_for: Some(100),
        purge_in: Some(800),
        ..Forgetting::default()
    };
    assert_eq!(disk.forgetting(), waiting);
    assert_eq!(counter(&disk, "recoverable_for"), Some(100));
    assert_eq!(counter(&disk, "purge_in"), Some(800));
    let purged = disk.purge().unwrap();
    assert_eq!(purged.keys, 22);
    let done = Forgetting {
        purges: 1,
        epoch: 1,
        last_purge_keys: 22,
        last_purge_known: 22,
        last_purge_key_blocks: purged.key_blocks,
        ..Forgetting::default()
    };
    assert_eq!(disk.forgetting(), done);
    let counters = ["recoverable", "purges", "epoch", "last_purge_keys", "last_purge_key_blocks"];
    assert_eq!(counters.map(|name| counter(&disk, name)), [0, 1, 1, 22, purged.key_blocks].map(Some));
    assert_eq!((counter(&disk, "recoverable_for"), counter(&disk, "purge_in")), (None, None));
}

#[test]
fn at_once_for_sensitive_blocks() {
    let disk = Bed::small(5).open();
    disk.mark_sensitive(10..20);
    disk.mark_sensitive(50..60);
    let purges = || disk.forgetting().purges;
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
    assert!(found == run(10, 10, 5));
}

/// If the flash refuses the purge of a discard, repeating the discard purges, even though its
/// blocks are holes by then.
#[test]
fn a_refused_purge_of_sensitive_blocks_is_owed() {
    let mut owed = 0;
    for nth in 1..100 {
        let mut bed = Bed::small(9);
        let disk = bed.open();
        disk.mark_sensitive(10..20);
        write(&disk, 0, 60, 1).unwrap();
        disk.flush().unwrap();
        bed.faults.add(Fault::FailNth { op: OpKind::Write, nth, error: Kind::NoSpace });
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
fn a_refused_write_of_sensitive_blocks_is_purged_by_the_flush_or_the_close_that_deletes() {
    let mut owed = [0; 2];
    for (nth, closes) in (1..100).flat_map(|nth| [(nth, false), (nth, true)]) {
        let mut bed = Bed::small(17);
        let disk = bed.open();
        disk.mark_sensitive(10..20);
        write(&disk, 0, 60, 1).unwrap();
        disk.flush().unwrap();
        bed.faults.add(Fault::FailNth { op: OpKind::Write, nth, error: Kind::NoSpace });
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
                assert!(found == run(10, 10, 2), "{what}");
            }
            Err(e) => assert!(matches!(e.kind(), Kind::FailStop | Kind::PurgeIncomplete), "{what}: {e}"),
        }
    }
    assert!(owed.iter().all(|owed| *owed > 4), "{owed:?}");
}

/// A flush that cannot complete an owed purge fails every time.
#[test]
fn a_flush_fails_while_the_purge_that_is_owed_is_refused() {
    let mut bed = Bed::small(18);
    let disk = bed.open();
    disk.mark_sensitive(10..20);
    write(&disk, 0, 60, 1).unwrap();
    disk.flush().unwrap();
    bed.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::NoSpace });
    assert!(write(&disk, 10, 1, 2).unwrap_err().kind().is_refusal());
    for _ in 0..3 {
        assert!(disk.flush().unwrap_err().kind().is_refusal());
        assert!(disk.recoverable() > 0);
    }
    bed.faults.heal();
    disk.flush().unwrap();
    assert_eq!((disk.recoverable(), disk.forgetting().purges), (0, 1));
    disk.flush().unwrap();
    assert_eq!(disk.forgetting().purges, 1, "nothing is owed any more");
}

/// A refused purge is not retried at each check, since on a full log each attempt writes
/// checkpoints.
#[test]
fn the_thread_waits_longer_after_each_refusal_or_until_the_log_takes_something() {
    let mut bed = Bed::small(16);
    bed.policy = Some(Policy { period: PERIOD, ..NEVER });
    let disk = bed.open();
    overwrite(&disk, 0, 9);
    bed.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::NoSpace });
    bed.clock.advance(PERIOD);
    wait_until(|| bed.faults.fired() > 0);
    for pause in [1, 2, 4, 8] {
        look_some_times();
        let tried = bed.faults.fired();
        bed.clock.advance(Duration::from_millis(pause * 1000 - 100));
        look_some_times();
        assert_eq!(bed.faults.fired(), tried, "before {pause} seconds have passed");
        wait_until(|| {
            bed.clock.advance(Duration::from_millis(10));
            bed.faults.fired() > tried
        });
    }
    look_some_times();
    bed.faults.heal();
    look_some_times();
    assert_eq!(disk.forgetting().purges, 0, "the last pause is not over");
    wait_until(|| {
        write(&disk, 20, 1, 1).unwrap();
        disk.flush().unwrap();
        disk.forgetting().purges > 0
    });
}

#[test]
fn before_closing() {
    let mut bed = Bed::small(6);
    let disk = bed.open();
    overwrite(&disk, 0, 9);
    disk.close().unwrap();
    assert_eq!((disk.recoverable(), disk.forgetting().epoch), (0, 1));
    let disk = bed.open();
    assert_eq!((disk.recoverable(), disk.forgetting().epoch), (0, 1));
    disk.close().unwrap();
    assert_eq!(disk.forgetting().epoch, 1, "nothing to purge");
}

#[test]
fn after_a_crash() {
    let mut bed = Bed::small(7);
    let disk = bed.open();
    overwrite(&disk, 0, 9);
    drop(disk);
    let disk = bed.open();
    bed.clock.advance(Duration::from_secs(70));
    let told = disk.forgetting();
    assert!(told.recoverable >= 9 && told.recoverable_for == Some(70), "{told:?}");
    assert_eq!((told.purges, told.purge_wanted), (0, false), "no purge was cut");
}

/// While a disk is open, exactly the deleted versions count as recoverable, whatever keys were
/// assigned for them.
#[test]
fn what_is_recoverable_is_counted_exactly_until_a_crash() {
    let mut bed = Bed::small(15);
    let disk = bed.open();
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
        let told = disk.forgetting();
        assert_eq!((told.recoverable, told.recoverable_known), (deleted, deleted), "round {round}");
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
        let told = bed.open().forgetting();
        assert!(told.recoverable > known && told.recoverable_known == known, "{known} of {told:?}");
    }
    let disk = bed.open();
    let most = disk.recoverable();
    let purged = disk.purge().unwrap();
    assert_eq!((purged.keys, purged.known, disk.recoverable()), (most, known, 0));
    let done = disk.forgetting();
    assert_eq!((done.last_purge_keys, done.last_purge_known, done.recoverable_known), (most, known, 0));
}

/// A chip with a disk that has an interrupted purge.
fn with_a_cut_purge(seed: u64) -> Bed {
    let mut bed = Bed::small(seed);
    let opened = bed.open_after(|_, _| {});
    let disk = opened.disk.unwrap();
    overwrite(&disk, 0, 9);
    opened.chip.cut_power(PowerCut { after: 2, seed: 1 });
    assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
    bed
}

#[test]
fn a_purge_that_was_cut_is_finished_by_the_next_opening_whatever_the_policy() {
    for policy in [None, Some(NEVER), Some(Policy::default())] {
        let mut bed = with_a_cut_purge(13);
        bed.read_only = true;
        let disk = bed.open();
        assert_eq!(counter(&disk, "purge_wanted"), Some(1));
        assert!(disk.recoverable() >= 9, "nothing is purged by reading");
        drop(disk);
        bed.read_only = false;
        bed.policy = policy;
        let disk = bed.open();
        let told = disk.forgetting();
        assert_eq!(
            (told.recoverable, told.purges, told.epoch, told.purge_wanted),
            (0, 1, 1, false),
            "{policy:?}"
        );
        assert_eq!((told.recoverable_for, counter(&disk, "purge_wanted")), (None, Some(0)));
        assert!(told.last_purge_keys >= 9);
        let answered = [disk.purge().unwrap(), disk.purge().unwrap()].map(|purged| purged.keys);
        assert_eq!(answered, [told.last_purge_keys, 0], "who asks is told once");
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run(0, 9, 2));
        disk.close().unwrap();
        assert_eq!(disk.forgetting().purges, 3, "{policy:?}");
    }
}

/// If the chip fails while an opening finishes a purge, the disk is open for reading and reports
/// that the purge is wanted.
#[test]
fn a_purge_that_the_opening_cannot_finish_is_told_of() {
    let whole = with_a_cut_purge(14);
    let mut told = 0;
    for nth in 1.. {
        let mut bed = whole.copied();
        bed.faults.add(Fault::FailFrom { op: OpKind::Write, nth, error: Kind::Io });
        let opened = bed.open_after(|_, _| {}).disk;
        let Ok(disk) = opened else { continue };
        if !disk.forgetting().purge_wanted {
            break;
        }
        told += 1;
        // Once the flash is drained, only the record of the finish is missing.
        let recoverable = disk.recoverable();
        assert!((recoverable >= 9 || recoverable == 0) && disk.forgetting().purges == 0, "{recoverable}");
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run(0, 9, 2));
        assert_eq!(write(&disk, 0, 1, 7).unwrap_err().kind(), Kind::FailStop);
        assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
        drop(disk);
        bed.faults.heal();
        assert_eq!(bed.open().recoverable(), 0);
    }
    assert!(told > 2, "{told}");
}

#[test]
fn a_purge_that_fails_is_never_called_done() {
    for (kind, nth) in [(OpKind::Write, 2), (OpKind::Read, 1), (OpKind::Discard, 1)] {
        let mut bed = Bed::small(8);
        let disk = bed.open();
        overwrite(&disk, 0, 9);
        bed.faults.add(Fault::FailFrom { op: kind, nth, error: Kind::Io });
        let failed = disk.purge().unwrap_err();
        assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{kind:?}: {failed}");
        let words = failed.to_string();
        assert!(words.contains("still be recoverable: ") && words.contains("destroy this one"), "{words}");
        assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
        assert!(disk.recoverable() >= 9, "{kind:?}");
        let told = disk.forgetting();
        assert!(told.purges == 0 && told.epoch == 0 && told.recoverable_for.is_some(), "{told:?}");
        // A failed read ends nothing else.
        if kind != OpKind::Read {
            assert_eq!(write(&disk, 0, 1, 7).unwrap_err().kind(), Kind::FailStop);
        }
        let closed = disk.close().unwrap_err();
        assert!(closed.kind() == Kind::PurgeIncomplete && closed.to_string().contains("purge"), "{closed}");
        drop(disk);
        bed.faults.heal();
        let disk = bed.open();
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run(0, 9, 2));
        // The opening finishes a purge that had begun.
        assert!(
            if told.purge_wanted { disk.recoverable() == 0 } else { disk.recoverable() >= 9 },
            "{kind:?}"
        );
        disk.purge().unwrap();
        assert_eq!((disk.recoverable(), disk.forgetting().purge_wanted), (0, false));
        disk.close().unwrap();
    }
}

#[test]
fn closing_fails_if_its_own_purge_does() {
    let mut bed = Bed::small(9);
    let disk = bed.open();
    overwrite(&disk, 0, 9);
    bed.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 3, error: Kind::Io });
    assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
    assert!(disk.recoverable() >= 9);
}

#[test]
fn the_thread_does_not_hide_that_its_purge_failed() {
    let mut bed = Bed::small(10);
    bed.policy = Some(Policy { period: PERIOD, ..NEVER });
    let disk = bed.open();
    overwrite(&disk, 0, 9);
    bed.faults.add(Fault::FailFrom { op: OpKind::Write, nth: 1, error: Kind::Io });
    bed.clock.advance(PERIOD);
    wait_until(|| disk.flush().is_err());
    assert!(disk.forgetting().purges == 0 && disk.recoverable() >= 9);
    assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
}
