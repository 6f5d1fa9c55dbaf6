//! Power cuts: a model beside each level of a disk, on a medium that loses, reorders and tears what was not synced.
//!
//! A round runs random operations on three levels until the power goes after a random number of medium operations,
//! opens what the medium kept (power may go again meanwhile), and compares every block of every level with its model: it
//! must read as its last flushed version or any later acknowledged one. Rounds continue on the same medium.
//!
//! It does so on a disk whose maps are one page each, on one whose maps have more leaves than memory holds, on one with
//! its threads, where the same seed is not the same run, and on one whose medium fails to read at times.
//!
//! `LACUNA_CUTS` sets the cuts (default 500; with threads 250; of the larger disk and the failing one a fifth), `LACUNA_SEED` the seed.

mod fixture;

use fixture::{Model, Worked, create, flush_hidden, models, open_with, options, params};
use lacuna_core::{Budget, Disk, Error, Kind, Result};
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use lacuna_oblivious::{LevelDisk, Levels, Oblivious, OpenOptions, Params, Plan};
use lacuna_sim::{CrashMedium, Image, Rng};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Levels that are open.
const LEVELS: usize = 3;

/// A medium that fails to read now and then, and gives what it has when it is asked again.
struct Flaky {
    medium: Arc<dyn Medium>,
    rng: Mutex<Rng>,
}

impl Medium for Flaky {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        if self.rng.lock().unwrap().chance(1, 100) {
            return Err(Error::new(Kind::Io, "not now"));
        }
        self.medium.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.medium.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.medium.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.medium.set_len(len)
    }
}

/// A medium that sometimes hesitates around what it does, so that other threads come first.
struct Hesitant {
    medium: Arc<dyn Medium>,
    rng: Mutex<Rng>,
}

impl Hesitant {
    fn hesitate(&self) {
        let micros = {
            let mut rng = self.rng.lock().unwrap();
            if rng.chance(1, 3) { rng.below(300) } else { 0 }
        };
        if micros > 0 {
            std::thread::sleep(Duration::from_micros(micros));
        }
    }
}

impl Medium for Hesitant {
    fn len(&self) -> u64 {
        self.medium.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.medium.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.hesitate();
        self.medium.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.hesitate();
        let synced = self.medium.sync();
        // What others write now is not durable.
        self.hesitate();
        synced
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.medium.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.medium.set_len(len)
    }
}

struct Outcome {
    digest: u64,
    rounds: u64,
    violation: Option<String>,
}

/// A kind of disk, and how it is used.
struct Scene {
    params: Params,
    budget: Budget,
    /// All levels are written all over before the first round.
    filled: bool,
    /// Parts of the ring are synced and written in place while the next are written.
    threads: bool,
    /// Reads fail at times.
    flaky: bool,
    /// Operations of a session, at most.
    operations: u64,
    /// Operations of the medium before the power goes, at most.
    medium_operations: u64,
}

impl Scene {
    /// Maps of one page each.
    fn small() -> Scene {
        Scene {
            params: params(),
            budget: Budget::bytes(16 << 20),
            filled: false,
            threads: false,
            flaky: false,
            operations: 240,
            medium_operations: 700,
        }
    }

    /// Maps of more leaves than memory holds, so that pages are written, leave memory and are read again in every session.
    fn with_larger_maps() -> Scene {
        Scene {
            params: Params::plan(64 << 20, Plan { operations: 6, ..Plan::DEFAULT }).unwrap(),
            budget: Budget::bytes(64 << 10),
            filled: true,
            threads: false,
            flaky: false,
            operations: 80,
            medium_operations: 400,
        }
    }

    /// Operations enough for the ring to go round, and nobody waits for the clock.
    fn with_threads() -> Scene {
        let plan = Plan { cover_millis: 0, ..params().plan };
        Scene {
            params: Params::plan(params().medium_len(), plan).unwrap(),
            threads: true,
            medium_operations: 1500,
            operations: 480,
            ..Scene::small()
        }
    }

    fn open(&self, medium: &Arc<dyn Medium>, seed: u64, flaky: bool) -> Result<Arc<Oblivious>> {
        let options =
            OpenOptions { budget: self.budget, background: self.threads, ..options(seed, seed + (1 << 40)) };
        let (mut medium, rng) = (Arc::clone(medium), || Mutex::new(Rng::new(seed)));
        if self.threads {
            medium = Arc::new(Hesitant { medium, rng: rng() });
        }
        if flaky {
            medium = Arc::new(Flaky { medium, rng: rng() });
        }
        open_with(&medium, &self.params, LEVELS, options)
    }

    fn fill(&self, medium: &Arc<dyn Medium>, models: &mut [Model], rng: &mut Rng, next_stamp: &mut u64) {
        let disk = self.open(medium, 0, false).unwrap();
        let levels = disk.levels();
        for (level, model) in levels.iter().zip(models.iter_mut()) {
            for at in 0..model.blocks() {
                write_one(&disk, &mut Worked { disk: &**level, model, rng, next_stamp }, at).unwrap();
            }
        }
        levels[1..].iter().for_each(|level| flush_hidden(&disk, level).unwrap());
        models.iter_mut().for_each(Model::flushed);
        disk.close().unwrap();
    }
}

