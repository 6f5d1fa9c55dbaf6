//! Everything together on a disk with levels: up to three open levels, several clients on each that
//! read, write, discard and flush, beats of cover, a medium that refuses calls, fails, lies or
//! loses power, a killed server, and further sessions. Each level has a model (`ledger.rs`):
//!
//! - A block reads as its last flushed version, or as a later one; within a session as its last
//!   acknowledged version, unless clients race for it.
//! - If the medium lies, a block reads as a version that it had at some time, or fails, also after
//!   the medium is honest again.
//! - If the medium refuses one call, requests that need it fail, and succeed when they are
//!   repeated: the disk goes on, and closes.
//! - In the end the disk opens, takes writes on every level, closes, and reads correctly at every
//!   depth.
//!
//! With two of three seeds clients take turns, in an order that depends on the seed, on a disk
//! without threads: the digest is of all answers to clients. With the third they run concurrently,
//! on a disk with threads and a medium with random delays: the digest is of data that does not
//! depend on timing, which is the requests and the final content of the disk.
//!
//! `LACUNA_GAMES` sets the sessions of each format (default 200), up to five for each disk;
//! `LACUNA_SEED` the seed of the first disk (default 1).

#[path = "../../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;
mod hardship;
mod ledger;
#[path = "../../../../formats/oblivious/tests/fixture/mod.rs"]
mod oblivious;
mod play;
mod script;
mod session;

use lacuna_games::games;
use lacuna_levels::LevelFormat;
use lacuna_oblivious::{Hiding, Plan};
use lacuna_sim::setting;
use play::Game;
use session::Weakness;

/// The number of sessions that must catch a weakened disk.
const CONTROL: u64 = 400;

fn of_deniable(weakness: Option<Weakness>, threads: Option<bool>) -> Game<lacuna_deniable::Params> {
    Game {
        name: "deniable",
        params: |_| lacuna_deniable::Params { cover_millis: 0, ..deniable::params() },
        beats: deniable::beats(&deniable::params()),
        operations: 120,
        weakness,
        threads,
    }
}

/// On one of four disks hidden operations pass for public ones; on the remaining three they wait
/// for cover.
fn of_oblivious(weakness: Option<Weakness>, threads: Option<bool>) -> Game<lacuna_oblivious::Params> {
    let params = |seed: u64| {
        let hiding = if seed % 4 == 3 { Hiding::Plausible } else { Hiding::Opportunistic };
        let of = oblivious::params_of(hiding);
        lacuna_oblivious::Params::plan(of.end(), Plan { cover_millis: 0, ..of.plan }).unwrap()
    };
    Game { name: "oblivious", params, beats: oblivious::BEATS, operations: 4000, weakness, threads }
}

/// Sets up a game. Arguments: a fault of its disks, and whether they have threads.
type Setup<F> = fn(Option<Weakness>, Option<bool>) -> Game<F>;

fn everything_at_once_loses_nothing<F: LevelFormat>(game: Setup<F>) {
    game(None, None).play(setting("LACUNA_SEED", 1), games(200)).nothing_is_wrong();
}

fn what_is_weakened_is_caught<F: LevelFormat>(game: Setup<F>) {
    for threads in [false, true] {
        for weakness in Weakness::ALL {
            game(Some(weakness), Some(threads)).play(1, CONTROL).assert_caught(weakness);
        }
    }
}

fn a_seed_is_a_play<F: LevelFormat>(game: Setup<F>) {
    for threads in [false, true] {
        let digest = |seed| game(None, Some(threads)).play(seed, 6).digest();
        assert_eq!(digest(9), digest(9), "threads: {threads}");
        assert_ne!(digest(9), digest(10), "threads: {threads}");
    }
}

#[test]
fn everything_at_once_loses_nothing_of_deniable() {
    everything_at_once_loses_nothing(of_deniable);
}

#[test]
fn everything_at_once_loses_nothing_of_oblivious() {
    everything_at_once_loses_nothing(of_oblivious);
}

#[test]
fn a_weak_deniable_is_caught() {
    what_is_weakened_is_caught(of_deniable);
}

#[test]
fn a_weak_oblivious_is_caught() {
    what_is_weakened_is_caught(of_oblivious);
}

#[test]
fn the_same_seed_is_the_same_play_of_deniable() {
    a_seed_is_a_play(of_deniable);
}

#[test]
fn the_same_seed_is_the_same_play_of_oblivious() {
    a_seed_is_a_play(of_oblivious);
}
