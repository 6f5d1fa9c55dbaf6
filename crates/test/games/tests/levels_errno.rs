//! Each errno at each call of the medium under a disk with levels. A stripe or batch that the
//! medium refuses is written again, at the same place with the same bytes, before any other. In
//! `deniable` the single failed call of a run goes unnoticed; in `oblivious` the request that
//! caused it fails, and cells that cannot be written in place stay in the ring until they can. A
//! failed read is repeated, and fails one request at most. After another error of the medium, or of
//! a sync, the disk takes no more writes. The effect of an error on the medium reveals no hidden
//! level.

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;
#[path = "../../../formats/oblivious/tests/fixture/mod.rs"]
mod oblivious;

use lacuna_levels::LevelFormat;
use lacuna_oblivious::{Hiding, Plan};
use lacuna_testkit::levels::{Sweep, Threaded};

fn of_deniable() -> Sweep<lacuna_deniable::Params> {
    let params = deniable::params();
    Sweep { name: "deniable", beats: deniable::beats(&params), params }
}

fn of_oblivious() -> Sweep<lacuna_oblivious::Params> {
    Sweep { name: "oblivious", params: oblivious::params(), beats: oblivious::BEATS }
}

#[test]
fn an_error_of_any_call_fails_a_request_or_stops_deniable_and_loses_nothing_that_was_flushed() {
    of_deniable().nothing_stops_or_is_lost_that_must_not();
}

#[test]
fn an_error_of_any_call_fails_a_request_or_stops_oblivious_and_loses_nothing_that_was_flushed() {
    of_oblivious().nothing_stops_or_is_lost_that_must_not();
}

#[test]
fn what_an_error_leaves_shows_no_hidden_level_of_deniable() {
    of_deniable().what_an_error_leaves_is_public();
}

#[test]
fn what_an_error_leaves_shows_no_hidden_level_of_oblivious() {
    of_oblivious().what_an_error_leaves_is_public();
}

#[test]
fn a_refusal_during_a_closing_of_deniable_shows_nothing_pending() {
    of_deniable().a_refused_closing_shows_nothing_pending();
}

#[test]
fn a_refusal_during_a_closing_of_oblivious_shows_nothing_pending() {
    of_oblivious().a_refused_closing_shows_nothing_pending();
}

/// Background threads keep data that the medium has no space for, and write it as soon as there is
/// space.
fn a_medium_without_room_stops_nothing<F: LevelFormat>(params: &F) {
    for nth in [1, 2, 40] {
        Threaded { params, levels: 2 }.goes_on_after_refusals(nth);
    }
}

#[test]
fn a_medium_without_room_stops_nothing_of_deniable() {
    let params = lacuna_deniable::Params { cover_millis: 3, ..deniable::params() };
    a_medium_without_room_stops_nothing(&params);
}

#[test]
fn a_medium_without_room_stops_nothing_of_oblivious() {
    let plan = Plan { hiding: Hiding::Opportunistic, operations: 6, cover_millis: 3, ..Plan::DEFAULT };
    a_medium_without_room_stops_nothing(&lacuna_oblivious::Params::plan(12 << 20, plan).unwrap());
}
