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
use lacuna_oblivious::{HidingMode, Plan};
use lacuna_testkit::levels::{ErrnoSweep, ThreadedDisk};

fn deniable_sweep() -> ErrnoSweep<lacuna_deniable::Params> {
    let params = deniable::params();
    ErrnoSweep { name: "deniable", beats: deniable::beats(&params), params }
}

fn oblivious_sweep() -> ErrnoSweep<lacuna_oblivious::Params> {
    ErrnoSweep { name: "oblivious", params: oblivious::params(), beats: oblivious::BEATS }
}

#[test]
fn an_error_of_any_call_loses_no_flushed_data_of_deniable() {
    deniable_sweep().assert_errors_lose_no_flushed_data();
}

#[test]
fn an_error_of_any_call_loses_no_flushed_data_of_oblivious() {
    oblivious_sweep().assert_errors_lose_no_flushed_data();
}

#[test]
fn the_effect_of_an_error_hides_the_levels_of_deniable() {
    deniable_sweep().assert_effects_hide_levels();
}

#[test]
fn the_effect_of_an_error_hides_the_levels_of_oblivious() {
    oblivious_sweep().assert_effects_hide_levels();
}

#[test]
fn a_refused_close_of_deniable_hides_pending_data() {
    deniable_sweep().assert_refused_close_hides_pending();
}

#[test]
fn a_refused_close_of_oblivious_hides_pending_data() {
    oblivious_sweep().assert_refused_close_hides_pending();
}

/// Background threads keep data that the medium has no space for, and write it as soon as there is
/// space.
fn a_full_medium_does_not_stop_the_disk<F: LevelFormat>(params: &F) {
    for nth in [1, 2, 40] {
        ThreadedDisk { params, levels: 2 }.assert_continues_after_refusals(nth);
    }
}

#[test]
fn a_full_medium_does_not_stop_deniable() {
    let params = lacuna_deniable::Params { cover_millis: 3, ..deniable::params() };
    a_full_medium_does_not_stop_the_disk(&params);
}

#[test]
fn a_full_medium_does_not_stop_oblivious() {
    let plan = Plan { hiding: HidingMode::Opportunistic, operations: 6, cover_millis: 3, ..Plan::DEFAULT };
    a_full_medium_does_not_stop_the_disk(&lacuna_oblivious::Params::plan(12 << 20, plan).unwrap());
}
