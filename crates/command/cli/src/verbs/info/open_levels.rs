//! The part of `info` on open levels of a disk, as its server reports them, or as a passphrase
//! opens them.

use lacuna_storage::{BLOCK_SIZE, human_size};
use serde_json::{Value, json};
use std::fmt::Write;

/// The write amplification is shown after this number of blocks was written to level 0: 1 MiB.
const MEANINGFUL: u64 = 256;

/// One open level. Sizes in blocks.
#[derive(Debug, PartialEq)]
pub(crate) struct LevelInfo {
    level: u64,
    capacity: u64,
    data: u64,
    /// Bytes of pending data that wait for cover, on hidden levels.
    waiting: Option<u64>,
    /// Blocks written to the medium, cover included, for each block that clients wrote to level 0
    /// since the disk was opened; `None` after too few writes.
    amplification: Option<f64>,
}

impl LevelInfo {
    /// As JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "level": self.level,
            "size": self.capacity * BLOCK_SIZE as u64,
            "data": self.data * BLOCK_SIZE as u64,
            "waiting_for_cover": self.waiting,
            "write_amplification": self.amplification,
        })
    }

    /// Its number, if it is a hidden level without data.
    pub(crate) fn empty(&self) -> Option<u64> {
        let is_empty = self.data == 0 && self.waiting.is_none_or(|waiting| waiting == 0);
        (self.level > 0 && is_empty).then_some(self.level)
    }

    /// As text: a name and its value.
    pub(crate) fn to_row(&self) -> (String, String) {
        let bytes = |blocks: u64| human_size(blocks.saturating_mul(BLOCK_SIZE as u64));
        let mut said = format!("{}, {} of it written", bytes(self.capacity), bytes(self.data));
        if let Some(waiting) = self.waiting {
            let _ = write!(said, "; {} wait for cover", human_size(waiting));
        }
        if let Some(amplification) = self.amplification {
            let _ = write!(
                said,
                "; {amplification:.1} blocks on the medium, cover included, for each one written"
            );
        }
        (format!("level {}", self.level), said)
    }
}

/// The levels in these counters; none of a disk without levels.
pub(crate) fn parse(items: &[Value]) -> Vec<LevelInfo> {
    let starts: Vec<usize> = (0..items.len()).filter(|at| items[*at]["name"] == "level").collect();
    let ends = starts.iter().skip(1).copied().chain([items.len()]);
    let of = |(start, end): (&usize, usize)| {
        let value = |name: &str| {
            items[*start..end]
                .iter()
                .find(|item| item["name"] == name)
                .and_then(|item| item["value"].as_u64())
        };
        let (written, public) = (value("medium_blocks_written")?, value("public_blocks_written")?);
        Some(LevelInfo {
            level: value("level")?,
            capacity: value("capacity")?,
            data: value("data")?,
            waiting: value("waiting_for_cover"),
            amplification: (public >= MEANINGFUL && value("level") == Some(0))
                .then(|| written as f64 / public as f64),
        })
    };
    let mut levels: Vec<LevelInfo> = starts.iter().zip(ends).filter_map(of).collect();
    levels.sort_by_key(|found| found.level);
    levels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_grouped_by_level() {
        let item = |name: &str, value: u64| json!({ "name": name, "value": value, "unit": "blocks" });
        let common = [item("medium_blocks_written", 640), item("public_blocks_written", 256)];
        let mut items = vec![item("level", 0), item("capacity", 1000), item("data", 10)];
        items.extend(common.clone());
        items.extend([
            item("level", 1),
            item("capacity", 900),
            item("data", 7),
            item("waiting_for_cover", 4096),
        ]);
        items.extend(common);
        let found = parse(&items);
        let level0 =
            LevelInfo { level: 0, capacity: 1000, data: 10, waiting: None, amplification: Some(2.5) };
        let level1 = LevelInfo { level: 1, capacity: 900, data: 7, waiting: Some(4096), amplification: None };
        assert_eq!(found, [level0, level1]);
        assert!(found[1].to_row().1.contains("4 KiB wait for cover"), "{:?}", found[1].to_row());
        let empty = |level, data, waiting| {
            LevelInfo { data, waiting: Some(waiting), ..parse(&items).swap_remove(level) }.empty()
        };
        assert_eq!((empty(1, 0, 0), empty(0, 0, 0)), (Some(1), None));
        assert_eq!((empty(1, 7, 0), empty(1, 0, 4096)), (None, None));
        assert!(parse(&[item("cache_hits", 5)]).is_empty());
        // Servers are not found in the order of their levels.
        items.rotate_left(5);
        assert_eq!(parse(&items), found);
    }
}
