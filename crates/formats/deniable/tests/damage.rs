//! A medium that was damaged or altered: damaged blocks fail, all other blocks read, nothing old is
//! returned, and nothing panics.

mod fixture;

use fixture::{DiskModel, DiskWorkload, flush_hidden, models, params};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_deniable::{Levels, Params};
use lacuna_sim::Rng;
use lacuna_testkit::levels;
use lacuna_testkit::levels::{FreshDisk, fresh_disk};

const LOG: u64 = (1 << 20) + (256 << 10);

/// A disk with both levels written, closed, and its models; and a snapshot of its medium half way.
fn written(params: &Params, seed: u64) -> (Vec<u8>, Vec<DiskModel>, Vec<u8>) {
    let FreshDisk { memory, disk, levels } = fresh_disk(params, 2, [seed, seed]);
    let mut rng = Rng::new(seed);
    let mut models = models(params, 2);
    let mut next_stamp = 0;
    let mut half_way = Vec::new();
    for round in 0..120 {
        if round == 60 {
            half_way = memory.snapshot();
        }
        for (level, model) in levels.iter().zip(&mut models) {
            let mut worked =
                DiskWorkload { disk: &**level, model, rng: &mut rng, next_stamp: &mut next_stamp };
            worked.write(4).unwrap();
        }
    }
    flush_hidden(&disk, &levels[1]).unwrap();
    disk.close().unwrap();
    models.iter_mut().for_each(DiskModel::record_flush);
    drop((levels, disk));
    (memory.snapshot(), models, half_way)
}

/// Opens a medium and reads every block of both levels: each is right, or fails. Returns the number
/// of failed blocks, or none if the disk does not open.
fn failures(params: &Params, bytes: Vec<u8>, models: &[DiskModel]) -> Option<[u64; 2]> {
    let blocks = [models[0].blocks(), models[1].blocks()];
    levels::failures(params, bytes, blocks, |level, block, stamp| stamp == models[level].latest(block))
}

fn stripe_at(params: &Params, place: u64) -> std::ops::Range<usize> {
    let len = (1 + u64::from(params.geometry.public) + u64::from(params.geometry.hidden)) * BLOCK_SIZE as u64;
    (LOG + place * len) as usize..(LOG + (place + 1) * len) as usize
}

#[test]
fn bit_flips_never_return_wrong_data() {
    let params = params();
    let (bytes, models, _) = written(&params, 1);
    assert_eq!(failures(&params, bytes.clone(), &models), Some([0, 0]));
    let mut rng = Rng::new(2);
    let (mut hit, mut refused) = (0, 0);
    for _ in 0..150 {
        let mut damaged = bytes.clone();
        for _ in 0..3 {
            let at = LOG + rng.below(bytes.len() as u64 - LOG);
            damaged[at as usize] ^= 1 << rng.below(8);
        }
        match failures(&params, damaged, &models) {
            Some([public, hidden]) => hit += u64::from(public + hidden > 0),
            None => refused += 1,
        }
    }
    assert!(hit > 40, "{hit} of 150 were noticed");
    assert!(refused < 10, "{refused} of 150 did not open");
}

#[test]
fn zeroed_swapped_and_replayed_stripes_are_detected() {
    let params = params();
    let (bytes, models, old) = written(&params, 4);
    let mut noticed = 0;
    for place in 0..params.stripes {
        let range = stripe_at(&params, place);
        let other = stripe_at(&params, (place + 17) % params.stripes);
        let mut zeroed = bytes.clone();
        zeroed[range.clone()].fill(0);
        let mut swapped = bytes.clone();
        let (one, two) = (bytes[range.clone()].to_vec(), bytes[other.clone()].to_vec());
        swapped[range.clone()].copy_from_slice(&two);
        swapped[other].copy_from_slice(&one);
        let mut replayed = bytes.clone();
        replayed[range.clone()].copy_from_slice(&old[range]);
        for damaged in [zeroed, swapped, replayed] {
            match failures(&params, damaged, &models) {
                Some([public, hidden]) => noticed += u64::from(public + hidden > 0),
                None => noticed += 1,
            }
        }
    }
    assert!(noticed > params.stripes, "{noticed}");
}

#[test]
fn checkpoints_are_not_needed() {
    let params = params();
    let (bytes, models, _) = written(&params, 6);
    let mut damaged = bytes;
    damaged[1 << 20..(1 << 20) + 2 * BLOCK_SIZE].fill(0x55);
    assert_eq!(failures(&params, damaged, &models), Some([0, 0]));
}
