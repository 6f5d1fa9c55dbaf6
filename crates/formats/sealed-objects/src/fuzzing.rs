//! Parsers of what MACs protect, for the fuzz target: each gives what it parsed as a disk would
//! write it.

use crate::snapshot_table::SnapshotTable;
use crate::version_page::{PageKey, PagePlace};
use lacuna_contracts::Secret;

/// A table of snapshots that is parsed without a key, under a key; none if it does not parse.
pub fn snapshots_again(bytes: &[u8], key: &Secret<32>) -> Option<Vec<u8>> {
    SnapshotTable::parse(bytes).ok().map(|table| table.encode(key))
}

/// The same of a table that is parsed with the key.
pub fn verified_snapshots_again(bytes: &[u8], key: &Secret<32>) -> Option<Vec<u8>> {
    SnapshotTable::decode(bytes, key).ok().map(|table| table.encode(key))
}

/// A page of the version table of a disk, by its master key and UUID, that stands in page `page` of
/// object `object` of the book; none if it does not verify or does not parse.
pub fn version_page_again(
    bytes: &[u8],
    master: &Secret<32>,
    uuid: &[u8; 16],
    object: u64,
    page: u32,
) -> Option<Vec<u8>> {
    let (key, place) = (PageKey::new(master, uuid), PagePlace { object, page });
    key.decode(place, bytes).ok().map(|page| key.encode(place, &page))
}
