//! `games`: all games of adversaries against the formats, as tests. What their targets share is here.
//!
//! A game sees and does what its adversary can, and wins if anything shows or comes back that must not
//! (docs/threat-model.md). The same seed gives the same game, and the same digest. Disks, stores and vaults are made by the
//! fixtures of the formats' own tests.

use lacuna_sim::setting;

/// How many games are played: as many as `LACUNA_GAMES` says, or else `default`.
pub fn games(default: u64) -> u64 {
    setting("LACUNA_GAMES", default)
}

/// The digest of some games, with what one more game counted.
pub fn fold(digest: u64, counts: u64) -> u64 {
    (digest.rotate_left(7) ^ counts).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
