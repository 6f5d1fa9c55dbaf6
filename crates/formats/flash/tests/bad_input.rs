//! Unsuitable flash: of another disk, half erased, worn out, bad everywhere, or without spare
//! blocks.

mod fixture;

use fixture::{SMALL, TestDisk, is_spent, is_worn_out, master, random};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Secret};
use lacuna_flash::{FlashDisk, Params};
use lacuna_nand::{ChipGeometry, Flash, FlashGeometry, Leb, WearModel};
use lacuna_sim::Rng;
use lacuna_sim::versions::{DiskModel, DiskWorkload, content, run_content, stamp_of};
use std::sync::Arc;

fn kind_of(opened: lacuna_contracts::Result<FlashDisk>) -> Kind {
    opened.err().expect("nothing that opens").kind()
}

/// A closed disk with contents.
fn filled(seed: u64) -> TestDisk {
    let mut test_disk = TestDisk::small(seed);
    let disk = test_disk.open();
    disk.write(BlockAddr(0), &run_content(0, 150, 1)).unwrap();
    disk.close().unwrap();
    test_disk
}

#[test]
fn another_geometry_is_refused() {
    let mut test_disk = filled(1);
    let right = test_disk.params;
    let flash = right.flash;
    let wrong = [
        FlashGeometry { lebs: flash.lebs - 1, ..flash },
        FlashGeometry { leb_len: flash.leb_len * 2, ..flash },
        FlashGeometry { page: flash.page * 2, ..flash },
        FlashGeometry { lebs: 0, ..flash },
    ];
    for flash in wrong {
        test_disk.params = Params { flash, ..right };
        let (_, there, _) = test_disk.flash();
        let e = FlashDisk::open(there, &test_disk.params, &master(), &test_disk.options())
            .err()
            .expect("another flash");
        assert_eq!(e.kind(), Kind::Corrupt, "{e}");
        assert!(e.to_string().contains("expected") && e.to_string().contains("pages of 2048"), "{e}");
    }
    for params in [
        Params { blocks: right.blocks / 2, most_blocks: right.blocks / 2, ..right },
        Params { key_len: 16, ..right },
        Params { key_len: 17, ..right },
        Params { blocks: 0, ..right },
        Params { most_blocks: 1 << 40, ..right },
    ] {
        let (_, there, _) = test_disk.flash();
        // Such parameters may happen to give the same layout; then the disk is unchanged.
        match FlashDisk::open(there, &params, &master(), &test_disk.options()) {
            Ok(disk) => drop(disk),
            Err(e) => assert!(matches!(e.kind(), Kind::Corrupt | Kind::Usage | Kind::NoSpace), "{e}"),
        }
    }
    test_disk.params = right;
    let mut found = vec![0; 150 * BLOCK_SIZE];
    test_disk.open().read(BlockAddr(0), &mut found).unwrap();
    assert!(found == run_content(0, 150, 1));
}

#[test]
fn foreign_flash_is_refused() {
    // Random bytes.
    let mut test_disk = filled(2);
    let (_, flash, _) = test_disk.flash();
    let mut rng = Rng::new(2);
    for leb in 0..test_disk.params.flash.lebs {
        flash.change(Leb(leb), &rng.bytes(test_disk.params.flash.leb_len as usize)).unwrap();
    }
    assert_eq!(
        kind_of(FlashDisk::open(flash, &test_disk.params, &master(), &test_disk.options())),
        Kind::Corrupt
    );
    // Another disk under other keys, also with some of its erase blocks replaced by this disk's.
    let (ours, mut theirs) = (filled(3), TestDisk::small(4));
    let stranger = Secret::copy_from(&[8; 32]);
    let (_, other, _) = theirs.flash();
    FlashDisk::create(&(other.clone() as Arc<dyn Flash>), &theirs.params, &stranger, &random(4)).unwrap();
    let disk = FlashDisk::open(other.clone(), &theirs.params, &stranger, &theirs.options()).unwrap();
    disk.write(BlockAddr(0), &run_content(0, 150, 2)).unwrap();
    disk.close().unwrap();
    assert_eq!(
        kind_of(FlashDisk::open(other.clone(), &ours.params, &master(), &ours.options())),
        Kind::Corrupt
    );
    for half in 0..2 {
        let mut ours = ours.copied();
        let (_, flash, _) = ours.flash();
        let mut content = vec![0; ours.params.flash.leb_len as usize];
        for leb in (half..ours.params.flash.lebs).step_by(2).map(Leb) {
            other.read(leb, 0, &mut content).unwrap();
            flash.change(leb, &content).unwrap();
        }
        match FlashDisk::open(flash, &ours.params, &master(), &ours.options()) {
            Err(e) => assert_eq!(e.kind(), Kind::Corrupt, "{e}"),
            Ok(disk) => assert!(count_damaged_and_older(&disk, 1).0 > 0),
        }
    }
    // Empty flash.
    let (_, flash, _) = theirs.flash();
    (0..theirs.params.flash.lebs).for_each(|leb| flash.unmap(Leb(leb)).unwrap());
    assert_eq!(kind_of(FlashDisk::open(flash, &theirs.params, &master(), &theirs.options())), Kind::Corrupt);
}

