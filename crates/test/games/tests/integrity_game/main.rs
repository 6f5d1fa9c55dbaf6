//! The replay game against every scheme, over storage that lies: thousands of seeded runs. The
//! adversary must win none.
//!
//! `LACUNA_GAMES` sets the runs for each scheme (default 500), `LACUNA_SEED` the first seed
//! (default 0).

#[path = "../../../../parts/integrity/tests/fixture/mod.rs"]
mod fixture;
mod replay;

use lacuna_games::{fold_counts, game_count};
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::env_number;
use replay::IntegrityGame;

/// The number of operations of a run.
const STEPS: u64 = 30;

fn play(choice: Choice) {
    let (runs, first) = (game_count(500), env_number("LACUNA_SEED", 0));
    let (mut noticed, mut digest) = (0, 0u64);
    for seed in first..first + runs {
        let block_size = [128, 256, 512, 4096][(seed % 4) as usize];
        let game = match seed % 10 {
            0 | 5 => IntegrityGame::with_dispersed_counters(seed, choice, block_size),
            // The block size does not matter to the trees, and small blocks are fast.
            1 | 4 => IntegrityGame::wide(seed, choice, block_size.min(256)),
            _ => Ok(IntegrityGame::new(seed, choice, block_size)),
        };
        let mut game = game.unwrap_or_else(|e| panic!("{choice:?}, seed {seed}: {e}")).with_lies(seed);
        game.play(STEPS).unwrap_or_else(|won| panic!("{choice:?}, seed {seed}: {won}"));
        noticed += game.detected;
        digest = fold_counts(digest, game.detected);
    }
    println!("{choice:?}: {runs} runs, seed {first}, {noticed} errors, digest {digest:016x}");
    assert!(noticed > runs, "the adversary hardly tried: {noticed} errors");
}

#[test]
fn mt_eint_returns_the_latest_content_or_an_error() {
    play(Choice::Fixed(Scheme::Mt));
}

#[test]
fn rand_eint_returns_the_latest_content_or_an_error() {
    play(Choice::Fixed(Scheme::Rand));
}

#[test]
fn comp_eint_returns_the_latest_content_or_an_error() {
    play(Choice::Fixed(Scheme::Comp));
}

#[test]
fn auto_returns_the_latest_content_or_an_error() {
    play(Choice::Auto);
}

#[test]
fn encryption_alone_loses() {
    let lost =
        (0..50).any(|seed| IntegrityGame::new(seed, Choice::Fixed(Scheme::None), 512).play(STEPS).is_err());
    assert!(lost);
}
