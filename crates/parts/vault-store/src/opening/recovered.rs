//! The result of opening a store.

use crate::ids::CommitInfo;
use std::ops::Range;

/// The state that an opening found.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The root of the last checkpoint.
    pub root: Option<Vec<u8>>,
    /// The batches committed since, oldest first, without empty ones.
    pub puts: Vec<Vec<u8>>,
    /// For an unfinished checkpoint: the same state by the previous root, if there was one.
    pub previous_root: Option<PreviousRoot>,
    /// Commit numbers that no page written for the root carries. A page in place may carry one all
    /// the same: an interrupted checkpoint wrote it, and its record is lost.
    pub stale_numbers: Range<u64>,
    /// Whether the files of doubled objects may differ: a state was accepted, now or since the
    /// checkpoint; or one superblock is missing, and the checkpoint that wrote the other may not
    /// have reached the second files.
    pub may_be_mixed: bool,
    /// There was no anchor: this may not be the newest state.
    pub first_opening: bool,
    /// The state does not descend from the anchored state, and was accepted.
    pub accepted: bool,
    /// The state.
    pub state: CommitInfo,
    /// Records that were read from the journal; none after an orderly close.
    pub records: u64,
    /// The two superblocks.
    pub superblocks: SuperblockStatus,
    /// Why one of them does not count, with the name of its file.
    pub superblock_fault: Option<String>,
}

/// The state of the two superblocks; an opening needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockStatus {
    /// Both verify.
    Whole,
    /// One does not verify. A crash while a checkpoint writes it leaves this; damage may as well.
    Torn,
    /// One does not verify, and no checkpoint was writing it, or it is known to have been written
    /// whole. A crash leaves this only at the very end of a checkpoint, during the write of the
    /// second one.
    Damaged,
    /// Neither verifies, and the third has the state: see [`crate::ToleratedDamage::Superblocks`].
    Lost,
}

/// The root before that of an unfinished checkpoint: until the first files are durable, the second
/// files hold everything that it refers to.
#[derive(Clone, Debug)]
pub struct PreviousRoot {
    /// The root.
    pub root: Vec<u8>,
    /// The batches committed after it, oldest first, without empty ones. The last is that of the
    /// commit that began the checkpoint, so together they give the state of its root.
    pub puts: Vec<Vec<u8>>,
    /// Pages written for this root carry smaller commit numbers than this.
    pub commit_limit: u64,
}
