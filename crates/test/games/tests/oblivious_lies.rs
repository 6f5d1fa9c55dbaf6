//! A medium that answers two reads of one place differently, with any version that the place ever
//! had or with the content of another ([`lacuna_testkit::levels::Lying`]): every block of every
//! level reads as a version of its own, whole, or fails. Where the journal is read as it is, or
//! first reads of all places, it reads as the latest.
//!
//! `LACUNA_LIES` sets the openings (default 200), `LACUNA_SEED` the first seed.

#[path = "../../../formats/oblivious/tests/fixture/mod.rs"]
mod fixture;

use fixture::{BEATS, params};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_testkit::levels::Lying;

/// Where the journal begins (docs/format/oblivious.md).
const JOURNAL: u64 = 1 << 20;

#[test]
fn every_block_is_its_own_whatever_the_medium_answers() {
    let params = params();
    let journal = JOURNAL..JOURNAL + 2 * u64::from(params.journal) * BLOCK_SIZE as u64;
    Lying { params, beats: BEATS, operations: 100, end_at: journal, but_discarded: false }
        .nothing_is_wrong("oblivious", 200);
}
