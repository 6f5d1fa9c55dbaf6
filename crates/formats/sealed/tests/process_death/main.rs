//! Deaths of the process and power cuts in one history, compared with a model.
//!
//! A round opens the medium, with the kept memory if the round before ended with the death of the
//! process, and compares every block: after a death it must read as its last acknowledged version,
//! after a power cut as its last flushed version or any later one. Then it runs random operations
//! until the next end, which comes in the middle of an operation of the medium or before a change
//! of the kept memory, during opening too (`play.rs`).
//!
//! The same play has trouble beside the ends (`troubles.rs`): reads that fail, a full medium, reads
//! that lie (`lies.rs`), and requests of a dead process that arrive later (`late_writes.rs`). In
//! `threads.rs` several threads use the disk until the process dies. `torn_stream.rs` tears one
//! write to a stream, and cuts the power at each step of the next opening. In `failed_opening.rs`
//! the next opening fails in one of its first operations, or the disk is not closed after it. In
//! `voided_segment.rs` it dies at many changes of the memory, after a discard of a segment.
//!
//! `LACUNA_CUTS` is the number of ends per cipher (default 200; an eighth of it for each trouble, a
//! tenth with threads), `LACUNA_SEED` the seed.

mod dying_medium;
mod failed_opening;
#[path = "../fixture/mod.rs"]
mod fixture;
mod late_writes;
mod lies;
mod play;
mod standstill;
mod surviving_disk;
mod threads;
mod torn_stream;
mod troubles;
mod voided_segment;

use lacuna_crypto::Cipher;
use lacuna_sim::env_number;
use play::{Outcome, Play, Trouble};

/// The seed and the number of ends, divided by `share`.
fn seed_and_ends(share: u64) -> (u64, u64) {
    (env_number("LACUNA_SEED", 1), env_number("LACUNA_CUTS", 200).div_ceil(share))
}

/// Prints the result of a play with memory that outlives the process.
///
/// # Panics
///
/// If anything was lost.
fn assert_nothing_lost(what: &str, seed: u64, outcome: &Outcome) {
    let Outcome { deaths, cuts, failed, digest, lost, .. } = outcome;
    println!("{what}: {deaths} deaths, {cuts} cuts, {failed} failed, seed {seed}, digest {digest:016x}");
    if let Some(lost) = lost {
        panic!("{what}: {lost}; LACUNA_SEED={seed} and the same LACUNA_CUTS repeat the run");
    }
}

fn no_end_loses(cipher: Cipher) {
    let (seed, ends) = seed_and_ends(1);
    assert_nothing_lost(cipher.name(), seed, &Play::new(cipher, seed, Trouble::None, true).run(ends));
}

#[test]
fn neither_deaths_nor_cuts_lose_anything_with_xts() {
    no_end_loses(Cipher::Xts);
}

#[test]
fn neither_deaths_nor_cuts_lose_anything_with_xts_random() {
    no_end_loses(Cipher::XtsRandom);
}

#[test]
fn neither_deaths_nor_cuts_lose_anything_with_gcm() {
    no_end_loses(Cipher::Gcm);
}

/// The test works: without the memory a death loses writes.
#[test]
fn a_death_without_the_memory_is_detected() {
    let outcome = Play::new(Cipher::XtsRandom, 1, Trouble::None, false).run(100);
    println!("caught: {}", outcome.lost.expect("the simulation must detect lost writes"));
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let run = |seed| Play::new(Cipher::Gcm, seed, Trouble::None, true).run(10).digest;
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}
