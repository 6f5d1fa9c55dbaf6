//! Power cuts on disks with levels: a model for each level, on a medium that loses, reorders and
//! tears unsynced writes.
//!
//! A round runs random operations on all levels until the power is cut after a random number of
//! medium operations, opens the remaining image (with another possible cut meanwhile), and compares
//! every block of every level with its model: it must read as its last flushed version or any later
//! acknowledged one. Rounds continue on the same medium.

use super::disks::{create, flush_hidden, models, open, open_with, options};
use lacuna_contracts::{Budget, Disk, Kind, Result};
use lacuna_levels::{LevelDisk, LevelFormat, Levels, OpenOptions, level_disks};
use lacuna_medium::Medium;
use lacuna_sim::cuts::{CutOutcome, Cuts};
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{CrashMedium, FlakyMedium, MediumImage, Rng, SlowMedium, env_number};
use std::sync::Arc;

/// The number of open levels: level 0 and two hidden ones.
const LEVELS: usize = 3;

/// The parameters of a disk, and of its workload.
pub struct CrashTest<F> {
    /// The parameters of the disk. Only the rounds beat its paced clock.
    pub params: F,
    /// Memory for its caches.
    pub budget: Budget,
    /// Whether all levels are filled before the first round.
    pub is_filled: bool,
    /// Whether the disk has background threads, on a medium with random delays that reorder
    /// threads. The same seed then does not repeat a run.
    pub has_threads: bool,
    /// Whether some reads fail.
    pub has_read_errors: bool,
    /// The most operations of a session.
    pub operations: u64,
    /// The most medium operations before the power cut.
    pub medium_operations: u64,
    /// The most beats of the paced clock that a flush of a hidden level takes.
    pub beats: u64,
}

impl<F: LevelFormat> CrashTest<F> {
    /// Without threads and without read errors.
    pub fn new(params: F, beats: u64) -> Self {
        CrashTest {
            params,
            budget: Budget::bytes(16 << 20),
            is_filled: false,
            has_threads: false,
            has_read_errors: false,
            operations: 240,
            medium_operations: 700,
            beats,
        }
    }

    fn open(&self, medium: &Arc<dyn Medium>, seed: u64, flaky: bool) -> Result<Arc<F::Disk>> {
        let options = OpenOptions {
            budget: self.budget,
            background: self.has_threads,
            ..options(seed, seed + (1 << 40))
        };
        let mut medium = Arc::clone(medium);
        if self.has_threads {
            medium = SlowMedium::wrap_occasional(medium, seed);
        }
        if flaky {
            medium = FlakyMedium::wrap(medium, seed);
        }
        open_with(&medium, &self.params, LEVELS, options)
    }

    fn fill(&self, medium: &Arc<dyn Medium>, models: &mut [DiskModel], rng: &mut Rng, next_stamp: &mut u64) {
        let disk = self.open(medium, 0, false).unwrap();
        let levels = level_disks(&disk);
        for (level, model) in levels.iter().zip(models.iter_mut()) {
            for at in 0..model.blocks() {
                let mut worked = DiskWorkload { disk: &**level, model, rng, next_stamp };
                retry_with_beats(&*disk, self.beats, || worked.write_at(at, 1)).unwrap();
            }
        }
        levels[1..].iter().for_each(|level| flush_hidden(&*disk, level, self.beats).unwrap());
        models.iter_mut().for_each(DiskModel::record_flush);
        disk.close().unwrap();
    }

    fn check_image(
        &self,
        image: &MediumImage,
        models: &mut [DiskModel],
        seed: u64,
    ) -> std::result::Result<MediumImage, String> {
        let after = Arc::new(CrashMedium::from_image(image.clone()));
        let medium: Arc<dyn Medium> = after.clone();
        let disk = self.open(&medium, seed, false).map_err(|e| format!("does not open: {e}"))?;
        for (level, model) in level_disks(&disk).iter().zip(models) {
            model.check_after_cut(&**level)?;
        }
        Ok(after.image())
    }

