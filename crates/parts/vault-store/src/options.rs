//! The parameters for opening a store.

use crate::anchor::Anchor;
use crate::journal::size::JournalSize;
use lacuna_contracts::{Error, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::Folder;
use std::sync::Arc;

/// A clock, in seconds since 1970, for the times of commits that users see.
pub type CommitClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The environment of a store.
#[derive(Clone)]
pub struct StoreBacking {
    /// The directory of ciphertext.
    pub folder: Arc<dyn Folder>,
    /// Trusted storage for this machine's last commit.
    pub anchor: Arc<dyn Anchor>,
    /// The source of randomness.
    pub random: Arc<dyn RandomSource>,
    /// The clock.
    pub clock: CommitClock,
    /// The vault's UUID.
    pub uuid: [u8; 16],
}

impl StoreBacking {
    /// Draws random bytes.
    pub(crate) fn draw<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes);
        bytes
    }
}

/// Whether to accept a state that does not descend from the anchored state.
#[derive(Clone)]
pub struct RollbackPolicy(pub(crate) AskRollback);

type AskRollback = Arc<dyn Fn(Error) -> Result<()> + Send + Sync>;

impl RollbackPolicy {
    /// Asks `agrees`: it gets the rollback error of the found state; if it returns an error, the
    /// opening fails with that.
    pub fn ask(agrees: impl Fn(Error) -> Result<()> + Send + Sync + 'static) -> RollbackPolicy {
        RollbackPolicy(Arc::new(agrees))
    }

    /// Accepts any state.
    pub fn accept() -> RollbackPolicy {
        RollbackPolicy::ask(|_| Ok(()))
    }
}

/// How a store is opened.
#[derive(Clone, Default)]
pub struct StoreOptions {
    /// Refuses every change. The anchor is compared, but not changed.
    pub read_only: bool,
    /// Accepts a state that does not descend from the anchored state, and commits it anew.
    pub on_rollback: Option<RollbackPolicy>,
    /// Lets a thread finish checkpoints and remove the files of removed objects while commits go
    /// on. Otherwise the commit does both.
    pub background: bool,
    /// The size limits of the journal.
    pub journal: JournalSize,
    /// The damage that the opening tolerates.
    pub tolerated: ToleratedDamage,
}

/// The damage that reading a damaged store tolerates; each variant includes those before it. Any
/// except [`ToleratedDamage::Nothing`] is only for reading, and only for a reader that verifies
/// pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToleratedDamage {
    /// No damage.
    #[default]
    Nothing,
    /// Damage to superblocks: the third one counts in place of one that does not verify.
    Superblocks,
    /// Damaged records in the journal, if all later records up to the anchored state exist, and a
    /// checkpoint began with one of those. Pages that the damaged records list may then be stale.
    Records,
    /// Damage to pages of a checkpoint that was not finished: reading begins at the superblock
    /// before it, if that is there. A state before that of the newer superblock needs consent, also
    /// without an anchor.
    Checkpoint,
}
