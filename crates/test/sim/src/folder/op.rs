//! The kinds of calls of a folder and its files.

/// A call of a folder or of a file in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FolderOp {
    /// A file opened, or names listed.
    Open,
    /// A file created.
    Create,
    /// A file removed.
    Remove,
    /// A file renamed.
    Rename,
    /// A read.
    Read,
    /// A write.
    Write,
    /// A change of length.
    SetLen,
    /// A file synced.
    Sync,
    /// The names of a subfolder synced.
    SyncNames,
    /// Everything synced.
    SyncAll,
    /// A range made zeros.
    Punch,
}

impl FolderOp {
    /// Whether it counts as an operation, in which the power may be cut.
    pub(super) fn is_change(self) -> bool {
        !matches!(self, FolderOp::Open | FolderOp::Read)
    }

    /// Whether it makes something durable.
    pub fn makes_durable(self) -> bool {
        matches!(self, FolderOp::Sync | FolderOp::SyncNames | FolderOp::SyncAll)
    }
}
