//! Parsers of authenticated data, for fuzz targets. Each returns the parsed data, encoded again.

use crate::key_storage::key_state_map::KeyStateMap;
use crate::log::group::GroupHeader;

/// Re-encodes the encrypted part of a group header in a unit of `unit` bytes; none if it does not
/// parse.
pub fn group_again(plain: &[u8], unit: u32) -> Option<Vec<u8>> {
    GroupHeader::parse(plain).map(|header| header.encode(unit))
}

/// Re-encodes a key state map of `blocks` blocks with `leb_keys` keys each, and returns the number
/// of bytes that it was parsed from; none if they do not parse.
pub fn key_states_again(packed: &[u8], blocks: u32, leb_keys: u32) -> Option<(Vec<u8>, usize)> {
    let mut map = KeyStateMap::new(blocks, leb_keys);
    let len = map.unpack(packed)?;
    let mut again = vec![];
    map.pack(&mut again);
    Some((again, len))
}
