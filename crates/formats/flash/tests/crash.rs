//! Power cuts at every operation of random workloads, including purges, checkpoints, garbage
//! collection, bad blocks and openings, compared with a plain model. After each cut the key state
//! map is compared with a full scan (DNEFS, section 4.2).
//!
//! `LACUNA_CUTS` is the number of cuts in all, `LACUNA_SEED` the first seed of each test (by
//! default each test has its own seeds).

mod fixture;

use fixture::{Call, CutPoint, FAILING, SMALL, TestDisk, is_spent};
use lacuna_contracts::{Disk, Error, Result};
use lacuna_flash::{FlashDisk, PurgePolicy};
use lacuna_nand::{ChipGeometry, PowerCut, WearModel};
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{Rng, env_number};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The number of cuts in each phase.
#[derive(Default)]
struct Phases(BTreeMap<&'static str, u64>);

impl Phases {
    fn count(&mut self, name: &'static str) {
        *self.0.entry(name).or_default() += 1;
    }

    /// Counts a cut under every phase that it belongs to.
    fn note(&mut self, cut: CutPoint, failure: &Error, purging: bool, opening: bool) {
        let words = failure.to_string();
        let collecting = words.contains("garbage collection");
        let checkpoint = words.contains("checkpoint");
        if opening {
            self.count("opening");
        }
        if !purging && words.contains("the purge could not be completed") {
            self.count("purge by the thread, or by closing");
        }
        if cut.failed {
            self.count("bad-block handling");
        }
        if collecting {
            self.count("garbage collection");
        }
        if checkpoint {
            let during = cut.call == Some(Call::ChangeCheckpoint);
            self.count(if during { "checkpoint" } else { "index before a checkpoint" });
        }
        if cut.last == Some(Call::ChangeCheckpoint) && cut.call != Some(Call::ChangeCheckpoint) {
            self.count("after a checkpoint");
        }
        match cut.call {
            Some(Call::ChangeKeys) if !purging => self.count("new keys between purges"),
            Some(Call::Program) if !purging && !collecting && !checkpoint => self.count("writing"),
            Some(Call::Unmap) => self.count("giving an erase block back"),
            _ => {}
        }
        if purging && !collecting && !checkpoint {
            self.count(match (cut.call, cut.keys_changed, cut.drained) {
                (Some(Call::Program), 0, false) => "purge: before the first block of keys",
                (Some(Call::ChangeKeys), 0, _) => "purge: the first block of keys",
                (Some(Call::ChangeKeys), ..) => "purge: between blocks of keys",
                (Some(Call::Program), _, false) => "purge: after all blocks of keys",
                (Some(Call::Drain), ..) => "purge: draining",
                (Some(Call::Program), _, true) => "purge: after draining",
                _ => "purge: elsewhere",
            });
        }
    }

    fn assert_all(&self, names: &[&str]) {
        for name in names {
            assert!(self.0.contains_key(name), "no cut fell in: {name}; {:?}", self.0);
        }
    }
}

/// Failure points of section 4.2 in terms of this disk. A purge here is followed by its finish
/// record instead of a checkpoint.
const PURGE: [&str; 6] = [
    "purge: before the first block of keys",
    "purge: the first block of keys",
    "purge: between blocks of keys",
    "purge: after all blocks of keys",
    "purge: draining",
    "purge: after draining",
];
const ALWAYS: [&str; 8] = [
    "opening",
    "writing",
    "new keys between purges",
    "garbage collection",
    "giving an erase block back",
    "checkpoint",
    "index before a checkpoint",
    "after a checkpoint",
];

/// The period of the purge thread, in runs that have one.
const PERIOD: Duration = Duration::from_millis(1);

/// The parameters of a run.
#[derive(Clone, Copy)]
struct CrashCase {
    geometry: ChipGeometry,
    wearing: WearModel,
    key_len: u8,
    seed: u64,
    cuts: u64,
    /// Whether the purge thread runs.
    threaded: bool,
}

/// The result of a run.
#[derive(Default)]
struct CrashOutcome {
    phases: Phases,
    /// Digest of the places of all cuts and of the chip contents after them.
    digest: u64,
    /// Disks that wore out their flash during the run.
    worn: u64,
}

/// One disk that is cut again and again.
struct CutSequence {
    run: CrashCase,
    test_disk: TestDisk,
    model: DiskModel,
    rng: Rng,
    stamp: u64,
    outcome: CrashOutcome,
}

impl CutSequence {
    fn new(run: CrashCase) -> CutSequence {
        let mut sequence = CutSequence {
            run,
            test_disk: TestDisk::small(run.seed),
            model: DiskModel::new("", 0),
            rng: Rng::new(run.seed),
            stamp: 0,
            outcome: CrashOutcome::default(),
        };
        sequence.another_disk();
        sequence
    }

    fn another_disk(&mut self) {
        let CrashCase { geometry, wearing, key_len, seed, .. } = self.run;
        self.test_disk = TestDisk::new(geometry, wearing, key_len, 150, seed + 1000 * self.outcome.worn);
        self.test_disk.policy =
            self.run.threaded.then_some(PurgePolicy { period: PERIOD, ..PurgePolicy::default() });
        self.model = DiskModel::new(format!("seed {seed}"), self.test_disk.params.blocks);
    }

    /// Makes one cut. It may happen while the disk is being opened.
    fn cut(&mut self, what: &str) {
        // An opening takes few operations.
        let after = if self.rng.chance(1, 5) { self.rng.below(12) } else { self.rng.below(300) };
        let cut = PowerCut { after, seed: self.rng.next_u64() };
        let fails = self.run.wearing != WearModel::default();
        let failure = (fails && self.rng.chance(2, 3)).then(|| PowerCut { after: self.rng.below(4), ..cut });
        let opened = self.test_disk.open_after(|chip, watch| match failure {
            Some(cut) => watch.cut_after_failure(cut),
            None => chip.cut_power(cut),
        });
        let (mut purging, mut opening) = (false, true);
        let failure = match opened.disk {
            Ok(disk) => {
                // The opening finishes an earlier interrupted purge, and that may have been cut
                // again.
                opening = opened.watch.cut().is_some();
                self.check(&disk, opening, what);
                loop {
                    purging = false;
                    let begins = |cut: Option<PowerCut>| {
                        purging = true;
                        opened.watch.begin();
                        cut.into_iter().for_each(|cut| opened.chip.cut_power(cut));
                    };
                    if let Err(e) = self.step(&disk, begins) {
                        break e;
                    }
                }
            }
            Err(e) => e,
        };
        if let Some(cut) = opened.watch.cut() {
            assert!(opened.chip.is_off());
            self.outcome.phases.note(cut, &failure, purging, opening);
        } else {
            assert!(is_spent(&failure), "{what}: {failure}");
            self.outcome.worn += 1;
            self.another_disk();
        }
        self.fold(opened.chip.operations());
    }

    fn fold(&mut self, word: u64) {
        self.outcome.digest = (self.outcome.digest.rotate_left(7) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// One operation of a client. `purges` is called when a requested purge begins, with the power
    /// cut for it, if any.
    fn step(&mut self, disk: &FlashDisk, purges: impl FnOnce(Option<PowerCut>)) -> Result<()> {
        let kind = self.rng.below(40);
        let most = if self.rng.chance(1, 5) { 60 } else { 4 };
        let count = 1 + self.rng.below(most).min(self.model.blocks() / 2);
        if self.run.threaded && kind < 2 {
            return self.leave_to_the_thread(disk);
        }
        if self.run.threaded {
            self.test_disk.clock.advance(Duration::from_micros(self.rng.below(200)));
        }
        let (model, rng, next_stamp) = (&mut self.model, &mut self.rng, &mut self.stamp);
        let mut worked = DiskWorkload { disk, model, rng, next_stamp };
        match kind {
            0..24 => worked.write(count)?,
            24..28 => worked.discard(count)?,
            28..31 => worked.check_read(count)?,
            31..37 => {
                disk.flush()?;
                self.model.record_flush();
            }
            _ => {
                disk.flush()?;
                self.model.record_flush();
                let cut = PowerCut { after: self.rng.below(25), seed: self.rng.next_u64() };
                purges(self.rng.chance(1, 3).then_some(cut));
                disk.purge()?;
                assert_eq!(disk.recoverable(), 0);
            }
        }
        Ok(())
    }

    /// Waits until the thread has purged.
    fn leave_to_the_thread(&mut self, disk: &FlashDisk) -> Result<()> {
        self.test_disk.clock.advance(PERIOD);
        while disk.recoverable() > 0 {
            disk.flush()?;
            std::thread::sleep(PERIOD / 4);
        }
        self.model.record_flush();
        Ok(())
    }

    /// Checks that the disk reads as the model allows, and that the key state map has the three
    /// properties of the paper. `off`: whether the power is off already.
    fn check(&mut self, disk: &FlashDisk, off: bool, what: &str) {
        let keys = |disk: &FlashDisk| match disk.check_keys() {
            Ok(wrong) if wrong.is_empty() => Ok(()),
            Ok(wrong) => Err(format!("keys {wrong:?}")),
            Err(e) => Err(e.to_string()),
        };
        if let Err(wrong) = self.model.check_after_cut(disk).and_then(|()| keys(disk)) {
            // The thread may be cut in a purge during this check.
            assert!(
                (off || self.run.threaded) && wrong.contains("power of the simulated chip is off"),
                "{what}: {wrong}"
            );
        }
    }

    /// Makes all cuts, then opens and closes the disk.
    fn play(mut self) -> CrashOutcome {
        for round in 0..self.run.cuts {
            self.cut(&format!("seed {}, cut {round}", self.run.seed));
        }
        match self.test_disk.open_after(|_, _| {}).disk {
            Ok(disk) => {
                self.check(&disk, false, "at the end");
                match disk.close() {
                    Ok(()) => assert_eq!(disk.recoverable(), 0),
                    Err(e) => assert!(is_spent(&e), "{e}"),
                }
            }
            Err(e) => assert!(is_spent(&e), "{e}"),
        }
        self.test_disk.read_only = true;
        let disk = self.test_disk.open();
        self.check(&disk, false, "after closing");
        let chip = self.test_disk.memory.snapshot();
        chip.as_chunks::<8>().0.iter().for_each(|word| self.fold(u64::from_le_bytes(*word)));
        self.outcome
    }
}

/// Distributes the cuts over the runs of some seeds, and prints their results. A run depends on its
/// seed alone, so a printed seed given as the first one repeats its run first.
fn play(name: &str, share: u64, seeds: Range<u64>, run_of: impl Fn(u64) -> CrashCase, phases: &[&str]) {
    let cuts = (env_number("LACUNA_CUTS", 1000) * share / 10).max(1);
    let first = env_number("LACUNA_SEED", seeds.start);
    let runs = seeds.end - seeds.start;
    let mut all = CrashOutcome::default();
    for seed in first..first + runs {
        let run = CrashCase { cuts: cuts / runs + 1, ..run_of(seed) };
        let outcome = CutSequence::new(run).play();
        // With a purge thread, no two runs are alike.
        let digest = if run.threaded { "none".into() } else { format!("{:016x}", outcome.digest) };
        println!("{name}: {} cuts, seed {}, digest {digest}", run.cuts, run.seed);
        all.worn += outcome.worn;
        for (phase, count) in outcome.phases.0 {
            *all.phases.0.entry(phase).or_default() += count;
        }
    }
    println!("{name}: {} disks wore out; {:?}", all.worn, all.phases.0);
    if cuts >= 60 {
        all.phases.assert_all(phases);
    }
}

const PLAIN: CrashCase = CrashCase {
    geometry: SMALL,
    wearing: WearModel { endurance: 0, program_faults: 0, erase_faults: 0, factory_bad: 0 },
    key_len: 32,
    seed: 0,
    cuts: 0,
    threaded: false,
};

#[test]
fn power_cuts_lose_nothing() {
    play("plain", 4, 1..5, |seed| CrashCase { seed, ..PLAIN }, &[&PURGE[..], &ALWAYS].concat());
}

#[test]
fn power_cuts_with_short_keys_and_other_pages_lose_nothing() {
    let geometries = [(4096, 16, 60), (16384, 8, 64), (512, 64, 60)];
    let run_of = |seed: u64| {
        let (page, pages, blocks) = geometries[(seed % 3) as usize];
        let key_len = if page == 4096 { 32 } else { 16 };
        CrashCase { geometry: ChipGeometry { page, pages, blocks }, key_len, seed, ..PLAIN }
    };
    play(
        "other pages",
        2,
        5..8,
        run_of,
        &["opening", "writing", "garbage collection", "checkpoint", "purge: draining"],
    );
}

#[test]
fn power_cuts_with_bad_blocks_lose_nothing() {
    let run_of = |seed| CrashCase { wearing: FAILING, seed, ..PLAIN };
    play("bad blocks", 2, 8..10, run_of, &["bad-block handling", "garbage collection", "purge: draining"]);
}

#[test]
fn power_cuts_while_a_thread_purges_lose_nothing() {
    let run_of = |seed| CrashCase { threaded: true, seed, ..PLAIN };
    let phases = ["opening", "garbage collection", "purge by the thread, or by closing"];
    play("purging thread", 2, 10..12, run_of, &phases);
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let run = CrashCase { wearing: FAILING, seed: 77, cuts: 20, ..PLAIN };
    assert_eq!(CutSequence::new(run).play().digest, CutSequence::new(run).play().digest);
}
