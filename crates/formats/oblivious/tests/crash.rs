//! Power cuts: three levels of a disk against a model of each, on a medium that loses, reorders and
//! tears unsynced writes ([`lacuna_testkit::levels::CrashTest`]).
//!
//! The disks: one with maps of one page each, one with maps of more leaves than memory holds, one
//! with threads, where the same seed is not the same run, and one on a medium that fails to read at
//! times.
//!
//! `LACUNA_CUTS` sets the number of cuts (default 200; with threads 100; a fifth on the larger disk
//! and on the failing medium), `LACUNA_SEED` the seed.

mod fixture;

use fixture::{BEATS, params};
use lacuna_contracts::Budget;
use lacuna_oblivious::{Params, Plan};
use lacuna_sim::cuts::assert_seed_determines_run;
use lacuna_sim::env_number;
use lacuna_testkit::levels::CrashTest;

/// Maps of one page each.
fn small() -> CrashTest<Params> {
    CrashTest::new(params(), BEATS)
}

/// Maps of more leaves than memory holds, so that pages are written, evicted and read again in
/// every session.
fn with_larger_maps() -> CrashTest<Params> {
    CrashTest {
        params: Params::plan(64 << 20, Plan { operations: 6, ..Plan::DEFAULT }).unwrap(),
        budget: Budget::bytes(64 << 10),
        is_filled: true,
        operations: 80,
        medium_operations: 400,
        ..small()
    }
}

/// Enough operations for the journal to wrap around, without waiting for the clock.
fn with_threads() -> CrashTest<Params> {
    let plan = Plan { cover_millis: 0, ..params().plan };
    let params = Params::plan(params().end(), plan).unwrap();
    CrashTest { params, has_threads: true, medium_operations: 1500, operations: 480, ..small() }
}

#[test]
fn no_cut_loses_anything_of_any_level() {
    small().assert_no_cut_loses_data(env_number("LACUNA_CUTS", 200));
}

#[test]
fn no_cut_loses_anything_of_maps_larger_than_memory() {
    let hardship = with_larger_maps();
    assert!(hardship.params.blocks > 4 * 512, "or memory holds all leaves of a map");
    hardship.assert_no_cut_loses_data(env_number("LACUNA_CUTS", 200) / 5);
}

#[test]
fn no_cut_loses_anything_while_threads_destage() {
    with_threads().assert_no_cut_loses_data(env_number("LACUNA_CUTS", 100));
}

#[test]
fn no_cut_loses_anything_where_reads_fail_at_times() {
    for hardship in [small(), with_threads()] {
        CrashTest { has_read_errors: true, ..hardship }
            .assert_no_cut_loses_data(env_number("LACUNA_CUTS", 200) / 5);
    }
}

/// The simulation notices a defect: a medium with syncs that do nothing loses data.
#[test]
fn the_crash_test_detects_a_missing_sync() {
    small().simulate(1, 100, true).assert_loss_detected();
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    assert_seed_determines_run(|seed| small().simulate(seed, 10, false));
}
