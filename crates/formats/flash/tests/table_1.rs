//! Table 1 of DNEFS, and the failure points of section 4.2 one by one: keys of all six rows, with a
//! power cut at every operation of the purge and of the opening after it.

mod fixture;

use fixture::{Call, CutPoint, TestDisk, counter};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_flash::FlashDisk;
use lacuna_nand::{ChipGeometry, PowerCut, WearModel};
use lacuna_sim::versions::{content, run_content};
use std::collections::BTreeMap;

const GEOMETRY: ChipGeometry = ChipGeometry { page: 2048, pages: 16, blocks: 128 };

/// The stamp of each written block.
type BlockStamps = BTreeMap<u64, u64>;

/// Makes a disk with keys of all rows of Table 1, relative to its last checkpoint. Everything is in
/// the log, and nothing was purged since.
///
/// - Rows 1 and 4, no event: unused keys, and keys of blocks 0 to 49.
/// - Row 2, assigned: blocks 200 to 219. Row 3, assigned and deleted: blocks 220 to 239.
/// - Row 5, used and marked used again, which cannot occur in the paper: here, garbage collection
///   copies a node under its key.
/// - Row 6, used and deleted: blocks 50 to 69 overwritten, 70 to 89 discarded.
fn rows(test_disk: &mut TestDisk) -> BlockStamps {
    let blocks = test_disk.params.blocks;
    let mut held = BlockStamps::new();
    let write = |disk: &FlashDisk, held: &mut BlockStamps, first: u64, count: u64, stamp: u64| {
        disk.write(BlockAddr(first), &run_content(first, count, stamp)).unwrap();
        held.extend((first..first + count).map(|block| (block, stamp)));
    };
    let disk = test_disk.open();
    write(&disk, &mut held, 0, 100, 1);
    // Fill the disk, so that garbage is collected after the checkpoint.
    (240..blocks).for_each(|block| write(&disk, &mut held, block, 1, 2));
    disk.close().unwrap();
    let disk = test_disk.open();
    write(&disk, &mut held, 200, 40, 3);
    disk.flush().unwrap();
    let collected = || counter(&disk, "nodes_copied").unwrap();
    for round in 0..10_000 {
        // Overwrite all over the log, so that every block with garbage has live nodes too.
        write(&disk, &mut held, 240 + round * 37 % (blocks - 240), 1, 4 + round);
        disk.flush().unwrap();
        if collected() > 0 {
            break;
        }
    }
    assert!(collected() > 0, "garbage collection copied nothing");
    write(&disk, &mut held, 50, 20, 1 << 20);
    disk.flush().unwrap();
    for (first, count) in [(70, 20), (220, 20)] {
        disk.discard(BlockAddr(first), count).unwrap();
        held.retain(|block, _| !(first..first + count).contains(block));
    }
    assert!(disk.recoverable() > 0);
    held
}

/// Checks that every block reads as expected, the key state map is correct, and exactly the
/// expected number of keys is used.
fn check(disk: &FlashDisk, held: &BlockStamps, what: &str) {
    for block in 0..disk.blocks() {
        let mut found = vec![0; BLOCK_SIZE];
        disk.read(BlockAddr(block), &mut found).unwrap();
        let stamp = held.get(&block).copied().unwrap_or(0);
        assert!(found == content(block, stamp), "{what}: block {block}");
    }
    assert_eq!(disk.check_keys().unwrap(), Vec::<u32>::new(), "{what}");
    assert_eq!(counter(disk, "keys_used"), Some(held.len() as u64), "{what}");
}

/// The name of the failure point.
fn point(cut: CutPoint) -> &'static str {
    match (cut.call, cut.keys_changed, cut.drained) {
        (Some(Call::Program), 0, false) => "before the first",
        (Some(Call::ChangeKeys), 0, _) => "in the first",
        (Some(Call::ChangeKeys), ..) => "between some",
        (Some(Call::Program), _, false) => "after all, before they are recorded",
        (Some(Call::Drain), ..) => "after all, before they are drained",
        (Some(Call::Program), _, true) => "before the purge is recorded as finished",
        (Some(Call::ChangeCheckpoint), ..) => "during the checkpoint",
        _ => "elsewhere",
    }
}

