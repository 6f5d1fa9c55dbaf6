//! The play of one disk: rounds that end with the death of the process or with a power cut.

use crate::dying_medium::{DyingMedium, LastState, ReadFailures, arm, open_kept};
use crate::fixture::random_work::{BLOCKS, RandomWork};
use crate::surviving_disk::SurvivingDisk;
use lacuna_contracts::{BLOCK_SIZE, Disk, Error, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_medium::Medium;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::versions::DiskWorkload;
use lacuna_sim::{CrashMedium, EndsModel, FaultMedium, InterceptedMedium, LateMedium, Rng, RunDigest};
use std::sync::Arc;

/// The trouble of a disk beside the ends of rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// None.
    None,
    /// Reads fail, and succeed when they are repeated.
    FailingReads,
    /// The medium has no space left, or little.
    FullMedium,
    /// Copies of the medium lie to copies of the process. The disk itself has no trouble.
    LyingCopies,
    /// Requests of a dead process arrive later.
    LateWrites {
        /// Whether the next process waits for the end of all of them before it opens the disk.
        fenced: bool,
    },
}

/// The result of a play.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) deaths: u64,
    pub(crate) cuts: u64,
    /// Openings and operations that failed because of the trouble.
    pub(crate) failed: u64,
    /// Requests of dead processes that arrived while a later one ran.
    pub(crate) arrived: u64,
    pub(crate) digest: u64,
    pub(crate) lost: Option<String>,
}

impl Outcome {
    /// The number of ends.
    pub(crate) fn ends(&self) -> u64 {
        self.deaths + self.cuts
    }
}

/// A disk as a death left it, and the model after the next process opened it.
pub(crate) struct DeadDisk<'a> {
    pub(crate) medium: CrashMedium,
    pub(crate) memory: KeptMemory,
    pub(crate) params: &'a Params,
    pub(crate) model: &'a EndsModel,
}

/// Called with each disk that a death left, after its next opening succeeded.
pub(crate) type CopyPlay<'a> = dyn FnMut(DeadDisk<'_>, &mut Rng) + 'a;

/// A play.
pub(crate) struct Play {
    trouble: Trouble,
    /// Whether the memory outlives the process.
    keeps: bool,
    disk: SurvivingDisk,
    model: EndsModel,
    next_stamp: u64,
    digest: RunDigest,
}

/// The media of a round.
struct RoundMedia {
    /// The medium of the disk.
    top: Arc<dyn Medium>,
    last: Arc<LastState>,
    reads: Arc<ReadFailures>,
    late: Option<Arc<InterceptedMedium<LateMedium>>>,
}

impl Play {
    pub(crate) fn new(cipher: Cipher, seed: u64, trouble: Trouble, keeps: bool) -> Self {
        let disk = SurvivingDisk::new(cipher, seed);
        let lies = trouble == Trouble::LyingCopies;
        let mut model = EndsModel::new("the disk", BLOCKS);
        if lies {
            disk.medium.keep_history();
            model = model.keeping_all();
        }
        Play { trouble, keeps, disk, model, next_stamp: 0, digest: RunDigest::new() }
    }

    /// Plays until something is lost, or for this number of ends.
    pub(crate) fn run(self, ends: u64) -> Outcome {
        self.run_with_copies(ends, &mut |_, _| ())
    }

    /// As [`Play::run`]. `play` gets a copy of each disk that a death left
    /// ([`Trouble::LyingCopies`]).
    pub(crate) fn run_with_copies(mut self, ends: u64, play: &mut CopyPlay<'_>) -> Outcome {
        while self.disk.outcome.ends() < ends {
            if let Err(lost) = self.round(play) {
                self.disk.outcome.lost = Some(lost);
                break;
            }
        }
        self.digest.add_word(self.disk.outcome.failed);
        self.digest.add_word(self.disk.outcome.arrived);
        self.disk.outcome.digest = self.digest.0;
        self.disk.outcome
    }

    /// One process: it opens the disk and uses it until the end. Errors: a description of the loss.
    fn round(&mut self, play: &mut CopyPlay<'_>) -> Result<(), String> {
        let left = self.disk.kept.take().filter(|_| self.keeps);
        let copies = self.trouble == Trouble::LyingCopies;
        let copy = left.as_ref().filter(|_| copies);
        let copy = copy.map(|memory| (self.disk.medium.fork(), memory.as_if_died().unwrap()));
        let memory = left.unwrap_or_else(|| KeptMemory::simulated(&self.disk.layout).unwrap());
        let media = self.media(&memory);
        arm(&mut self.disk.rng, &self.disk.medium, &memory, &media.last);
        let opened = self.open(&media, &memory)?;
        if let Some(disk) = &opened {
            media.reads.set(0);
            self.model.check(disk)?;
            if let Some((medium, memory)) = copy {
                let (params, model) = (&self.disk.params, &self.model);
                play(DeadDisk { medium, memory, params, model }, &mut self.disk.rng);
            }
            self.use_disk(disk, &media)?;
        }
        self.disk.medium.cut_now();
        media.last.note(&memory);
        // The observer of the changes holds the memory, which holds the observer.
        memory.observe_changes(|| ());
        self.end(&media);
        Ok(())
    }

