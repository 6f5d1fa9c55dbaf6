//! Power cuts: three levels of a disk against a model of each, on a medium that loses, reorders and
//! tears unsynced writes ([`lacuna_testkit::levels::Hardship`]).
//!
//! `LACUNA_CUTS` sets the number of cuts (default 200; with threads 100; a fifth if reads fail),
//! `LACUNA_SEED` the seed.

mod fixture;

use fixture::{beats, params};
use lacuna_deniable::Params;
use lacuna_sim::cuts::a_seed_is_a_run;
use lacuna_sim::setting;
use lacuna_testkit::levels::Hardship;

fn alone() -> Hardship<Params> {
    // With threads the paced clock would beat as well; here the rounds beat themselves.
    let params = Params { cover_millis: 0, ..params() };
    Hardship::new(params, beats(&params))
}

fn with_threads() -> Hardship<Params> {
    Hardship { threads: true, ..alone() }
}

#[test]
fn no_cut_loses_anything_of_any_level() {
    alone().no_cut_loses_anything(setting("LACUNA_CUTS", 200));
}

#[test]
fn no_cut_loses_anything_while_threads_run() {
    with_threads().no_cut_loses_anything(setting("LACUNA_CUTS", 100));
}

#[test]
fn no_cut_loses_anything_where_reads_fail_at_times() {
    for hardship in [alone(), with_threads()] {
        Hardship { flaky: true, ..hardship }.no_cut_loses_anything(setting("LACUNA_CUTS", 200) / 5);
    }
}

/// The simulation notices a defect: a medium with syncs that do nothing loses data.
#[test]
fn a_missing_sync_is_caught() {
    alone().simulate(1, 100, true).is_caught();
    with_threads().simulate(1, 100, true).is_caught();
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    a_seed_is_a_run(|seed| alone().simulate(seed, 10, false));
}
