//! Opens a disk on a lying medium and checks its blocks. Half of the media also forge: they flip
//! bits and splice versions.
//!
//! An error is always allowed. The format's [`Promise`] says which data is allowed; the content of
//! another block never is.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Result};
use lacuna_medium::Medium;
use lacuna_sim::versions::{DiskModel, DiskWorkload, origin_of, stamp_of};
use lacuna_sim::{CrashMedium, HonestReads, Lies, Rng, RunDigest, env_number};
use std::sync::Arc;

/// The number of openings of one disk.
const OPENINGS_PER_DISK: u64 = 20;
/// The most blocks of one read.
const MAX_READ_BLOCKS: u64 = 6;
/// The number of lies in a thousand reads, used in turn.
const LIE_RATES: [u64; 5] = [10, 40, 120, 300, 600];
/// The most wrong answers that are printed.
const MAX_PRINTED: usize = 20;

/// The data that a block may return, in addition to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Its latest version. For some formats, a discarded block may read as before the discard.
    Latest {
        /// Whether this holds for the format.
        may_undo_discards: bool,
    },
    /// A whole version that it had, including zeros.
    Own,
    /// A version that it had, or noise from a cipher that does not authenticate. Not the content of
    /// another block.
    OwnOrNoise,
}

impl Promise {
    /// Describes the violation if a block reads as `data`; `None` if that is allowed.
    fn violation(self, model: &DiskModel, block: u64, data: &[u8]) -> Option<String> {
        let (stamp, latest) = (stamp_of(block, data), model.latest(block));
        let own = stamp.is_some_and(|stamp| model.versions(block).contains(&stamp));
        let right = match self {
            Promise::Latest { may_undo_discards: but_discarded } => {
                stamp == Some(latest) || (own && but_discarded && latest == 0)
            }
            Promise::Own => own,
            Promise::OwnOrNoise => own || (stamp.is_none() && origin_of(data).is_none()),
        };
        let found = match (stamp, origin_of(data)) {
            (Some(stamp), _) => format!("version {stamp}"),
            (None, Some((other, stamp))) => format!("version {stamp} of block {other}"),
            (None, None) => "data that was never written".into(),
        };
        (!right).then(|| format!("block {block} reads as {found}, latest is {latest}, promised is {self:?}"))
    }
}

/// The results of openings.
pub struct OpeningResults {
    /// The number of openings to make.
    requested: u64,
    first_seed: u64,
    /// The number of disks so far.
    disks: u64,
    made: u64,
    refused: u64,
    latest: u64,
    older: u64,
    noise: u64,
    errors: u64,
    violations: Vec<String>,
    digest: RunDigest,
}

impl OpeningResults {
    /// No results yet, of one of `plays` equal parts of the openings. Their total number is in
    /// `LACUNA_LIES`, with the default `asked`.
    pub fn new(asked: u64, plays: usize) -> OpeningResults {
        OpeningResults {
            requested: env_number("LACUNA_LIES", asked).div_ceil(plays as u64),
            first_seed: env_number("LACUNA_SEED", 1),
            disks: 0,
            made: 0,
            refused: 0,
            latest: 0,
            older: 0,
            noise: 0,
            errors: 0,
            violations: vec![],
            digest: RunDigest::new(),
        }
    }

    /// The number of openings that are left.
    pub fn remaining(&self) -> u64 {
        self.requested.saturating_sub(self.made)
    }

    /// Begins another disk and returns its seed: the first disk has the seed in `LACUNA_SEED`, and
    /// each next one a seed greater by one. So a printed seed repeats its disk first.
    pub fn begin_disk(&mut self) -> u64 {
        let seed = self.first_seed + self.disks;
        self.disks += 1;
        seed
    }

    /// Counts an opening.
    pub fn count_opening(&mut self) {
        self.made += 1;
    }

    /// Counts an opening that was refused.
    pub fn count_refused(&mut self, error: &Error) {
        self.refused += 1;
        self.digest.add_bytes(format!("{:?}", error.kind()).as_bytes());
    }

    /// Records a result that is not allowed.
    pub fn add_violation(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Counts a correct result that is not a block.
    pub fn count_correct(&mut self, what: u64) {
        self.latest += 1;
        self.digest.add_word(what);
    }

    /// Reads and checks the blocks of a disk that ever had content, and some more.
    pub fn check_blocks(
        &mut self,
        disk: &dyn Disk,
        model: &DiskModel,
        promise: Promise,
        rng: &mut Rng,
        context: &str,
    ) {
        let some: Vec<u64> = (0..8).map(|_| rng.below(model.blocks())).collect();
        let is_of_interest = |block: &u64| model.versions(*block).len() > 1 || some.contains(block);
        let blocks: Vec<u64> = (0..model.blocks()).filter(is_of_interest).collect();
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            let mut at = 0;
            while at < run.len() {
                let count = (1 + rng.below(MAX_READ_BLOCKS) as usize).min(run.len() - at);
                self.check_run(disk, model, promise, run[at], count, context);
                at += count;
            }
        }
    }

