//! Checks the three properties of a correct key state map by a full scan (DNEFS, section 3.2).

use crate::ids::{KeyPosition, NodePlace};
use crate::index::Index;
use crate::key_storage::KeyStorage;
use crate::key_storage::key_state_map::KeyState;
use crate::params::Layout;
use lacuna_contracts::Result;
use std::collections::BTreeMap;

/// Keys that the index names but that are not used, keys that it names twice, and used keys that it
/// does not name.
pub(crate) fn check(layout: &Layout, index: &Index, keys: &KeyStorage) -> Result<Vec<u32>> {
    let mut named: BTreeMap<u32, u32> = BTreeMap::new();
    for page in 0..layout.index_pages {
        for entry in index.entries(page)?.iter().flat_map(|entries| entries.iter()) {
            if let Some(place) = NodePlace::unpack(*entry) {
                *named.entry(place.key.0).or_default() += 1;
            }
        }
    }
    let wrong = |key: &u32| {
        let expected = match keys.state_of(KeyPosition(*key)) {
            KeyState::Used => 1,
            KeyState::Unused | KeyState::Deleted => 0,
        };
        named.get(key).copied().unwrap_or(0) != expected
    };
    Ok((0..layout.keys.1 * layout.leb_keys).filter(wrong).collect())
}
