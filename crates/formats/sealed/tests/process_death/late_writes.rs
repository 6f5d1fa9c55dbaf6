//! Requests that a dead process left in flight and that arrive later: a process that waits for
//! their end before it opens the disk loses nothing, a process that does not wait loses data.

use crate::play::{Play, Trouble};
use crate::{assert_nothing_lost, seed_and_ends};
use lacuna_crypto::Cipher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// A loss must be noticed within this number of ends.
const MOST_ENDS: u64 = 400;

fn fenced_requests_lose_nothing(cipher: Cipher) {
    let (seed, ends) = seed_and_ends(8);
    let outcome = Play::new(cipher, seed, Trouble::LateWrites { fenced: true }, true).run(ends);
    assert_nothing_lost(&format!("{}, late requests", cipher.name()), seed, &outcome);
    assert_eq!(outcome.arrived, 0);
}

#[test]
fn a_fence_before_opening_loses_nothing_with_xts() {
    fenced_requests_lose_nothing(Cipher::Xts);
}

#[test]
fn a_fence_before_opening_loses_nothing_with_xts_random() {
    fenced_requests_lose_nothing(Cipher::XtsRandom);
}

#[test]
fn a_fence_before_opening_loses_nothing_with_gcm() {
    fenced_requests_lose_nothing(Cipher::Gcm);
}

/// The loss that a play ends with. A block that reads wrong while the disk is in use makes the
/// workload panic.
fn loss_of(play: impl FnOnce() -> Option<String>) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(play)) {
        Ok(lost) => lost,
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(message) if message.contains("while running") => Some(message.clone()),
            _ => resume_unwind(panic),
        },
    }
}

/// The test works: without the fence late requests lose data, and the model notices it.
#[test]
fn late_requests_without_a_fence_lose_data() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        let play = Play::new(cipher, 1, Trouble::LateWrites { fenced: false }, true);
        let lost = loss_of(move || play.run(MOST_ENDS).lost);
        println!("{}, caught: {}", cipher.name(), lost.expect("the simulation must detect late requests"));
    }
}
