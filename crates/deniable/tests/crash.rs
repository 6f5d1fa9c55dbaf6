//! Power cuts: a model beside each level of a disk, on a medium that loses, reorders and tears what was not synced.
//!
//! A round runs random operations on both levels until the power goes after a random number of medium operations,
//! opens what the medium kept (power may go again meanwhile), and compares every block of both levels with its model: it
//! must read as its last flushed version or any later acknowledged one. Rounds continue on the same medium.
//!
//! `LACUNA_CUTS` sets the cuts (default 500), `LACUNA_SEED` the seed.

mod fixture;

use fixture::{Model, Worked, create, flush_hidden, open, params};
use lacuna_core::{Disk, Kind, Result};
use lacuna_deniable::{Deniable, LevelDisk, Params};
use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Image, Rng};
use std::sync::Arc;

struct Outcome {
    digest: u64,
    rounds: u64,
    violation: Option<String>,
}

struct Round<'a> {
    disk: &'a Arc<Deniable>,
    levels: &'a [Arc<LevelDisk>],
    models: &'a mut [Model],
    rng: &'a mut Rng,
    next_stamp: &'a mut u64,
}

impl Round<'_> {
    fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            match self.step() {
                // The hidden queue is full: the paced clock must beat first.
                Err(e) if e.kind() == Kind::NoCover => {}
                Err(_) => return,
                Ok(()) => {}
            }
        }
        if self.rng.chance(1, 2) && flush_hidden(self.disk, &self.levels[1]).is_ok() {
            self.models.iter_mut().for_each(Model::flushed);
            let _cut = self.disk.close();
        }
    }

    fn step(&mut self) -> Result<()> {
        let level = self.rng.below(2) as usize;
        let choice = self.rng.below(100);
        let Round { levels, models, rng, next_stamp, .. } = self;
        let disk = &levels[level];
        let mut worked = Worked { disk: &**disk, model: &mut models[level], rng, next_stamp };
        match choice {
            0..60 => {
                let count = 1 + worked.rng.below(5);
                worked.write(count)
            }
            60..64 => {
                let count = 10 + worked.rng.below(60);
                worked.write(count)
            }
            64..70 => {
                let count = 1 + worked.rng.below(30);
                worked.discard(count)
            }
            70..80 if level == 0 => {
                disk.flush()?;
                models[0].flushed();
                Ok(())
            }
            70..74 => {
                flush_hidden(self.disk, &self.levels[1])?;
                self.models[1].flushed();
                // Whatever made hidden data durable made the public data before it durable as well.
                self.models[0].flushed();
                Ok(())
            }
            74..80 => {
                self.disk.refresh()?;
                self.models[0].flushed();
                Ok(())
            }
            _ => {
                let count = 1 + worked.rng.below(50);
                worked.compare(count)
            }
        }
    }
}

fn verdict(
    image: &Image,
    params: &Params,
    models: &mut [Model],
    seed: u64,
) -> std::result::Result<Image, String> {
    let after = Arc::new(CrashMedium::from_image(image.clone()));
    let medium: Arc<dyn Medium> = after.clone();
    let disk = open(&medium, params, 2, seed).map_err(|e| format!("does not open: {e}"))?;
    for (level, model) in disk.levels().iter().zip(models) {
        model.compare(&**level)?;
    }
    Ok(after.image())
}

fn simulate(seed: u64, cuts: u64, lie: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let params = params();
    let first = Arc::new(CrashMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = first.clone();
    create(&medium, &params, 2, seed).unwrap();
    let mut image = first.image();
    let mut models =
        vec![Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks * 3 / 4)];
    let (mut next_stamp, mut digest, mut in_flight, mut rounds) = (0, 0u64, 0, 0);
    while in_flight < cuts {
        rounds += 1;
        let crashing = Arc::new(CrashMedium::from_image(image.clone()));
        crashing.ignore_syncs(lie);
        crashing.cut_after(if rng.chance(1, 8) { rng.below(40) } else { rng.below(700) });
        let medium: Arc<dyn Medium> = crashing.clone();
        if let Ok(disk) = open(&medium, &params, 2, rng.next_u64() >> 8) {
            let operations = 40 + rng.below(200);
            let levels = disk.levels();
            Round {
                disk: &disk,
                levels: &levels,
                models: &mut models,
                rng: &mut rng,
                next_stamp: &mut next_stamp,
            }
            .run(operations);
        }
        in_flight += u64::from(crashing.is_cut());
        crashing.cut_now();
        image = crashing.after_cut(&mut rng);
        digest = digest.rotate_left(7) ^ crashing.ops();
        if rounds % 32 == 0 {
            digest ^= crashing.digest();
        }
        match verdict(&image, &params, &mut models, rng.next_u64() >> 8) {
            Ok(found) => image = found,
            Err(e) => {
                let violation = Some(format!("seed {seed}, round {rounds}: {e}"));
                return Outcome { digest, rounds, violation };
            }
        }
    }
    Outcome { digest, rounds, violation: None }
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn no_cut_loses_anything_of_either_level() {
    let (seed, cuts) = (env("LACUNA_SEED", 1), env("LACUNA_CUTS", 500));
    let outcome = simulate(seed, cuts, false);
    println!("{cuts} cuts in {} rounds, seed {seed}, digest {:016x}", outcome.rounds, outcome.digest);
    if let Some(violation) = outcome.violation {
        panic!("{violation}");
    }
}

/// The proof that the harness bites: a medium whose syncs do nothing loses data, and is caught.
#[test]
fn a_missing_sync_is_caught() {
    let outcome = simulate(1, 100, true);
    println!("caught: {}", outcome.violation.expect("lost writes must be noticed"));
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed| simulate(seed, 10, false).digest;
    assert_eq!(digest(9), digest(9));
    assert_ne!(digest(9), digest(10));
}
