//! Power cuts: the real disk is compared with a model, on a medium that loses, reorders and tears
//! unsynced writes.
//!
//! A round runs random operations until the power fails after a random number of medium operations,
//! opens the remaining medium (the power may fail again during recovery), and compares every block
//! with the model: it must read as its last flushed version or any later acknowledged one. Rounds
//! continue on the same medium.
//!
//! `LACUNA_CUTS` is the number of cuts per cipher (default 200), `LACUNA_SEED` the seed.

mod fixture;

use fixture::random_work::{BLOCKS, RandomWork};
use fixture::{create, open_with, options, params};
use lacuna_contracts::Result;
use lacuna_crypto::Cipher;
use lacuna_medium::Medium;
use lacuna_sealed::{OpenOptions, Params, SealedDisk};
use lacuna_sim::cuts::{CutOutcome, Cuts, assert_seed_determines_run};
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{CrashMedium, InterceptedMedium, MediumImage, MediumInterceptor, Rng, env_number};
use std::sync::Arc;

/// Gives a medium a second handle, so that a thread makes checkpoints beside commits.
struct SecondHandle(Arc<CrashMedium>);

impl MediumInterceptor for SecondHandle {
    fn inner(&self) -> &dyn Medium {
        &*self.0
    }

    fn reopened(&self) -> Result<Option<Arc<dyn Medium>>> {
        Ok(Some(Arc::new(InterceptedMedium(SecondHandle(self.0.clone())))))
    }
}

/// A simulation.
#[derive(Clone, Copy)]
struct Simulation {
    cipher: Cipher,
    /// Whether syncs do nothing.
    lie: bool,
    /// Whether the disk has its threads, which end recovery and make checkpoints while the disk is
    /// in use. The same seed then does not repeat a run.
    background: bool,
}

fn simulate(cipher: Cipher, seed: u64, cuts: u64, lie: bool) -> CutOutcome {
    Simulation { cipher, lie, background: false }.run(seed, cuts)
}

impl Simulation {
    fn open(&self, medium: &Arc<CrashMedium>, params: &Params, seed: u64) -> Result<SealedDisk> {
        let options = OpenOptions { background: self.background, ..options(seed) };
        open_with(Arc::new(InterceptedMedium(SecondHandle(medium.clone()))), params, options)
    }

    fn run(&self, seed: u64, cuts: u64) -> CutOutcome {
        let mut rng = Rng::new(seed);
        // A fixed medium, so that the map is as small as the disk.
        let params = params(self.cipher, BLOCKS);
        let medium = CrashMedium::new(params.geometry().end());
        create(&medium, &params);
        let mut image: MediumImage = medium.image();
        let mut model = DiskModel::new("the disk", BLOCKS);
        let (mut next_stamp, mut power) = (0, Cuts::default());
        while power.cuts_during_work() < cuts {
            let medium = Arc::new(CrashMedium::from_image(image.clone()));
            medium.ignore_syncs(self.lie);
            medium.ignore_durable_writes(self.lie);
            // Long rounds retire the journal; short ones reach every step of recovery and of a
            // first commit.
            let long = rng.chance(1, 6);
            let limit =
                if rng.chance(1, 8) { rng.below(20) } else { rng.below(if long { 1200 } else { 150 }) };
            medium.cut_after(limit);
            if let Ok(disk) = self.open(&medium, &params, rng.next_u64()) {
                let operations = 40 + rng.below(if long { 180 } else { 100 });
                let (model, rng, next_stamp) = (&mut model, &mut rng, &mut next_stamp);
                RandomWork(DiskWorkload { disk: &disk, model, rng, next_stamp }).run(operations);
            }
            image = power.cut(&medium, &mut rng);
            let after = Arc::new(CrashMedium::from_image(image.clone()));
            let verdict = match self.open(&after, &params, rng.next_u64()) {
                Ok(disk) => model.check_after_cut(&disk),
                Err(e) => Err(format!("does not open: {e}")),
            };
            if let Err(e) = verdict {
                return power.finish(seed, Some(e));
            }
            image = after.image();
        }
        power.finish(seed, None)
    }
}

fn no_cut_loses(cipher: Cipher) {
    let (seed, cuts) = (env_number("LACUNA_SEED", 1), env_number("LACUNA_CUTS", 200));
    let what = format!("{}: ", cipher.name());
    simulate(cipher, seed, cuts, false).assert_nothing_lost(&what, cuts, seed);
}

#[test]
fn no_cut_loses_anything_with_xts() {
    no_cut_loses(Cipher::Xts);
}

#[test]
fn no_cut_loses_anything_with_hctr2() {
    no_cut_loses(Cipher::Hctr2);
}

#[test]
fn no_cut_loses_anything_with_xts_random() {
    no_cut_loses(Cipher::XtsRandom);
}

#[test]
fn no_cut_loses_anything_with_gcm() {
    no_cut_loses(Cipher::Gcm);
}

/// The disk is used while its threads make replayed blocks durable and make checkpoints, and the
/// power is cut then too.
#[test]
fn no_cut_loses_anything_with_threads() {
    for cipher in [Cipher::Xts, Cipher::Gcm] {
        let (seed, cuts) = (env_number("LACUNA_SEED", 1), env_number("LACUNA_CUTS", 200));
        let outcome = Simulation { cipher, lie: false, background: true }.run(seed, cuts).unrepeatable();
        outcome.assert_nothing_lost(&format!("{} with threads: ", cipher.name()), cuts, seed);
    }
}

/// The test harness works: a medium that ignores syncs loses data, and the model notices.
#[test]
fn the_crash_test_detects_a_missing_sync() {
    for cipher in [Cipher::Xts, Cipher::Gcm] {
        simulate(cipher, 1, 100, true).assert_loss_detected();
    }
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    assert_seed_determines_run(|seed| simulate(Cipher::Gcm, seed, 10, false));
}
