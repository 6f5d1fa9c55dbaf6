//! The replay game against every scheme: thousands of seeded runs, in none of which the adversary wins.

mod fixture;
#[path = "fixture/game.rs"]
mod replay;

use lacuna_integrity::{Choice, Scheme};
use replay::Game;

/// Runs for each scheme.
const RUNS: u64 = 2000;
/// Operations of a run.
const STEPS: u64 = 30;

fn play(choice: Choice) {
    let mut noticed = 0;
    for seed in 0..RUNS {
        let block_size = [128, 256, 512, 4096][(seed % 4) as usize];
        let scattered = seed % 5 == 0;
        let game = if scattered {
            Game::scattered(seed, choice, block_size)
        } else {
            Ok(Game::new(seed, choice, block_size))
        };
        let mut game = game.unwrap_or_else(|e| panic!("{choice:?}, seed {seed}: {e}"));
        game.play(STEPS).unwrap_or_else(|won| panic!("{choice:?}, seed {seed}: {won}"));
        noticed += game.noticed;
    }
    assert!(noticed > RUNS, "the adversary hardly tried: {noticed} errors");
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
    let lost = (0..50).any(|seed| Game::new(seed, Choice::Fixed(Scheme::None), 512).play(STEPS).is_err());
    assert!(lost);
}
