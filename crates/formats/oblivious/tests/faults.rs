//! A medium that fails: bad sectors cost the data in them and stop nothing; a failed write stops
//! the disk, and no flushed block is lost.

mod bad_page_medium;
mod fixture;

use bad_page_medium::BadPageMedium;
use fixture::regions::Regions;
use fixture::{
    DiskModel, DiskWorkload, counter, create, fill, flush_hidden, models, open, open_with, options, params,
    params_of, stamp_of,
};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, Levels, ObliviousDisk, OpenOptions, Params};
use lacuna_sim::{Fault, FaultMedium, OpKind, Rng};
use lacuna_testkit::levels::lost_blocks;
use std::ops::Range;
use std::sync::Arc;

/// The bytes of a medium, and its expected contents.
struct WrittenDisk {
    bytes: Vec<u8>,
    models: Vec<DiskModel>,
    last_batch: u64,
}

/// A disk with both levels written: closed, or flushed and cut off with batches in the ring.
fn written(params: &Params, closed: bool) -> WrittenDisk {
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, params, 2, 1).unwrap();
    let disk = open(&medium, params, 2, 1).unwrap();
    let levels = disk.levels();
    let mut models = models(&disk);
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    for (level, model) in levels.iter().zip(&mut models) {
        let blocks = model.blocks();
        DiskWorkload { disk: &**level, model, rng: &mut rng, next_stamp: &mut next_stamp }
            .write_at(0, blocks)
            .unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    let last_batch = || counter(&levels[0], "last_batch");
    if closed {
        disk.close().unwrap();
    } else {
        // Leave batches in the ring that no head calls applied.
        while last_batch() % (u64::from(params.ring) / 4) != 1 {
            disk.refresh().unwrap();
        }
        disk.refresh().unwrap();
    }
    WrittenDisk { bytes: memory.snapshot(), models, last_batch: last_batch() }
}

/// Opens a medium with an unreadable sector in `bad`, reads all of it, and then writes, flushes and
/// closes it. Returns the number of lost blocks of each level.
fn use_with_bad_sector(written: &WrittenDisk, params: &Params, bad: &Range<usize>) -> [usize; 2] {
    let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(written.bytes.clone()))));
    let range = bad.start as u64 + 700..bad.start as u64 + 701;
    faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
    let medium: Arc<dyn Medium> = faulty.clone();
    let disk = open(&medium, params, 2, 3).unwrap_or_else(|e| panic!("{bad:?}: {e}"));
    let levels = disk.levels();
    let mut data = vec![0; BLOCK_SIZE];
    let lost = [0, 1].map(|level| {
        let model = &written.models[level];
        let is_lost = |block: &u64| match levels[level].read(BlockAddr(*block), &mut data) {
            Ok(()) => {
                assert_eq!(
                    stamp_of(*block, &data),
                    Some(model.latest(*block)),
                    "level {level}, block {block}"
                );
                false
            }
            Err(e) => {
                assert!(matches!(e.kind(), Kind::Io | Kind::Corrupt), "{e}");
                true
            }
        };
        (0..model.blocks()).filter(is_lost).count()
    });
    for round in 0..60 {
        for level in &levels {
            fill(round % 10, 1 << 40, &mut data);
            level.write(BlockAddr(round % 10), &data).unwrap_or_else(|e| panic!("{bad:?}: {e}"));
        }
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    drop((levels, disk));
    let again = open(&medium, params, 2, 4).unwrap();
    let mut lost_again = [0, 0];
    for level in again.levels() {
        for block in 0..10 {
            match level.read(BlockAddr(block), &mut data) {
                Ok(()) => assert_eq!(stamp_of(block, &data), Some(1 << 40), "{bad:?}"),
                Err(_) => lost_again[usize::from(level.level())] += 1,
            }
        }
    }
    // The sector takes writes and cannot be read: that costs a block, or a page of a map.
    assert!(lost_again.contains(&0), "{bad:?}: {lost_again:?}");
    lost
}

/// Bad sectors in the last heads and in cells that are not yet in place. A page of a map takes with
/// it the places that it alone has; the other level has all of its blocks.
#[test]
fn bad_sectors_at_the_log_end_lose_only_their_data() {
    let params = params();
    let regions = Regions::of(&params);
    for closed in [true, false] {
        let written = written(&params, closed);
        let last = written.last_batch;
        let place = |seq: u64| (seq % u64::from(params.journal)) as usize;
        for copy in 0..2 {
            for seq in last - 1..=last + 1 {
                assert_eq!(use_with_bad_sector(&written, &params, &regions.head(place(seq), copy)), [0, 0]);
            }
        }
        for slot in [0, 3, params.batch_cells() - 1, params.batch_cells()] {
            for seq in last - 1..=last + 1 {
                let lost = use_with_bad_sector(&written, &params, &regions.in_ring(&params, seq, slot));
                assert!(lost.contains(&0), "batch {seq}, cell {slot}: {lost:?}");
            }
        }
    }
}

