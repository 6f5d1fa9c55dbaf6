//! Unreadable sectors in each region of the medium: they cost the data in them. All other blocks
//! read at every depth, also read-only, and the log continues over the sectors.

mod fixture;

use fixture::{DiskModel, WrittenDisk, flush_hidden, open_with, options, stamp_of, written};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_deniable::{DeniableDisk, Levels, OpenOptions, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{Fault, FaultMedium, OpKind, Recorder};
use lacuna_testkit::levels::lost_blocks;
use std::ops::Range;
use std::sync::Arc;

const LEVELS: usize = 3;
const CHECKPOINTS: u64 = 1 << 20;
const LOG: u64 = CHECKPOINTS + (256 << 10);
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Reads every block of every open level: each is right, or fails. Returns the number of failed
/// blocks of each level.
fn failures(disk: &Arc<DeniableDisk>, models: &[DiskModel]) -> Vec<u64> {
    disk.levels().iter().zip(models).map(|(level, model)| lost_blocks(level, model) as u64).collect()
}

/// The regions of a stripe, in blocks from its beginning, each with the level that owns it; none if
/// it concerns all levels.
fn regions(params: &Params) -> Vec<(Range<u64>, Option<usize>)> {
    let public = u64::from(params.geometry.public);
    let mut regions = vec![(0..1, None), (1..1 + public, Some(0))];
    for level in 1..LEVELS {
        let slots = params.slots(level as u8);
        regions.push((1 + public + slots.start as u64..1 + public + slots.end as u64, Some(level)));
    }
    regions
}

fn open_bad(
    written: &WrittenDisk,
    bad: u64,
    levels: usize,
    read_only: bool,
) -> (Arc<Recorder<FaultMedium<MemoryMedium>>>, lacuna_contracts::Result<Arc<DeniableDisk>>) {
    let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(written.bytes.clone()))));
    faulty.add(Fault::FailRange { op: OpKind::Read, range: bad..bad + 512, error: Kind::Io });
    let recorder = Arc::new(Recorder::new(faulty));
    let medium: Arc<dyn Medium> = recorder.clone();
    let options = OpenOptions { read_only, ..options(77, 78) };
    (recorder, open_with(&medium, &written.params, levels, options))
}

/// Checks the cost of one bad sector at every depth, read-only.
fn assert_loses_only_its_data(written: &WrittenDisk, bad: u64, of: Option<usize>, lost_pages: &mut u64) {
    for levels in 1..=LEVELS {
        let (recorder, disk) = open_bad(written, bad, levels, true);
        let disk = disk.unwrap_or_else(|e| panic!("sector at {bad}, {levels} levels: {e}"));
        for (level, failed) in failures(&disk, &written.models).into_iter().enumerate() {
            let most = match of {
                Some(owner) if owner != level => 0,
                Some(_) => 1,
                // A summary takes all slots of its stripe with it.
                None => 12,
            };
            // A page of the map takes all blocks that it lists with it.
            *lost_pages += u64::from(failed > most && of.is_none_or(|owner| owner == level));
            assert!(
                failed <= most || of.is_none_or(|owner| owner == level),
                "level {level}: {failed} failed"
            );
        }
        disk.close().unwrap();
        drop(disk);
        let changes = recorder.take().into_iter().filter(|record| record.kind != OpKind::Read);
        assert_eq!(changes.count(), 0, "a disk opened read-only is not written to");
    }
}

