//! What an opening of a store is given, and what it finds.

use super::anchor::Anchor;
use super::journal::JournalSize;
use super::replay::Before;
use lacuna_core::{Error, Result};
use lacuna_crypto::RandomSource;
use lacuna_medium::Folder;
use std::ops::Range;
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

/// Whether a state is to be accepted that does not descend from what the anchor remembers.
#[derive(Clone)]
pub struct Consent(pub(crate) Agrees);

type Agrees = Arc<dyn Fn(Error) -> Result<()> + Send + Sync>;

impl Consent {
    /// Asks: it is given the refusal of the state that was found, and an error of its own is that of the opening.
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
    /// Takes the state that is there, although it does not descend from what the anchor remembers, and commits it anew.
    pub accept: Option<Consent>,
    /// Checkpoints are finished, and files of removed objects are removed, by a thread, while commits go on. Without it, by the
    /// commit.
    pub background: bool,
    /// How large the journal may become.
    pub journal: JournalSize,
    /// Goes on past records that are damaged, if all behind them are there up to the one that the anchor remembers, and a checkpoint began
    /// with one of these. Pages that the damaged ones list may be older then, so this is for reading alone, and for a reader who verifies.
    pub past_gap: bool,
}

/// The number and time of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitInfo {
    /// Commits are numbered from 1; an accepted state leaves a gap.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
}

/// What an opened store found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The root given with the last checkpoint.
    pub root: Option<Vec<u8>>,
    /// The batches committed since, oldest first, without empty ones.
    pub puts: Vec<Vec<u8>>,
    /// Of a checkpoint that was not finished: the same state by the root before, if there was one.
    pub before: Option<Before>,
    /// Numbers that no page written for the root bears. Pages in places may bear them all the same: what a checkpoint brought there whose
    /// record is lost.
    pub stale: Range<u64>,
    /// Whether the files of doubled objects may differ: a state was accepted, now or since the checkpoint, or one superblock is missing,
    /// and the checkpoint that wrote the other may not have reached the second files.
    pub may_be_mixed: bool,
    /// No anchor was there: nobody can tell whether this is the newest state.
    pub first_opening: bool,
    /// The state does not descend from what the anchor remembered, and was accepted.
    pub accepted: bool,
    /// The state.
    pub state: CommitInfo,
    /// Commits that were read from the journal; none after an orderly end.
    pub records: u64,
    /// The two superblocks.
    pub superblocks: Superblocks,
    /// Why one of them does not count, with the name of its file.
    pub superblock_fault: Option<String>,
}

/// What an opening found of the two superblocks, of which it needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Superblocks {
    /// Both verify.
    Whole,
    /// One does not verify. A crash leaves that while a checkpoint writes it; damage may as well.
    Torn,
    /// One does not verify, and no checkpoint was writing it, or it is known to have been written whole. Only a crash at the very end of a
    /// checkpoint, while the second one was written, leaves that as well.
    Damaged,
}
