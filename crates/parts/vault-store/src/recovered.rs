//! What the opening of a store finds, for its caller.

use crate::ids::CommitInfo;
use std::ops::Range;

/// What an opened store found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The root given with the last checkpoint.
    pub root: Option<Vec<u8>>,
    /// The batches committed since, oldest first, without empty ones.
    pub puts: Vec<Vec<u8>>,
    /// Of a checkpoint that was not finished: the same state by the root before, if there was one.
    pub before: Option<Before>,
    /// Numbers that no page written for the root bears. Pages in places may bear them all the same:
    /// what a checkpoint brought there whose record is lost.
    pub stale: Range<u64>,
    /// Whether the files of doubled objects may differ: a state was accepted, now or since the
    /// checkpoint, or one superblock is missing, and the checkpoint that wrote the other may not
    /// have reached the second files.
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
    /// One does not verify, and no checkpoint was writing it, or it is known to have been written
    /// whole. Only a crash at the very end of a checkpoint, while the second one was written,
    /// leaves that as well.
    Damaged,
    /// Neither verifies, and the third has the state: see [`crate::PastDamage::Superblocks`].
    Lost,
}

/// The root before that of a checkpoint which was not finished: as long as the first files are not
/// durable, all that it names is in the second ones.
#[derive(Clone, Debug)]
pub struct Before {
    /// The root.
    pub root: Vec<u8>,
    /// The batches committed after it, oldest first, without empty ones: the last is that of the
    /// commit that began the checkpoint, so they lead to the state of its root.
    pub puts: Vec<Vec<u8>>,
    /// What was written for this root bears smaller numbers of commits than this one.
    pub below: u64,
}
