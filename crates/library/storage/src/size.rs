//! Sizes in human-readable form and in blocks.

use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A human-readable size: exact if it is a whole number of units, otherwise with one decimal, in
/// powers of 1024.
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let whole = 1u64 << (unit * 10);
    if bytes.is_multiple_of(whole) {
        format!("{} {}", bytes / whole, UNITS[unit as usize])
    } else {
        format!("{:.1} {}", bytes as f64 / whole as f64, UNITS[unit as usize])
    }
}

/// A size in blocks. Errors: [`Kind::Usage`] if it is not a multiple of a block, or 0.
pub fn size_in_blocks(size: u64) -> Result<u64> {
    if size > 0 && size.is_multiple_of(BLOCK) {
        return Ok(size / BLOCK);
    }
    let below = (size / BLOCK).max(1) * BLOCK;
    Err(Error::new(Kind::Usage, "cannot use this size")
        .found(format!("{size} bytes"))
        .expected("a multiple of 4096, and not 0")
        .hint(if size < BLOCK {
            format!("a number without a unit is bytes: give for example {}M", size.clamp(64, 1024))
        } else {
            format!("give for example {below}")
        }))
}
