//! The key state map: which keys are unused, used or deleted (DNEFS, sections 3.2 and 4.2).

use crate::ids::{KeyBlock, KeyPosition};

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyState {
    /// Encrypts nothing. It may be assigned if its block was renewed in this epoch.
    Unused,
    /// Encrypts the one node that the index names for some block.
    Used,
    /// Encrypts deleted data, or may do so: to be purged.
    Deleted,
}

/// The number of keys in each state, of a block or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyCounts {
    pub(crate) used: u32,
    pub(crate) deleted: u32,
    /// Deleted keys that may encrypt nothing: after a crash, the unused keys of fresh blocks.
    pub(crate) doubtful: u32,
}

impl KeyCounts {
    /// Deleted keys that certainly encrypted a block.
    pub(crate) fn known(&self) -> u32 {
        self.deleted - self.doubtful
    }
}

/// The states of all keys, in two bits each. Invariants: no key has both bits, and bits without a
/// key are zero. No block has more doubtful keys than deleted ones: they stay doubtful until all
/// deleted keys of the block are forgotten.
pub(crate) struct KeyStateMap {
    /// The bits of each block, in whole words.
    used: Vec<u64>,
    deleted: Vec<u64>,
    counts: Vec<KeyCounts>,
    all: KeyCounts,
    leb_keys: u32,
}

impl KeyStateMap {
    /// A map of `blocks` blocks with `leb_keys` keys each, all unused.
    pub(crate) fn new(blocks: u32, leb_keys: u32) -> KeyStateMap {
        let words = blocks as usize * leb_keys.div_ceil(64) as usize;
        let counts = vec![KeyCounts::default(); blocks as usize];
        KeyStateMap {
            used: vec![0; words],
            deleted: vec![0; words],
            counts,
            all: KeyCounts::default(),
            leb_keys,
        }
    }

    /// Whether the key exists.
    pub(crate) fn contains(&self, key: KeyPosition) -> bool {
        (key.0 / self.leb_keys) < self.counts.len() as u32
    }

    /// The state of a key.
    pub(crate) fn get(&self, key: KeyPosition) -> KeyState {
        let (word, bit) = self.place(key);
        match (self.used[word] & bit != 0, self.deleted[word] & bit != 0) {
            (true, _) => KeyState::Used,
            (false, true) => KeyState::Deleted,
            (false, false) => KeyState::Unused,
        }
    }

    /// Sets the state of a key and returns the old one.
    pub(crate) fn set(&mut self, key: KeyPosition, state: KeyState) -> KeyState {
        let was = self.get(key);
        let (word, bit) = self.place(key);
        let block = (key.0 / self.leb_keys) as usize;
        for counts in [&mut self.counts[block], &mut self.all] {
            counts.used -= u32::from(was == KeyState::Used);
            counts.deleted -= u32::from(was == KeyState::Deleted);
            counts.used += u32::from(state == KeyState::Used);
            counts.deleted += u32::from(state == KeyState::Deleted);
        }
        // Single keys are not recorded as doubtful. A log never marks a deleted key used again, but
        // a forged one may.
        let more = self.counts[block].doubtful.saturating_sub(self.counts[block].deleted);
        self.counts[block].doubtful -= more;
        self.all.doubtful -= more;
        let bit_if = |set: bool| if set { bit } else { 0 };
        self.used[word] = self.used[word] & !bit | bit_if(state == KeyState::Used);
        self.deleted[word] = self.deleted[word] & !bit | bit_if(state == KeyState::Deleted);
        was
    }

    /// The first unused key of a block at or after `from`, counted in the block.
    pub(crate) fn next_unused(&self, block: KeyBlock, from: u32) -> Option<u32> {
        let words = self.words(block);
        let (used, deleted) = (&self.used[words.clone()], &self.deleted[words]);
        let mut skipped = u64::MAX << (from % 64);
        for word in (from / 64) as usize..used.len() {
            let unused = !(used[word] | deleted[word]) & skipped;
            if unused != 0 {
                let key = word as u32 * 64 + unused.trailing_zeros();
                return (key < self.leb_keys).then_some(key);
            }
            skipped = u64::MAX;
        }
        None
    }

    /// Marks the deleted keys of a block unused, and returns their counts.
    pub(crate) fn reset_deleted(&mut self, block: KeyBlock) -> KeyCounts {
        let words = self.words(block);
        self.deleted[words].fill(0);
        let counts = &mut self.counts[block.0 as usize];
        let forgotten = KeyCounts { used: 0, ..*counts };
        *counts = KeyCounts { used: counts.used, ..KeyCounts::default() };
        self.all.deleted -= forgotten.deleted;
        self.all.doubtful -= forgotten.doubtful;
        forgotten
    }

    /// Marks the unused keys of a block deleted and doubtful: they may encrypt something.
    pub(crate) fn delete_unused(&mut self, block: KeyBlock) {
        let before = self.unused(block);
        let (words, leb_keys) = (self.words(block), self.leb_keys);
        for (number, word) in words.enumerate() {
            self.deleted[word] = !self.used[word] & key_bits(number, leb_keys);
        }
        for counts in [&mut self.counts[block.0 as usize], &mut self.all] {
            counts.deleted += before;
            counts.doubtful += before;
        }
    }

