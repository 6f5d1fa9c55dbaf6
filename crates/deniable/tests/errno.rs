//! Each error of the system at each call of the medium. A stripe that the medium refuses is written again, at the same place with the
//! same bytes, before any other: in these runs, in which one call fails, that goes unnoticed. After an error of the medium, or of a sync,
//! the disk takes no more writes.

mod fixture;

use fixture::{beats, params};
use lacuna_deniable::Params;
use lacuna_sim::levels::{Sweep, Threaded};

fn sweep() -> Sweep<Params> {
    let params = params();
    Sweep { name: "deniable", beats: beats(&params), params }
}

#[test]
fn an_error_of_any_call_fails_a_request_or_stops_and_loses_nothing_that_was_flushed() {
    sweep().nothing_stops_or_is_lost_that_must_not();
}

#[test]
fn what_an_error_leaves_shows_no_hidden_level() {
    sweep().what_an_error_leaves_is_public();
}

#[test]
fn a_refusal_during_a_closing_shows_nothing_pending() {
    sweep().a_refused_closing_shows_nothing_pending();
}

/// The threads hold what the medium has no room for, and write it as soon as there is some.
#[test]
fn a_medium_without_room_stops_nothing() {
    let params = Params { cover_millis: 3, ..params() };
    for nth in [1, 2, 40] {
        Threaded { params: &params, levels: 2 }.goes_on_after_refusals(nth);
    }
}
