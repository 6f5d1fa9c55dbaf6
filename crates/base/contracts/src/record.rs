//! Records on media: little-endian numbers at fixed offsets, as the format pages list them.

use crate::{Error, Kind, Result};
use std::ops::{Deref, RangeBounds};
use std::slice::SliceIndex;

/// The bytes of a record; the reader has checked its length. Methods panic if an offset is outside
/// it.
#[derive(Clone, Copy)]
pub struct LeReader<'b>(pub &'b [u8]);

impl LeReader<'_> {
    /// The `N` bytes at `at`.
    pub fn array<const N: usize>(self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("the record is longer")
    }

    /// The number in the two bytes at `at`.
    pub fn u16(self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    /// The number in the four bytes at `at`.
    pub fn u32(self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    /// The number in the eight bytes at `at`.
    pub fn u64(self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }

    /// Whether a part that a format does not use is all zeros.
    pub fn is_zero(self, part: impl RangeBounds<usize> + SliceIndex<[u8], Output = [u8]>) -> bool {
        self.0[part].iter().all(|byte| *byte == 0)
    }
}

/// A record that is being written. Methods panic if an offset is outside it.
pub struct LeWriter<'b>(pub &'b mut [u8]);

impl LeWriter<'_> {
    /// Writes bytes at `at`.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Writes a number of two bytes at `at`.
    pub fn u16(&mut self, at: usize, number: u16) -> &mut Self {
        self.put(at, &number.to_le_bytes())
    }

    /// Writes a number of four bytes at `at`.
    pub fn u32(&mut self, at: usize, number: u32) -> &mut Self {
        self.put(at, &number.to_le_bytes())
    }

    /// Writes a number of eight bytes at `at`.
    pub fn u64(&mut self, at: usize, number: u64) -> &mut Self {
        self.put(at, &number.to_le_bytes())
    }
}

/// The parameters of a disk, as its header stores them.
#[derive(Clone, Copy)]
pub struct ParamsReader<'b> {
    format: &'static str,
    record: LeReader<'b>,
}

impl<'b> ParamsReader<'b> {
    /// Parameters of a format with `len` bytes of parameters. Errors: [`Kind::Corrupt`] for any
    /// other length.
    pub fn new(format: &'static str, bytes: &'b [u8], len: usize) -> Result<Self> {
        let parameters = ParamsReader { format, record: LeReader(bytes) };
        if bytes.len() == len {
            return Ok(parameters);
        }
        Err(parameters.invalid(format!("{} bytes", bytes.len()), format!("{len} bytes")))
    }

    /// The error for parameters that no version of the format wrote.
    pub fn invalid(&self, found: impl Into<String>, expected: impl Into<String>) -> Error {
        Error::new(Kind::Corrupt, format!("the parameters of the {} format are not usable", self.format))
            .found(found)
            .expected(expected)
            .hint("use the version of lacuna that made this disk, or restore the header from a backup")
    }
}

impl<'b> Deref for ParamsReader<'b> {
    type Target = LeReader<'b>;

    fn deref(&self) -> &LeReader<'b> {
        &self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_numbers_are_read_back() {
        let mut bytes = [0; 24];
        LeWriter(&mut bytes).u16(0, 0x0102).u32(2, 7).u64(8, u64::MAX - 1).put(16, b"abc");
        let record = LeReader(&bytes);
        assert_eq!((record.u16(0), record.u32(2), record.u64(8)), (0x0102, 7, u64::MAX - 1));
        assert_eq!((&bytes[..2], &record.array::<3>(16)), (&[2, 1][..], b"abc"));
        assert!(record.is_zero(6..8) && record.is_zero(19..) && !record.is_zero(..));
    }
}
