//! Durability over many laps of the log: both levels under random work against a plain model; a
//! hidden level that is left alone while the public one is written ten times over; closing and
//! opening in between.

mod fixture;

use fixture::{DiskWorkload, counter, create, flush_hidden, models, open, params, params_of};
use lacuna_contracts::{Disk, Kind};
use lacuna_deniable::{Levels, Params, StripeGeometry};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::Rng;
use std::sync::Arc;

fn new_disk(params: &Params) -> Arc<dyn Medium> {
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, params, 2, 1).unwrap();
    medium
}

#[test]
fn both_levels_match_their_models() {
    for geometry in [
        StripeGeometry { public: 4, hidden: 8 },
        StripeGeometry::PAPER,
        StripeGeometry { public: 7, hidden: 2 },
    ] {
        let params = params_of(geometry, 128);
        let medium = new_disk(&params);
        let mut rng = Rng::new(7);
        let mut models = models(&params, 2);
        let mut next_stamp = 0;
        for session in 0..12 {
            let disk = open(&medium, &params, 2, session).unwrap();
            let levels = disk.levels();
            for (level, model) in levels.iter().zip(&models) {
                model.check_latest(&**level);
            }
            for _ in 0..150 {
                let at = rng.below(2) as usize;
                let mut worked = DiskWorkload {
                    disk: &*levels[at],
                    model: &mut models[at],
                    rng: &mut rng,
                    next_stamp: &mut next_stamp,
                };
                let most = worked.model.blocks().min(20);
                let count = 1 + worked.rng.below(most);
                let done = match worked.rng.below(10) {
                    0..6 => worked.write(count),
                    6 => worked.discard(count),
                    _ => worked.check_read(count),
                };
                match done {
                    Err(e) if e.kind() == Kind::NoCover => panic!("the queue of a small disk is never full"),
                    done => done.unwrap(),
                }
                if rng.chance(1, 5) {
                    disk.refresh().unwrap();
                }
            }
            flush_hidden(&disk, &levels[1]).unwrap();
            for (level, model) in levels.iter().zip(&models) {
                model.check_latest(&**level);
            }
            disk.close().unwrap();
        }
    }
}

#[test]
fn hidden_data_outlasts_ten_laps_of_public_writes() {
    let params = params();
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 2, 3).unwrap();
    let levels = disk.levels();
    let mut rng = Rng::new(5);
    let mut models = models(&params, 2);
    let mut next_stamp = 0;
    for level in [1, 0] {
        let model = &mut models[level];
        let blocks = model.blocks();
        let mut worked =
            DiskWorkload { disk: &*levels[level], model, rng: &mut rng, next_stamp: &mut next_stamp };
        for first in (0..blocks).step_by(64) {
            worked.write_at(first, (blocks - first).min(64)).unwrap();
            if level == 1 {
                (0..12).for_each(|_| disk.refresh().unwrap());
            }
        }
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    for lap in 1..=11 {
        while counter(&levels[0], "head") < lap * params.stripes {
            let model = &mut models[0];
            DiskWorkload { disk: &*levels[0], model, rng: &mut rng, next_stamp: &mut next_stamp }
                .write(3)
                .unwrap();
        }
        models[1].check_latest(&*levels[1]);
    }
    models[0].check_latest(&*levels[0]);
    disk.close().unwrap();
    drop((levels, disk));
    // A session without the hidden level works, and the level opens again.
    let alone = open(&medium, &params, 1, 4).unwrap();
    models[0].check_latest(&*alone.levels()[0]);
    drop(alone);
    let again = open(&medium, &params, 2, 5).unwrap();
    models[1].check_latest(&*again.levels()[1]);
}

