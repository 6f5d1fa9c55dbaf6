//! Deaths and power cuts of disks on a medium with trouble: its reads fail, or it is full.

use crate::play::{Outcome, Play, Trouble};
use crate::{assert_nothing_lost, seed_and_ends};
use lacuna_crypto::Cipher;

/// Without metadata, with IVs, with tags.
const CIPHERS: [Cipher; 3] = [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm];

/// Plays with trouble, and asserts that operations failed and nothing was lost.
fn no_end_loses_despite(what: &str, trouble: Trouble) {
    let (seed, ends) = seed_and_ends(8);
    let mut failed = 0;
    for cipher in CIPHERS {
        let outcome: Outcome = Play::new(cipher, seed, trouble, true).run(ends);
        assert_nothing_lost(&format!("{}, {what}", cipher.name()), seed, &outcome);
        failed += outcome.failed;
    }
    assert!(failed > 0, "no operation failed");
}

#[test]
fn failing_reads_make_no_end_lose_anything() {
    no_end_loses_despite("reads that fail", Trouble::FailingReads);
}

#[test]
fn a_full_medium_makes_no_end_lose_anything() {
    no_end_loses_despite("a full medium", Trouble::FullMedium);
}

#[test]
fn trouble_without_threads_is_repeatable() {
    let late = |fenced| Trouble::LateWrites { fenced };
    for trouble in [Trouble::FailingReads, Trouble::FullMedium, late(true)] {
        let run = |seed| Play::new(Cipher::XtsRandom, seed, trouble, true).run(6).digest;
        assert_eq!(run(9), run(9), "{trouble:?}");
        assert_ne!(run(9), run(10), "{trouble:?}");
    }
}
