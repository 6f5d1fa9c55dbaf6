//! Disks with levels ([`lacuna_testkit::levels::resume_twice`]): the copies write different data on
//! level 0, or only on a hidden level. Hedging covers the salts of stripes in `deniable`, and the
//! nonces of cells and the salts of batches in `oblivious`.

#[path = "../../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;
#[path = "../../../../formats/oblivious/tests/fixture/mod.rs"]
mod oblivious;

use crate::{ExpectedRepeats, assert_no_nonce_repeats};
use lacuna_levels::LevelFormat;
use lacuna_testkit::levels::resume_twice;

fn resume_at_each_level<F: LevelFormat>(params: &F) {
    for parting in 0..3 {
        let repeats = ExpectedRepeats { drawn: 1, synthetic: 0 };
        assert_no_nonce_repeats(&format!("level {parting}"), 101, repeats, || resume_twice(params, parting));
    }
}

#[test]
fn deniable_disks_repeat_no_nonce() {
    resume_at_each_level(&deniable::params());
}

#[test]
fn oblivious_disks_repeat_no_nonce() {
    resume_at_each_level(&oblivious::params());
}
