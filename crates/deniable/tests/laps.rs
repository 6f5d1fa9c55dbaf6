//! What lasts: both levels under random work for many laps of the log, against a plain model; a hidden level that is
//! left alone while the public one is written ten times over; closing and opening in between.

mod fixture;

use fixture::{Model, Worked, counter, create, flush_hidden, open, params, params_of};
use lacuna_core::{Disk, Kind};
use lacuna_deniable::{Geometry, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::Rng;
use std::sync::Arc;

fn new_disk(params: &Params) -> Arc<dyn Medium> {
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, params, 2, 1).unwrap();
    medium
}

#[test]
fn both_levels_read_like_their_models() {
    for geometry in [Geometry { public: 4, hidden: 4 }, Geometry::PAPER, Geometry { public: 7, hidden: 2 }] {
        let params = params_of(geometry, 128);
        let medium = new_disk(&params);
        let mut rng = Rng::new(7);
        let mut models = [Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks)];
        let mut next_stamp = 0;
        for session in 0..12 {
            let disk = open(&medium, &params, 2, session).unwrap();
            let levels = disk.levels();
            for (level, model) in levels.iter().zip(&models) {
                model.check_latest(&**level);
            }
            for _ in 0..150 {
                let at = rng.below(2) as usize;
                let mut worked = Worked {
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
                    _ => worked.compare(count),
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
    let mut models = [Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks)];
    let mut next_stamp = 0;
    for level in [1, 0] {
        let model = &mut models[level];
        let blocks = model.blocks();
        Worked { disk: &*levels[level], model, rng: &mut rng, next_stamp: &mut next_stamp }
            .write_at(0, blocks)
            .unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    for lap in 1..=11 {
        while counter(&levels[0], "head") < lap * params.stripes {
            let model = &mut models[0];
            Worked { disk: &*levels[0], model, rng: &mut rng, next_stamp: &mut next_stamp }.write(3).unwrap();
        }
        models[1].check_latest(&*levels[1]);
    }
    models[0].check_latest(&*levels[0]);
    disk.close().unwrap();
    drop((levels, disk));
    // A level that is not opened does not hinder those above it, and opens again.
    let alone = open(&medium, &params, 1, 4).unwrap();
    models[0].check_latest(&*alone.levels()[0]);
    drop(alone);
    let again = open(&medium, &params, 2, 5).unwrap();
    models[1].check_latest(&*again.levels()[1]);
}

/// A stream of writes must not leave a stretch of the log in which nothing new has room.
#[test]
fn a_filled_hidden_level_takes_new_blocks_at_once() {
    let params = params_of(lacuna_deniable::Geometry { public: 8, hidden: 31 }, 240);
    let medium = new_disk(&params);
    let disk = open(&medium, &params, 2, 3).unwrap();
    let hidden = &disk.levels()[1];
    let block = vec![7; lacuna_core::BLOCK_SIZE];
    let write = |first: u64, count: u64| {
        for addr in first..first + count {
            while hidden.write(lacuna_core::BlockAddr(addr), &block).is_err() {
                disk.refresh().unwrap();
            }
        }
    };
    let full = params.hidden_blocks * 3 / 4;
    write(0, full);
    flush_hidden(&disk, hidden).unwrap();
    let mut next = full;
    for round in 0..3 {
        write(0, full / 3);
        flush_hidden(&disk, hidden).unwrap();
        // A few that are new at each place of the ring, in turns with old ones.
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

#[test]
fn a_full_hidden_level_says_so_and_takes_overwrites() {
    let params = params();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, &params, 3, 1).unwrap();
    let disk = open(&medium, &params, 3, 2).unwrap();
    let levels = disk.levels();
    let block = vec![7; lacuna_core::BLOCK_SIZE];
    let fill = |level: usize| {
        for addr in 0..params.hidden_blocks {
            match levels[level].write(lacuna_core::BlockAddr(addr), &block) {
                Ok(()) => {}
                Err(e) => {
                    assert_eq!(e.kind(), Kind::NoSpace);
                    return addr;
                }
            }
            if addr % 4 == 0 {
                disk.refresh().unwrap();
            }
        }
        params.hidden_blocks
    };
    let half = params.hidden_blocks / 2;
    for addr in 0..half {
        levels[1].write(lacuna_core::BlockAddr(addr), &block).unwrap();
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    let deepest = fill(2);
    assert!(deepest > half / 2 && deepest < params.hidden_blocks, "{deepest} of {}", params.hidden_blocks);
    // What the deepest was refused, a level above still has.
    levels[1].write(lacuna_core::BlockAddr(half), &block).unwrap();
    levels[2].write(lacuna_core::BlockAddr(0), &block).unwrap();
    flush_hidden(&disk, &levels[2]).unwrap();
}
