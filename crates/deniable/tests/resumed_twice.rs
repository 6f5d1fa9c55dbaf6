//! A machine that is resumed twice ([`lacuna_sim::levels::resume_twice`]): two copies of an open disk take different data on level 0, or on
//! a hidden level alone. No key and nonce may serve for two contents. Where salts are as they are drawn, many do.

mod fixture;

use fixture::params;
use lacuna_crypto::witness::{repeated, uses_of, uses_unhedged};
use lacuna_sim::levels::resume_twice;

#[test]
fn no_nonce_serves_twice() {
    let params = params();
    for parting in 0..3 {
        let ((), hedged) = uses_of(|| resume_twice(&params, parting));
        assert!(hedged.len() > 100, "level {parting}: {} uses", hedged.len());
        assert_eq!(repeated(&hedged), 0, "level {parting}");
        let ((), unhedged) = uses_unhedged(|| resume_twice(&params, parting));
        assert!(repeated(&unhedged) > 0, "level {parting}: the game does not notice");
    }
}
