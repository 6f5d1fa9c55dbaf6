//! The replay game with one check left out (feature `ablation` of `integrity`). The adversary must
//! win.

#[path = "../../../parts/integrity/tests/fixture/mod.rs"]
mod fixture;
#[path = "integrity_game/replay.rs"]
mod replay;

use lacuna_integrity::ablation::{Check, without};
use lacuna_integrity::{Choice, Scheme};
use replay::Game;

/// The number of games that the adversary wins without a check.
fn won_without(check: Check, scheme: Scheme, block_size: usize) -> usize {
    let game = |seed| {
        let choice = Choice::Fixed(scheme);
        match check {
            Check::ArrayHash => {
                Game::scattered(seed, choice, block_size).is_ok_and(|mut game| game.play(30).is_err())
            }
            Check::PageTag if seed % 2 == 0 => {
                Game::wide(seed, choice, block_size).is_ok_and(|mut game| game.play(30).is_err())
            }
            _ => Game::new(seed, choice, block_size).play(30).is_err(),
        }
    };
    assert!((0..60).all(|seed| !game(seed)), "{scheme:?} loses with all checks");
    without(check, || (0..300).filter(|seed| game(*seed)).count())
}

#[test]
fn without_any_one_check_the_adversary_wins() {
    let needed = [
        (Check::PageTag, Scheme::Mt),
        (Check::PageTag, Scheme::Rand),
        (Check::PageTag, Scheme::Comp),
        (Check::LeafTag, Scheme::Mt),
        (Check::LeafTag, Scheme::Rand),
        (Check::LeafTag, Scheme::Comp),
        (Check::InnerTag, Scheme::Comp),
        (Check::Entropy, Scheme::Rand),
        (Check::ArrayHash, Scheme::Rand),
        (Check::ArrayHash, Scheme::Comp),
        (Check::Index, Scheme::Rand),
        (Check::Index, Scheme::Comp),
        (Check::Counter, Scheme::Rand),
        (Check::Counter, Scheme::Comp),
    ];
    for (check, scheme) in needed {
        let won = won_without(check, scheme, 512);
        assert!(won > 0, "{scheme:?} needs no {check:?}");
    }
}

/// If a file continues in the same session after a crash, a counter repeats for a block, and
/// content from before the crash passes for the latest.
#[test]
fn without_a_new_session_after_a_crash_the_adversary_wins() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let game = |seed| Game::without_new_sessions(seed, Choice::Fixed(scheme), 512).play(60).is_err();
        assert!((0..2000).any(game), "{scheme:?} needs no new session");
    }
}