#[test]
fn a_bad_sector_loses_only_its_own_data() {
    for closed in [true, false] {
        let written = written(if closed { 1 } else { 2 }, closed);
        let stripe = (1 + u64::from(written.params.geometry.public + written.params.geometry.hidden)) * BLOCK;
        let (mut sectors, mut lost_pages) = (0, 0);
        for (at, (blocks, of)) in regions(&written.params).into_iter().enumerate() {
            for place in (at as u64..written.params.stripes).step_by(3) {
                // Tested separately, below.
                if !closed && of.is_none() && place == written.head % written.params.stripes {
                    continue;
                }
                let within = blocks.start + place % (blocks.end - blocks.start);
                let bad = LOG + place * stripe + within * BLOCK + 512 * (place % 8);
                assert_loses_only_its_data(&written, bad, of, &mut lost_pages);
                sectors += 1;
            }
        }
        for checkpoint in [CHECKPOINTS, CHECKPOINTS + BLOCK] {
            let (_, disk) = open_bad(&written, checkpoint, LEVELS, true);
            assert_eq!(failures(&disk.unwrap(), &written.models), [0; LEVELS]);
        }
        // Each level has one leaf here, which is in few slots.
        assert!(lost_pages < sectors / 8, "{lost_pages} of {sectors}");
    }
}

/// After a power cut with an unreadable last stripe the disk opens read-only alone, because the
/// contents of that stripe are unknown.
#[test]
fn an_unreadable_log_end_opens_read_only() {
    let written = written(5, false);
    let stripe = (1 + u64::from(written.params.geometry.public + written.params.geometry.hidden)) * BLOCK;
    let bad = LOG + written.head % written.params.stripes * stripe;
    for levels in 1..=LEVELS {
        let refused = open_bad(&written, bad, levels, false).1.err().expect("it is refused");
        assert!(refused.kind() == Kind::Corrupt && refused.to_string().contains("read_only"), "{refused}");
        open_bad(&written, bad, levels, true).1.unwrap().close().unwrap();
    }
}

/// The log continues over sectors that stay bad, for two laps; blocks written meanwhile read, or
/// fail if they came to lie on a bad sector.
#[test]
fn the_log_is_written_over_bad_sectors() {
    let written = written(3, true);
    let stripe = (1 + u64::from(written.params.geometry.public + written.params.geometry.hidden)) * BLOCK;
    for (at, (blocks, _)) in regions(&written.params).into_iter().enumerate() {
        for place in (at as u64 * 7..written.params.stripes).step_by(31) {
            let bad = LOG + place * stripe + blocks.start * BLOCK;
            let (_, disk) = open_bad(&written, bad, LEVELS, false);
            let disk = disk.unwrap();
            let levels = disk.levels();
            let mut stamp = 1 << 40;
            for _ in 0..2 * written.params.stripes {
                for level in &levels {
                    stamp += 1;
                    let mut data = vec![0; BLOCK_SIZE];
                    fixture::fill(3, stamp, &mut data);
                    level.write(BlockAddr(3), &data).unwrap();
                }
                disk.refresh().unwrap();
            }
            levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
            let mut failed = 0;
            for (level, model) in levels.iter().zip(&written.models) {
                let mut data = vec![0; BLOCK_SIZE];
                for block in (0..model.blocks()).filter(|block| *block != 3) {
                    match level.read(BlockAddr(block), &mut data) {
                        Ok(()) => assert_eq!(stamp_of(block, &data), Some(model.latest(block))),
                        Err(_) => failed += 1,
                    }
                }
            }
            let all: u64 = written.models.iter().map(DiskModel::blocks).sum();
            assert!(failed < all / 2, "sector at {bad}: {failed} of {all} blocks failed");
            disk.close().unwrap();
        }
    }
}

/// Transient errors cost nothing.
#[test]
fn a_read_that_fails_once_loses_nothing() {
    let written = written(4, false);
    for nth in (1..400).step_by(7) {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(written.bytes.clone()))));
        faulty.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
        let medium: Arc<dyn Medium> = faulty.clone();
        let disk = open_with(&medium, &written.params, LEVELS, options(nth, !nth)).unwrap();
        (0..written.params.stripes).for_each(|_| disk.refresh().unwrap());
        faulty.heal();
        assert_eq!(failures(&disk, &written.models), [0; LEVELS], "read {nth}");
    }
}
