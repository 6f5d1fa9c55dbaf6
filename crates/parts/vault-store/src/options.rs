//! What the caller gives to the opening of a store.

use crate::anchor::Anchor;
use crate::journal::JournalSize;
use lacuna_contracts::{Error, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::Folder;
use std::sync::Arc;

/// Tells the time: seconds since 1970, for what people read of commits.
pub type Now = Arc<dyn Fn() -> u64 + Send + Sync>;

/// What a store rests on.
#[derive(Clone)]
pub struct StoreBase {
    /// The directory of ciphertext.
    pub folder: Arc<dyn Folder>,
    /// Where this machine remembers its last commit.
    pub anchor: Arc<dyn Anchor>,
    /// Where randomness comes from.
    pub random: Arc<dyn RandomSource>,
    /// What time it is.
    pub now: Now,
    /// The vault's UUID.
    pub uuid: [u8; 16],
}

impl StoreBase {
    /// Draws a number at random.
    pub(crate) fn draw<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes);
        bytes
    }
}

/// Whether a state is to be accepted that does not descend from what the anchor remembers.
#[derive(Clone)]
pub struct Consent(pub(crate) Agrees);

type Agrees = Arc<dyn Fn(Error) -> Result<()> + Send + Sync>;

impl Consent {
    /// Asks: it is given the refusal of the state that was found, and an error of its own is that
    /// of the opening.
    pub fn asked(agrees: impl Fn(Error) -> Result<()> + Send + Sync + 'static) -> Consent {
        Consent(Arc::new(agrees))
    }

    /// Whatever state it is.
    pub fn given() -> Consent {
        Consent::asked(|_| Ok(()))
    }
}

/// How a store is opened.
#[derive(Clone, Default)]
pub struct StoreOptions {
    /// Refuses every change. The anchor is compared with and stays as it is.
    pub read_only: bool,
    /// Takes the state that is there, although it does not descend from what the anchor remembers,
    /// and commits it anew.
    pub accept: Option<Consent>,
    /// Checkpoints are finished, and files of removed objects are removed, by a thread, while
    /// commits go on. Without it, by the commit.
    pub background: bool,
    /// How large the journal may become.
    pub journal: JournalSize,
    /// What is passed over that does not verify.
    pub past: PastDamage,
}

/// What a look at a damaged store passes over, each with all before it. Other than
/// [`PastDamage::Nothing`] it is for reading alone, and for a reader who verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum PastDamage {
    /// Nothing.
    #[default]
    Nothing,
    /// Both superblocks: the third counts then.
    Superblocks,
    /// Records of the journal, if all behind them are there up to the one that the anchor
    /// remembers, and a checkpoint began with one of these. Pages that the damaged ones list may be
    /// older then.
    Records,
}