#[test]
fn every_failure_point_leaves_a_correct_map() {
    let mut test_disk = TestDisk::new(GEOMETRY, WearModel::default(), 32, 150, 3);
    let held = rows(&mut test_disk);
    let mut points: BTreeMap<&str, u64> = BTreeMap::new();
    // Counts of cuts after which no purge had begun, and after which one had.
    let mut cuts = [0, 0];
    for after in 0.. {
        let what = format!("cut {after}");
        let mut test_disk = test_disk.copied();
        let opened = test_disk.open_after(|_, _| {});
        let disk = opened.disk.unwrap();
        check(&disk, &held, &what);
        let deleted = disk.recoverable();
        assert!(deleted >= 80, "rows 3 and 6: {deleted}");
        opened.chip.cut_power(PowerCut { after, seed: after });
        opened.watch.begin();
        // Closing writes the checkpoint here.
        let (purged, closed) = (disk.purge().is_ok(), disk.close().is_ok());
        drop(disk);
        if let Some(cut) = opened.watch.cut() {
            *points.entry(point(cut)).or_default() += 1;
        }
        test_disk.read_only = true;
        let seen = test_disk.open();
        check(&seen, &held, &what);
        // All deleted keys still count as deleted, and no key that may encrypt something is called
        // unused.
        assert!(purged || seen.recoverable() >= deleted, "{what}: {} of {deleted}", seen.recoverable());
        let cut = seen.purge_status().purge_wanted;
        assert!(!(cut && purged), "{what}: a purge that returned is finished");
        drop(seen);
        test_disk.read_only = false;
        let disk = test_disk.open();
        check(&disk, &held, &what);
        // The opening finishes an interrupted purge, and begins none.
        let done = disk.purge_status();
        assert_eq!((done.purges, done.purge_wanted), (u64::from(cut), false), "{what}");
        assert!(
            if cut { done.recoverable == 0 } else { purged || done.recoverable >= deleted },
            "{what}: {done:?}"
        );
        cuts[usize::from(cut)] += 1;
        disk.purge().unwrap();
        assert_eq!(disk.recoverable(), 0);
        check(&disk, &held, &what);
        if closed {
            assert_eq!(opened.watch.cut(), None);
            break;
        }
    }
    println!("{points:?}, {cuts:?}");
    assert!(cuts.iter().all(|count| *count > 1), "{cuts:?}");
    let all = [
        "before the first",
        "in the first",
        "between some",
        "after all, before they are recorded",
        "after all, before they are drained",
        "before the purge is recorded as finished",
        "during the checkpoint",
    ];
    assert!(all.iter().all(|point| points.contains_key(point)), "{points:?}");
}

#[test]
fn every_cut_of_an_opening_leaves_a_correct_map() {
    let mut test_disk = TestDisk::new(GEOMETRY, WearModel::default(), 32, 150, 4);
    let held = rows(&mut test_disk);
    for after in 0.. {
        let mut test_disk = test_disk.copied();
        // Two successive openings are cut.
        let first = test_disk.open_after(|chip, _| chip.cut_power(PowerCut { after, seed: after }));
        let done = first.disk.is_ok();
        drop(first.disk);
        let second =
            test_disk.open_after(|chip, _| chip.cut_power(PowerCut { after: after / 2, seed: after }));
        drop(second.disk);
        let disk = test_disk.open();
        check(&disk, &held, &format!("cut {after}"));
        disk.purge().unwrap();
        assert_eq!(disk.recoverable(), 0);
        check(&disk, &held, &format!("cut {after}, purged"));
        if done {
            assert!(after > 1, "an opening writes");
            break;
        }
    }
}
