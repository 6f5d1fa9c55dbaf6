//! The key state map: which keys are unused, used, deleted (paper 003, sections 3.2 and 4.2).

use crate::numbers::{KeyBlock, KeyPosition};

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// Encrypts nothing, and may be assigned if its block was renewed in this epoch.
    Unused,
    /// Encrypts the one node that the index has for some block.
    Used,
    /// Encrypts what was deleted, or may do so: to be purged.
    Deleted,
}

/// How many keys of a block are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) used: u32,
    pub(crate) deleted: u32,
}

/// The states of all keys, in two bits each.
pub(crate) struct KeyStateMap {
    used: Vec<u64>,
    deleted: Vec<u64>,
    counts: Vec<Counts>,
    leb_keys: u32,
}

impl KeyStateMap {
    /// Of blocks of `leb_keys` keys each, all unused.
    pub(crate) fn new(blocks: u32, leb_keys: u32) -> KeyStateMap {
        let words = (blocks as usize * leb_keys as usize).div_ceil(64);
        let counts = vec![Counts::default(); blocks as usize];
        KeyStateMap { used: vec![0; words], deleted: vec![0; words], counts, leb_keys }
    }

    /// The block of a key.
    pub(crate) fn block_of(&self, key: KeyPosition) -> KeyBlock {
        KeyBlock(key.0 / self.leb_keys)
    }

    /// The keys of a block.
    pub(crate) fn keys_of(&self, block: KeyBlock) -> impl Iterator<Item = KeyPosition> + use<> {
        (block.0 * self.leb_keys..(block.0 + 1) * self.leb_keys).map(KeyPosition)
    }

    /// Whether there is such a key.
    pub(crate) fn has(&self, key: KeyPosition) -> bool {
        (key.0 / self.leb_keys) < self.counts.len() as u32
    }

    /// The state of a key.
    pub(crate) fn get(&self, key: KeyPosition) -> KeyState {
        let (word, bit) = (key.0 as usize / 64, 1 << (key.0 % 64));
        match (self.used[word] & bit != 0, self.deleted[word] & bit != 0) {
            (true, _) => KeyState::Used,
            (false, true) => KeyState::Deleted,
            (false, false) => KeyState::Unused,
        }
    }

    /// Changes the state of a key and gives what it was.
    pub(crate) fn set(&mut self, key: KeyPosition, state: KeyState) -> KeyState {
        let was = self.get(key);
        let (word, bit) = (key.0 as usize / 64, 1 << (key.0 % 64));
        let block = self.block_of(key).0 as usize;
        let counts = &mut self.counts[block];
        match was {
            KeyState::Used => counts.used -= 1,
            KeyState::Deleted => counts.deleted -= 1,
            KeyState::Unused => {}
        }
        self.used[word] &= !bit;
        self.deleted[word] &= !bit;
        match state {
            KeyState::Used => {
                self.used[word] |= bit;
                counts.used += 1;
            }
            KeyState::Deleted => {
                self.deleted[word] |= bit;
                counts.deleted += 1;
            }
            KeyState::Unused => {}
        }
        was
    }

    /// How many keys of a block are used, and deleted.
    pub(crate) fn counts(&self, block: KeyBlock) -> Counts {
        self.counts[block.0 as usize]
    }

    /// Keys of a block that are neither.
    pub(crate) fn unused(&self, block: KeyBlock) -> u32 {
        let counts = self.counts(block);
        self.leb_keys - counts.used - counts.deleted
    }

    /// All blocks with their counts.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (KeyBlock, Counts)> {
        (0..).map(KeyBlock).zip(self.counts.iter().copied())
    }

    /// The used keys of a block, a bit for each.
    pub(crate) fn bits(&self, block: KeyBlock) -> Vec<u8> {
        self.bits_of(block, KeyState::Used)
    }

    fn bits_of(&self, block: KeyBlock, state: KeyState) -> Vec<u8> {
        let mut bits = vec![0; (self.leb_keys as usize).div_ceil(8)];
        for (at, key) in self.keys_of(block).enumerate() {
            if self.get(key) == state {
                bits[at / 8] |= 1 << (at % 8);
            }
        }
        bits
    }

    /// All states: of each block the used keys, then the deleted ones, each as a byte that says none, all, or a bit for each
    /// follows.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        for (block, counts) in self.blocks() {
            for (state, count) in [(KeyState::Used, counts.used), (KeyState::Deleted, counts.deleted)] {
                match count {
                    0 => out.push(NONE),
                    all if all == self.leb_keys => out.push(ALL),
                    _ => {
                        out.push(SOME);
                        out.extend(self.bits_of(block, state));
                    }
                }
            }
        }
    }

    /// The opposite, on a map without used or deleted keys. Gives how many bytes it took; `None` if they make no sense.
    pub(crate) fn unpack(&mut self, bytes: &[u8]) -> Option<usize> {
        let len = (self.leb_keys as usize).div_ceil(8);
        let mut at = 0;
        for block in (0..self.counts.len() as u32).map(KeyBlock) {
            for state in [KeyState::Used, KeyState::Deleted] {
                let bits = match *bytes.get(at)? {
                    NONE => None,
                    ALL => Some(vec![u8::MAX; len]),
                    SOME => Some(bytes.get(at + 1..at + 1 + len)?.to_vec()),
                    _ => return None,
                };
                at += 1 + if bytes[at] == SOME { len } else { 0 };
                for (number, key) in self.keys_of(block).enumerate() {
                    if bits.as_ref().is_some_and(|bits| bits[number / 8] >> (number % 8) & 1 == 1) {
                        self.set(key, state);
                    }
                }
            }
        }
        Some(at)
    }
}

const NONE: u8 = 0;
const ALL: u8 = 1;
const SOME: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_states() {
        let mut map = KeyStateMap::new(3, 100);
        assert_eq!(map.set(KeyPosition(150), KeyState::Used), KeyState::Unused);
        assert_eq!(map.set(KeyPosition(151), KeyState::Deleted), KeyState::Unused);
        assert_eq!(map.counts(KeyBlock(1)), Counts { used: 1, deleted: 1 });
        assert_eq!(map.unused(KeyBlock(1)), 98);
        assert_eq!(map.set(KeyPosition(150), KeyState::Deleted), KeyState::Used);
        assert_eq!(map.set(KeyPosition(151), KeyState::Unused), KeyState::Deleted);
        assert_eq!(map.counts(KeyBlock(1)), Counts { used: 0, deleted: 1 });
        assert_eq!(map.bits(KeyBlock(1)), [0; 13]);
        for key in map.keys_of(KeyBlock(2)) {
            map.set(key, KeyState::Used);
        }
        map.set(KeyPosition(3), KeyState::Used);
        let mut packed = vec![];
        map.pack(&mut packed);
        assert_eq!(packed.len(), 6 + 2 * 13);
        let mut other = KeyStateMap::new(3, 100);
        assert_eq!(other.unpack(&packed), Some(packed.len()));
        assert!((0..300).map(KeyPosition).all(|key| other.get(key) == map.get(key)));
        assert!(map.has(KeyPosition(299)) && !map.has(KeyPosition(300)));
    }
}