    /// The media of the next round, from the simulated one up.
    fn media(&mut self, memory: &KeptMemory) -> RoundMedia {
        let below: Arc<dyn Medium> =
            if self.trouble == Trouble::FullMedium { self.full_medium() } else { self.disk.medium.clone() };
        let seed = if self.trouble == Trouble::FailingReads { self.disk.rng.next_u64() } else { 0 };
        let (last, reads) = (Arc::<LastState>::default(), Arc::new(ReadFailures::new(seed)));
        let top: Arc<dyn Medium> = Arc::new(InterceptedMedium(DyingMedium {
            below,
            medium: self.disk.medium.clone(),
            memory: memory.clone(),
            last: last.clone(),
            reads: reads.clone(),
        }));
        let Trouble::LateWrites { fenced } = self.trouble else {
            return RoundMedia { top, last, reads, late: None };
        };
        let late = self.disk.late_medium(top, fenced);
        RoundMedia { top: late.clone(), last, reads, late: Some(late) }
    }

    /// A medium with space for the journal, the map, the pages that it has, and sometimes a few
    /// slots.
    fn full_medium(&mut self) -> Arc<dyn Medium> {
        let g = self.disk.params.geometry();
        let tenths = *self.disk.rng.pick(&[5, 12, 20, 60]);
        let medium = FaultMedium::new(self.disk.medium.clone());
        let touched = self.disk.medium.image();
        let reserved = 0..g.data / lacuna_sim::PAGE_SIZE;
        let slot_len = SEGMENT_BLOCKS * BLOCK_SIZE as u64;
        medium.add_quota(g.data + slot_len / 10 * tenths, touched.written_pages().chain(reserved));
        Arc::new(medium)
    }

    /// Opens the disk. `None`: the process died meanwhile, or ended because a read failed.
    fn open(&mut self, media: &RoundMedia, memory: &KeptMemory) -> Result<Option<SealedDisk>, String> {
        if self.trouble == Trouble::FailingReads && self.disk.rng.chance(1, 3) {
            // An opening reads all places where a batch may begin.
            media.reads.set(4000);
        }
        let opened = open_kept(media.top.clone(), &self.disk.params, memory, self.disk.rng.next_u64());
        match opened {
            _ if self.disk.medium.is_cut() => Ok(None),
            Ok(disk) => Ok(Some(disk)),
            Err(e) if self.trouble == Trouble::FailingReads && e.kind() == Kind::Io => {
                self.disk.outcome.failed += 1;
                Ok(None)
            }
            Err(e) => Err(format!("does not open: {e}")),
        }
    }

    /// Runs random operations, and sometimes closes the disk.
    fn use_disk(&mut self, disk: &SealedDisk, media: &RoundMedia) -> Result<(), String> {
        let fails = self.trouble == Trouble::FailingReads;
        let one_of = if fails { *self.disk.rng.pick(&[60, 400]) } else { 0 };
        media.reads.set(one_of);
        for _ in 0..40 + self.disk.rng.below(120) {
            let done = self.step(disk);
            if self.disk.medium.is_cut() {
                break;
            }
            if let Err(e) = done {
                if !self.may_fail(&e) {
                    return Err(format!("an operation fails: {e}"));
                }
                self.disk.outcome.failed += 1;
                media.reads.set(0);
                self.model.settle(disk)?;
                media.reads.set(one_of);
            }
        }
        if self.disk.rng.chance(1, 8) && disk.close().is_ok() && !self.disk.medium.is_cut() {
            self.model.note_flush();
        }
        Ok(())
    }

    /// Runs one operation. The model notes its writes as acknowledged if it returned before the
    /// end.
    fn step(&mut self, disk: &SealedDisk) -> lacuna_contracts::Result<()> {
        let (rng, next_stamp) = (&mut self.disk.rng, &mut self.next_stamp);
        let done =
            RandomWork(DiskWorkload { disk, model: self.model.for_operation(), rng, next_stamp }).step();
        let is_alive = !self.disk.medium.is_cut();
        self.model.note_operation(done.is_ok() && is_alive);
        if done? && is_alive {
            self.model.note_flush();
        }
        Ok(())
    }

    /// Whether the trouble may be the reason for this error of an operation.
    fn may_fail(&self, e: &Error) -> bool {
        match self.trouble {
            // Blocks that need a failed read stay in the journal, which may become full.
            Trouble::FailingReads => matches!(e.kind(), Kind::Io | Kind::NoSpace),
            Trouble::FullMedium => e.kind() == Kind::NoSpace,
            Trouble::None | Trouble::LyingCopies | Trouble::LateWrites { .. } => false,
        }
    }

    /// Ends the round with the death of the process or with a power cut.
    fn end(&mut self, media: &RoundMedia) {
        let end = self.disk.draw_end();
        self.model.note_end(end);
        self.digest.add_word(self.disk.medium.ops());
        let late = media.late.as_ref().map(|late| &late.0);
        self.disk.outcome.arrived += late.map_or(0, LateMedium::arrived);
        self.disk.end(end, late, || media.last.take());
    }
}
