//! An adversary with many snapshots and no key: the changes between two snapshots reveal public
//! activity alone. Two known distinguishers, against a busy hidden level and against none.

mod fixture;

use fixture::{create, open_with, options, params};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::Rng;
use std::sync::Arc;

const IMAGES: usize = 24;

/// Snapshots of a disk between bursts of public writes, with or without hidden writes. Public
/// activity is the same in both.
fn images(seed: u64, hidden: bool) -> Vec<Vec<u8>> {
    let params = params();
    let memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, seed).unwrap();
    let disk = open_with(&medium, &params, 2, options(seed, seed ^ u64::from(hidden) << 50)).unwrap();
    let levels = disk.levels();
    let (mut public, mut secret) = (Rng::new(seed), Rng::new(!seed));
    let mut taken = vec![memory.snapshot()];
    for _ in 1..IMAGES {
        for _ in 0..10 + public.below(20) {
            let data = public.bytes(BLOCK_SIZE);
            levels[0].write(BlockAddr(public.below(params.blocks)), &data).unwrap();
            if hidden {
                let data = secret.bytes(BLOCK_SIZE);
                levels[1].write(BlockAddr(secret.below(levels[1].blocks())), &data).unwrap();
            }
        }
        levels[0].flush().unwrap();
        taken.push(memory.snapshot());
    }
    taken
}

/// Lengths of runs of changed blocks between one snapshot and the next.
fn runs(images: &[Vec<u8>]) -> Vec<usize> {
    let mut found = Vec::new();
    for pair in images.windows(2) {
        let blocks = pair[0].chunks(BLOCK_SIZE).zip(pair[1].chunks(BLOCK_SIZE));
        let mut run = 0;
        for changed in blocks.map(|(one, other)| one != other).chain([false]) {
            if changed {
                run += 1;
            } else if run > 0 {
                found.push(std::mem::take(&mut run));
            }
        }
    }
    found
}

/// Chi-square of the bytes of the blocks that changed, over all snapshots: 255 degrees of freedom.
fn chi_square(images: &[Vec<u8>]) -> f64 {
    let mut counts = [0u64; 256];
    for pair in images.windows(2) {
        for (one, other) in pair[0].chunks(BLOCK_SIZE).zip(pair[1].chunks(BLOCK_SIZE)) {
            if one != other {
                other.iter().for_each(|&b| counts[usize::from(b)] += 1);
            }
        }
    }
    let expected = counts.iter().sum::<u64>() as f64 / 256.0;
    counts.iter().map(|&n| (n as f64 - expected).powi(2) / expected).sum()
}

#[test]
fn runs_of_changed_blocks_are_the_same_with_and_without_hidden_writes() {
    for seed in 1..=20 {
        assert_eq!(runs(&images(seed, false)), runs(&images(seed, true)), "seed {seed}");
    }
}

#[test]
fn changed_blocks_are_noise_with_and_without_hidden_writes() {
    // Guessing "hidden" where the statistic is the larger one must be right about half of the time.
    let rounds = 40;
    let mut larger = 0;
    for seed in 100..100 + rounds {
        let [without, with] = [false, true].map(|hidden| chi_square(&images(seed, hidden)));
        for statistic in [without, with] {
            assert!((120.0..392.0).contains(&statistic), "seed {seed}: chi-square {statistic}");
        }
        larger += u64::from(with > without);
    }
    // Four standard deviations of a fair coin.
    assert!((8..=32).contains(&larger), "{larger} of {rounds}");
}
