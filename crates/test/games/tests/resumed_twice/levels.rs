//! Disks with levels ([`lacuna_testkit::levels::resume_twice`]): the copies write different data on
//! level 0, or only on a hidden level. Hedging covers the salts of stripes in `deniable`, and the
//! nonces of cells and the salts of batches in `oblivious`.

#[path = "../../../../formats/deniable/tests/fixture/mod.rs"]
mod deniable;
#[path = "../../../../formats/oblivious/tests/fixture/mod.rs"]
mod oblivious;

use crate::{Repeats, no_nonce_serves_twice};
use lacuna_levels::LevelFormat;
use lacuna_testkit::levels::resume_twice;

fn play<F: LevelFormat>(params: &F) {
    for parting in 0..3 {
        let repeats = Repeats { given: 1, synthetic: 0 };
        no_nonce_serves_twice(&format!("level {parting}"), 101, repeats, || resume_twice(params, parting));
    }
}

#[test]
fn deniable() {
    play(&deniable::params());
}

#[test]
fn oblivious() {
    play(&oblivious::params());
}
