//! The disks on offer, by name.

use lacuna_contracts::ByteDisk;
use std::collections::BTreeMap;

/// Names of exports and the disks behind them. Names are at most 4096 bytes, as the protocol has
/// it.
#[derive(Clone, Default)]
pub struct Exports(BTreeMap<String, Export>);

/// A disk on offer.
#[derive(Clone)]
pub(crate) struct Export {
    pub(crate) disk: ByteDisk,
    /// Whose memory its requests take.
    pub(crate) level: usize,
}

impl Exports {
    /// No exports.
    pub fn new() -> Self {
        Self::default()
    }

    /// The levels of a location: `""` and `"0"` are the first, `"1"` the second, and so on.
    pub fn levels(levels: impl IntoIterator<Item = ByteDisk>) -> Self {
        let mut exports = Exports::new();
        for (number, disk) in levels.into_iter().enumerate() {
            if number == 0 {
                exports = exports.with("", disk.clone());
            }
            exports.0.insert(number.to_string(), Export { disk, level: number });
        }
        exports
    }

    /// Adds `disk` under `name`, in place of an earlier one of that name. It shares the memory of
    /// level 0.
    pub fn with(mut self, name: impl Into<String>, disk: ByteDisk) -> Self {
        self.0.insert(name.into(), Export { disk, level: 0 });
        self
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Export> {
        self.0.get(std::str::from_utf8(name).ok()?)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
