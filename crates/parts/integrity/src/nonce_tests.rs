//! No nonce and no tweak is used for two block encryptions.

#[path = "../tests/fixture/mod.rs"]
mod fixture;

use crate::nonce_log;
use fixture::{CHOICES, FileHarness, FileModel, FileStep};
use lacuna_contracts::Budget;
use lacuna_sim::Rng;
use std::collections::HashSet;

#[test]
fn no_nonce_and_no_tweak_is_used_twice() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let choice = CHOICES[(seed % 5) as usize];
        let (mut harness, mut model) =
            (FileHarness::new(choice, 128, Budget::bytes(0)), FileModel::default());
        let mut committed = harness.us.stored.lock().clone();
        nonce_log::start();
        for _ in 0..300 {
            let step = FileStep::random(&mut rng, &model, 40, 128);
            harness.step(&step).unwrap();
            if !harness.file.is_dirty() {
                committed = harness.us.stored.lock().clone();
            }
            if rng.chance(1, 20) {
                // A crash loses all uncommitted changes, and the next opening draws another
                // session.
                *harness.us.stored.lock() = committed.clone();
                harness.reopen(false).unwrap();
            }
            model.blocks = harness.file.blocks();
        }
        let (mut uses, all) = (HashSet::new(), nonce_log::take());
        assert!(seed % 5 == 3 || all.len() > 300);
        for (vector, block, _) in all {
            assert!(
                uses.insert(vector),
                "seed {seed}: block {block} was encrypted twice under one key and nonce, or tweak"
            );
        }
    }
}
