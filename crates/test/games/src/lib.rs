//! `games`: all games of adversaries against the formats, as tests. This library has their shared
//! helpers.
//!
//! In a game an adversary observes and acts within its powers, and wins if it learns a secret or if
//! the disk accepts wrong data (docs/threat-model.md). The same seed gives the same game, and the
//! same digest. The fixtures of the formats' own tests create the disks, stores and vaults.

use lacuna_sim::setting;
use std::ops::Range;

/// The number of games: `LACUNA_GAMES`, or else `default`.
pub fn games(default: u64) -> u64 {
    setting("LACUNA_GAMES", default)
}

/// The seeds of the games: they start with `LACUNA_SEED`, or else with `first`; [`games`] gives
/// their number.
pub fn seeds(first: u64, default: u64) -> Range<u64> {
    let first = setting("LACUNA_SEED", first);
    first..first + games(default)
}

/// Adds the counts of one more game to a digest.
pub fn fold(digest: u64, counts: u64) -> u64 {
    (digest.rotate_left(7) ^ counts).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The seed of the running game. If the game panics, dropping this prints how to repeat it.
pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LACUNA_SEED={} plays the game first that failed", self.0);
        }
    }
}