    /// The counts of a block.
    pub(crate) fn counts(&self, block: KeyBlock) -> KeyCounts {
        self.counts[block.0 as usize]
    }

    /// The counts of all keys.
    pub(crate) fn all(&self) -> KeyCounts {
        self.all
    }

    /// The number of unused keys of a block.
    pub(crate) fn unused(&self, block: KeyBlock) -> u32 {
        let counts = self.counts(block);
        self.leb_keys - counts.used - counts.deleted
    }

    /// All blocks with their counts.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (KeyBlock, KeyCounts)> {
        (0..).map(KeyBlock).zip(self.counts.iter().copied())
    }

    /// The bits of the used keys of a block.
    pub(crate) fn bits(&self, block: KeyBlock) -> Vec<u8> {
        let mut bits = vec![];
        self.put_bits(&self.used[self.words(block)], &mut bits);
        bits
    }

    fn put_bits(&self, words: &[u64], out: &mut Vec<u8>) {
        let end = out.len() + self.leb_keys.div_ceil(8) as usize;
        words.iter().for_each(|word| out.extend(word.to_le_bytes()));
        out.truncate(end);
    }

    /// Appends all states: for each block the used keys, then the deleted ones, then the number of
    /// doubtful ones. Used and deleted keys are a byte for none or all, or a byte and a bit for
    /// each key.
    pub(crate) fn pack(&self, out: &mut Vec<u8>) {
        for (block, counts) in self.blocks() {
            for (words, count) in [(&self.used, counts.used), (&self.deleted, counts.deleted)] {
                match count {
                    0 => out.push(NONE),
                    all if all == self.leb_keys => out.push(ALL),
                    _ => {
                        out.push(SOME);
                        self.put_bits(&words[self.words(block)], out);
                    }
                }
            }
            out.extend(counts.doubtful.to_le_bytes());
        }
    }

    /// Loads packed states into a map without used or deleted keys. Returns the number of bytes it
    /// took; `None` if they are malformed.
    pub(crate) fn unpack(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        for block in (0..self.counts.len() as u32).map(KeyBlock) {
            let used = self.unpack_bits(bytes, &mut at)?;
            let deleted = self.unpack_bits(bytes, &mut at)?;
            if used.iter().zip(&deleted).any(|(used, deleted)| used & deleted != 0) {
                return None;
            }
            let doubtful = bytes.get(at..)?.first_chunk::<DOUBTFUL_LEN>()?;
            at += DOUBTFUL_LEN;
            let count = |words: &[u64]| words.iter().map(|word| word.count_ones()).sum();
            let doubtful = u32::from_le_bytes(*doubtful);
            let counts = KeyCounts { used: count(&used), deleted: count(&deleted), doubtful };
            if counts.doubtful > counts.deleted {
                return None;
            }
            let words = self.words(block);
            self.used[words.clone()].copy_from_slice(&used);
            self.deleted[words].copy_from_slice(&deleted);
            self.counts[block.0 as usize] = counts;
            self.all.used += counts.used;
            self.all.deleted += counts.deleted;
            self.all.doubtful += counts.doubtful;
        }
        Some(at)
    }

    /// Reads the bits of a block, in words.
    fn unpack_bits(&self, bytes: &[u8], at: &mut usize) -> Option<Vec<u64>> {
        let mut words = vec![0; self.leb_keys.div_ceil(64) as usize];
        let kind = *bytes.get(*at)?;
        *at += 1;
        match kind {
            NONE => {}
            ALL => {
                for (number, word) in words.iter_mut().enumerate() {
                    *word = key_bits(number, self.leb_keys);
                }
            }
            SOME => {
                let end = *at + self.leb_keys.div_ceil(8) as usize;
                for (word, bytes) in words.iter_mut().zip(bytes.get(*at..end)?.chunks(8)) {
                    let mut whole = [0; 8];
                    whole[..bytes.len()].copy_from_slice(bytes);
                    *word = u64::from_le_bytes(whole);
                }
                *at = end;
            }
            _ => return None,
        }
        let sound =
            words.iter().enumerate().all(|(number, word)| word & !key_bits(number, self.leb_keys) == 0);
        sound.then_some(words)
    }

    /// The words of a block.
    fn words(&self, block: KeyBlock) -> std::ops::Range<usize> {
        let len = self.leb_keys.div_ceil(64) as usize;
        block.0 as usize * len..(block.0 as usize + 1) * len
    }

    /// The word and the bit of a key.
    fn place(&self, key: KeyPosition) -> (usize, u64) {
        let (block, at) = (key.0 / self.leb_keys, key.0 % self.leb_keys);
        (self.words(KeyBlock(block)).start + at as usize / 64, 1 << (at % 64))
    }
}

/// The bits of a word of a block that stand for keys.
fn key_bits(word: usize, leb_keys: u32) -> u64 {
    match leb_keys as usize - word * 64 {
        64.. => u64::MAX,
        keys => (1 << keys) - 1,
    }
}

