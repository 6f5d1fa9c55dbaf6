//! Parsers of MAC-protected structures, for the fuzz target. Each returns its input re-encoded as a
//! disk would write it.

use crate::snapshots::table::SnapshotTable;
use crate::versions::page::{PageAddress, VersionPageKey};
use lacuna_contracts::Secret;

/// Parses a snapshot table without a key and encodes it under `key`; `None` if it does not parse.
pub fn reencode_snapshots(bytes: &[u8], key: &Secret<32>) -> Option<Vec<u8>> {
    SnapshotTable::parse(bytes).ok().map(|table| table.encode(key))
}

/// Does the same with a table that is verified with the key.
pub fn reencode_verified_snapshots(bytes: &[u8], key: &Secret<32>) -> Option<Vec<u8>> {
    SnapshotTable::decode(bytes, key).ok().map(|table| table.encode(key))
}

/// Decodes page `page` of object `object` of the book, a page of the version table of the disk with
/// this master key and UUID, and encodes it again; `None` if it does not verify or does not parse.
pub fn reencode_version_page(
    bytes: &[u8],
    master: &Secret<32>,
    uuid: &[u8; 16],
    object: u64,
    page: u32,
) -> Option<Vec<u8>> {
    let (key, place) = (VersionPageKey::new(master, uuid), PageAddress { object, page });
    key.decode(place, bytes).ok().map(|page| key.encode(place, &page))
}
