//! A medium that answers two reads of one place differently, with any version that the place ever
//! had or with the content of another ([`lacuna_testkit::levels::Lying`]): every block of every
//! level reads as a version of its own, whole, or fails. Where the checkpoints are read as they
//! are, or first reads of all places, it reads as the latest: no older end of the log, and no older
//! map, is taken for the one that was found.
//!
//! `LACUNA_LIES` sets the openings (default 200), `LACUNA_SEED` the first seed.

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod fixture;

use fixture::{beats, params};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_deniable::Params;
use lacuna_testkit::levels::Lying;

/// Where the checkpoints lie (docs/format/deniable.md).
const CHECKPOINTS: u64 = 1 << 20;

#[test]
fn every_block_is_its_own_whatever_the_medium_answers() {
    // The paced clock beats when the play says.
    let params = Params { cover_millis: 0, ..params() };
    let checkpoints = CHECKPOINTS..CHECKPOINTS + 2 * BLOCK_SIZE as u64;
    let (beats, operations) = (beats(&params), 150);
    Lying { params, beats, operations, end_at: checkpoints, but_discarded: true }
        .nothing_is_wrong("deniable", 200);
}
