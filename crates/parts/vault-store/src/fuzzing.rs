//! Parsers behind seals, for fuzz targets: each parses a text and writes it as a store would.

use crate::commits::codec::{record_from_bytes, record_to_bytes, super_from_bytes, super_to_bytes};

/// The text of a record; `None` if it does not parse.
pub fn reencode_record(text: &[u8]) -> Option<Vec<u8>> {
    record_from_bytes(text).ok().map(|(facts, changes)| record_to_bytes(&facts, &changes))
}

/// The text of a superblock; `None` if it does not parse.
pub fn reencode_superblock(text: &[u8]) -> Option<Vec<u8>> {
    let found = super_from_bytes(text).ok()?;
    Some(super_to_bytes(&found.commit, &found.state, found.root.as_deref(), found.area))
}
