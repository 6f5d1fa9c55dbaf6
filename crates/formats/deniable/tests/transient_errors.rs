//! Media that fail for a while, and sectors that go bad at the worst places: a flushed block is
//! right or fails, or the disk reports that it cannot tell.

mod fixture;

use fixture::{DiskModel, WrittenDisk, counter, fill, open_with, options, stamp_of, written};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_deniable::{DeniableDisk, Levels, OpenOptions, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{Fault, FaultMedium, OpKind};
use std::sync::Arc;

const LOG: u64 = (1 << 20) + (256 << 10);
const LEVELS: usize = 3;
const BLOCK: u64 = BLOCK_SIZE as u64;
/// The version that is flushed last; the tests would notice its loss.
const LATEST: u64 = 1 << 40;

type Faulty = Arc<FaultMedium<MemoryMedium>>;

fn stripe_len(params: &Params) -> u64 {
    (1 + u64::from(params.geometry.public) + u64::from(params.geometry.hidden)) * BLOCK
}

fn stripe_at(params: &Params, seq: u64) -> u64 {
    LOG + seq % params.stripes * stripe_len(params)
}

fn faulty(bytes: &[u8]) -> Faulty {
    Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(bytes.to_vec()))))
}

fn open(medium: &Faulty, params: &Params, levels: usize, read_only: bool) -> Result<Arc<DeniableDisk>> {
    let medium: Arc<dyn Medium> = medium.clone();
    open_with(&medium, params, levels, OpenOptions { read_only, ..options(71, 72) })
}

fn bad_sector(medium: &Faulty, at: u64) {
    medium.add(Fault::FailRange { op: OpKind::Read, range: at..at + 512, error: Kind::Io });
}

/// The number of blocks that fail; all other blocks are right.
fn failures(disk: &Arc<DeniableDisk>, models: &[DiskModel]) -> u64 {
    let mut failed = 0;
    for (level, model) in disk.levels().iter().zip(models) {
        let mut data = vec![0; BLOCK_SIZE];
        for block in 0..model.blocks() {
            match level.read(BlockAddr(block), &mut data) {
                Ok(()) => assert_eq!(stamp_of(block, &data), Some(model.latest(block)), "block {block}"),
                Err(_) => failed += 1,
            }
        }
    }
    failed
}

/// A medium that reads nothing for a while ends the session, and loses nothing.
#[test]
fn an_outage_loses_nothing() {
    let WrittenDisk { params, bytes, models, .. } = written(3, true);
    for error in [Kind::Io, Kind::Other] {
        let medium = faulty(&bytes);
        let disk = open(&medium, &params, LEVELS, false).unwrap();
        medium.add(Fault::FailFrom { op: OpKind::Read, nth: 1, error });
        assert!(disk.refresh().is_err() && disk.refresh().is_err());
        assert!(disk.close().is_err(), "a disk that failed is not closed well");
        drop(disk);
        medium.heal();
        let again = open(&medium, &params, LEVELS, false).unwrap();
        (0..2 * params.stripes).for_each(|_| again.refresh().unwrap());
        assert_eq!(failures(&again, &models), 0);
    }
}

/// With the threads of a disk a place is tried again for most of a second before its data counts as
/// lost.
#[test]
fn a_transient_read_error_loses_no_block() {
    let WrittenDisk { params, bytes, models, .. } = written(5, true);
    let medium = faulty(&bytes);
    let disk = {
        let medium: Arc<dyn Medium> = medium.clone();
        let options = OpenOptions { background: true, ..options(71, 72) };
        open_with(&medium, &Params { cover_millis: 0, ..params }, LEVELS, options).unwrap()
    };
    for round in 0..3 {
        let head = counter(&disk.levels()[0], "head");
        let ahead = head + 20 - (params.stripes - u64::from(params.gap));
        bad_sector(&medium, stripe_at(&params, ahead) + (1 + round) * BLOCK);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(150));
                medium.heal();
            });
            (0..40).for_each(|_| disk.refresh().unwrap());
        });
    }
    assert_eq!(failures(&disk, &models), 0);
    disk.close().unwrap();
}

/// The place of the leaf of level 1's map: if it cannot be read, no block of the level can.
fn leaf_of_level_1(params: &Params, bytes: &[u8]) -> u64 {
    let medium = faulty(bytes);
    let (len, before, slots) = (stripe_len(params), 1 + u64::from(params.geometry.public), params.slots(1));
    let in_stripe =
        |place: u64| slots.clone().map(move |slot| LOG + place * len + (before + slot as u64) * BLOCK);
    let is_leaf = |at: &u64| {
        medium.heal();
        refuse(&medium, *at);
        let Ok(disk) = open(&medium, params, 2, true) else { return false };
        let level = disk.levels()[1].clone();
        [0, 1].iter().all(|block| level.read(BlockAddr(*block), &mut [0; BLOCK_SIZE]).is_err())
    };
    (0..params.stripes).flat_map(in_stripe).find(is_leaf).expect("the map has a leaf")
}

fn refuse(medium: &Faulty, at: u64) {
    medium.add(Fault::FailRange { op: OpKind::Read, range: at..at + 512, error: Kind::Memory });
}

