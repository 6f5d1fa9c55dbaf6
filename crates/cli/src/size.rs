//! Sizes as people write them.

use lacuna_core::{Error, Kind};
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |found: String| {
            Error::new(Kind::Usage, "not a size")
                .found(found)
                .expected("a whole number of bytes, or one with the suffix K, M, G or T (powers of 1024)")
                .remedy("write for example 20G")
        };
        let (digits, shift) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (&text[..at], 10),
            Some((at, 'm' | 'M')) => (&text[..at], 20),
            Some((at, 'g' | 'G')) => (&text[..at], 30),
            Some((at, 't' | 'T')) => (&text[..at], 40),
            _ => (text, 0),
        };
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refused(format!("{text:?}")));
        }
        let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
        number.map(Size).ok_or_else(|| refused(format!("{text}, more than any machine can count")))
    }
}

/// A size for people: exact where it is short, otherwise to one decimal.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let whole = 1u64 << (unit * 10);
    if bytes.is_multiple_of(whole) {
        format!("{} {}", bytes / whole, UNITS[unit as usize])
    } else {
        format!("{:.1} {}", bytes as f64 / whole as f64, UNITS[unit as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in
            [("0", 0), ("4096", 4096), ("4K", 4096), ("20G", 20 << 30), ("1t", 1 << 40), ("64m", 64 << 20)]
        {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
        for text in
            ["", "G", "-1", "+1", "1.5G", "20 G", "20GB", "0x10", "99999999999999999999", "16777216T", "é"]
        {
            assert_eq!(text.parse::<Size>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in [(0, "0 B"), (4096, "4 KiB"), (20 << 30, "20 GiB"), (1536 << 20, "1.5 GiB")] {
            assert_eq!(human(bytes), text);
        }
    }
}
