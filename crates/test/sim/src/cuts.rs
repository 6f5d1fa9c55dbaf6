//! What simulations of power cuts count and say, whatever the format.

use crate::{CrashMedium, Image, Rng};

/// The cuts of a simulation so far.
#[derive(Default)]
pub struct Cuts {
    digest: u64,
    /// In some rounds the power goes only after all work is done, which counts as no cut.
    rounds: u64,
    in_flight: u64,
}

/// What became of a simulation.
pub struct Outcome {
    /// Of what the medium was asked for.
    digest: u64,
    /// Whether the same seed gives it again.
    repeats: bool,
    rounds: u64,
    /// What was lost, if anything was.
    violation: Option<String>,
}

impl Cuts {
    /// The end of a round: what the medium kept. The power goes now, if it did not go before.
    pub fn cut(&mut self, medium: &CrashMedium, rng: &mut Rng) -> Image {
        self.rounds += 1;
        self.in_flight += u64::from(medium.is_cut());
        medium.cut_now();
        let image = medium.after_cut(rng);
        self.digest = self.digest.rotate_left(7) ^ medium.ops();
        if self.rounds.is_multiple_of(32) {
            self.digest ^= medium.digest();
        }
        image
    }

    /// Cuts that came while there was work.
    pub fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The end, which may be that something was lost.
    pub fn end(self, seed: u64, lost: Option<String>) -> Outcome {
        let Cuts { digest, rounds, .. } = self;
        let violation = lost.map(|e| format!("seed {seed}, round {rounds}: {e}"));
        Outcome { digest, repeats: true, rounds, violation }
    }
}

impl Outcome {
    /// The same of a simulation that no seed gives again: one with threads, or with randomness of
    /// the system.
    #[must_use]
    pub fn unrepeatable(self) -> Outcome {
        Outcome { repeats: false, ..self }
    }

    /// Says what was played, and its digest.
    ///
    /// # Panics
    ///
    /// If anything was lost. A round begins with what the round before it left, so none can be
    /// played alone: the message names the variables that play the rounds before it too.
    pub fn nothing_is_lost(self, what: &str, cuts: u64, seed: u64) {
        let digest = if self.repeats { format!("{:016x}", self.digest) } else { "none".into() };
        println!("{what}{cuts} cuts in {} rounds, seed {seed}, digest {digest}", self.rounds);
        if let Some(violation) = self.violation {
            panic!("{violation}; LACUNA_SEED={seed} and the same LACUNA_CUTS play it again");
        }
    }

    /// The proof that a simulation bites: a medium whose syncs do nothing loses data.
    ///
    /// # Panics
    ///
    /// If nothing was lost.
    pub fn is_caught(self) {
        println!("caught: {}", self.violation.expect("lost writes must be noticed"));
    }
}

/// Asserts that the same seed is the same run, and that seeds differ.
///
/// # Panics
///
/// If it is otherwise.
pub fn a_seed_is_a_run(simulate: impl Fn(u64) -> Outcome) {
    assert_eq!(simulate(9).digest, simulate(9).digest);
    assert_ne!(simulate(9).digest, simulate(10).digest);
}
