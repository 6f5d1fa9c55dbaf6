//! The kinds of operations of a medium, and the digest for bytes in records.

/// An operation of a medium.
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
    /// Whether it makes data durable: if it fails, the dropped data is unknown.
    pub fn makes_durable(self) -> bool {
        matches!(self, OpKind::Sync | OpKind::WriteDurable)
    }
}

/// A digest of 64-bit words like FNV-1a, with a shift so that high bits affect low ones.
pub struct RunDigest(
    /// The digest so far.
    pub u64,
);

impl Default for RunDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl RunDigest {
    /// The digest of no words.
    pub fn new() -> Self {
        RunDigest(0xCBF2_9CE4_8422_2325)
    }

    /// Adds a word.
    pub fn add_word(&mut self, word: u64) {
        let x = (self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = x ^ (x >> 32);
    }

    /// Adds bytes and their number.
    pub fn add_bytes(&mut self, bytes: &[u8]) {
        self.add_word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add_word(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add_word(u64::from_le_bytes(last));
    }
}