const NONE: u8 = 0;
const ALL: u8 = 1;
const SOME: u8 = 2;
/// Bytes of a count of doubtful keys.
const DOUBTFUL_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_the_states() {
        let mut map = KeyStateMap::new(3, 100);
        assert_eq!(map.set(KeyPosition(150), KeyState::Used), KeyState::Unused);
        assert_eq!(map.set(KeyPosition(151), KeyState::Deleted), KeyState::Unused);
        assert_eq!(map.counts(KeyBlock(1)), KeyCounts { used: 1, deleted: 1, doubtful: 0 });
        assert_eq!(map.unused(KeyBlock(1)), 98);
        assert_eq!(map.set(KeyPosition(150), KeyState::Deleted), KeyState::Used);
        assert_eq!(map.set(KeyPosition(151), KeyState::Unused), KeyState::Deleted);
        assert_eq!(map.counts(KeyBlock(1)), KeyCounts { used: 0, deleted: 1, doubtful: 0 });
        assert_eq!(map.bits(KeyBlock(1)), [0; 13]);
        for key in (200..300).map(KeyPosition) {
            map.set(key, KeyState::Used);
        }
        map.set(KeyPosition(3), KeyState::Used);
        let mut packed = vec![];
        map.pack(&mut packed);
        assert_eq!(packed.len(), 6 + 2 * 13 + 3 * DOUBTFUL_LEN);
        let mut other = KeyStateMap::new(3, 100);
        assert_eq!(other.unpack(&packed), Some(packed.len()));
        assert!((0..300).map(KeyPosition).all(|key| other.get(key) == map.get(key)));
        assert_eq!((other.all(), other.all().used), (map.all(), 101));
        assert!(map.contains(KeyPosition(299)) && !map.contains(KeyPosition(300)));
    }

    #[test]
    fn block_operations_equal_key_operations() {
        let mut map = KeyStateMap::new(2, 70);
        for key in 0..69 {
            map.set(KeyPosition(70 + key), if key % 3 == 0 { KeyState::Used } else { KeyState::Deleted });
        }
        let block = KeyBlock(1);
        assert_eq!((map.next_unused(block, 0), map.next_unused(block, 69)), (Some(69), Some(69)));
        assert_eq!(map.reset_deleted(block), KeyCounts { used: 0, deleted: 46, doubtful: 0 });
        assert_eq!((map.unused(block), map.all()), (47, KeyCounts { used: 23, deleted: 0, doubtful: 0 }));
        assert_eq!((map.next_unused(block, 0), map.next_unused(block, 3)), (Some(1), Some(4)));
        map.delete_unused(block);
        assert_eq!(
            (map.next_unused(block, 0), map.all()),
            (None, KeyCounts { used: 23, deleted: 47, doubtful: 47 })
        );
        map.set(KeyPosition(70), KeyState::Deleted);
        assert_eq!((map.all().known(), map.all().deleted), (1, 48));
        let mut packed = vec![];
        map.pack(&mut packed);
        let mut other = KeyStateMap::new(2, 70);
        assert_eq!((other.unpack(&packed), other.all()), (Some(packed.len()), map.all()));
        assert_eq!(map.reset_deleted(block), KeyCounts { used: 0, deleted: 48, doubtful: 47 });
        assert_eq!(map.all(), KeyCounts { used: 22, deleted: 0, doubtful: 0 });
        // Doubtful keys that are used again, which no log records.
        map = other;
        for key in 70..140 {
            map.set(KeyPosition(key), KeyState::Used);
        }
        assert_eq!(map.all(), KeyCounts { used: 70, deleted: 0, doubtful: 0 });
        map.set(KeyPosition(139), KeyState::Unused);
        assert_eq!(map.get(KeyPosition(69)), KeyState::Unused);
        assert_eq!(map.next_unused(KeyBlock(0), 69), Some(69));
    }

    #[test]
    fn invalid_packed_states_are_refused() {
        let unpack = |bytes: &[u8]| KeyStateMap::new(1, 12).unpack(bytes);
        assert_eq!(unpack(&[SOME, 1, 8, SOME, 2, 4, 0, 0, 0, 0]), Some(10));
        assert_eq!(unpack(&[SOME, 1, 8, SOME, 2, 4, 2, 0, 0, 0]), Some(10));
        // More doubtful keys than deleted ones; bytes that end before the count of doubtful keys.
        assert_eq!(unpack(&[SOME, 1, 8, SOME, 2, 4, 3, 0, 0, 0]), None);
        assert_eq!(unpack(&[SOME, 1, 8, SOME, 2, 4, 2, 0, 0]), None);
        // A key that is used and deleted, a key that does not exist, an unknown kind, bytes that
        // end too early.
        assert_eq!(unpack(&[SOME, 3, 8, SOME, 2, 4, 0, 0, 0, 0]), None);
        assert_eq!(unpack(&[SOME, 1, 16, NONE, 0, 0, 0, 0]), None);
        assert_eq!(unpack(&[3, NONE, 0, 0, 0, 0]), None);
        assert_eq!(unpack(&[SOME, 1]), None);
    }
}
