//! The names of what a medium can be asked, and the fold that stands for bytes in records and
//! digests.

/// What was asked of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// One extent of a read.
    Read,
    /// One extent of a write.
    Write,
    /// One extent of a durable write.
    WriteDurable,
    /// A sync.
    Sync,
    /// A discard.
    Discard,
    /// A change of length.
    SetLen,
}

impl OpKind {
    /// Whether it makes something durable: what was dropped when it failed is unknown.
    pub fn syncs(self) -> bool {
        matches!(self, OpKind::Sync | OpKind::WriteDurable)
    }
}

/// A fold over 64-bit words in the manner of FNV-1a, with a shift so that high bits reach low ones.
pub struct Digest(
    /// The fold so far.
    pub u64,
);

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// Of nothing.
    pub fn new() -> Self {
        Digest(0xCBF2_9CE4_8422_2325)
    }

    /// Folds in a word.
    pub fn word(&mut self, word: u64) {
        let x = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
    }

    /// Folds in bytes, and how many they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
    }
}
