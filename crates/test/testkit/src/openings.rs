//! Openings of a disk on a medium that lies: what they show, and what they may show. Half of the
//! media tamper with what they tell as well: bits are flipped, and versions spliced.
//!
//! An error is always right. What else is right is what the format promises ([`Promise`]), never
//! the content of another block.

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Result};
use lacuna_medium::Medium;
use lacuna_sim::versions::{Model, Worked, origin_of, stamp_of};
use lacuna_sim::{CrashMedium, Digest, Lies, Rng, Truths, setting};
use std::sync::Arc;

/// Openings of one disk.
const OF_ONE_DISK: u64 = 20;
/// Blocks that one request reads, at most.
const REQUEST: u64 = 6;
/// Of a thousand reads, how many lie, in turn.
const OFTEN: [u64; 5] = [10, 40, 120, 300, 600];
/// Wrong answers that are told.
const MOST_TOLD: usize = 20;

/// What a block may read as, beside an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Its latest version. One that was discarded may read as it did before, for formats that say
    /// so.
    Latest {
        /// Whether the format says so.
        but_discarded: bool,
    },
    /// A version that it had, whole, zeros among them.
    Own,
    /// A version that it had, or noise: what a cipher makes that does not authenticate. Not the
    /// content of another block.
    OwnOrNoise,
}

impl Promise {
    /// What is wrong with a block that reads as `data`, if anything.
    fn complaint(self, model: &Model, block: u64, data: &[u8]) -> Option<String> {
        let (stamp, latest) = (stamp_of(block, data), model.latest(block));
        let own = stamp.is_some_and(|stamp| model.versions(block).contains(&stamp));
        let right = match self {
            Promise::Latest { but_discarded } => {
                stamp == Some(latest) || (own && but_discarded && latest == 0)
            }
            Promise::Own => own,
            Promise::OwnOrNoise => own || (stamp.is_none() && origin_of(data).is_none()),
        };
        let found = match (stamp, origin_of(data)) {
            (Some(stamp), _) => format!("version {stamp}"),
            (None, Some((other, stamp))) => format!("version {stamp} of block {other}"),
            (None, None) => "nothing that was written".into(),
        };
        (!right).then(|| format!("block {block} reads as {found}, latest is {latest}, promised is {self:?}"))
    }
}

/// What openings showed.
pub struct Openings {
    /// So many were asked for.
    asked: u64,
    first_seed: u64,
    /// Disks that were begun.
    disks: u64,
    made: u64,
    refused: u64,
    latest: u64,
    older: u64,
    noise: u64,
    errors: u64,
    wrong: Vec<String>,
    digest: Digest,
}

impl Openings {
    /// None yet, of one of `plays` equal parts of as many as `LACUNA_LIES` says, or else of
    /// `asked`.
    pub fn new(asked: u64, plays: usize) -> Openings {
        Openings {
            asked: setting("LACUNA_LIES", asked).div_ceil(plays as u64),
            first_seed: setting("LACUNA_SEED", 1),
            disks: 0,
            made: 0,
            refused: 0,
            latest: 0,
            older: 0,
            noise: 0,
            errors: 0,
            wrong: vec![],
            digest: Digest::new(),
        }
    }

    /// How many are left.
    pub fn left(&self) -> u64 {
        self.asked.saturating_sub(self.made)
    }

    /// Begins another disk, and gives its seed: that in `LACUNA_SEED` for the first one, and one
    /// more for each that follows. So with a seed that was printed, its disk comes first.
    pub fn begin_disk(&mut self) -> u64 {
        let seed = self.first_seed + self.disks;
        self.disks += 1;
        seed
    }

    /// An opening.
    pub fn note_opening(&mut self) {
        self.made += 1;
    }

    /// It was refused.
    pub fn note_refused(&mut self, error: &Error) {
        self.refused += 1;
        self.digest.bytes(format!("{:?}", error.kind()).as_bytes());
    }

    /// Something showed that must not.
    pub fn note_wrong(&mut self, what: String) {
        self.wrong.push(what);
    }

    /// Something that is no block showed as it must.
    pub fn note_right(&mut self, what: u64) {
        self.latest += 1;
        self.digest.word(what);
    }