    /// Simulates `cuts` power cuts. With `lie`, the medium ignores syncs.
    pub fn simulate(&self, seed: u64, cuts: u64, lie: bool) -> CutOutcome {
        let mut rng = Rng::new(seed);
        let first = Arc::new(CrashMedium::new(self.params.end()));
        let medium: Arc<dyn Medium> = first.clone();
        create(&medium, &self.params, LEVELS, seed).unwrap();
        let mut models = models(&*open(&medium, &self.params, LEVELS, seed).unwrap());
        let (mut next_stamp, mut power) = (0, Cuts::default());
        if self.is_filled {
            self.fill(&medium, &mut models, &mut rng, &mut next_stamp);
        }
        let mut image = first.image();
        while power.cuts_during_work() < cuts {
            let crashing = Arc::new(CrashMedium::from_image(image.clone()));
            crashing.ignore_syncs(lie);
            let most = if rng.chance(1, 8) { 40 } else { self.medium_operations };
            crashing.cut_after(rng.below(most));
            let medium: Arc<dyn Medium> = crashing.clone();
            if let Ok(disk) = self.open(&medium, rng.next_u64() >> 8, self.has_read_errors) {
                let operations = self.operations / 6 + rng.below(self.operations * 5 / 6);
                let (levels, models, rng) = (level_disks(&disk), &mut models, &mut rng);
                let (next_stamp, beats) = (&mut next_stamp, self.beats);
                CrashRound { disk: &*disk, levels: &levels, models, rng, next_stamp, beats }.run(operations);
            }
            image = power.cut(&crashing, &mut rng);
            match self.check_image(&image, &mut models, rng.next_u64() >> 8) {
                Ok(found) => image = found,
                Err(e) => return power.finish(seed, Some(e)),
            }
        }
        power.finish(seed, None)
    }

    /// Simulates `cuts` power cuts with the seed in `LACUNA_SEED`, and prints the digest.
    ///
    /// # Panics
    ///
    /// If a cut loses data.
    pub fn assert_no_cut_loses_data(&self, cuts: u64) {
        let seed = env_number("LACUNA_SEED", 1);
        let what = if self.has_read_errors { "with transient read errors: " } else { "" };
        let outcome = self.simulate(seed, cuts, false);
        let outcome = if self.has_threads { outcome.unrepeatable() } else { outcome };
        outcome.assert_nothing_lost(what, cuts, seed);
    }
}

struct CrashRound<'a, D> {
    disk: &'a D,
    levels: &'a [Arc<LevelDisk>],
    models: &'a mut [DiskModel],
    rng: &'a mut Rng,
    next_stamp: &'a mut u64,
    beats: u64,
}

impl<D: Levels> CrashRound<'_, D> {
    fn run(&mut self, operations: u64) {
        for _ in 0..operations {
            if self.step().is_err() {
                return;
            }
        }
        let flushed = |level: &Arc<LevelDisk>| flush_hidden(self.disk, level, self.beats).is_ok();
        if self.rng.chance(1, 2) && self.levels[1..].iter().all(flushed) {
            self.models.iter_mut().for_each(DiskModel::record_flush);
            let _cut = self.disk.close();
        }
    }

    fn step(&mut self) -> Result<()> {
        let level = self.rng.below(LEVELS as u64) as usize;
        let choice = self.rng.below(100);
        let CrashRound { disk: whole, levels, models, rng, next_stamp, beats } = self;
        let (whole, beats) = (*whole, *beats);
        let disk = &levels[level];
        let mut worked = DiskWorkload { disk: &**disk, model: &mut models[level], rng, next_stamp };
        match choice {
            0..60 => {
                let count = 1 + worked.rng.below(5);
                write(whole, beats, &mut worked, count)
            }
            60..64 => {
                let count = (10 + worked.rng.below(60)).min(worked.model.blocks());
                write(whole, beats, &mut worked, count)
            }
            64..70 => {
                let count = (1 + worked.rng.below(30)).min(worked.model.blocks());
                let first = worked.random_start(count);
                retry_with_beats(whole, beats, || worked.discard_at(first, count))
            }
            70..80 if level == 0 => {
                disk.flush()?;
                models[0].record_flush();
                Ok(())
            }
            70..74 => {
                flush_hidden(self.disk, &self.levels[level], self.beats)?;
                self.models[level].record_flush();
                // Making hidden data durable makes the public data before it durable as well.
                self.models[0].record_flush();
                Ok(())
            }
            74..80 => {
                self.disk.refresh()?;
                self.models[0].record_flush();
                Ok(())
            }
            _ => {
                let count = (1 + worked.rng.below(50)).min(worked.model.blocks());
                worked.check_read(count)
            }
        }
    }
}

/// Writes blocks at a random place. If the queue of the level has no room for all of them, writes
/// one block at a time: after a refused write, its blocks may have either version, and a later read
/// could not be compared.
fn write(disk: &impl Levels, beats: u64, worked: &mut DiskWorkload<'_>, count: u64) -> Result<()> {
    let first = worked.random_start(count);
    match worked.write_at(first, count) {
        Err(e) if e.kind() == Kind::NoCover => {}
        done => return done,
    }
    (first..first + count).try_for_each(|block| retry_with_beats(disk, beats, || worked.write_at(block, 1)))
}

/// Repeats an operation while the queue of its level has no room, with a beat of the paced clock
/// before each retry.
pub(super) fn retry_with_beats(
    disk: &impl Levels,
    beats: u64,
    mut ask: impl FnMut() -> Result<()>,
) -> Result<()> {
    for _ in 0..beats {
        match ask() {
            Err(e) if e.kind() == Kind::NoCover => disk.refresh()?,
            done => return done,
        }
    }
    panic!("{beats} beats of cover did not make room in the queue");
}