/// Counts blocks that do not verify, and blocks that read an older version: the first 150 should
/// have this stamp, and all other blocks zeros.
fn count_damaged_and_older(disk: &FlashDisk, stamp: u64) -> (u64, u64) {
    let (mut damaged, mut older) = (0, 0);
    for block in 0..disk.blocks() {
        let mut found = vec![0; BLOCK_SIZE];
        match disk.read(BlockAddr(block), &mut found) {
            Ok(()) if found == content(block, if block < 150 { stamp } else { 0 }) => {}
            Ok(()) => {
                assert!(block < 150 && found == content(block, stamp - 1), "block {block}");
                older += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), Kind::Corrupt, "block {block}: {e}");
                damaged += 1;
            }
        }
    }
    (damaged, older)
}

/// If any one of the erase blocks is lost (keys, checkpoint, log), the disk is refused, or each
/// block reads right or is reported damaged. Rewritten blocks read again, and deleted data stays
/// deleted.
#[test]
fn a_lost_erase_block_is_detected() {
    for crashed in [false, true] {
        let mut whole = filled(5);
        let disk = whole.open();
        disk.write(BlockAddr(0), &run_content(0, 150, 2)).unwrap();
        if crashed {
            disk.flush().unwrap();
        } else {
            disk.close().unwrap();
        }
        drop(disk);
        let (mut refused, mut hurt, mut untouched, mut shortened) = (0, 0, 0, 0);
        for leb in (0..whole.params.flash.lebs).map(Leb) {
            let mut test_disk = whole.copied();
            let (_, flash, _) = test_disk.flash();
            flash.erase(leb).unwrap();
            let disk = match FlashDisk::open(flash, &test_disk.params, &master(), &test_disk.options()) {
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Corrupt, "{leb:?}: {e}");
                    refused += 1;
                    continue;
                }
                Ok(disk) => disk,
            };
            match count_damaged_and_older(&disk, 2) {
                (0, 0) => untouched += 1,
                (_, 0) => hurt += 1,
                _ => shortened += 1,
            }
            for block in 0..150 {
                let written = disk.write(BlockAddr(block), &content(block, 2)).and_then(|()| disk.flush());
                // A lost page of the index takes its blocks with it.
                assert!(written.is_ok() || count_damaged_and_older(&disk, 2).0 > 0, "{leb:?}: {written:?}");
            }
            if disk.purge().is_ok() {
                assert_eq!((count_damaged_and_older(&disk, 2), disk.recoverable()), ((0, 0), 0), "{leb:?}");
            }
        }
        println!(
            "crashed: {crashed}: {refused} refused, {hurt} damaged, {untouched} whole, {shortened} shortened"
        );
        assert!(refused > 0 && hurt > 0 && untouched > 0);
        // Without its last erase block the log looks as if the power had failed a little earlier.
        assert!(shortened <= u64::from(crashed));
    }
}

