//! Tests that need a look inside: the replay game with one check left out, which the adversary must win, and the nonces and
//! tweaks that blocks are encrypted under, of which none may be used twice.

#[path = "../tests/fixture/mod.rs"]
mod fixture;
#[path = "../tests/fixture/game.rs"]
mod replay;

use crate::scheme::{Choice, Scheme};
use crate::weak::{Check, without};
use crate::witness;
use fixture::{Bed, CHOICES, Model, Step};
use lacuna_core::Budget;
use lacuna_sim::Rng;
use replay::Game;
use std::collections::HashSet;

/// In how many of some games the adversary wins without a check.
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

/// Where a file goes on in the same session after a crash, a block meets a counter twice, and what was written before the crash passes
/// for the latest.
#[test]
fn without_a_new_session_after_a_crash_the_adversary_wins() {
    for scheme in [Scheme::Rand, Scheme::Comp] {
        let game = |seed| Game::without_new_sessions(seed, Choice::Fixed(scheme), 512).play(60).is_err();
        assert!((0..2000).any(game), "{scheme:?} needs no new session");
    }
}

#[test]
fn no_nonce_and_no_tweak_is_used_twice() {
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let choice = CHOICES[(seed % 5) as usize];
        let (mut bed, mut model) = (Bed::new(choice, 128, Budget::bytes(0)), Model::default());
        let mut committed = bed.us.stored.lock().clone();
        witness::start();
        for _ in 0..300 {
            let step = Step::random(&mut rng, &model, 40, 128);
            bed.step(&step).unwrap();
            if !bed.file.is_dirty() {
                committed = bed.us.stored.lock().clone();
            }
            if rng.chance(1, 20) {
                // A crash: what was not committed is lost, and the next opening draws another session.
                *bed.us.stored.lock() = committed.clone();
                bed.reopen(false).unwrap();
            }
            model.blocks = bed.file.blocks();
        }
        let (mut uses, all) = (HashSet::new(), witness::take());
        assert!(seed % 5 == 3 || all.len() > 300);
        for (vector, block, _) in all {
            assert!(
                uses.insert(vector),
                "seed {seed}: block {block} was encrypted twice under one key and nonce, or tweak"
            );
        }
    }
}
