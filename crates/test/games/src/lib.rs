//! `games`: all games of adversaries against the formats, as tests. This library has their shared
//! helpers.
//!
//! In a game an adversary observes and acts within its powers, and wins if it learns a secret or if
//! the disk accepts wrong data (docs/threat-model.md). The same seed gives the same game, and the
//! same digest. The fixtures of the formats' own tests create the disks, stores and vaults.

use lacuna_sim::env_number;
use std::ops::Range;

/// The number of games: `LACUNA_GAMES`, or else `default`.
pub fn game_count(default: u64) -> u64 {
    env_number("LACUNA_GAMES", default)
}

/// The seeds of the games: they start with `LACUNA_SEED`, or else with `first`; [`game_count`]
/// gives their number.
pub fn game_seeds(first: u64, default: u64) -> Range<u64> {
    let first = env_number("LACUNA_SEED", first);
    first..first + game_count(default)
}

/// Adds the counts of one more game to a digest.
pub fn fold_counts(digest: u64, counts: u64) -> u64 {
    (digest.rotate_left(7) ^ counts).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The seed of the running game. If the game panics, dropping this prints how to repeat it.
pub struct SeedReporter(pub u64);

impl Drop for SeedReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LACUNA_SEED={} plays the failed game first", self.0);
        }
    }
}