/// A bad sector in each part of the medium.
#[test]
fn bad_sectors_anywhere_stop_no_writes() {
    let params = params();
    let regions = Regions::of(&params);
    for closed in [true, false] {
        let written = written(&params, closed);
        let heads = (0..2).flat_map(|copy| (1..regions.journal).step_by(41).map(move |place| (place, copy)));
        for (place, copy) in heads {
            assert_eq!(use_with_bad_sector(&written, &params, &regions.head(place, copy)), [0, 0]);
        }
        let in_ring = (0..u64::from(params.ring)).map(|seq| regions.in_ring(&params, seq, seq as usize % 38));
        let cells = (0..params.cells as usize).step_by(23).map(|cell| regions.cell(cell));
        for bad in in_ring.chain(cells) {
            let lost = use_with_bad_sector(&written, &params, &bad);
            assert!(lost.contains(&0), "{bad:?}: {lost:?}");
        }
    }
}

/// A page of the public map that cannot be read costs the blocks that it lists; writes continue.
#[test]
fn a_bad_map_page_loses_only_its_blocks() {
    let params = params();
    let regions = Regions::of(&params);
    let written = written(&params, true);
    let blocks = written.models[0].blocks();
    let takes_many = |bad: &Range<usize>| {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(written.bytes.clone()))));
        let range = bad.start as u64 + 700..bad.start as u64 + 701;
        faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
        let medium: Arc<dyn Medium> = faulty;
        let disk = open(&medium, &params, 2, 3).unwrap();
        let level = disk.levels()[0].clone();
        let is_lost = |at: &u64| level.read(BlockAddr(*at), &mut [0; BLOCK_SIZE]).is_err();
        [0, blocks / 4, blocks / 2].iter().filter(|at| is_lost(at)).count() > 1
    };
    let pages: Vec<Range<usize>> =
        (0..params.cells as usize).map(|cell| regions.cell(cell)).filter(takes_many).collect();
    assert!(!pages.is_empty(), "or no page is in a cell");
    for page in pages {
        assert_eq!(use_with_bad_sector(&written, &params, &page)[1], 0);
    }
}

/// If the system refuses to read a page of a hidden map for want of memory, a disk with threads
/// waits for it, and a disk without threads stops. Nothing is lost either way.
#[test]
fn a_refused_read_of_a_hidden_page_loses_nothing() {
    let params = params();
    let regions = Regions::of(&params);
    let WrittenDisk { bytes, models, last_batch } = written(&params, true);
    let new = || Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(bytes.clone()))));
    let refuse = |faulty: &FaultMedium<MemoryMedium>, place: &Range<usize>| {
        let range = place.start as u64..place.start as u64 + 512;
        faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Memory });
    };
    let with = |faulty: &Arc<FaultMedium<MemoryMedium>>, [read_only, background]: [bool; 2]| {
        let medium: Arc<dyn Medium> = faulty.clone();
        open_with(&medium, &params, 2, OpenOptions { read_only, background, ..options(3, 4) })
    };
    // If the leaf cannot be read, no block of the level can.
    let probe = new();
    let is_leaf = |place: &Range<usize>| {
        probe.heal();
        refuse(&probe, place);
        let Ok(disk) = with(&probe, [true, false]) else { return false };
        let level = disk.levels()[1].clone();
        [0, 1].iter().all(|block| level.read(BlockAddr(*block), &mut [0; BLOCK_SIZE]).is_err())
    };
    let cells = (params.cells / 5 * 3) as usize..params.cells as usize;
    let in_ring = (last_batch - 1..=last_batch)
        .flat_map(|seq| (0..params.batch_cells()).map(move |slot| (seq, slot)))
        .map(|(seq, slot)| regions.in_ring(&params, seq, slot));
    let leaf = cells.map(|cell| regions.cell(cell)).chain(in_ring).find(is_leaf).expect("the map has a leaf");
    let lost = |disk: &Arc<ObliviousDisk>| -> usize {
        disk.levels().iter().zip(&models).map(|(level, model)| lost_blocks(level, model)).sum()
    };

    let faulty = new();
    let disk = with(&faulty, [false, false]).unwrap();
    refuse(&faulty, &leaf);
    assert!((0..1000).any(|_| disk.refresh().is_err()), "nothing was refused");
    drop(disk);
    faulty.heal();
    assert_eq!(lost(&with(&faulty, [false, false]).unwrap()), 0);

    let faulty = new();
    let disk = with(&faulty, [false, true]).unwrap();
    refuse(&faulty, &leaf);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(150));
            faulty.heal();
        });
        for _ in 0..40 {
            // The beat that needs the cell gets the refusal, and is tried again.
            while let Err(e) = disk.refresh() {
                assert_eq!(e.kind(), Kind::Memory, "{e}");
            }
        }
    });
    assert_eq!(lost(&disk), 0);
    disk.close().unwrap();
}

