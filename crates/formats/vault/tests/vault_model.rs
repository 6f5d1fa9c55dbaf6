//! Random operations on a vault and on a plain model of a file system: they agree on every result,
//! error and byte, through any openings and closes.

mod vault_harness;

use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::{Rng, env_number};
use vault_harness::VaultHarness;
use vault_harness::dump::{assert_same, of_model, of_vault};
use vault_harness::model::FsModel;
use vault_harness::ops::{StepResult, step};

/// Steps per run.
const STEPS: u64 = 1500;

fn run(seed: u64, choice: Choice) {
    let mut world = VaultHarness::new(seed);
    let mut rng = Rng::new(seed);
    let mut vault = world.create(choice);
    let mut model = FsModel::default();
    for n in 0..STEPS {
        let done = step(&vault, &mut model, &mut rng, 10);
        assert!(!matches!(done, StepResult::Failed(_) | StepResult::Short), "seed {seed}, step {n}");
        if rng.chance(1, 100) {
            if rng.chance(1, 2) {
                vault.close().unwrap();
            } else {
                vault.sync().unwrap();
            }
            drop(vault);
            vault = world.open().unwrap();
            model = model.reopened();
        }
        if rng.chance(1, 50) {
            assert_same(&of_vault(&vault), &of_model(&model), &format!("seed {seed}, step {n}"));
        }
    }
    let report = vault.check(&mut |_, _| ()).unwrap();
    assert!(report.bad.is_empty(), "seed {seed}: {:?}", report.bad);
    vault.close().unwrap();
    let vault = world.open().unwrap();
    assert_same(&of_vault(&vault), &of_model(&model.reopened()), &format!("seed {seed}, at the end"));
    assert!(world.log.lock().is_empty(), "{:?}", world.log.lock());
}

fn runs(choice: Choice, seeds: std::ops::Range<u64>) {
    let more = env_number("LACUNA_RUNS", 1);
    for seed in seeds.start..seeds.start + (seeds.end - seeds.start) * more {
        run(seed, choice);
    }
}

#[test]
fn auto_agrees_with_the_model() {
    runs(Choice::Auto, 100..106);
}

#[test]
fn mt_agrees_with_the_model() {
    runs(Choice::Fixed(Scheme::Mt), 2000..2004);
}

#[test]
fn rand_agrees_with_the_model() {
    runs(Choice::Fixed(Scheme::Rand), 3000..3004);
}

#[test]
fn comp_agrees_with_the_model() {
    runs(Choice::Fixed(Scheme::Comp), 4000..4004);
}
