//! Maps of more leaves than memory holds: what changed of those that left memory is not forgotten, neither while the disk is
//! open nor by whoever opens what was flushed.

mod fixture;

use fixture::{Model, Worked, counter, create, flush_hidden, open_with, options};
use lacuna_core::{Budget, Disk};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Oblivious, Params, Plan};
use lacuna_sim::Rng;
use std::sync::Arc;

/// Leaves of 512 blocks: twice as many as a cache may hold.
const LEAVES: u64 = 40;

fn open_small(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> Arc<Oblivious> {
    let options = lacuna_oblivious::OpenOptions { budget: Budget::bytes(320 << 10), ..options(seed, !seed) };
    open_with(medium, params, 2, options).unwrap()
}

#[test]
fn maps_larger_than_memory_read_like_their_models() {
    let params = Params::plan(420 << 20, Plan::DEFAULT).unwrap();
    assert!(params.blocks > LEAVES * 512);
    let mut memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    let mut models = [Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks)];
    for session in 0..3 {
        let medium: Arc<dyn Medium> = memory.clone();
        let disk = open_small(&medium, &params, session);
        let levels = disk.levels();
        for (level, model) in levels.iter().zip(&mut models) {
            model.compare(&**level).unwrap();
        }
        for round in 0..12_000u64 {
            let at = usize::from(round % 3 == 2);
            let (rng, next_stamp) = (&mut rng, &mut next_stamp);
            let mut worked = Worked { disk: &*levels[at], model: &mut models[at], rng, next_stamp };
            match round % 100 {
                7 => worked.discard(700).unwrap(),
                8..30 => worked.compare(3).unwrap(),
                _ => worked.write(1).unwrap(),
            }
        }
        levels[0].flush().unwrap();
        flush_hidden(&disk, &levels[1]).unwrap();
        models.iter_mut().for_each(Model::flushed);
        assert!(
            counter(&levels[0], "map_pages_waiting") > 16,
            "or nothing has left memory before it was written"
        );
        // The power goes.
        memory = Arc::new(MemoryMedium::from_bytes(memory.snapshot()));
    }
}