/// If the system refuses to read a page of a hidden map for want of memory, a disk with threads
/// waits for it, and a disk without threads stops. Nothing is lost either way.
#[test]
fn a_refused_read_of_a_hidden_page_loses_nothing() {
    let WrittenDisk { params, bytes, models, .. } = written(3, true);
    let leaf = leaf_of_level_1(&params, &bytes);
    let medium = faulty(&bytes);
    let disk = open(&medium, &params, LEVELS, false).unwrap();
    refuse(&medium, leaf);
    assert!((0..params.stripes).any(|_| disk.refresh().is_err()), "nothing was refused");
    drop(disk);
    medium.heal();
    let again = open(&medium, &params, LEVELS, false).unwrap();
    assert_eq!(failures(&again, &models), 0);

    let medium = faulty(&bytes);
    let disk = {
        let medium: Arc<dyn Medium> = medium.clone();
        let options = OpenOptions { background: true, ..options(71, 72) };
        open_with(&medium, &Params { cover_millis: 0, ..params }, LEVELS, options).unwrap()
    };
    refuse(&medium, leaf);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(150));
            medium.heal();
        });
        for _ in 0..40 {
            // The beat that needs the page gets the refusal, and is tried again.
            while let Err(e) = disk.refresh() {
                assert_eq!(e.kind(), Kind::Memory, "{e}");
            }
        }
    });
    assert_eq!(failures(&disk, &models), 0);
    disk.close().unwrap();
}

/// A clean page of a map that is in memory when its sector goes bad is written again.
#[test]
fn a_cached_page_survives_a_bad_sector() {
    let WrittenDisk { params, bytes, models, .. } = written(3, true);
    for place in (0..params.stripes).step_by(2) {
        for slot in 1..=u64::from(params.geometry.public) {
            let medium = faulty(&bytes);
            let disk = open(&medium, &params, LEVELS, false).unwrap();
            assert_eq!(failures(&disk, &models), 0);
            bad_sector(&medium, LOG + place * stripe_len(&params) + slot * BLOCK);
            // Closing writes the rest of the lap.
            let beats = params.stripes - 2 - params.closing_cover().count();
            (0..beats).for_each(|_| disk.refresh().unwrap());
            disk.close().unwrap();
            drop(disk);
            medium.heal();
            let again = open(&medium, &params, LEVELS, false).unwrap();
            assert!(failures(&again, &models) <= 1, "stripe at {place}, slot {slot}");
        }
    }
}

/// Writes and flushes a block, and cuts the power. Returns the medium and the stripe with the
/// block.
fn flushed_then_cut(params: &Params, bytes: &[u8], level: usize) -> (Vec<u8>, u64) {
    let memory = Arc::new(MemoryMedium::from_bytes(bytes.to_vec()));
    let medium: Arc<dyn Medium> = memory.clone();
    let disk = open_with(&medium, params, level + 1, options(1, 2)).unwrap();
    let levels = disk.levels();
    let mut data = vec![0; BLOCK_SIZE];
    fill(3, LATEST, &mut data);
    levels[level].write(BlockAddr(3), &data).unwrap();
    if level > 0 {
        disk.refresh().unwrap();
    }
    levels[level].flush().unwrap();
    (memory.snapshot(), counter(&levels[0], "head"))
}

/// After a close, an open, a write and a power cut, the earlier close does not make the last stripe
/// dispensable.
#[test]
fn an_old_close_does_not_hide_a_lost_end() {
    let WrittenDisk { params, bytes, .. } = written(3, true);
    let (cut, head) = flushed_then_cut(&params, &bytes, 0);
    let medium = faulty(&cut);
    bad_sector(&medium, stripe_at(&params, head));
    let refused = open(&medium, &params, 1, false).err().expect("it is refused");
    assert!(refused.to_string().contains("read_only"), "{refused}");
    open(&medium, &params, 1, true).unwrap();
}

/// A bad sector before a stripe that the power cut tore: the end cannot be trusted, and the disk
/// opens read-only.
#[test]
fn a_bad_sector_before_a_torn_stripe_opens_read_only() {
    let WrittenDisk { params, bytes, .. } = written(3, true);
    let memory = Arc::new(MemoryMedium::from_bytes(bytes));
    let medium: Arc<dyn Medium> = memory.clone();
    let disk = open_with(&medium, &params, 1, options(1, 2)).unwrap();
    (0..6).for_each(|_| disk.refresh().unwrap());
    let head = counter(&disk.levels()[0], "head");
    let mut cut = memory.snapshot();
    let torn = (stripe_at(&params, head) + 5 * BLOCK) as usize;
    cut[torn..torn + 512].fill(9);
    let medium = faulty(&cut);
    bad_sector(&medium, stripe_at(&params, head - 1));
    open(&medium, &params, 1, true).unwrap();
    assert!(open(&medium, &params, 1, false).is_err());
}

/// If the last stripe with changes of a hidden level goes bad after sessions without the level, the
/// level does not open in its state before that stripe.
#[test]
fn a_hidden_level_is_not_rolled_back() {
    let WrittenDisk { params, bytes, .. } = written(3, true);
    let (cut, last) = flushed_then_cut(&params, &bytes, 1);
    let memory = Arc::new(MemoryMedium::from_bytes(cut));
    let medium: Arc<dyn Medium> = memory.clone();
    let disk = open_with(&medium, &params, 1, options(7, 8)).unwrap();
    (0..4).for_each(|_| disk.refresh().unwrap());
    disk.close().unwrap();
    drop(disk);
    let medium = faulty(&memory.snapshot());
    bad_sector(&medium, stripe_at(&params, last));
    let refused = open(&medium, &params, 2, false).err().expect("it is refused");
    assert!(refused.kind() == Kind::Corrupt && refused.to_string().contains("read_only"), "{refused}");
    open(&medium, &params, 2, true).unwrap();
    open(&medium, &params, 1, false).unwrap();
}