    fn check_run(
        &mut self,
        disk: &dyn Disk,
        model: &DiskModel,
        promise: Promise,
        first: u64,
        count: usize,
        context: &str,
    ) {
        let mut data = vec![0xa5; count * BLOCK_SIZE];
        if let Err(e) = disk.read(BlockAddr(first), &mut data) {
            self.errors += 1;
            return self.digest.add_bytes(format!("{:?}", e.kind()).as_bytes());
        }
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let stamp = stamp_of(block, data);
            self.digest.add_word(stamp.unwrap_or(u64::MAX));
            match promise.violation(model, block, data) {
                Some(complaint) => self.violations.push(format!("{context}: {complaint}")),
                None if stamp == Some(model.latest(block)) => self.latest += 1,
                None if stamp.is_some() => self.older += 1,
                None => self.noise += 1,
            }
        }
    }

    /// Prints the results and their digest.
    ///
    /// # Panics
    ///
    /// If any result was wrong, or if the lies had hardly any effect.
    pub fn assert_nothing_wrong(self, what: &str) {
        let OpeningResults {
            made,
            first_seed,
            refused,
            latest,
            older,
            noise,
            errors,
            violations: wrong,
            digest,
            ..
        } = self;
        println!(
            "{what}: {made} openings, seed {first_seed}, {refused} refused, {latest} latest, {older} older, {noise} noise, \
             {errors} errors, {} wrong, digest {:016x}",
            wrong.len(),
            digest.0
        );
        assert!(wrong.is_empty(), "{what}: {:#?}", &wrong[..wrong.len().min(MAX_PRINTED)]);
        assert!(refused + errors + older + noise > 0 && latest > 0, "{what}: the lies had hardly any effect");
    }
}

/// Opens the levels of a disk. Arguments: the medium, whether to open it read-only, and a seed.
pub type OpenLevelsFn<'a> = dyn Fn(Arc<dyn Medium>, bool, u64) -> Result<Vec<Arc<dyn Disk>>> + 'a;

/// A disk after use on a medium that kept its earlier versions, with the versions of all blocks.
pub struct LieScenario<'a> {
    /// The seed of the disk, for messages.
    pub seed: u64,
    /// The medium.
    pub medium: &'a CrashMedium,
    /// A model for each level, without flushes, so that it keeps all versions.
    pub models: &'a [DiskModel],
    /// Opens the disk. A disk without levels counts as one level.
    pub open: &'a OpenLevelsFn<'a>,
    /// Whether a session under lies may write. After such a session the disk is opened on an honest
    /// medium.
    pub may_write: bool,
    /// The kinds of lies, and the promise under each.
    pub lie_kinds: &'a [(HonestReads, Promise)],
    /// The promise after writes under lies.
    pub promise_after_writes: Promise,
}

impl LieScenario<'_> {
    /// Opens the disk several times while its medium lies.
    pub fn open_under_lies(&self, rng: &mut Rng, shown: &mut OpeningResults) {
        for opening in 0..OPENINGS_PER_DISK.min(shown.remaining()) {
            let (truths, promise) = rng.pick(self.lie_kinds).clone();
            let context = format!("seed {}, {truths:?}", self.seed);
            let fork = Arc::new(self.medium.fork());
            let of_a_thousand = LIE_RATES[(opening % 5) as usize];
            let lies =
                Lies { per_mille: of_a_thousand, rng: Rng::new(rng.next_u64()), may_forge: rng.chance(1, 2) };
            fork.set_lies_except(Some(lies), truths);
            let writes = self.may_write && rng.chance(1, 3);
            let mut models = self.models.to_vec();
            shown.count_opening();
            match (self.open)(fork.clone(), !writes, rng.next_u64() >> 8) {
                Err(e) => shown.count_refused(&e),
                Ok(disks) => {
                    for (disk, model) in disks.iter().zip(&models) {
                        shown.check_blocks(&**disk, model, promise, rng, &context);
                    }
                    if writes {
                        write_some(&disks, &mut models, rng);
                    }
                }
            }
            if !writes {
                continue;
            }
            fork.set_lies(None);
            match (self.open)(fork, true, rng.next_u64() >> 8) {
                Err(e) => shown.count_refused(&e),
                Ok(disks) => {
                    for (disk, model) in disks.iter().zip(&models) {
                        shown.check_blocks(
                            &**disk,
                            model,
                            self.promise_after_writes,
                            rng,
                            &format!("{context}, afterwards"),
                        );
                    }
                }
            }
        }
    }
}

/// Writes to levels on a lying medium. A refused write may have happened or not.
fn write_some(disks: &[Arc<dyn Disk>], models: &mut [DiskModel], rng: &mut Rng) {
    let mut next_stamp = 1 << 40;
    for _ in 0..3 {
        for (disk, model) in disks.iter().zip(models.iter_mut()) {
            let count = 1 + rng.below(4);
            let mut worked = DiskWorkload { disk: &**disk, model, rng, next_stamp: &mut next_stamp };
            let _refused = worked.write(count).and_then(|()| disk.flush());
        }
    }
    if rng.chance(1, 2) {
        let _refused = disks.iter().try_for_each(|disk| disk.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_has_the_next_seed() {
        let first = env_number("LACUNA_SEED", 1);
        let mut shown = OpeningResults::new(200, 1);
        assert_eq!(shown.begin_disk(), first);
        (0..OPENINGS_PER_DISK).for_each(|_| shown.count_opening());
        assert_eq!(shown.begin_disk(), first + 1);
    }
}
