//! Power cuts after every operation of the folder, in workloads of files, names and syncs: after
//! the cut there is the whole vault as it was after the last sync, or after some operation since,
//! and nothing looks like tampering.
//!
//! `LACUNA_CUTS` sets the number of cuts (default 200), `LACUNA_SEED` the first seed.

mod vault_harness;

use lacuna_contracts::Kind;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::{CrashFolder, Rng, env_number};
use lacuna_vault::Vault;
use vault_harness::VaultHarness;
use vault_harness::dump::{assert_same, digest, of_model, of_vault};
use vault_harness::model::FsModel;
use vault_harness::ops::{StepResult, step};
use vault_harness::states::States;

const CHOICES: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];
/// Operations of a workload after its start.
const STEPS: u64 = 60;

/// Does random operations until the power is cut. Returns whether it was.
fn work(states: &mut States, vault: &Vault, rng: &mut Rng, folder: &CrashFolder) -> bool {
    for _ in 0..STEPS {
        let done = step(vault, &mut states.model, rng, 60);
        if folder.is_cut() {
            // The interrupted operation may have been completed.
            states.since.push(states.model.clone());
            return true;
        }
        assert!(matches!(done, StepResult::Same | StepResult::Durable), "a failure without a cut");
        states.note_step(&done);
    }
    false
}

/// A workload with a cut after `cut` operations of the folder, then a cut during or after the next
/// opening, then an orderly close. Returns a digest of the run, and whether the first cut came.
fn run(seed: u64, cut: u64, choice: Choice) -> (u64, bool) {
    let context = format!("seed {seed}, cut after {cut} operations, {}", choice.name());
    let mut world = VaultHarness::new(seed);
    let mut rng = Rng::new(seed);
    let vault = world.create(choice);
    let mut states = States::new(FsModel::default());
    world.folder.cut_after(cut);
    let came = work(&mut states, &vault, &mut rng, &world.folder);
    drop(vault);
    let mut rng = Rng::new(seed ^ cut.rotate_left(32));
    for again in 0..3 {
        world.folder.cut_now();
        let image = world.folder.after_cut(&mut rng);
        world.folder = CrashFolder::from_image(&image);
        // Failures by the power cut are no findings.
        world.log.lock().clear();
        // Also cuts the second opening, or operations soon after it.
        if again < 2 {
            world.folder.cut_after(rng.below(40));
        }
        let vault = match world.open() {
            Ok(vault) => vault,
            Err(e) => {
                assert!(world.folder.is_cut() && e.kind() == Kind::Io, "{context}: {e}");
                continue;
            }
        };
        if world.folder.is_cut() {
            continue;
        }
        states.recover(&vault, &context);
        if !work(&mut states, &vault, &mut rng, &world.folder) {
            world.folder.cut_after(u64::MAX);
            // Everything verifies, and an orderly close keeps everything.
            let report = vault.check(&mut |_, _| ()).unwrap();
            assert!(report.bad.is_empty(), "{context}: {:?}", report.bad);
            vault.close().unwrap();
            drop(vault);
            let vault = world.open_with(|options| options.read_only = true).unwrap();
            assert_same(&of_vault(&vault), &of_model(&states.model.reopened()), &context);
            break;
        }
    }
    assert!(world.log.lock().is_empty(), "{context}: {:?}", world.log.lock());
    (world.folder.digest(), came)
}

#[test]
fn every_power_cut_leaves_a_state_since_the_last_sync() {
    let (mut cuts, first) = (env_number("LACUNA_CUTS", 200), env_number("LACUNA_SEED", 1));
    let (mut seed, mut all) = (first, 0u64);
    while cuts > 0 {
        let choice = CHOICES[seed as usize % CHOICES.len()];
        // Cuts after every operation in turn, starting at a random one; the end of the workload
        // starts another.
        let from = Rng::new(seed).below(30);
        for cut in from.. {
            let (digest, came) = run(seed, cut, choice);
            all = all.rotate_left(7) ^ digest;
            cuts -= 1;
            if !came || cuts == 0 || cut > from + 40 {
                break;
            }
        }
        seed += 1;
    }
    println!("seeds {first} to {}, digest {all:016x}", seed - 1);
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let once = || [3, 17, 40].map(|cut| run(7, cut, Choice::Auto).0);
    assert_eq!(once(), once());
    assert_ne!(digest(&[1]), digest(&[2]));
}

#[test]
#[should_panic(expected = "seed")]
fn a_folder_that_ignores_syncs_is_detected() {
    for seed in 0..200 {
        let mut world = VaultHarness::new(seed);
        world.folder.ignore_syncs(true);
        let mut rng = Rng::new(seed);
        let vault = world.create(Choice::Auto);
        let mut states = States::new(FsModel::default());
        work(&mut states, &vault, &mut rng, &world.folder);
        vault.sync().unwrap();
        drop(vault);
        states.since = vec![states.model.clone()];
        world.folder.cut_now();
        let image = world.folder.after_cut(&mut rng);
        world.folder = CrashFolder::from_image(&image);
        let vault = world.open().unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        states.recover(&vault, &format!("seed {seed}"));
    }
}
