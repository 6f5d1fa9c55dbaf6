//! The result of a rescue, with the missing parts.

use std::ffi::{OsStr, OsString};

/// A missing part of the vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingPart {
    /// Its plain path in the vault, which need not be UTF-8.
    pub path: OsString,
    /// The missing part, and the reason.
    pub what: String,
}

/// The result of a rescue.
#[derive(Clone, Debug, Default)]
pub struct RescueReport {
    /// Files, links and special files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Bytes of content, holes not counted.
    pub bytes: u64,
    /// The number of these that were recovered by inode number, because their names are lost.
    pub nameless: u64,
    /// The number of missing parts.
    pub lost: u64,
    /// The first [`RescueReport::MAX_LISTED`] missing parts.
    pub missing: Vec<MissingPart>,
}

impl RescueReport {
    /// The limit of listed missing parts.
    pub const MAX_LISTED: usize = 65536;

    /// Adds a missing part.
    pub(super) fn add(&mut self, path: impl AsRef<OsStr>, what: impl Into<String>) {
        self.lost += 1;
        if self.missing.len() < Self::MAX_LISTED {
            self.missing.push(MissingPart { path: path.as_ref().to_owned(), what: what.into() });
        }
    }
}
