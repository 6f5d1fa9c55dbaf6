//! Power cuts after every operation of random workloads on the store alone. After each cut the
//! store opens without an alarm and holds exactly the last commit that returned, or the whole of a
//! commit that was in progress.
//!
//! `LACUNA_CUTS` sets the number of cuts, `LACUNA_SEED` the first seed (default 1).

mod store_harness;

use lacuna_contracts::Kind;
use lacuna_sim::env_number;
use lacuna_vault_store::{Anchor, Store, StoreOptions};
use store_harness::{StoreHarness, keys, options};

/// The result of a run.
struct CrashRun {
    digest: u64,
    cuts: u64,
    /// Cuts during the opening of the store.
    opening: u64,
    violation: Option<String>,
}

/// Cuts the power `cuts` times. `lying` folders sync nothing.
fn play(seed: u64, cuts: u64, lying: bool) -> CrashRun {
    let (mut world, mut store) = StoreHarness::new(seed);
    let mut outcome = CrashRun { digest: seed, cuts: 0, opening: 0, violation: None };
    let mut kept = Vec::new();
    while outcome.cuts < cuts {
        world.folder.ignore_syncs(lying);
        world.folder.cut_after(world.rng.clone().below(250));
        while world.step(&store).is_ok() {}
        assert!(world.folder.is_cut(), "seed {seed}: {:?}", store.failure());
        drop(store);
        outcome.cuts += 1;
        store = loop {
            outcome.digest = outcome.digest.rotate_left(7) ^ world.folder.ops();
            let during = world.rng.chance(1, 3).then(|| world.rng.below(20));
            let image = world.power_up(during);
            world.others.settle();
            outcome.digest ^= image.digest();
            match world.open(&options()) {
                Ok(store) => {
                    kept.push((world.memory.load().unwrap().unwrap().number, image));
                    break store;
                }
                Err(_) if world.folder.is_cut() => {
                    outcome.cuts += 1;
                    outcome.opening += 1;
                }
                Err(e) => {
                    outcome.violation = Some(format!("seed {seed}, cut {}: {e}", outcome.cuts));
                    return outcome;
                }
            }
        };
        older_states_are_refused(&mut world, &mut kept);
    }
    outcome
}

/// Opens an older copy of the folder with today's anchor: it must be refused.
fn older_states_are_refused(world: &mut StoreHarness, kept: &mut Vec<(u64, lacuna_sim::FolderImage)>) {
    if kept.len() > 6 {
        kept.remove(0);
    }
    let today = world.memory.load().unwrap().unwrap().number;
    let (number, image) = world.rng.pick(kept).clone();
    // The copy may hold one commit more than the anchor knew then.
    if number + 1 < today {
        let folder = lacuna_sim::CrashFolder::from_image(&image);
        let base = store_harness::base(&folder, &world.memory, 1);
        let opened = Store::open(base, keys(), &StoreOptions { read_only: true, ..options() });
        let kind = opened.err().map(|e| e.kind());
        assert_eq!(kind, Some(Kind::RolledBack), "seed {}: state {number} instead of {today}", world.seed);
    }
}

#[test]
fn every_power_cut_leaves_a_committed_state() {
    let (cuts, first) = (env_number("LACUNA_CUTS", 240), env_number("LACUNA_SEED", 1));
    let runs = 6;
    let mut opening = 0;
    for seed in first..first + runs {
        let outcome = play(seed, cuts.div_ceil(runs), false);
        println!(
            "{} cuts, {} of them while opening, seed {seed}, digest {:016x}",
            outcome.cuts, outcome.opening, outcome.digest
        );
        opening += outcome.opening;
        assert_eq!(outcome.violation, None);
    }
    assert!(opening > 0);
}

#[test]
fn folders_that_ignore_syncs_are_detected() {
    let caught = (1..=10).filter_map(|seed| play(seed, 20, true).violation).collect::<Vec<_>>();
    println!("{caught:?}");
    assert!(caught.len() > 5);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(play(9, 10, false).digest, play(9, 10, false).digest);
    assert_ne!(play(9, 10, false).digest, play(10, 10, false).digest);
}
