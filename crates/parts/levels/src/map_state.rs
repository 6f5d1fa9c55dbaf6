//! The state of a level's map, as a summary records it for rebuilding the map.

use lacuna_contracts::LeReader;

/// Bytes of a state in the clear.
pub const STATE_LEN: usize = 32;

/// The state of a level's map as of one write to the medium, a stripe or a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapState {
    /// Place of the page at the top of the map, packed; 0 for none.
    pub root: u64,
    /// The last write with all its changes in the pages. Later changes are in the summaries.
    pub covered: u64,
    /// Blocks of the level that are written.
    pub data: u64,
    /// Pages of its map that are written.
    pub pages: u64,
}

impl MapState {
    /// The form in a summary, before encryption.
    pub fn encode(&self) -> [u8; STATE_LEN] {
        let mut out = [0; STATE_LEN];
        let words = [self.root, self.covered, self.data, self.pages];
        for (out, word) in out.chunks_exact_mut(8).zip(words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Reverses [`MapState::encode`], from the first [`STATE_LEN`] bytes.
    pub fn decode(bytes: &[u8]) -> MapState {
        let word = |at| LeReader(bytes).u64(at);
        MapState { root: word(0), covered: word(8), data: word(16), pages: word(24) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_state_round_trips() {
        let state = MapState { root: 1, covered: 2, data: u64::MAX, pages: 4 };
        assert_eq!(MapState::decode(&state.encode()), state);
    }
}
