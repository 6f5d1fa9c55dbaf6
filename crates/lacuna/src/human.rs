//! Sizes for people.

/// A size for people: exact where it is short, otherwise to one decimal, in powers of 1024.
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
