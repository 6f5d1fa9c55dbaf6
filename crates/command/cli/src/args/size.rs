//! Parses sizes.

use lacuna_storage::{BLOCK_SIZE, Budget, Error, Kind, human_size, total_memory};
use std::str::FromStr;

/// Minimum memory for caches.
const LEAST_CACHE: u64 = 1 << 20;
/// The default, which every machine may use.
const DEFAULT_CACHE: u64 = 64 << 20;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub u64);

impl FromStr for Size {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = |found: String| {
            Error::new(Kind::Usage, "not a size")
                .found(found)
                .expected(
                    "a number of bytes, or one with K, M, G or T (also KiB: powers of 1024) or KB, MB, GB or TB \
                     (powers of 1000)",
                )
                .hint("write for example 20G or 1.5T")
        };
        if text.starts_with(['+', '-']) {
            return Err(refused(format!("{text:?}, a change and not a size"))
                .hint("give the whole size, for example 20G; a disk does not shrink"));
        }
        let (number, unit) =
            text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
        let unit = unit_of(unit).ok_or_else(|| refused(format!("{text:?}")))?;
        let (whole, fraction) =
            number.trim_end_matches(' ').split_once('.').unwrap_or((number.trim_end_matches(' '), "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole)
            || !digits(fraction)
            || fraction.len() > MOST_DECIMALS
            || (unit == 1 && number != whole)
        {
            return Err(refused(format!("{text:?}")));
        }
        let too_much = || refused(format!("{text}, more than 16 EiB"));
        let scale = 10u128.pow(fraction.len() as u32);
        let whole: u64 = whole.parse().map_err(|_| too_much())?;
        let fraction: u128 = fraction.parse().map_err(|_| too_much())?;
        let bytes = u128::from(whole) * u128::from(unit) + fraction * u128::from(unit) / scale;
        let bytes = u64::try_from(bytes).map_err(|_| too_much())?;
        // A size with a unit is rounded down to whole blocks.
        let exact = unit == 1 || bytes < BLOCK_SIZE as u64;
        Ok(Size(if exact { bytes } else { bytes - bytes % BLOCK_SIZE as u64 }))
    }
}

/// Maximum number of digits after the point.
const MOST_DECIMALS: usize = 9;

/// The bytes of a unit.
fn unit_of(text: &str) -> Option<u64> {
    let (letter, rest) = match text.split_at_checked(1) {
        None if text.is_empty() => return Some(1),
        split => split?,
    };
    let power = match letter {
        "b" | "B" if rest.is_empty() => return Some(1),
        "k" | "K" => 1,
        "m" | "M" => 2,
        "g" | "G" => 3,
        "t" | "T" => 4,
        _ => return None,
    };
    match rest {
        "" | "i" | "iB" | "ib" => Some(1 << (10 * power)),
        "b" | "B" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// The memory budget of `--cache`. Errors: [`Kind::Memory`] for more than half of the memory.
pub(crate) fn budget(cache: Size) -> Result<Budget, Error> {
    budget_within(cache.0, total_memory())
}

fn budget_within(cache: u64, memory: Option<u64>) -> Result<Budget, Error> {
    let refused = |kind| Error::new(kind, "cannot use this memory for caches").found(human_size(cache));
    if cache < LEAST_CACHE {
        return Err(refused(Kind::Usage).expected("at least 1M"));
    }
    // A system that does not report its memory sets no limit.
    let most = memory.map_or(u64::MAX, |memory| (memory / 2).max(DEFAULT_CACHE));
    if cache > most {
        return Err(refused(Kind::Memory).expected(format!(
            "at most {}, half of the memory of this machine or control group",
            human_size(most)
        )));
    }
    Ok(Budget::bytes(cache))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_take_at_most_half_of_the_memory() {
        let kind = |cache: u64, memory| budget_within(cache, memory).err().map(|e| e.kind());
        assert_eq!(kind((1 << 20) - 1, None), Some(Kind::Usage));
        for (cache, memory) in
            [(1 << 20, Some(1 << 30)), (512 << 20, Some(1 << 30)), (64 << 20, Some(1 << 20)), (1 << 40, None)]
        {
            assert_eq!(kind(cache, memory), None, "{cache} of {memory:?}");
        }
        for (cache, memory) in [((512 << 20) + 1, Some(1 << 30)), (65 << 20, Some(1 << 20))] {
            assert_eq!(kind(cache, memory), Some(Kind::Memory), "{cache} of {memory:?}");
        }
    }

    #[test]
    fn a_change_is_no_size() {
        for text in ["-5M", "+10G", "--force"] {
            let said = text.parse::<Size>().unwrap_err().to_string();
            assert!(said.contains("does not shrink"), "{said}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4097", 4097),
            ("4K", 4096),
            ("20G", 20 << 30),
            ("20GiB", 20 << 30),
            ("20 GiB", 20 << 30),
            ("1t", 1 << 40),
            ("1.5T", 3 << 39),
            ("64m", 64 << 20),
            ("20GB", 20_000_000_000 / 4096 * 4096),
            ("1.5K", 1536),
            ("512B", 512),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
        for text in [
            "",
            "G",
            "-1",
            "+1",
            ".5G",
            "1.G",
            "1.5",
            "20 ",
            "20GX",
            "20iB",
            "0x10",
            "1,5G",
            "99999999999999999999",
            "16777216T",
            "1.0000000001G",
            "é",
            "1é",
            " 20G",
        ] {
            assert_eq!(text.parse::<Size>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        for (bytes, text) in [(0, "0 B"), (4096, "4 KiB"), (20 << 30, "20 GiB"), (1536 << 20, "1.5 GiB")] {
            assert_eq!(human_size(bytes), text);
        }
    }
}
