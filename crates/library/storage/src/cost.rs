//! The cost of one passphrase guess.

use crate::human_size;
use crate::observer::{Observer, run_step};
use lacuna_contracts::Result;
use lacuna_crypto::{Argon2Cost, measure_cost};
use std::time::Duration;

/// The time of one passphrase guess, if it is measured.
const TARGET_GUESS_TIME: Duration = Duration::from_secs(1);

/// The cost of a new disk, validated and not yet measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// A fixed cost. A low cost makes passphrases easy to guess.
    Fixed(Argon2Cost),
    /// Measured, so that one guess takes a second on this machine, with at most this many KiB of
    /// memory.
    Measured(u32),
}

impl Cost {
    /// A fixed cost: memory in KiB, and passes over it. Errors: numbers out of bounds.
    pub fn fixed(memory_kib: u32, passes: u32) -> Result<Cost> {
        let lanes = std::thread::available_parallelism().map_or(1, |n| n.get().min(4)) as u32;
        Argon2Cost::new(memory_kib, passes, lanes).map(Cost::Fixed)
    }

    /// Determines the cost. A measurement takes some seconds.
    pub fn resolve(&self, observer: &dyn Observer) -> Argon2Cost {
        let (cost, chosen) = match self {
            Cost::Fixed(cost) => (*cost, true),
            Cost::Measured(kib) => {
                let what = "measuring the cost of a passphrase guess on this machine";
                let cost = run_step(observer, what, || measure_cost(*kib, TARGET_GUESS_TIME));
                (cost, *kib < Argon2Cost::FLOOR_KIB)
            }
        };
        if cost.memory_kib < Argon2Cost::FLOOR_KIB && !chosen {
            observer.note(&format!(
                "guessing the passphrase is cheaper than it should be: this machine has too little memory for {}",
                human_size(u64::from(Argon2Cost::FLOOR_KIB) << 10)
            ));
        }
        cost
    }
}

impl Default for Cost {
    /// Measured, with at most 1 GiB of memory.
    fn default() -> Self {
        Cost::Measured(Argon2Cost::DEFAULT_MEMORY_KIB)
    }
}
