//! Where the random bytes of a disk with levels come from.

use lacuna_crypto::RandomSource;
use std::sync::Arc;

/// Where the random bytes of a disk come from.
#[derive(Clone)]
pub struct Randomness {
    /// Of what everybody with the key of level 0 can see.
    pub public: Arc<dyn RandomSource>,
    /// Of everything else.
    pub filler: Arc<dyn RandomSource>,
}

impl Randomness {
    /// Both from one source.
    pub fn of(source: Arc<dyn RandomSource>) -> Self {
        Randomness { public: Arc::clone(&source), filler: source }
    }
}
