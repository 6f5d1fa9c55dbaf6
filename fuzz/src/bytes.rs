//! A cursor over the fuzzer's input.

/// A cursor over the input. Reads past the end return zeros, so that short inputs are valid too.
pub struct InputCursor<'a>(&'a [u8]);

impl<'a> InputCursor<'a> {
    /// A cursor at the start of `input`.
    pub fn new(input: &'a [u8]) -> Self {
        InputCursor(input)
    }

    /// Whether all bytes were taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let got = self.take(N);
        out[..got.len()].copy_from_slice(got);
        out
    }

    /// The next two bytes as a number.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes as a number.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Up to `len` bytes: the remaining ones if there are fewer.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    /// All remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}