    /// Reads the blocks of a disk that ever had content, and some others, and looks at what they
    /// are.
    pub fn compare(
        &mut self,
        disk: &dyn Disk,
        model: &Model,
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
                let count = (1 + rng.below(REQUEST) as usize).min(run.len() - at);
                self.compare_run(disk, model, promise, run[at], count, context);
                at += count;
            }
        }
    }

    fn compare_run(
        &mut self,
        disk: &dyn Disk,
        model: &Model,
        promise: Promise,
        first: u64,
        count: usize,
        context: &str,
    ) {
        let mut data = vec![0xa5; count * BLOCK_SIZE];
        if let Err(e) = disk.read(BlockAddr(first), &mut data) {
            self.errors += 1;
            return self.digest.bytes(format!("{:?}", e.kind()).as_bytes());
        }
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let stamp = stamp_of(block, data);
            self.digest.word(stamp.unwrap_or(u64::MAX));
            match promise.complaint(model, block, data) {
                Some(complaint) => self.wrong.push(format!("{context}: {complaint}")),
                None if stamp == Some(model.latest(block)) => self.latest += 1,
                None if stamp.is_some() => self.older += 1,
                None => self.noise += 1,
            }
        }
    }

    /// Says what was played, and its digest.
    ///
    /// # Panics
    ///
    /// If anything was wrong, or if the lies hardly mattered.
    pub fn nothing_is_wrong(self, what: &str) {
        let Openings { made, first_seed, refused, latest, older, noise, errors, wrong, digest, .. } = self;
        println!(
            "{what}: {made} openings, seed {first_seed}, {refused} refused, {latest} latest, {older} older, {noise} noise, \
             {errors} errors, {} wrong, digest {:016x}",
            wrong.len(),
            digest.0
        );
        assert!(wrong.is_empty(), "{what}: {:#?}", &wrong[..wrong.len().min(MOST_TOLD)]);
        assert!(refused + errors + older + noise > 0 && latest > 0, "{what}: the lies hardly mattered");
    }
}

/// Opens the levels of a disk on a medium: whether for reading alone, and where its randomness
/// begins.
pub type OpenLevels<'a> = dyn Fn(Arc<dyn Medium>, bool, u64) -> Result<Vec<Arc<dyn Disk>>> + 'a;

/// A disk that was used on a medium that kept its past, and what each of its levels ever held.
pub struct Past<'a> {
    /// The seed of the disk, which is shown beside what is wrong.
    pub seed: u64,
    /// The medium.
    pub medium: &'a CrashMedium,
    /// A model for each level, which was never told of a flush.
    pub models: &'a [Model],
    /// Opens the disk: on this medium, to read alone or not, with this seed. A disk without levels
    /// is one level.
    pub open: &'a OpenLevels<'a>,
    /// Whether a session under lies may write, after which the disk is opened on a medium that is
    /// honest.
    pub writes: bool,
    /// The kinds of lies that are told, and what holds under them.
    pub kinds: &'a [(Truths, Promise)],
    /// What holds after something was written under lies.
    pub afterwards: Promise,
}

impl Past<'_> {
    /// Opens the disk some times while its medium lies.
    pub fn open_under_lies(&self, rng: &mut Rng, shown: &mut Openings) {
        for opening in 0..OF_ONE_DISK.min(shown.left()) {
            let (truths, promise) = rng.pick(self.kinds).clone();
            let context = format!("seed {}, {truths:?}", self.seed);
            let fork = Arc::new(self.medium.fork());
            let of_a_thousand = OFTEN[(opening % 5) as usize];
            let lies = Lies { of_a_thousand, rng: Rng::new(rng.next_u64()), forges: rng.chance(1, 2) };
            fork.lie_but(Some(lies), truths);
            let writes = self.writes && rng.chance(1, 3);
            let mut models = self.models.to_vec();
            shown.note_opening();
            match (self.open)(fork.clone(), !writes, rng.next_u64() >> 8) {
                Err(e) => shown.note_refused(&e),
                Ok(disks) => {
                    for (disk, model) in disks.iter().zip(&models) {
                        shown.compare(&**disk, model, promise, rng, &context);
                    }
                    if writes {
                        write_some(&disks, &mut models, rng);
                    }
                }
            }
            if !writes {
                continue;
            }
            fork.lie(None);
            match (self.open)(fork, true, rng.next_u64() >> 8) {
                Err(e) => shown.note_refused(&e),
                Ok(disks) => {
                    for (disk, model) in disks.iter().zip(&models) {
                        shown.compare(
                            &**disk,
                            model,
                            self.afterwards,
                            rng,
                            &format!("{context}, afterwards"),
                        );
                    }
                }
            }
        }
    }
}

/// Writes to levels whose medium lies. What is refused may have happened or not.
fn write_some(disks: &[Arc<dyn Disk>], models: &mut [Model], rng: &mut Rng) {
    let mut next_stamp = 1 << 40;
    for _ in 0..3 {
        for (disk, model) in disks.iter().zip(models.iter_mut()) {
            let count = 1 + rng.below(4);
            let mut worked = Worked { disk: &**disk, model, rng, next_stamp: &mut next_stamp };
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
    fn disks_count_on_from_the_seed_however_often_each_is_opened() {
        let first = setting("LACUNA_SEED", 1);
        let mut shown = Openings::new(200, 1);
        assert_eq!(shown.begin_disk(), first);
        (0..OF_ONE_DISK).for_each(|_| shown.note_opening());
        assert_eq!(shown.begin_disk(), first + 1);
    }
}