struct Round<'a> {
    disk: &'a Arc<Oblivious>,
    levels: &'a [Arc<LevelDisk>],
    models: &'a mut [Model],
    rng: &'a mut Rng,
    next_stamp: &'a mut u64,
}

impl Round<'_> {
    fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            if self.step().is_err() {
                return;
            }
        }
        let flushed = |level: &Arc<LevelDisk>| flush_hidden(self.disk, level).is_ok();
        if self.rng.chance(1, 2) && self.levels[1..].iter().all(flushed) {
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
                write(self.disk, &mut worked, count)
            }
            60..64 => {
                let count = (10 + worked.rng.below(60)).min(worked.model.blocks());
                write(self.disk, &mut worked, count)
            }
            64..70 => {
                let count = (1 + worked.rng.below(30)).min(worked.model.blocks());
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
                let count = (1 + worked.rng.below(50)).min(worked.model.blocks());
                worked.compare(count)
            }
        }
    }
}

/// Writes blocks somewhere. If the queue of the level has no room for all of them, one by one, and the paced clock beats
/// meanwhile: a write that was refused may have happened or not, and what is read next could not be compared.
fn write(disk: &Oblivious, worked: &mut Worked, count: u64) -> Result<()> {
    let first = worked.first(count);
    match worked.write_at(first, count) {
        Err(e) if e.kind() == Kind::NoCover => {}
        done => return done,
    }
    (first..first + count).try_for_each(|block| write_one(disk, worked, block))
}

fn write_one(disk: &Oblivious, worked: &mut Worked, block: u64) -> Result<()> {
    loop {
        match worked.write_at(block, 1) {
            Err(e) if e.kind() == Kind::NoCover => disk.refresh()?,
            done => return done,
        }
    }
}

fn verdict(
    image: &Image,
    scene: &Scene,
    models: &mut [Model],
    seed: u64,
) -> std::result::Result<Image, String> {
    let after = Arc::new(CrashMedium::from_image(image.clone()));
    let medium: Arc<dyn Medium> = after.clone();
    let disk = scene.open(&medium, seed, false).map_err(|e| format!("does not open: {e}"))?;
    for (level, model) in disk.levels().iter().zip(models) {
        model.compare(&**level)?;
    }
    Ok(after.image())
}

fn simulate(scene: &Scene, seed: u64, cuts: u64, lie: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let params = &scene.params;
    let first = Arc::new(CrashMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = first.clone();
    create(&medium, params, LEVELS, seed).unwrap();
    let mut models = models(&fixture::open(&medium, params, LEVELS, seed).unwrap());
    let (mut next_stamp, mut digest, mut in_flight, mut rounds) = (0, 0u64, 0, 0);
    if scene.filled {
        scene.fill(&medium, &mut models, &mut rng, &mut next_stamp);
    }
    let mut image = first.image();
    while in_flight < cuts {
        rounds += 1;
        let crashing = Arc::new(CrashMedium::from_image(image.clone()));
        crashing.ignore_syncs(lie);
        crashing.cut_after(if rng.chance(1, 8) { rng.below(40) } else { rng.below(scene.medium_operations) });
        let medium: Arc<dyn Medium> = crashing.clone();
        if let Ok(disk) = scene.open(&medium, rng.next_u64() >> 8, scene.flaky) {
            let operations = scene.operations / 6 + rng.below(scene.operations * 5 / 6);
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
        match verdict(&image, scene, &mut models, rng.next_u64() >> 8) {
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

fn no_cut_may_lose_anything(scene: &Scene, cuts: u64) {
    let seed = env("LACUNA_SEED", 1);
    let outcome = simulate(scene, seed, cuts, false);
    println!("{cuts} cuts in {} rounds, seed {seed}, digest {:016x}", outcome.rounds, outcome.digest);
    if let Some(violation) = outcome.violation {
        panic!("{violation}");
    }
}

#[test]
fn no_cut_loses_anything_of_any_level() {
    no_cut_may_lose_anything(&Scene::small(), env("LACUNA_CUTS", 500));
}

#[test]
fn no_cut_loses_anything_of_maps_larger_than_memory() {
    let scene = Scene::with_larger_maps();
    assert!(scene.params.blocks > 4 * 512, "or memory holds all leaves of a map");
    no_cut_may_lose_anything(&scene, env("LACUNA_CUTS", 500) / 5);
}

#[test]
fn no_cut_loses_anything_while_threads_bring_parts_home() {
    no_cut_may_lose_anything(&Scene::with_threads(), env("LACUNA_CUTS", 250));
}

#[test]
fn no_cut_loses_anything_where_reads_fail_at_times() {
    for threads in [false, true] {
        let scene = if threads { Scene::with_threads() } else { Scene::small() };
        no_cut_may_lose_anything(&Scene { flaky: true, ..scene }, env("LACUNA_CUTS", 500) / 5);
    }
}

/// The proof that the harness bites: a medium whose syncs do nothing loses data, and is caught.
#[test]
fn a_missing_sync_is_caught() {
    let outcome = simulate(&Scene::small(), 1, 100, true);
    println!("caught: {}", outcome.violation.expect("lost writes must be noticed"));
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let digest = |seed| simulate(&Scene::small(), seed, 10, false).digest;
    assert_eq!(digest(9), digest(9));
    assert_ne!(digest(9), digest(10));
}
