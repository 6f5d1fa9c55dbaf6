//! The sources of the random bytes of a disk with levels.

use lacuna_crypto::RandomSource;
use std::sync::Arc;

/// The sources of the random bytes of a disk.
#[derive(Clone)]
pub struct Randomness {
    /// For everything that the key of level 0 shows.
    pub public: Arc<dyn RandomSource>,
    /// For everything else.
    pub filler: Arc<dyn RandomSource>,
}

impl Randomness {
    /// Both from one source.
    pub fn of(source: Arc<dyn RandomSource>) -> Self {
        Randomness { public: Arc::clone(&source), filler: source }
    }
}
