//! Parsers of what seals protect, for fuzz targets: each gives what it parsed as a store would
//! write it.

use crate::content::{record_from_bytes, record_to_bytes, super_from_bytes, super_to_bytes};

/// The text of a record; none if it does not parse.
pub fn record_again(text: &[u8]) -> Option<Vec<u8>> {
    record_from_bytes(text).ok().map(|(facts, changes)| record_to_bytes(&facts, &changes))
}

/// The text of a superblock; none if it does not parse.
pub fn superblock_again(text: &[u8]) -> Option<Vec<u8>> {
    let found = super_from_bytes(text).ok()?;
    Some(super_to_bytes(&found.commit, &found.facts, found.root.as_deref(), found.area))
}
