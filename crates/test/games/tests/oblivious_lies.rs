//! A medium that answers two reads of one place differently, with any earlier version of the place
//! or with the content of another ([`lacuna_testkit::levels::LyingDisks`]). Every block of every
//! level reads as a whole version of its own, or fails. If reads of the journal are true, first
//! reads of all places, or all reads through the system's cache, it reads as its latest version.
//!
//! `LACUNA_LIES` sets the openings (default 200), `LACUNA_SEED` the first seed.

#[path = "../../../formats/oblivious/tests/fixture/mod.rs"]
mod fixture;

use fixture::{BEATS, params};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_testkit::levels::LyingDisks;

/// The offset of the journal in bytes (docs/format/oblivious.md).
const JOURNAL: u64 = 1 << 20;

#[test]
fn every_block_reads_as_its_own_version_on_a_lying_medium() {
    let params = params();
    let journal = JOURNAL..JOURNAL + 2 * u64::from(params.journal) * BLOCK_SIZE as u64;
    LyingDisks { params, beats: BEATS, operations: 100, end_record: journal, may_undo_discards: false }
        .assert_nothing_wrong("oblivious", 200);
}
