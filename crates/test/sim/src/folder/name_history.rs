//! The names of a folder that lies: a lie denies that the file exists, or returns an earlier file
//! of the name or the file of another name.

use crate::lies::next_lie;
use crate::{Lies, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// The earlier files of names since they are kept, and the state of the lies.
#[derive(Default)]
pub(super) struct NameHistory {
    /// For each name, the files that it referred to; `None` for a time without a file.
    past_files: BTreeMap<String, Vec<Option<u64>>>,
    lies: Option<Lies>,
}

impl NameHistory {
    /// Starts or ends lying.
    pub(super) fn set_lies(&mut self, lies: Option<Lies>) {
        self.lies = lies;
    }

    /// Keeps the file of a name that is about to change.
    pub(super) fn save_file(&mut self, name: &str, file: Option<u64>) {
        self.past_files.entry(name.to_owned()).or_default().push(file);
    }

    /// The file that an open of a name gets.
    pub(super) fn resolve(&mut self, current: &BTreeMap<String, u64>, name: &str) -> Option<u64> {
        let now = current.get(name).copied();
        let Some(Lies { rng, .. }) = next_lie(&mut self.lies) else { return now };
        match rng.below(3) {
            0 => None,
            1 => {
                let all: Vec<Option<u64>> =
                    self.past_files.get(name).into_iter().flatten().copied().chain([now]).collect();
                *rng.pick(&all)
            }
            _ => random_file(current, rng),
        }
    }

    /// The names that a list of a subfolder returns; `present` are the true ones.
    pub(super) fn list(&mut self, subfolder: &str, present: Vec<String>) -> Vec<String> {
        let Some(Lies { rng, .. }) = next_lie(&mut self.lies) else { return present };
        let within = |name: &String| match name.split_once('/') {
            Some((folder, file)) => (folder == subfolder).then(|| file.to_owned()),
            None => subfolder.is_empty().then(|| name.clone()),
        };
        let past_names: Vec<String> = self.past_files.keys().filter_map(within).collect();
        let mut listed: BTreeSet<String> = present.into_iter().filter(|_| rng.chance(3, 4)).collect();
        listed.extend(past_names.into_iter().filter(|_| rng.chance(1, 4)));
        listed.into_iter().collect()
    }
}

/// The file of a random name.
fn random_file(current: &BTreeMap<String, u64>, rng: &mut Rng) -> Option<u64> {
    let all: Vec<u64> = current.values().copied().collect();
    (!all.is_empty()).then(|| *rng.pick(&all))
}
