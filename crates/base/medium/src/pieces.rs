//! Ranges of bytes: bounds checks, and splitting at the borders of pages or objects.

use lacuna_contracts::{Error, Kind, Result};
use std::ops::Range;

/// Refuses a range that exceeds a medium of `len` bytes.
pub fn check_range(offset: u64, size: u64, len: u64) -> Result<()> {
    match offset.checked_add(size) {
        Some(end) if end <= len => Ok(()),
        _ => Err(Error::new(Kind::Io, "access past the end of the medium")
            .found(format!("offset {offset}, length {size}"))
            .expected(format!("an end at or before byte {len}"))),
    }
}

/// Splits a range at every multiple of `unit`. Yields the number of the unit, the byte range within
/// the unit, and the byte range within the input.
pub fn pieces(offset: u64, size: u64, unit: u64) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset.saturating_add(size);
    let mut at = offset;
    std::iter::from_fn(move || {
        let (number, from) = (at / unit, at % unit);
        let take = (unit - from).min(end - at);
        let done = (at - offset) as usize;
        at += take;
        (take > 0).then_some((number, from as usize..(from + take) as usize, done..done + take as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range_in_order() {
        let all: Vec<_> = pieces(4000, 4300, 4096).collect();
        assert_eq!(all, [(0, 4000..4096, 0..96), (1, 0..4096, 96..4192), (2, 0..108, 4192..4300)]);
        assert_eq!(pieces(4096, 0, 4096).count() + pieces(u64::MAX, 9, 4096).count(), 0);
        assert!(check_range(96, 4, 100).is_ok() && check_range(u64::MAX, 2, u64::MAX).is_err());
    }
}
