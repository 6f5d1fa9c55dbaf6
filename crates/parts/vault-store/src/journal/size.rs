//! Places in the journal's files, and the sizes of these files.

use crate::ids::PAGE;

/// A page of a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalPlace {
    pub(crate) area: u8,
    pub(crate) page: u32,
}

impl JournalPlace {
    /// Its offset in the file, in bytes.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.page) * PAGE as u64
    }
}

/// The size limits of the journal.
#[derive(Clone, Copy, Debug)]
pub struct JournalSize {
    /// Bytes in one file after which a checkpoint is due.
    pub checkpoint_at: u64,
    /// Bytes in one file after which writes are refused; a checkpoint may write four times this
    /// much.
    pub max: u64,
}

impl Default for JournalSize {
    fn default() -> Self {
        JournalSize { checkpoint_at: 24 << 20, max: 64 << 20 }
    }
}

impl JournalSize {
    /// Pages that are prepared at once.
    pub(crate) fn step_pages(self) -> u64 {
        (self.checkpoint_at / 24 / PAGE as u64).clamp(1, 256)
    }
}

/// The size to which an unused file of the journal is shrunk.
#[derive(Clone, Copy)]
pub(crate) enum ShrinkTo {
    /// The space until the next checkpoint is due.
    Normal,
    /// The space of a record and the pages prepared after it: the file system is nearly full.
    Minimum,
    /// The space of a few records, so that after the next opening a commit that frees space fits on
    /// a full file system.
    Closed,
}
