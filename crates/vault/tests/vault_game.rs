//! The replay game against a vault, in thousands of seeded runs over the schemes: every read shows the latest content or an
//! error, and every rollback of the whole directory is named as such.

mod world;

use lacuna_integrity::{Choice, Scheme};
use world::game::Game;

/// Operations of a run.
const STEPS: u64 = 40;

fn play(choice: Choice) {
    let runs = std::env::var("LACUNA_GAMES").ok().and_then(|runs| runs.parse().ok()).unwrap_or(800);
    let (mut noticed, mut named) = (0, 0);
    for seed in 0..runs {
        let mut game = Game::new(seed, choice);
        game.play(STEPS).unwrap_or_else(|won| panic!("the adversary wins: {won}"));
        noticed += game.noticed;
        named += game.named;
    }
    println!("{}: {runs} runs, {noticed} errors, {named} rollbacks named", choice.name());
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
        let mut game = Game::new(seed, Choice::Auto);
        game.forgetful = true;
        game.play(STEPS).is_err()
    });
    assert!(lost);
}

#[test]
fn encryption_alone_loses() {
    let lost = (0..100).any(|seed| Game::new(seed, Choice::Fixed(Scheme::None)).play(STEPS).is_err());
    assert!(lost);
}
