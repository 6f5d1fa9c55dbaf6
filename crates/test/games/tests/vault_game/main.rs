//! The replay game against a vault, in hundreds of seeded runs over the schemes, also while its
//! folder lies: every read returns the latest content or an error, and every rollback of the whole
//! directory is reported as one.
//!
//! `LACUNA_GAMES` sets the runs for each scheme (default 200), `LACUNA_SEED` the first seed
//! (default 0).

mod replay;
#[path = "../../../../formats/vault/tests/vault_harness/mod.rs"]
mod vault_harness;

use lacuna_games::{fold_counts, game_count};
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::env_number;
use replay::VaultGame;

/// The number of operations of a run.
const STEPS: u64 = 40;

fn play(choice: Choice) {
    let (runs, first) = (game_count(200), env_number("LACUNA_SEED", 0));
    let (mut noticed, mut named, mut digest) = (0, 0, 0u64);
    for seed in first..first + runs {
        let mut game = VaultGame::new(seed, choice);
        game.play(STEPS).unwrap_or_else(|won| panic!("the adversary wins: {won}"));
        noticed += game.detected;
        named += game.reported_rollbacks;
        digest = fold_counts(digest, (game.detected << 32) | game.reported_rollbacks);
    }
    println!(
        "{}: {runs} runs, seed {first}, {noticed} errors, {named} rollbacks named, digest {digest:016x}",
        choice.name()
    );
    assert!(
        noticed > runs && named > runs / 4,
        "the adversary hardly tried: {noticed} errors, {named} rollbacks"
    );
}

#[test]
fn mt_shows_the_latest_or_an_error() {
    play(Choice::Fixed(Scheme::Mt));
}

#[test]
fn rand_shows_the_latest_or_an_error() {
    play(Choice::Fixed(Scheme::Rand));
}

#[test]
fn comp_shows_the_latest_or_an_error() {
    play(Choice::Fixed(Scheme::Comp));
}

#[test]
fn auto_shows_the_latest_or_an_error() {
    play(Choice::Auto);
}

#[test]
fn without_the_anchor_a_rollback_wins() {
    let lost = (0..100).any(|seed| {
        let mut game = VaultGame::new(seed, Choice::Auto);
        game.anchor_forgets = true;
        game.play(STEPS).is_err()
    });
    assert!(lost);
}

#[test]
fn encryption_alone_loses() {
    let lost = (0..100).any(|seed| VaultGame::new(seed, Choice::Fixed(Scheme::None)).play(STEPS).is_err());
    assert!(lost);
}