/// A stream of writes leaves no stretch of the log without room for new blocks.
#[test]
fn a_filled_hidden_level_accepts_new_blocks_at_once() {
    let params = params_of(lacuna_deniable::StripeGeometry { public: 8, hidden: 31 }, 240);
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 2, 3).unwrap();
    let hidden = &disk.levels()[1];
    let block = vec![7; lacuna_contracts::BLOCK_SIZE];
    let write = |first: u64, count: u64| {
        for addr in first..first + count {
            while hidden.write(lacuna_contracts::BlockAddr(addr), &block).is_err() {
                disk.refresh().unwrap();
            }
        }
    };
    let full = hidden.blocks() * 3 / 4;
    write(0, full);
    flush_hidden(&disk, hidden).unwrap();
    let mut next = full;
    for round in 0..3 {
        write(0, full / 3);
        flush_hidden(&disk, hidden).unwrap();
        // A few new blocks at each place of the ring, in turns with old ones.
        for at in 0..80 {
            if at % 2 == 0 {
                write(next, 4);
                next += 4;
            } else {
                write((round * 97 + at * 13) % full, 4);
            }
            let before = counter(hidden, "head");
            flush_hidden(&disk, hidden).unwrap();
            let passed = counter(hidden, "head") - before;
            assert!(passed <= 8, "round {round}, {at}: {passed} stripes for 4 blocks");
        }
    }
}

/// Every level has room of its own: each takes all of its blocks and overwrites of them, however
/// full the other levels are.
#[test]
fn every_level_can_be_filled() {
    let params = params_of(StripeGeometry { public: 8, hidden: 31 }, 256);
    let levels = 1 + usize::from(params.hidden_levels());
    assert_eq!(levels, 4);
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, &params, levels, 1).unwrap();
    let disk = open(&medium, &params, levels, 2).unwrap();
    let all = disk.levels();
    let (mut rng, mut models, mut next_stamp) = (Rng::new(7), models(&params, levels), 0);
    for _ in 0..2 {
        for level in [1, 3, 2, 0] {
            let model = &mut models[level];
            let mut worked =
                DiskWorkload { disk: &*all[level], model, rng: &mut rng, next_stamp: &mut next_stamp };
            for first in (0..worked.model.blocks()).step_by(8) {
                let count = (worked.model.blocks() - first).min(8);
                while let Err(e) = worked.write_at(first, count) {
                    assert_eq!(e.kind(), Kind::NoCover, "level {level}, block {first}");
                    disk.refresh().unwrap();
                }
            }
        }
    }
    all[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
    disk.close().unwrap();
    drop((all, disk));
    let again = open(&medium, &params, levels, 3).unwrap();
    for (level, model) in again.levels().iter().zip(&models) {
        model.check_latest(&**level);
    }
}

/// A level that always has blocks queued starves no other level: each block of another level goes
/// into the next stripe that has room.
#[test]
fn a_streaming_level_does_not_starve_others() {
    let params = params_of(StripeGeometry { public: 8, hidden: 31 }, 256);
    let levels = 1 + usize::from(params.hidden_levels());
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, &params, levels, 1).unwrap();
    let disk = open(&medium, &params, levels, 2).unwrap();
    let all = disk.levels();
    for streams in 1..levels {
        let (mut rng, block) = (Rng::new(streams as u64), vec![7; lacuna_contracts::BLOCK_SIZE]);
        for _ in 0..40 {
            let stream = &all[streams];
            while stream.write(lacuna_contracts::BlockAddr(rng.below(stream.blocks())), &block).is_ok() {}
            for other in (1..levels).filter(|other| *other != streams) {
                let before = counter(&all[0], "head");
                all[other].write(lacuna_contracts::BlockAddr(rng.below(20)), &block).unwrap();
                flush_hidden(&disk, &all[other]).unwrap();
                let passed = counter(&all[0], "head") - before;
                assert!(
                    passed <= 6,
                    "level {streams} streams: {passed} stripes for a block of level {other}"
                );
            }
        }
        while all[streams].flush().is_err() {
            disk.refresh().unwrap();
        }
    }
}
