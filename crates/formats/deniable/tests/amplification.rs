//! Write amplification: blocks of the medium for each block written, against Equation 1 of the
//! paper and, for sequential writes, against the bound of the default geometry.

mod fixture;

use fixture::{counter, create, open};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use lacuna_deniable::{Params, StripeGeometry};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::Rng;
use std::sync::Arc;

/// The probability that the next slot holds no valid block, for uniform writes on a share `full` of
/// all slots: the fixed point of Equation 1 with ρ = 1 − `full`.
fn free_slots(full: f64) -> f64 {
    // A slot stays valid for a lap with probability exp(−free / full), which must be 1 − free.
    let (mut low, mut high) = (1e-6, 1.0);
    for _ in 0..200 {
        let free = f64::midpoint(low, high);
        if (-free / full).exp() > 1.0 - free { high = free } else { low = free }
    }
    low
}

/// Medium blocks written for each block written to level 0, over `count` writes after `warm`
/// earlier ones.
fn measure(params: &Params, warm: u64, count: u64, mut next: impl FnMut(u64) -> u64) -> f64 {
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, params, 1, 1).unwrap();
    let disk = open(&medium, params, 1, 2).unwrap();
    let level = &disk.levels()[0];
    let stripes = || counter(level, "stripes_written");
    let block = vec![7; BLOCK_SIZE];
    let mut before = 0;
    for n in 0..warm + count {
        if n == warm {
            before = stripes();
        }
        level.write(BlockAddr(next(n)), &block).unwrap();
    }
    let blocks = 1 + u64::from(params.geometry.public) + u64::from(params.geometry.hidden);
    ((stripes() - before) * blocks) as f64 / count as f64
}

#[test]
fn uniform_writes_match_equation_1() {
    let geometry = StripeGeometry { public: 8, hidden: 8 };
    let stripe = 17 * BLOCK_SIZE as u64;
    for spare in [100, 200, 400] {
        let params = Params::plan((2 << 20) + 1200 * stripe, geometry, spare, 0).unwrap();
        let mut rng = Rng::new(3);
        let blocks = params.blocks;
        let next = |n: u64| if n < blocks { n } else { rng.below(blocks) };
        let measured = measure(&params, 7 * blocks, 3 * blocks, next);
        let live = (params.stripes - u64::from(params.gap)) * 8;
        let full = blocks as f64 / live as f64;
        let predicted = 17.0 / 8.0 / free_slots(full);
        println!("spare {spare}: measured {measured:.3}, predicted {predicted:.3}, full {full:.3}");
        assert!((measured / predicted - 1.0).abs() < 0.1, "{measured} against {predicted}");
    }
}

#[test]
fn sequential_writes_cost_less_than_2_3_blocks() {
    let stripe = 64 * BLOCK_SIZE as u64;
    let params = Params::plan((2 << 20) + 300 * stripe, StripeGeometry::DEFAULT, 200, 0).unwrap();
    let blocks = params.blocks;
    let first = measure(&params, 0, blocks, |n| n);
    let again = measure(&params, 2 * blocks, 2 * blocks, |n| n % blocks);
    println!("first {first:.3}, again {again:.3}");
    assert!(first < 2.3 && again < 2.3, "{first} and {again}");
}
