//! The workload of the simulated phone: programs that commit to databases, keep caches, append to
//! logs, take photos and are updated. Paper 003 replayed a log of the writes of a Nexus One, which
//! is not published. Its figures give the volume: 437 to 866 deleted data nodes an hour (Table 2,
//! the product of its columns), 21.3 erasures an hour without purging, and 10,000 small files a day
//! that are created and deleted (section 6). The rates below reproduce these figures.
//!
//! All decisions use integers: the same seed gives the same workload on every machine.

use crate::phone_files::{FileId, PhoneFiles};
use lacuna_contracts::Result;
use lacuna_sim::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Seconds in an hour and in a day.
pub(crate) const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Seconds between two write-backs of the page cache.
pub(crate) const WRITE_BACK: u64 = 30;

/// The first hours of a day, which are night.
const NIGHT: u64 = 8;
/// Activity by night and by day, in percent of the mean.
const ACTIVITY_PERCENT: [u64; 2] = [30, 135];

/// Transactions a day: a journal is written and synced, pages of a database are overwritten and
/// synced, and the journal is deleted.
pub(crate) const TRANSACTIONS: u64 = 250;
/// Small cache files a day; together with the journals of databases they are the paper's 10,000.
pub(crate) const CACHE_FILES: u64 = 9750;
/// Percentage of the cache files that live for 1 to [`WRITE_BACK`] seconds: few of them reach the
/// disk.
pub(crate) const SHORT_LIVED_PERCENT: u64 = 94;
/// Lines appended to logs a day.
pub(crate) const LOG_LINES: u64 = 240;
/// Photos a day, and the blocks of a photo.
pub(crate) const PHOTOS: u64 = 2;
const PHOTO: (u32, u32) = (192, 512);
/// Program updates a day, and the blocks of a program.
pub(crate) const UPDATES: u64 = 1;
const PROGRAM: (u32, u32) = (128, 512);

const DATABASES: usize = 24;
const DATABASE: (u32, u32) = (16, 256);
const PROGRAMS: usize = 20;
const LOGS: usize = 3;
/// Lines in a block of a log, and blocks of a log before a new one replaces it.
const LINES: u64 = 4;
const LOG_BLOCKS: u32 = 64;

/// The state of a phone in use.
pub(crate) struct PhoneUse {
    rng: Rng,
    now: u64,
    databases: Vec<FileId>,
    programs: Vec<FileId>,
    logs: Vec<FileId>,
    lines: u64,
    photos: Vec<FileId>,
    /// Cache files, by the time of their deletion.
    deletions: BinaryHeap<Reverse<(u64, FileId)>>,
    /// Blocks in use above which photos are deleted.
    photo_limit: u64,
}

impl PhoneUse {
    /// A phone with its programs and databases, and with photos until `full` percent of the blocks
    /// of its disk are in use.
    pub(crate) fn new(seed: u64, full: u64, files: &mut PhoneFiles) -> Result<PhoneUse> {
        let mut life = PhoneUse {
            rng: Rng::new(seed),
            now: 0,
            databases: vec![],
            programs: vec![],
            logs: vec![],
            lines: 0,
            photos: vec![],
            deletions: BinaryHeap::new(),
            photo_limit: files.blocks() * full / 100,
        };
        for _ in 0..DATABASES {
            let len = life.between(DATABASE);
            life.databases.push(files.create(len)?);
        }
        for _ in 0..LOGS {
            life.logs.push(files.create(1)?);
        }
        for _ in 0..PROGRAMS {
            let len = life.between(PROGRAM);
            let program = files.create(len)?;
            life.programs.push(program);
            files.write_back()?;
        }
        while files.used() < life.photo_limit {
            life.photo(files)?;
        }
        Ok(life)
    }

