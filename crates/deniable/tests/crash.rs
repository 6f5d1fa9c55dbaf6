//! Power cuts: a model beside each of three levels of a disk, on a medium that loses, reorders and tears what was not
//! synced.
//!
//! A round runs random operations on all levels until the power goes after a random number of medium operations,
//! opens what the medium kept (power may go again meanwhile), and compares every block of every level with its model: it
//! must read as its last flushed version or any later acknowledged one. Rounds continue on the same medium.
//!
//! `LACUNA_CUTS` sets the cuts (default 500, with threads 250), `LACUNA_SEED` the seed.

mod fixture;

use fixture::{Model, Worked, create, flush_hidden, models, open_with, options, params};
use lacuna_core::{Disk, Kind, Result};
use lacuna_deniable::{Deniable, LevelDisk, OpenOptions, Params};
use lacuna_medium::Medium;
use lacuna_sim::{CrashMedium, Image, Rng};
use std::sync::Arc;

/// Level 0 and two hidden ones.
const LEVELS: usize = 3;

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
        if self.rng.chance(1, 2)
            && (1..LEVELS).all(|level| flush_hidden(self.disk, &self.levels[level]).is_ok())
        {
            self.models.iter_mut().for_each(Model::flushed);
            let _cut = self.disk.close();
        }
    }

    fn step(&mut self) -> Result<()> {
        let level = self.rng.below(LEVELS as u64) as usize;
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
                flush_hidden(self.disk, &self.levels[level])?;
                self.models[level].flushed();
                // What made hidden data durable made the public data before it durable as well.
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
    threads: bool,
) -> std::result::Result<Image, String> {
    let after = Arc::new(CrashMedium::from_image(image.clone()));
    let medium: Arc<dyn Medium> = after.clone();
    let disk = open(&medium, params, seed, threads).map_err(|e| format!("does not open: {e}"))?;
    for (level, model) in disk.levels().iter().zip(models) {
        model.compare(&**level)?;
    }
    Ok(after.image())
}

/// Opens all levels of a disk, with its threads or without.
fn open(medium: &Arc<dyn Medium>, params: &Params, seed: u64, threads: bool) -> Result<Arc<Deniable>> {
    let options = OpenOptions { background: threads, ..options(seed, seed + (1 << 40)) };
    open_with(medium, params, LEVELS, options)
}

fn simulate(seed: u64, cuts: u64, lie: bool, threads: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    // With threads the paced clock would beat as well: the rounds beat themselves.
    let params = Params { cover_millis: 0, ..params() };
    let first = Arc::new(CrashMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = first.clone();
    create(&medium, &params, LEVELS, seed).unwrap();
    let mut image = first.image();
    let mut models = models(&params, LEVELS);
    let (mut next_stamp, mut digest, mut in_flight, mut rounds) = (0, 0u64, 0, 0);
    while in_flight < cuts {
        rounds += 1;
        let crashing = Arc::new(CrashMedium::from_image(image.clone()));
        crashing.ignore_syncs(lie);
        crashing.cut_after(if rng.chance(1, 8) { rng.below(40) } else { rng.below(700) });
        let medium: Arc<dyn Medium> = crashing.clone();
        if let Ok(disk) = open(&medium, &params, rng.next_u64() >> 8, threads) {
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
        match verdict(&image, &params, &mut models, rng.next_u64() >> 8, threads) {
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

fn no_cut_may_lose_anything(cuts: u64, threads: bool) {
    let seed = env("LACUNA_SEED", 1);
    let outcome = simulate(seed, cuts, false, threads);
    println!("{cuts} cuts in {} rounds, seed {seed}, digest {:016x}", outcome.rounds, outcome.digest);
    if let Some(violation) = outcome.violation {
        panic!("{violation}");
    }
}

#[test]
fn no_cut_loses_anything_of_any_level() {
    no_cut_may_lose_anything(env("LACUNA_CUTS", 500), false);
}

#[test]
fn no_cut_loses_anything_while_threads_run() {
    no_cut_may_lose_anything(env("LACUNA_CUTS", 250), true);
}

/// The proof that the harness bites: a medium whose syncs do nothing loses data, and is caught.
#[test]
fn a_missing_sync_is_caught() {
    for threads in [false, true] {
        let outcome = simulate(1, 100, true, threads);
        println!("caught: {}", outcome.violation.expect("lost writes must be noticed"));
    }
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed| simulate(seed, 10, false, false).digest;
    assert_eq!(digest(9), digest(9));
    assert_ne!(digest(9), digest(10));
}
