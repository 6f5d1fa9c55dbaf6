//! The copies of a page of a doubled object.

/// A copy of a page of a doubled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCopy {
    /// The copy that reads use: in the journal, or in the first file.
    Current,
    /// In the second file.
    Second,
    /// In the first file, although reads use the journal or see a cut: an interrupted checkpoint
    /// may have written it there, or another root may have it.
    FirstFile,
    /// In the third file.
    Third,
}

impl PageCopy {
    /// The copies for every reader, the likeliest first.
    pub const USUAL: [PageCopy; 3] = [PageCopy::Current, PageCopy::Second, PageCopy::FirstFile];
    /// All copies, for the rescue of a damaged vault.
    pub const ALL: [PageCopy; 4] =
        [PageCopy::Current, PageCopy::Second, PageCopy::FirstFile, PageCopy::Third];
}