    /// Seconds since the phone was new.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Simulates one second.
    pub(crate) fn run_second(&mut self, files: &mut PhoneFiles) -> Result<()> {
        while self.deletions.peek().is_some_and(|Reverse((when, _))| *when <= self.now) {
            let Some(Reverse((_, file))) = self.deletions.pop() else { break };
            files.delete(file);
        }
        if self.occurs(TRANSACTIONS) {
            self.transaction(files)?;
        }
        if self.occurs(CACHE_FILES) {
            self.cache(files)?;
        }
        if self.occurs(LOG_LINES) {
            self.log(files)?;
        }
        if self.occurs(PHOTOS) {
            self.photo(files)?;
        }
        if self.occurs(UPDATES) {
            self.update(files)?;
        }
        self.now += 1;
        if self.now.is_multiple_of(WRITE_BACK) { files.write_back() } else { Ok(()) }
    }

    fn transaction(&mut self, files: &mut PhoneFiles) -> Result<()> {
        let at = self.below_skewed(DATABASES as u64) as usize;
        let database = self.databases[at];
        let pages = 1 + self.rng.below(2) as u32;
        let journal = files.create(1 + pages)?;
        files.sync(journal)?;
        // The first page has the change counter of the database.
        files.overwrite(database, 0..1);
        for _ in 0..pages {
            let page = self.below_skewed(files.len(database).into()) as u32;
            files.overwrite(database, page..page + 1);
        }
        files.sync(database)?;
        files.delete(journal);
        Ok(())
    }

    fn cache(&mut self, files: &mut PhoneFiles) -> Result<()> {
        let blocks = if self.rng.chance(7, 10) { 1 } else { 2 + self.rng.below(5) as u32 };
        let file = files.create(blocks)?;
        let seconds = if self.rng.chance(SHORT_LIVED_PERCENT, 100) {
            1 + self.below_skewed(WRITE_BACK)
        } else {
            // 30 seconds to three days; every doubling is equally likely.
            let least = WRITE_BACK << self.rng.below(13);
            least + self.rng.below(least)
        };
        self.deletions.push(Reverse((self.now + seconds, file)));
        Ok(())
    }

    fn log(&mut self, files: &mut PhoneFiles) -> Result<()> {
        let at = self.rng.below(LOGS as u64) as usize;
        let (log, len) = (self.logs[at], files.len(self.logs[at]));
        self.lines += 1;
        if !self.lines.is_multiple_of(LINES) {
            files.overwrite(log, len - 1..len);
        } else if len < LOG_BLOCKS {
            files.append(log, 1)?;
        } else {
            files.delete(log);
            self.logs[at] = files.create(1)?;
        }
        Ok(())
    }

    fn photo(&mut self, files: &mut PhoneFiles) -> Result<()> {
        while files.used() > self.photo_limit && !self.photos.is_empty() {
            let at = self.rng.below(self.photos.len() as u64) as usize;
            files.delete(self.photos.swap_remove(at));
        }
        let len = self.between(PHOTO);
        let photo = files.create(len)?;
        self.photos.push(photo);
        files.sync(photo)
    }

    fn update(&mut self, files: &mut PhoneFiles) -> Result<()> {
        let at = self.rng.below(PROGRAMS as u64) as usize;
        let len = self.between(PROGRAM);
        let new = files.create(len)?;
        files.sync(new)?;
        files.delete(std::mem::replace(&mut self.programs[at], new));
        Ok(())
    }

    /// Whether an event that occurs `a_day` times a day occurs in this second.
    fn occurs(&mut self, a_day: u64) -> bool {
        let by_day = usize::from(self.now % DAY >= NIGHT * HOUR);
        self.rng.chance(a_day * ACTIVITY_PERCENT[by_day], DAY * 100)
    }

    fn between(&mut self, (least, most): (u32, u32)) -> u32 {
        least + self.rng.below(u64::from(most - least) + 1) as u32
    }

    /// A random number below `n`; low numbers are more likely.
    fn below_skewed(&mut self, n: u64) -> u64 {
        let below = 1 + self.rng.below(n);
        self.rng.below(below)
    }
}
