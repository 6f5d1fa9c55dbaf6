//! Opens disks with levels on media that lie, with a model for each level that keeps every version
//! of a block.

use super::crash::retry_with_beats;
use super::disks::{create, flush_hidden, models, open, open_with, options};
use crate::openings::{LieScenario, OpeningResults, Promise};
use lacuna_contracts::{Disk, Result};
use lacuna_levels::{LevelDisk, LevelFormat, Levels, OpenOptions, level_disks};
use lacuna_medium::Medium;
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{CrashMedium, HonestReads, Rng};
use std::ops::Range;
use std::sync::Arc;

/// The number of levels that are created and opened.
const LEVELS: usize = 3;
/// The number of sessions before the medium lies.
const SESSIONS: u64 = 3;

/// Disks of a format with levels, on media that lie.
pub struct LyingDisks<F> {
    /// The parameters of the disk. Only this code beats its paced clock.
    pub params: F,
    /// The most beats that a flush of a hidden level takes.
    pub beats: u64,
    /// The number of operations of a session.
    pub operations: u64,
    /// The range of the medium that records the end of the disk. If reads of it are true, blocks of
    /// a closed disk have their latest versions or fail.
    pub end_record: Range<u64>,
    /// Whether a discarded block may read as before the discard, if the record of the discard does
    /// not verify.
    pub may_undo_discards: bool,
}

impl<F: LevelFormat> LyingDisks<F> {
    /// Opens disks while their media lie, and checks the blocks that they show.
    ///
    /// # Panics
    ///
    /// If a block reads as a version that is not allowed.
    pub fn assert_nothing_wrong(&self, what: &str, asked: u64) {
        let mut shown = OpeningResults::new(asked, 1);
        while shown.remaining() > 0 {
            self.open_one_disk(&mut shown);
        }
        shown.assert_nothing_wrong(what);
    }

    fn open_one_disk(&self, shown: &mut OpeningResults) {
        let seed = shown.begin_disk();
        let mut rng = Rng::new(seed);
        let memory = Arc::new(CrashMedium::new(self.params.end()));
        memory.keep_history();
        let medium: Arc<dyn Medium> = memory.clone();
        create(&medium, &self.params, LEVELS, rng.next_u64() >> 8).unwrap();
        let mut models = models(&*open(&medium, &self.params, LEVELS, 1).unwrap());
        let (mut next_stamp, mut closed) = (0, false);
        for session in 0..SESSIONS {
            let disk = open(&medium, &self.params, LEVELS, rng.next_u64() >> 8).unwrap();
            self.work(&*disk, &level_disks(&disk), &mut models, &mut rng, &mut next_stamp);
            closed = session + 1 < SESSIONS || rng.chance(3, 4);
            if closed {
                disk.close().unwrap();
            }
        }
        let latest = Promise::Latest { may_undo_discards: self.may_undo_discards };
        let honest_end = HonestReads { ranges: vec![self.end_record.clone()], ..HonestReads::default() };
        let mut kinds = vec![
            (HonestReads::default(), Promise::Own),
            (HonestReads { first_reads: true, ..HonestReads::default() }, latest),
            (HonestReads { first_reads: true, ..honest_end.clone() }, latest),
            // The end is found through the system's cache. Hidden levels are read past it.
            (HonestReads { cached_reads: true, ..HonestReads::default() }, latest),
        ];
        if closed {
            kinds.push((honest_end, latest));
        }
        let open = |medium: Arc<dyn Medium>, read_only, seed| -> Result<Vec<Arc<dyn Disk>>> {
            let options = OpenOptions { read_only, ..options(seed, seed + (1 << 40)) };
            let disk = open_with(&medium, &self.params, LEVELS, options)?;
            Ok(level_disks(&disk).into_iter().map(|level| -> Arc<dyn Disk> { level }).collect())
        };
        let (writes, afterwards) = (true, Promise::Own);
        LieScenario {
            seed,
            medium: &memory,
            models: &models,
            open: &open,
            may_write: writes,
            lie_kinds: &kinds,
            promise_after_writes: afterwards,
        }
        .open_under_lies(&mut rng, shown);
    }

    /// Writes and discards on all levels, and flushes all of them in the end.
    fn work(
        &self,
        disk: &F::Disk,
        levels: &[Arc<LevelDisk>],
        models: &mut [DiskModel],
        rng: &mut Rng,
        next_stamp: &mut u64,
    ) {
        for _ in 0..self.operations {
            let level = rng.below(LEVELS as u64) as usize;
            let choice = rng.below(20);
            let mut worked =
                DiskWorkload { disk: &*levels[level], model: &mut models[level], rng, next_stamp };
            let first = worked.random_start(1);
            let done = match choice {
                0 => levels[0].flush(),
                1 => disk.refresh(),
                2 | 3 => retry_with_beats(disk, self.beats, || worked.discard_at(first, 1)),
                _ => retry_with_beats(disk, self.beats, || worked.write_at(first, 1)),
            };
            done.unwrap();
        }
        levels[0].flush().unwrap();
        levels[1..].iter().for_each(|level| flush_hidden(disk, level, self.beats).unwrap());
    }
}