/// On a plausible disk reads count as writes; if these fail, the reads still succeed.
#[test]
fn a_plausible_disk_that_failed_still_reads() {
    let params = params_of(HidingMode::Plausible);
    let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(params.end()))));
    let medium: Arc<dyn Medium> = faulty.clone();
    create(&medium, &params, 2, 1).unwrap();
    let disk = open(&medium, &params, 2, 1).unwrap();
    let level = disk.levels()[0].clone();
    let mut data = vec![0; BLOCK_SIZE];
    fill(0, 7, &mut data);
    level.write(BlockAddr(0), &data).unwrap();
    level.flush().unwrap();
    faulty.add(Fault::FailNth { op: OpKind::Write, nth: 1, error: Kind::Io });
    for _ in 0..50 {
        data.fill(0);
        level.read(BlockAddr(0), &mut data).unwrap();
        assert_eq!(stamp_of(0, &data), Some(7));
    }
    assert_eq!(level.write(BlockAddr(0), &data).unwrap_err().kind(), Kind::FailStop);
}

/// Bad sectors cost the blocks in them, and the disk continues.
#[test]
fn bad_sectors_lose_only_their_blocks() {
    let params = params();
    let WrittenDisk { bytes, models, last_batch } = written(&params, true);
    let regions = Regions::of(&params);
    let bad = [
        regions.head(3, 0),
        regions.head(9, 1),
        regions.cell(5),
        regions.cell(200),
        regions.cell(700),
        regions.in_ring(&params, last_batch - 1, params.batch_cells() + 2),
    ];
    let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(bytes))));
    for range in bad {
        let range = range.start as u64 + 700..range.start as u64 + 701;
        faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
    }
    let medium: Arc<dyn Medium> = faulty.clone();
    let disk = open(&medium, &params, 2, 3).unwrap();
    let levels = disk.levels();
    let read_all = |rewritten: [u64; 2]| {
        let mut failed = 0;
        for (level, model) in levels.iter().zip(&models) {
            for block in rewritten[usize::from(level.level())]..model.blocks() {
                let mut data = vec![0; BLOCK_SIZE];
                match level.read(BlockAddr(block), &mut data) {
                    Ok(()) => assert_eq!(stamp_of(block, &data), Some(model.latest(block))),
                    Err(e) => {
                        assert!(matches!(e.kind(), Kind::Io | Kind::Corrupt), "{e}");
                        failed += 1;
                    }
                }
            }
        }
        failed
    };
    assert!(read_all([0, 0]) <= 3);
    for round in 0..200 {
        let mut data = vec![0; BLOCK_SIZE];
        fill(round % 10, 1 << 40, &mut data);
        levels[0].write(BlockAddr(round % 10), &data).unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    assert!(read_all([10, 0]) <= 3);
    disk.close().unwrap();
}

#[test]
fn writes_that_fail_stop_the_disk_and_lose_nothing_flushed() {
    let params = params();
    let faults =
        (1..40).flat_map(|nth| [(OpKind::Write, nth), (OpKind::Write, nth * 40), (OpKind::Sync, nth)]);
    for (op, nth) in faults {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(params.end()))));
        let medium: Arc<dyn Medium> = faulty.clone();
        create(&medium, &params, 2, 1).unwrap();
        let disk = open(&medium, &params, 2, 1).unwrap();
        let levels = disk.levels();
        let mut models = models(&disk);
        let (mut rng, mut next_stamp) = (Rng::new(nth), 0);
        faulty.add(Fault::FailNth { op, nth, error: Kind::Io });
        for round in 0..4000 {
            let at = round % 2;
            let mut worked = DiskWorkload {
                disk: &*levels[at],
                model: &mut models[at],
                rng: &mut rng,
                next_stamp: &mut next_stamp,
            };
            let done = worked.write(2).and_then(|()| {
                if round % 20 == 0 {
                    levels[0].flush()?;
                    models[0].record_flush();
                }
                Ok(())
            });
            match done {
                Err(e) if e.kind() == Kind::NoCover => {}
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Io, "{e}");
                    break;
                }
                Ok(()) => assert!(round < 3999, "{op:?} {nth} never happened"),
            }
        }
        for level in &levels {
            assert_eq!(level.write(BlockAddr(0), &[0; BLOCK_SIZE]).unwrap_err().kind(), Kind::FailStop);
            assert_eq!(level.flush().unwrap_err().kind(), Kind::FailStop);
        }
        let _failed = disk.close();
        drop((levels, disk));
        let again = open(&medium, &params, 2, 2).unwrap();
        for (level, model) in again.levels().iter().zip(&mut models) {
            model.check_after_cut(&**level).unwrap();
        }
    }
}

