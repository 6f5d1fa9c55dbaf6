//! The sizes of pools, and the offsets of their records.

use std::ops::Range;

/// The size of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    /// Number of records. Only records that were ever taken use memory.
    pub records: u32,
    /// Words of a record.
    pub words: u32,
    /// Bytes of a record.
    pub bytes: u32,
}

/// Where a pool lies in the memory.
pub(crate) struct PoolPlace {
    pub(crate) layout: PoolLayout,
    /// The offset of the word that counts the records ever taken.
    pub(crate) reached: usize,
    /// The offset of the words of the first record.
    pub(crate) words: usize,
    /// The offset of the bytes of the first record.
    pub(crate) bytes: usize,
}

impl PoolPlace {
    /// The offsets of a record's words; the first of them says whether it is published.
    pub(crate) fn words_of(&self, index: u32) -> Range<usize> {
        let len = 8 * (1 + self.layout.words as usize);
        let start = self.words + index as usize * len;
        start..start + len
    }

    /// The offsets of a record's bytes.
    pub(crate) fn bytes_of(&self, index: u32) -> Range<usize> {
        let start = self.bytes + index as usize * self.layout.bytes as usize;
        start..start + self.layout.bytes as usize
    }
}