/// Writes until the flash is worn out: flushed data stays readable, also after a read-only opening.
#[test]
fn worn_out_flash_keeps_flushed_data() {
    let mut test_disk = TestDisk::new(SMALL, WearModel { endurance: 12, ..WearModel::default() }, 32, 150, 6);
    let disk = test_disk.open();
    let (mut model, mut rng, mut stamp) = (DiskModel::new("worn", disk.blocks()), Rng::new(6), 0);
    let failure = loop {
        let mut worked =
            DiskWorkload { disk: &disk, model: &mut model, rng: &mut rng, next_stamp: &mut stamp };
        if let Err(e) = worked.write(5).and_then(|()| disk.flush()) {
            break e;
        }
        model.record_flush();
    };
    assert_eq!(failure.kind(), Kind::ReadOnly, "{failure}");
    assert!(is_worn_out(&failure) && failure.to_string().contains("copy its content"), "{failure}");
    // The last acknowledged writes are still in memory.
    model.check_latest(&disk);
    let again = disk.write(BlockAddr(0), &[1; BLOCK_SIZE]).unwrap_err();
    assert!(again.kind() == Kind::FailStop && is_worn_out(&again), "{again}");
    assert!(disk.close().is_err());
    drop(disk);
    // The erase blocks that an opening unmaps may give the disk a last one to write.
    let mut refused = 0;
    for _ in 0..5 {
        match test_disk.open_after(|_, _| {}).disk {
            Ok(disk) => model.check_after_cut(&disk).unwrap(),
            Err(e) => {
                assert!(e.kind() == Kind::ReadOnly && is_worn_out(&e), "{e}");
                assert!(e.to_string().contains("open it with "), "{e}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
    test_disk.read_only = true;
    for _ in 0..2 {
        let disk = test_disk.open();
        model.check_after_cut(&disk).unwrap();
        assert_eq!(disk.write(BlockAddr(0), &[1; BLOCK_SIZE]).unwrap_err().kind(), Kind::ReadOnly);
        assert_eq!(disk.purge().unwrap_err().kind(), Kind::ReadOnly);
        disk.close().unwrap();
    }
}

/// With blocks bad from the factory and blocks that go bad in use, everything is readable until no
/// good block is left.
#[test]
fn bad_blocks_lose_no_data() {
    let geometry = ChipGeometry { blocks: 128, ..SMALL };
    let wearing = WearModel { endurance: 0, program_faults: 200, erase_faults: 500, factory_bad: 50 };
    let mut purges = 0;
    for seed in 10..16 {
        let mut test_disk = TestDisk::new(geometry, wearing, 32, 150, seed);
        let disk = test_disk.open();
        let (mut model, mut rng, mut stamp) = (DiskModel::new("bad", disk.blocks()), Rng::new(seed), 0);
        for round in 0..600 {
            let mut worked =
                DiskWorkload { disk: &disk, model: &mut model, rng: &mut rng, next_stamp: &mut stamp };
            let done =
                worked.write(1 + round % 9).and_then(|()| worked.discard(1)).and_then(|()| disk.flush());
            let done = done.and_then(|()| if round % 20 == 0 { disk.purge().map(drop) } else { Ok(()) });
            if let Err(e) = done {
                assert!(is_spent(&e), "seed {seed}, round {round}: {e}");
                break;
            }
            model.record_flush();
        }
        purges += disk.purge_status().purges;
        model.check_after_cut(&disk).unwrap();
        drop(disk);
        test_disk.read_only = true;
        let disk = test_disk.open();
        model.check_after_cut(&disk).unwrap();
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
    }
    assert!(purges > 20, "{purges}");
}

/// The longest disk that fits the flash, full to its last block, is overwritten many times in
/// pieces of all sizes.
#[test]
fn a_full_disk_without_spare_takes_overwrites() {
    for (at, (page, pages, blocks)) in
        [(512, 64, 60), (2048, 16, 64), (4096, 32, 40), (16384, 8, 64)].into_iter().enumerate()
    {
        let geometry = ChipGeometry { page, pages, blocks };
        let mut test_disk = TestDisk::new(geometry, WearModel::default(), 32, 0, at as u64);
        let disk = test_disk.open();
        let all = disk.blocks();
        let (mut model, mut rng, mut stamp) = (DiskModel::new("full", all), Rng::new(at as u64), 1);
        model.add_version(0, all, 1);
        (0..all).for_each(|block| disk.write(BlockAddr(block), &content(block, 1)).unwrap());
        disk.flush().unwrap();
        let mut left = 10 * all;
        while left > 0 {
            let count = 1 + if rng.chance(1, 2) { 0 } else { rng.below(40) };
            let mut worked =
                DiskWorkload { disk: &disk, model: &mut model, rng: &mut rng, next_stamp: &mut stamp };
            let first = worked.rng.below(all - count + 1);
            worked.write_at(first, count).unwrap();
            if rng.chance(1, 2) {
                disk.flush().unwrap_or_else(|e| panic!("page {page}, {left} blocks to go: {e}"));
            }
            if rng.chance(1, 100) {
                disk.purge().unwrap();
            }
            left = left.saturating_sub(count);
        }
        disk.flush().unwrap();
        model.check_latest(&disk);
        disk.close().unwrap();
        drop(disk);
        let disk = test_disk.open();
        model.check_latest(&disk);
        assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new());
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(all - 1), &mut found).unwrap();
        assert!(stamp_of(all - 1, &found).is_some_and(|stamp| stamp > 0));
    }
}

#[test]
fn too_small_flash_is_refused() {
    for lebs in 0..40 {
        let flash = FlashGeometry { page: 2048, leb_len: 28672, lebs };
        match Params::fitting(flash, 32, 0) {
            Ok(params) => assert!(params.layout().is_ok()),
            Err(e) => assert_eq!(e.kind(), Kind::NoSpace, "{e}"),
        }
    }
}
