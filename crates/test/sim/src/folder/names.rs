//! The names of a simulated folder: now, durable, and after a power cut.

use crate::{LossPolicy, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// A change that removes a name.
#[allow(non_upper_case_globals)]
pub(super) const REMOVED: Option<u64> = None;

/// An unsynced change of names. All of its parts land, or none.
struct NameChange {
    parts: Vec<(String, Option<u64>)>,
}

/// The names of a folder, each with the ID of its file.
#[derive(Default)]
pub(super) struct Names {
    pub(super) current: BTreeMap<String, u64>,
    durable: BTreeMap<String, u64>,
    unsynced: Vec<NameChange>,
}

fn apply(names: &mut BTreeMap<String, u64>, change: &NameChange) {
    for (name, file) in &change.parts {
        match file {
            Some(id) => drop(names.insert(name.clone(), *id)),
            None => drop(names.remove(name)),
        }
    }
}

fn folder_of(name: &str) -> &str {
    name.split_once('/').map_or("", |(folder, _)| folder)
}

impl Names {
    /// Makes a change. A change in flight at the cut is not visible, but may land.
    pub(super) fn change(&mut self, parts: &[(&str, Option<u64>)], in_flight: bool) {
        let parts = parts.iter().map(|(name, file)| ((*name).to_owned(), *file)).collect();
        let change = NameChange { parts };
        if !in_flight {
            apply(&mut self.current, &change);
        }
        if !change.parts.is_empty() {
            self.unsynced.push(change);
        }
    }

    /// Makes the changes in a subfolder durable, or all changes.
    pub(super) fn sync(&mut self, subfolder: Option<&str>) {
        let durable = &mut self.durable;
        self.unsynced.retain(|change| {
            let here = change.parts.iter().any(|(name, _)| subfolder.is_none_or(|f| folder_of(name) == f));
            if here {
                apply(durable, change);
            }
            !here
        });
    }

    /// Durably makes a name refer to `file`.
    pub(super) fn set_durable(&mut self, name: &str, file: u64) {
        self.remove_durable(name);
        self.current.insert(name.to_owned(), file);
        self.durable.insert(name.to_owned(), file);
    }

    /// Durably removes a name.
    pub(super) fn remove_durable(&mut self, name: &str) {
        self.current.remove(name);
        self.durable.remove(name);
        self.unsynced.iter_mut().for_each(|change| change.parts.retain(|(known, _)| known != name));
        self.unsynced.retain(|change| !change.parts.is_empty());
    }

    /// The files that have a name now, or may have one after a cut.
    pub(super) fn all_files(&self) -> BTreeSet<u64> {
        let owed = self.unsynced.iter().flat_map(|change| &change.parts).filter_map(|(_, file)| *file);
        self.current.values().chain(self.durable.values()).copied().chain(owed).collect()
    }

    /// The number of changes that a cut now could lose.
    pub(super) fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Names of the files and subfolders in a subfolder.
    pub(super) fn list(&self, subfolder: &str) -> Vec<String> {
        let within = |name: &String| match (subfolder, name.split_once('/')) {
            ("", Some((folder, _))) => Some(folder.to_owned()),
            ("", None) => Some(name.clone()),
            (wanted, Some((folder, file))) if folder == wanted => Some(file.to_owned()),
            _ => None,
        };
        self.current.keys().filter_map(within).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The names after a power cut.
    pub(super) fn after_cut(&self, loss: LossPolicy, rng: &mut Rng) -> BTreeMap<String, u64> {
        let mut names = self.durable.clone();
        let n = self.unsynced.len() as u64;
        if n == 0 {
            return names;
        }
        let (one, odds) = (rng.below(n), *rng.pick(&[1, 4, 7]));
        for (at, change) in (0..).zip(&self.unsynced) {
            let lands = match loss {
                LossPolicy::DropAll => false,
                LossPolicy::KeepAll | LossPolicy::Reverse | LossPolicy::TearInFlight => true,
                LossPolicy::Prefix => at < one,
                LossPolicy::Suffix => at >= one,
                LossPolicy::DropOne => at != one,
                LossPolicy::KeepOne => at == one,
                LossPolicy::Subset | LossPolicy::Sectors => rng.chance(odds, 8),
            };
            if lands {
                apply(&mut names, change);
            }
        }
        names
    }
}
