//! The replay game against every scheme: thousands of seeded runs, in none of which the adversary wins. `LACUNA_GAMES` sets the
//! runs for each scheme, in hundreds (default 20).

mod fixture;
#[path = "fixture/game.rs"]
mod replay;

use lacuna_integrity::{Choice, Scheme};
use replay::Game;

/// Operations of a run.
const STEPS: u64 = 30;

/// Runs for each scheme.
fn runs() -> u64 {
    let hundreds = std::env::var("LACUNA_GAMES").ok().and_then(|games| games.parse().ok());
    hundreds.unwrap_or(20) * 100
}

fn play(choice: Choice) {
    let mut noticed = 0;
    let runs = runs();
    for seed in 0..runs {
        let block_size = [128, 256, 512, 4096][(seed % 4) as usize];
        let game = match seed % 10 {
            0 | 5 => Game::scattered(seed, choice, block_size),
            // The size does not matter to the trees, and small blocks are fast.
            1 | 4 => Game::wide(seed, choice, block_size.min(256)),
            _ => Ok(Game::new(seed, choice, block_size)),
        };
        let mut game = game.unwrap_or_else(|e| panic!("{choice:?}, seed {seed}: {e}"));
        game.play(STEPS).unwrap_or_else(|won| panic!("{choice:?}, seed {seed}: {won}"));
        noticed += game.noticed;
    }
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
    let lost = (0..50).any(|seed| Game::new(seed, Choice::Fixed(Scheme::None), 512).play(STEPS).is_err());
    assert!(lost);
}
