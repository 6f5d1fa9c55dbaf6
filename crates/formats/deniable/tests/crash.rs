//! Power cuts: three levels of a disk against a model of each, on a medium that loses, reorders and
//! tears unsynced writes ([`lacuna_testkit::levels::CrashTest`]).
//!
//! `LACUNA_CUTS` sets the number of cuts (default 200; with threads 100; a fifth if reads fail),
//! `LACUNA_SEED` the seed.

mod fixture;

use fixture::{beats, params};
use lacuna_deniable::Params;
use lacuna_sim::cuts::assert_seed_determines_run;
use lacuna_sim::env_number;
use lacuna_testkit::levels::CrashTest;

fn alone() -> CrashTest<Params> {
    // With threads the paced clock would beat as well; here the rounds beat themselves.
    let params = Params { cover_millis: 0, ..params() };
    CrashTest::new(params, beats(&params))
}

fn with_threads() -> CrashTest<Params> {
    CrashTest { has_threads: true, ..alone() }
}

#[test]
fn no_cut_loses_anything_of_any_level() {
    alone().assert_no_cut_loses_data(env_number("LACUNA_CUTS", 200));
}

#[test]
fn no_cut_loses_anything_while_threads_run() {
    with_threads().assert_no_cut_loses_data(env_number("LACUNA_CUTS", 100));
}

#[test]
fn no_cut_loses_anything_where_reads_fail_at_times() {
    for hardship in [alone(), with_threads()] {
        CrashTest { has_read_errors: true, ..hardship }
            .assert_no_cut_loses_data(env_number("LACUNA_CUTS", 200) / 5);
    }
}

/// The simulation notices a defect: a medium with syncs that do nothing loses data.
#[test]
fn the_crash_test_detects_a_missing_sync() {
    alone().simulate(1, 100, true).assert_loss_detected();
    with_threads().simulate(1, 100, true).assert_loss_detected();
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    assert_seed_determines_run(|seed| alone().simulate(seed, 10, false));
}
