//! Everything together on a disk with levels: up to three open levels, several clients on each that
//! read, write, discard and flush, beats of cover, a medium that refuses calls, fails, lies or
//! loses power, a killed server, and further sessions. Each level has a model (`level_model.rs`):
//!
//! - A block reads as its last flushed version, or as a later one; within a session as its last
//!   acknowledged version, unless clients race for it.
//! - If the medium lies, a block reads as a version that it had at some time, or fails, also after
//!   the medium is honest again.
//! - If the medium refuses one call, requests that need it fail, and succeed when they are
//!   repeated: the disk goes on, and closes.
//! - A disk may be closed in use: its levels one after another, while the cover of the closing is
//!   written, beats come, and clients of other levels go on. A level that was closed without an
//!   error is durable. If a level lost data, the close of the disk reports that.
//! - In the end the disk opens, takes writes on every level, closes, and reads correctly at every
//!   depth.
//!
//! With two of three seeds clients take turns, in an order that depends on the seed, on a disk
//! without threads: the digest is of all answers to clients. With the third they run concurrently,
//! on a disk with threads and a medium with random delays: the digest is of data that does not
//! depend on timing, which is the requests and the final content of the disk.
//!
//! A seed determines all draws of its disk, whatever happens in a session. The end of a session is
//! one draw, which also chooses between the two ways to close.
//!
//! `LACUNA_GAMES` sets the sessions of each format (default 200), up to five for each disk;
//! `LACUNA_SEED` the seed of the first disk (default 1).

mod closing;
#[path = "../../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;
mod faults;
mod level_model;
#[path = "../../../../formats/oblivious/tests/fixture/mod.rs"]
mod oblivious;
mod play;
mod script;
mod session;

use lacuna_games::game_count;
use lacuna_levels::LevelFormat;
use lacuna_oblivious::{HidingMode, Plan};
use lacuna_sim::env_number;
use play::LevelsGame;
use session::Weakness;

/// The number of sessions that must catch a weakened disk.
const CONTROL_SESSIONS: u64 = 400;

fn deniable_game(weakness: Option<Weakness>, threads: Option<bool>) -> LevelsGame<lacuna_deniable::Params> {
    LevelsGame {
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
fn oblivious_game(weakness: Option<Weakness>, threads: Option<bool>) -> LevelsGame<lacuna_oblivious::Params> {
    let params = |seed: u64| {
        let hiding = if seed % 4 == 3 { HidingMode::Plausible } else { HidingMode::Opportunistic };
        let of = oblivious::params_of(hiding);
        lacuna_oblivious::Params::plan(of.end(), Plan { cover_millis: 0, ..of.plan }).unwrap()
    };
    LevelsGame { name: "oblivious", params, beats: oblivious::BEATS, operations: 4000, weakness, threads }
}

/// Sets up a game. Arguments: a fault of its disks, and whether they have threads.
type GameSetup<F> = fn(Option<Weakness>, Option<bool>) -> LevelsGame<F>;

fn assert_nothing_lost<F: LevelFormat>(game: GameSetup<F>) {
    game(None, None).play(env_number("LACUNA_SEED", 1), game_count(200)).assert_no_violation();
}

fn assert_weaknesses_caught<F: LevelFormat>(game: GameSetup<F>) {
    for threads in [false, true] {
        for weakness in Weakness::ALL {
            game(Some(weakness), Some(threads)).play(1, CONTROL_SESSIONS).assert_caught(weakness);
        }
    }
}

fn assert_seed_determines_game<F: LevelFormat>(game: GameSetup<F>) {
    for threads in [false, true] {
        let digest = |seed| game(None, Some(threads)).play(seed, 6).digest();
        assert_eq!(digest(9), digest(9), "threads: {threads}");
        assert_ne!(digest(9), digest(10), "threads: {threads}");
    }
}

#[test]
fn deniable_loses_nothing_under_concurrent_clients_and_faults() {
    assert_nothing_lost(deniable_game);
}

#[test]
fn oblivious_loses_nothing_under_concurrent_clients_and_faults() {
    assert_nothing_lost(oblivious_game);
}

#[test]
fn the_game_catches_weaknesses_of_deniable() {
    assert_weaknesses_caught(deniable_game);
}

#[test]
fn the_game_catches_weaknesses_of_oblivious() {
    assert_weaknesses_caught(oblivious_game);
}

#[test]
fn the_same_seed_gives_the_same_game_of_deniable() {
    assert_seed_determines_game(deniable_game);
}

#[test]
fn the_same_seed_gives_the_same_game_of_oblivious() {
    assert_seed_determines_game(oblivious_game);
}
