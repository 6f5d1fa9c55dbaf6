//! Reads of the chip that fail: in a client's read, in garbage collection, in a purge, at an
//! opening; and a discard that fails. No data is lost, and no deleted data comes back.

mod fixture;

use fixture::{Bed, counter};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::FlashDisk;
use lacuna_sim::versions::{Model, Worked, run};
use lacuna_sim::{Fault, OpKind, Rng};

#[test]
fn a_client_is_told_and_others_go_on() {
    let mut bed = Bed::small(1);
    let disk = bed.open();
    disk.write(BlockAddr(0), &run(0, 100, 1)).unwrap();
    disk.flush().unwrap();
    let mut found = vec![0; BLOCK_SIZE];
    for block in 0..100 {
        bed.faults.add(Fault::FailNth { op: OpKind::Read, nth: 1, error: Kind::Io });
        assert_eq!(disk.read(BlockAddr(block), &mut found).unwrap_err().kind(), Kind::Io, "block {block}");
        bed.faults.heal();
        disk.read(BlockAddr(block), &mut found).unwrap();
        assert!(found == run(block, 1, 1));
        disk.write(BlockAddr(block), &run(block, 1, 1)).unwrap();
        disk.flush().unwrap();
    }
    disk.purge().unwrap();
    disk.close().unwrap();
}

#[test]
fn a_discard_that_fails_does_not_bring_an_older_version_back() {
    let mut bed = Bed::small(3);
    let disk = bed.open();
    disk.write(BlockAddr(0), &run(0, 2, 1)).unwrap();
    disk.flush().unwrap();
    disk.write(BlockAddr(0), &run(0, 2, 2)).unwrap();
    bed.faults.add(Fault::FailNth { op: OpKind::Write, nth: 1, error: Kind::Io });
    disk.discard(BlockAddr(0), 1).unwrap_err();
    assert!(bed.faults.fired() > 0);
    bed.faults.heal();
    let mut found = vec![0; 2 * BLOCK_SIZE];
    disk.read(BlockAddr(0), &mut found).unwrap();
    assert!(found == run(0, 2, 2));
}

/// The same workload each time, with garbage collection and purges, until an operation fails.
fn work(disk: &FlashDisk, model: &mut Model) -> Result<()> {
    let (mut rng, mut stamp) = (Rng::new(9), 1000);
    for round in 0..60 {
        let mut worked = Worked { disk, model, rng: &mut rng, next_stamp: &mut stamp };
        let count = 1 + worked.rng.below(20);
        worked.write(count)?;
        if round % 7 == 3 {
            worked.discard(count)?;
        }
        disk.flush()?;
        model.flushed();
        if round % 20 == 19 {
            disk.purge()?;
        }
    }
    Ok(())
}

#[test]
fn whatever_reads_nothing_is_lost_and_nothing_comes_back() {
    let mut full = Bed::small(2);
    let disk = full.open();
    let blocks = disk.blocks();
    disk.write(BlockAddr(0), &run(0, blocks, 1)).unwrap();
    disk.close().unwrap();
    let (mut failed, mut collecting, mut purging, mut stopped) = (0, 0, 0, 0);
    for nth in (1..).step_by(3) {
        let mut bed = full.copied();
        let mut model = Model::new(format!("read {nth}"), blocks);
        model.set(0, blocks, 1);
        model.flushed();
        let disk = bed.open();
        bed.faults.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
        let done = work(&disk, &mut model);
        let fired = bed.faults.fired() > 0;
        bed.faults.heal();
        if let Err(e) = &done {
            failed += 1;
            collecting += u64::from(e.to_string().contains("garbage collection"));
            purging += u64::from(e.kind() == Kind::PurgeIncomplete);
            // A failed read inside another operation of the chip fails that operation.
            stopped += u64::from(disk.close().is_err());
        }
        drop(disk);
        let disk = bed.open();
        model.compare(&disk).unwrap();
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "read {nth}");
        disk.purge().unwrap();
        assert_eq!(disk.recoverable(), 0);
        model.compare(&disk).unwrap();
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
fn a_purge_that_could_not_read_is_complete_when_it_is_asked_for_again() {
    let mut bed = Bed::small(4);
    let disk = bed.open();
    for stamp in 1..3 {
        disk.write(BlockAddr(0), &run(0, 9, stamp)).unwrap();
        disk.flush().unwrap();
    }
    bed.faults.add(Fault::FailFrom { op: OpKind::Read, nth: 1, error: Kind::Io });
    assert_eq!(disk.purge().unwrap_err().kind(), Kind::PurgeIncomplete);
    assert!(disk.recoverable() >= 9 && disk.forgetting().purges == 0);
    bed.faults.heal();
    disk.purge().unwrap();
    assert_eq!(disk.recoverable(), 0);
    disk.close().unwrap();
}

#[test]
fn an_opening_that_fails_changes_nothing() {
    let mut crashed = Bed::small(3);
    let disk = crashed.open();
    let mut model = Model::new("opening", disk.blocks());
    work(&disk, &mut model).unwrap();
    drop(disk);
    for nth in 1.. {
        let mut bed = crashed.copied();
        let (chip, flash, _) = bed.flash();
        bed.faults.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
        let opened = FlashDisk::open(flash, &bed.params, &fixture::master(), &bed.options());
        let fired = bed.faults.fired() > 0;
        bed.faults.heal();
        if let Err(e) = &opened {
            assert!(e.kind() == Kind::Io, "{e}");
        }
        drop((opened, chip));
        let disk = bed.open();
        model.compare(&disk).unwrap();
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "read {nth}");
        if !fired {
            break;
        }
    }
}
