//! Reads of the chip that fail: in a client's read, in garbage collection, in a purge, at an
//! opening; and a discard that fails. No data is lost, and no deleted data comes back.

mod fixture;

use fixture::{TestDisk, counter};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::FlashDisk;
use lacuna_sim::versions::{DiskModel, DiskWorkload, run_content};
use lacuna_sim::{Fault, OpKind, Rng};

#[test]
fn a_failed_read_fails_one_request() {
    let mut test_disk = TestDisk::small(1);
    let disk = test_disk.open();
    disk.write(BlockAddr(0), &run_content(0, 100, 1)).unwrap();
    disk.flush().unwrap();
    let mut found = vec![0; BLOCK_SIZE];
    for block in 0..100 {
        test_disk.faults.add(Fault::FailNth { op: OpKind::Read, nth: 1, error: Kind::Io });
        assert_eq!(disk.read(BlockAddr(block), &mut found).unwrap_err().kind(), Kind::Io, "block {block}");
        test_disk.faults.heal();
        disk.read(BlockAddr(block), &mut found).unwrap();
        assert!(found == run_content(block, 1, 1));
        disk.write(BlockAddr(block), &run_content(block, 1, 1)).unwrap();
        disk.flush().unwrap();
    }
    disk.purge().unwrap();
    disk.close().unwrap();
}

#[test]
fn a_failed_discard_does_not_resurrect_an_older_version() {
    let mut test_disk = TestDisk::small(3);
    let disk = test_disk.open();
    disk.write(BlockAddr(0), &run_content(0, 2, 1)).unwrap();
    disk.flush().unwrap();
    disk.write(BlockAddr(0), &run_content(0, 2, 2)).unwrap();
    test_disk.faults.add(Fault::FailNth { op: OpKind::Write, nth: 1, error: Kind::Io });
    disk.discard(BlockAddr(0), 1).unwrap_err();
    assert!(test_disk.faults.fired() > 0);
    test_disk.faults.heal();
    let mut found = vec![0; 2 * BLOCK_SIZE];
    disk.read(BlockAddr(0), &mut found).unwrap();
    assert!(found == run_content(0, 2, 2));
}

/// The same workload each time, with garbage collection and purges, until an operation fails.
fn work(disk: &FlashDisk, model: &mut DiskModel) -> Result<()> {
    let (mut rng, mut stamp) = (Rng::new(9), 1000);
    for round in 0..60 {
        let mut worked = DiskWorkload { disk, model, rng: &mut rng, next_stamp: &mut stamp };
        let count = 1 + worked.rng.below(20);
        worked.write(count)?;
        if round % 7 == 3 {
            worked.discard(count)?;
        }
        disk.flush()?;
        model.record_flush();
        if round % 20 == 19 {
            disk.purge()?;
        }
    }
    Ok(())
}

#[test]
fn failed_reads_lose_nothing_and_resurrect_nothing() {
    let mut full = TestDisk::small(2);
    let disk = full.open();
    let blocks = disk.blocks();
    disk.write(BlockAddr(0), &run_content(0, blocks, 1)).unwrap();
    disk.close().unwrap();
    let (mut failed, mut collecting, mut purging, mut stopped) = (0, 0, 0, 0);
    for nth in (1..).step_by(3) {
        let mut test_disk = full.copied();
        let mut model = DiskModel::new(format!("read {nth}"), blocks);
        model.add_version(0, blocks, 1);
        model.record_flush();
        let disk = test_disk.open();
        test_disk.faults.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
        let done = work(&disk, &mut model);
        let fired = test_disk.faults.fired() > 0;
        test_disk.faults.heal();
        if let Err(e) = &done {
            failed += 1;
            collecting += u64::from(e.to_string().contains("garbage collection"));
            purging += u64::from(e.kind() == Kind::PurgeIncomplete);
            // A failed read inside another operation of the chip fails that operation.
            stopped += u64::from(disk.close().is_err());
        }
        drop(disk);
        let disk = test_disk.open();
        model.check_after_cut(&disk).unwrap();
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "read {nth}");
        disk.purge().unwrap();
        assert_eq!(disk.recoverable(), 0);
        model.check_after_cut(&disk).unwrap();
        if !fired {
            assert!(done.is_ok() && counter(&disk, "epoch").is_some());
            break;
        }
    }
    println!(
        "{failed} failed, {collecting} in garbage collection, {purging} in a purge; {stopped} ended all writing"
    );
    assert!(collecting > 0 && purging > 0 && stopped < failed);
}

#[test]
fn a_repeated_purge_completes_after_failed_reads() {
    let mut test_disk = TestDisk::small(4);
    let disk = test_disk.open();
    for stamp in 1..3 {
        disk.write(BlockAddr(0), &run_content(0, 9, stamp)).unwrap();
        disk.flush().unwrap();
    }
    // Opened again, the disk has no keys in memory: the purge reads them.
    drop(disk);
    let disk = test_disk.open();
    test_disk.faults.add(Fault::FailFrom { op: OpKind::Read, nth: 1, error: Kind::Io });
    assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
    assert!(disk.recoverable() >= 9 && disk.purge_status().purges == 0);
    test_disk.faults.heal();
    disk.purge().unwrap();
    assert_eq!(disk.recoverable(), 0);
    disk.close().unwrap();
}

/// Keys that are in memory are not read by a purge, and memory then has the new keys, as the flash
/// does: blocks that are written under them read the same after another opening.
#[test]
fn a_purge_renews_the_keys_in_memory() {
    let mut test_disk = TestDisk::small(5);
    let disk = test_disk.open();
    let mut found = vec![0; 9 * BLOCK_SIZE];
    for stamp in 1..7 {
        disk.write(BlockAddr(0), &run_content(0, 9, stamp)).unwrap();
        disk.flush().unwrap();
        test_disk.faults.add(Fault::FailFrom { op: OpKind::Read, nth: 1, error: Kind::Io });
        disk.purge().unwrap();
        test_disk.faults.heal();
        disk.read(BlockAddr(0), &mut found).unwrap();
        assert!(found == run_content(0, 9, stamp), "stamp {stamp}");
    }
    drop(disk);
    let disk = test_disk.open();
    disk.read(BlockAddr(0), &mut found).unwrap();
    assert!(found == run_content(0, 9, 6));
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
    disk.close().unwrap();
}

#[test]
fn an_opening_that_fails_changes_nothing() {
    let mut crashed = TestDisk::small(3);
    let disk = crashed.open();
    let mut model = DiskModel::new("opening", disk.blocks());
    work(&disk, &mut model).unwrap();
    drop(disk);
    for nth in 1.. {
        let mut test_disk = crashed.copied();
        let (chip, flash, _) = test_disk.flash();
        test_disk.faults.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
        let opened = FlashDisk::open(flash, &test_disk.params, &fixture::master(), &test_disk.options());
        let fired = test_disk.faults.fired() > 0;
        test_disk.faults.heal();
        if let Err(e) = &opened {
            assert!(e.kind() == Kind::Io, "{e}");
        }
        drop((opened, chip));
        let disk = test_disk.open();
        model.check_after_cut(&disk).unwrap();
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "read {nth}");
        if !fired {
            break;
        }
    }
}
