//! `games`: all games of adversaries against the formats, as tests. What their targets share is
//! here.
//!
//! A game sees and does what its adversary can, and wins if anything shows or comes back that must
//! not (docs/threat-model.md). The same seed gives the same game, and the same digest. Disks,
//! stores and vaults are made by the fixtures of the formats' own tests.

use lacuna_sim::setting;
use std::ops::Range;

/// How many games are played: as many as `LACUNA_GAMES` says, or else `default`.
pub fn games(default: u64) -> u64 {
    setting("LACUNA_GAMES", default)
}

/// The seeds of the games that are played: they begin with the one in `LACUNA_SEED`, or else with
/// `first`, and are as many as [`games`] says.
pub fn seeds(first: u64, default: u64) -> Range<u64> {
    let first = setting("LACUNA_SEED", first);
    first..first + games(default)
}

/// The digest of some games, with what one more game counted.
pub fn fold(digest: u64, counts: u64) -> u64 {
    (digest.rotate_left(7) ^ counts).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The seed of the game that is being played. If that panics, this tells how the game is played
/// again.
pub struct Seed(pub u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("LACUNA_SEED={} plays the game first that failed", self.0);
        }
    }
}