/// A bad sector in each region of the format, at every depth, read-only and not, costs at most the
/// data in it: a sector of metadata has eight cells, and a page of a map takes with it the places
/// that it alone has. Levels with other regions lose nothing.
#[test]
fn a_bad_sector_affects_one_level() {
    let params = params();
    let regions = Regions::of(&params);
    let (bytes, models, last) = closed_disk_of_three_levels(&params);
    let at = |region: u64| match region {
        0 => 17,
        _ => (params.cells / 5 * 3 + (region - 1) * 3) as usize,
    };
    let third = params.cells / 5 * 3 + (params.cells - params.cells / 5 * 3) * 13 / 16;
    let mut bad = vec![regions.head(1, 0), regions.head(2, 1), regions.in_ring(&params, last - 1, 2)];
    bad.push(regions.in_ring(&params, last - 1, params.batch_cells() + 1));
    for cell in [at(0), at(1), third as usize, params.cells as usize - 1] {
        bad.extend((0..24).map(|more| regions.cell((cell + more).min(params.cells as usize - 1))));
        bad.extend([regions.meta(cell / 8 * 8), regions.meta(cell / 8 * 8 + 16)]);
    }
    let mut lost_at_all = 0;
    for bad in bad {
        for (depth, read_only) in (0..3).flat_map(|depth| [(depth, true), (depth, false)]) {
            let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::from_bytes(bytes.clone()))));
            let range = bad.start as u64 / 512 * 512..bad.start as u64 / 512 * 512 + 512;
            faulty.add(Fault::FailRange { op: OpKind::Read, range, error: Kind::Io });
            let medium: Arc<dyn Medium> = faulty.clone();
            let options = OpenOptions { read_only, ..options(3, 4) };
            let disk = open_with(&medium, &params, depth + 1, options)
                .unwrap_or_else(|e| panic!("{bad:?}, depth {depth}: {e}"));
            let mut damaged = 0;
            for (level, model) in disk.levels().iter().zip(&models) {
                let lost = lost_blocks(level, model);
                damaged += usize::from(lost > 0);
                lost_at_all += lost;
                if !read_only {
                    level.write(BlockAddr(0), &[7; BLOCK_SIZE]).unwrap();
                }
            }
            assert!(damaged <= 1, "{bad:?}, depth {depth}: {damaged} levels lost something");
            if read_only {
                disk.close().unwrap();
            } else {
                (0..40).for_each(|_| disk.refresh().unwrap());
                disk.close().unwrap();
            }
        }
    }
    assert!(lost_at_all > 20, "{lost_at_all} blocks were ever lost");
}

/// A closed disk of three levels, all blocks written: its medium, models and last batch.
fn closed_disk_of_three_levels(params: &Params) -> (Vec<u8>, Vec<DiskModel>, u64) {
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, params, 3, 1).unwrap();
    let disk = open(&medium, params, 3, 1).unwrap();
    let levels = disk.levels();
    let mut models = models(&disk);
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    for (level, model) in levels.iter().zip(&mut models) {
        let blocks = model.blocks();
        let mut worked = DiskWorkload { disk: &**level, model, rng: &mut rng, next_stamp: &mut next_stamp };
        worked.write_at(0, blocks).unwrap();
        if level.level() > 0 {
            flush_hidden(&disk, level).unwrap();
        }
    }
    disk.close().unwrap();
    let last = counter(&levels[0], "last_batch");
    (memory.snapshot(), models, last)
}

#[test]
fn a_bad_sector_under_metadata_stops_no_writes() {
    let params = params();
    let regions = Regions::of(&params);
    let (bytes, models, _) = closed_disk_of_three_levels(&params);
    let at = regions.meta(0).start as u64;
    let pages = BadPageMedium {
        medium: Arc::new(MemoryMedium::from_bytes(bytes)),
        bad: std::sync::Mutex::new(at..at + 512),
    };
    let pages = Arc::new(pages);
    let medium: Arc<dyn Medium> = pages.clone();
    let disk = open(&medium, &params, 3, 3).unwrap();
    (0..100).for_each(|_| disk.refresh().unwrap());
    disk.close().unwrap();
    assert!(pages.bad.lock().unwrap().is_empty(), "the page was written whole");
    let disk = open(&medium, &params, 3, 4).unwrap();
    let lost: usize = disk.levels().iter().zip(&models).map(|(level, model)| lost_blocks(level, model)).sum();
    assert!(lost <= 8, "{lost} blocks for eight cells");
}
