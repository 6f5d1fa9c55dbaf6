//! A medium that answers two reads of one place differently, with any earlier version of the place
//! or with the content of another ([`lacuna_testkit::levels::LyingDisks`]). Every block of every
//! level reads as a whole version of its own, or fails. If reads of the checkpoints are true, first
//! reads of all places, or all reads through the system's cache, it reads as its latest version:
//! the disk does not accept an older end of the log, or an older map, after it has read the newest.
//!
//! `LACUNA_LIES` sets the openings (default 200), `LACUNA_SEED` the first seed.

#[path = "../../../formats/deniable/tests/fixture/mod.rs"]
mod fixture;

use fixture::{beats, params};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_deniable::Params;
use lacuna_testkit::levels::LyingDisks;

/// The offset of the checkpoints in bytes (docs/format/deniable.md).
const CHECKPOINTS: u64 = 1 << 20;

#[test]
fn every_block_reads_as_its_own_version_on_a_lying_medium() {
    // Only the play beats the paced clock.
    let params = Params { cover_millis: 0, ..params() };
    let checkpoints = CHECKPOINTS..CHECKPOINTS + 2 * BLOCK_SIZE as u64;
    let (beats, operations) = (beats(&params), 150);
    LyingDisks { params, beats, operations, end_record: checkpoints, may_undo_discards: true }
        .assert_nothing_wrong("deniable", 200);
}
