//! When purges happen: by period, by threshold, for sensitive blocks, on request, before closing; what is said of it; and what is
//! said of a purge that could not be completed. Time is that of a clock which the tests move.

mod fixture;

use fixture::{Bed, WatchedFlash, counter, master};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::{FlashDisk, Forgetting, Policy, header_lebs};
use lacuna_nand::{Flash, FlashGeometry, Leb, PowerCut, Unerased};
use lacuna_sim::versions::run;
use lacuna_sim::{Fault, OpKind, Rng};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Short enough that the thread looks all the time.
const PERIOD: Duration = Duration::from_millis(20);
const NEVER: Policy = Policy { period: Duration::from_secs(1 << 40), most_recoverable: u64::MAX };

fn write(disk: &FlashDisk, first: u64, count: u64, stamp: u64) -> Result<()> {
    disk.write(BlockAddr(first), &run(first, count, stamp))
}

/// Writes blocks and overwrites them, and flushes after each.
fn overwrite(disk: &FlashDisk, first: u64, count: u64) {
    for stamp in [1, 2] {
        write(disk, first, count, stamp).unwrap();
        disk.flush().unwrap();
    }
}

/// Waits for another thread, however long it takes.
fn wait_until(what: impl Fn() -> bool) {
    while !what() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Gives the thread that purges time to do what it should not.
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
    // Nothing to purge, nothing purged.
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

/// While a disk is open, exactly what was deleted is recoverable, whatever keys were assigned for it.
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
    // Fresh keys may have encrypted something that was never acknowledged: they count, and are told apart, however often it crashes.
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

/// A disk whose purge was cut, as it lies on its chip.
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

/// A chip that fails while an opening finishes a purge: the disk is open for reading, and says that the purge is wanted.
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
        // Once all is drained, the record alone is missing.
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
        assert_eq!(write(&disk, 0, 1, 7).unwrap_err().kind(), Kind::FailStop);
        let closed = disk.close().unwrap_err();
        assert!(closed.kind() == Kind::PurgeIncomplete && closed.to_string().contains("purge"), "{closed}");
        drop(disk);
        bed.faults.heal();
        let disk = bed.open();
        let mut found = vec![0; 9 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run(0, 9, 2));
        // The opening finishes one that had begun.
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

/// Flash that tells of copies which it could not erase: those that a test puts here, once or always.
struct Stubborn {
    flash: Arc<WatchedFlash>,
    unerased: Mutex<Vec<Unerased>>,
    /// A block of keys that goes bad with its contents whenever it is replaced.
    always: Option<Leb>,
}

impl Stubborn {
    fn open(bed: &mut Bed, always: impl FnOnce(Leb) -> Option<Leb>) -> (Arc<Stubborn>, FlashDisk) {
        let (_, flash, _) = bed.flash();
        let always = always(Leb(header_lebs(flash.geometry())));
        let stubborn = Arc::new(Stubborn { flash, unerased: Mutex::default(), always });
        let disk = FlashDisk::open(stubborn.clone(), &bed.params, &master(), &bed.options()).unwrap();
        (stubborn, disk)
    }

    /// What an erase block holds now.
    fn copy(&self, leb: Leb) -> Unerased {
        let mut content = vec![0; self.geometry().leb_len as usize];
        self.read(leb, 0, &mut content).unwrap();
        Unerased { leb: Some(leb), content }
    }
}

impl Flash for Stubborn {
    fn geometry(&self) -> FlashGeometry {
        self.flash.geometry()
    }
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.flash.read(block, offset, buf)
    }
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.flash.program(block, offset, data)
    }
    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        self.flash.change(block, data)
    }
    fn unmap(&self, block: Leb) -> Result<()> {
        self.flash.unmap(block)
    }
    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.flash.is_mapped(block)
    }
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        let mut unerased = self.flash.drain_of(wanted)?;
        unerased.extend(self.unerased.lock().extract_if(.., |copy| wanted(copy)));
        unerased.extend(self.always.map(|leb| self.copy(leb)));
        Ok(unerased)
    }
}

#[test]
fn keys_that_can_never_be_erased_are_told_of() {
    let mut bed = Bed::small(11);
    let (_, disk) = Stubborn::open(&mut bed, Some);
    overwrite(&disk, 0, 9);
    let failed = disk.purge().unwrap_err();
    assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{failed}");
    assert!(failed.to_string().contains("destroy"), "{failed}");
    assert!(disk.forgetting().purges == 0 && disk.recoverable() >= 9);
    assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
}

/// Keys in an erase block that went bad do not matter if what they encrypt is gone, nor the other way round. Both together do.
#[test]
fn versions_that_can_be_read_for_ever_with_their_keys_are_told_of() {
    for (keys, log) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bed = Bed::small(12);
        let (flash, disk) = Stubborn::open(&mut bed, |_| None);
        write(&disk, 0, 20, 1).unwrap();
        disk.flush().unwrap();
        let first = header_lebs(bed.params.flash);
        let behind = first + bed.params.key_blocks();
        let range = if keys { first } else { behind }..if log { bed.params.flash.lebs } else { behind };
        let copies: Vec<Unerased> = range.map(|leb| flash.copy(Leb(leb))).collect();
        flash.unerased.lock().extend(copies);
        write(&disk, 0, 9, 2).unwrap();
        let purged = disk.purge();
        if keys && log {
            let failed = purged.unwrap_err();
            assert_eq!(failed.kind(), Kind::PurgeIncomplete, "{failed}");
            assert!(failed.to_string().contains("went bad with versions of 20 blocks"), "{failed}");
            assert_eq!(disk.close().unwrap_err().kind(), Kind::PurgeIncomplete);
            continue;
        }
        // What is live has other keys now, also what was written under keys that the copy has.
        assert_eq!(purged.unwrap().rewritten, if keys { 20 } else { 0 }, "keys: {keys}, log: {log}");
        assert_eq!(disk.recoverable(), 0);
        let mut found = vec![0; 20 * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == [run(0, 9, 2), run(9, 11, 1)].concat());
        disk.close().unwrap();
    }
}
