//! The exported disks, by name.

use lacuna_contracts::ByteDisk;
use std::collections::BTreeMap;

/// Names of exports and their disks. The protocol limits names to 4096 bytes.
#[derive(Clone, Default)]
pub struct Exports(BTreeMap<String, Export>);

/// An exported disk.
#[derive(Clone)]
pub(crate) struct Export {
    pub(crate) disk: ByteDisk,
    /// The level that provides the memory for its requests.
    pub(crate) level: usize,
}

impl Exports {
    /// No exports.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports the levels of a location: `""` and `"0"` are the first, `"1"` the second, and so on.
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

    /// Adds `disk` under `name` and replaces an earlier disk of that name. Its requests use the
    /// memory of level 0.
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
