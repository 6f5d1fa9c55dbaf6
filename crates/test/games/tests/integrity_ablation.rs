//! The replay game with one check left out (feature `ablation` of `integrity`). The adversary must
//! win.

#[path = "../../../parts/integrity/tests/fixture/mod.rs"]
mod fixture;
#[path = "integrity_game/replay.rs"]
mod replay;

use lacuna_integrity::ablation::{SchemeCheck, with_disabled};
use lacuna_integrity::{Choice, Scheme};
use replay::IntegrityGame;

/// The number of games that the adversary wins without a check.
fn games_won_without(check: SchemeCheck, scheme: Scheme, block_size: usize) -> usize {
    let game = |seed| {
        let choice = Choice::Fixed(scheme);
        match check {
            SchemeCheck::ArrayHash => IntegrityGame::with_dispersed_counters(seed, choice, block_size)
                .is_ok_and(|mut game| game.play(30).is_err()),
            SchemeCheck::PageTag if seed % 2 == 0 => {
                IntegrityGame::wide(seed, choice, block_size).is_ok_and(|mut game| game.play(30).is_err())
            }
            _ => IntegrityGame::new(seed, choice, block_size).play(30).is_err(),
        }
    };
    assert!((0..60).all(|seed| !game(seed)), "{scheme:?} loses with all checks");
    with_disabled(check, || (0..300).filter(|seed| game(*seed)).count())
}

#[test]
fn without_any_one_check_the_adversary_wins() {
    let needed = [
        (SchemeCheck::PageTag, Scheme::Mt),
        (SchemeCheck::PageTag, Scheme::Rand),
        (SchemeCheck::PageTag, Scheme::Comp),
        (SchemeCheck::LeafTag, Scheme::Mt),
        (SchemeCheck::LeafTag, Scheme::Rand),
        (SchemeCheck::LeafTag, Scheme::Comp),
        (SchemeCheck::InnerTag, Scheme::Comp),
        (SchemeCheck::Entropy, Scheme::Rand),
        (SchemeCheck::ArrayHash, Scheme::Rand),
        (SchemeCheck::ArrayHash, Scheme::Comp),
        (SchemeCheck::Index, Scheme::Rand),
        (SchemeCheck::Index, Scheme::Comp),
        (SchemeCheck::Counter, Scheme::Rand),
        (SchemeCheck::Counter, Scheme::Comp),
    ];
    for (check, scheme) in needed {
        let won = games_won_without(check, scheme, 512);
        assert!(won > 0, "{scheme:?} needs no {check:?}");
    }
}

/// If a file continues in the same session after a crash, a counter repeats for a block, and
/// content from before the crash passes for the latest.
#[test]
fn without_a_new_session_after_a_crash_the_adversary_wins() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let game =
            |seed| IntegrityGame::without_new_sessions(seed, Choice::Fixed(scheme), 512).play(60).is_err();
        assert!((0..2000).any(game), "{scheme:?} needs no new session");
    }
}
