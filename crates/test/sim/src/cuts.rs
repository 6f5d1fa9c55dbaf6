//! The bookkeeping of power-cut simulations, for all formats.

use crate::{CrashMedium, MediumImage, Rng};

/// The cuts of a simulation.
#[derive(Default)]
pub struct Cuts {
    digest: u64,
    /// Includes rounds with no cut during the work, because the work ended first.
    rounds: u64,
    during_work: u64,
}

/// The result of a simulation.
pub struct CutOutcome {
    /// A digest of the medium's operations.
    digest: u64,
    /// Whether the same seed repeats the digest.
    is_repeatable: bool,
    rounds: u64,
    /// The data loss, if there was one.
    violation: Option<String>,
}

impl Cuts {
    /// Ends a round with a power cut, unless there was one already. Returns the remaining image.
    pub fn cut(&mut self, medium: &CrashMedium, rng: &mut Rng) -> MediumImage {
        self.rounds += 1;
        self.during_work += u64::from(medium.is_cut());
        medium.cut_now();
        let image = medium.after_cut(rng);
        self.digest = self.digest.rotate_left(7) ^ medium.ops();
        if self.rounds.is_multiple_of(32) {
            self.digest ^= medium.digest();
        }
        image
    }

    /// The number of cuts during work.
    pub fn cuts_during_work(&self) -> u64 {
        self.during_work
    }

    /// Ends the simulation. `lost` describes a data loss.
    pub fn finish(self, seed: u64, lost: Option<String>) -> CutOutcome {
        let Cuts { digest, rounds, .. } = self;
        let violation = lost.map(|e| format!("seed {seed}, round {rounds}: {e}"));
        CutOutcome { digest, is_repeatable: true, rounds, violation }
    }
}

impl CutOutcome {
    /// Marks a simulation that no seed can repeat, because it uses threads or the system's
    /// randomness.
    #[must_use]
    pub fn unrepeatable(self) -> CutOutcome {
        CutOutcome { is_repeatable: false, ..self }
    }

    /// Prints the number of cuts and the digest.
    ///
    /// # Panics
    ///
    /// If data was lost. A round starts from the image of the round before it, so it cannot run
    /// alone: the message names the variables that repeat the whole run.
    pub fn assert_nothing_lost(self, what: &str, cuts: u64, seed: u64) {
        let digest = if self.is_repeatable { format!("{:016x}", self.digest) } else { "none".into() };
        println!("{what}{cuts} cuts in {} rounds, seed {seed}, digest {digest}", self.rounds);
        if let Some(violation) = self.violation {
            panic!("{violation}; LACUNA_SEED={seed} and the same LACUNA_CUTS repeat the run");
        }
    }

    /// Checks that the simulation detects loss: its medium ignores syncs and so loses data.
    ///
    /// # Panics
    ///
    /// If no loss was detected.
    pub fn assert_loss_detected(self) {
        println!("caught: {}", self.violation.expect("the simulation must detect lost writes"));
    }
}

/// Asserts that the same seed repeats a run, and that another seed gives another run.
///
/// # Panics
///
/// If the assertion fails.
pub fn assert_seed_determines_run(simulate: impl Fn(u64) -> CutOutcome) {
    assert_eq!(simulate(9).digest, simulate(9).digest);
    assert_ne!(simulate(9).digest, simulate(10).digest);
}
