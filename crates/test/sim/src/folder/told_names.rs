//! The names of a folder that lies: a lie denies that the file exists, or returns an earlier file
//! of the name or the file of another name.

use crate::lies::lying;
use crate::{Lies, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// The earlier files of names since they are kept, and the state of the lies.
#[derive(Default)]
pub(super) struct ToldNames {
    /// For each name, the files that it referred to; `None` for a time without a file.
    past: BTreeMap<String, Vec<Option<u64>>>,
    lies: Option<Lies>,
}

impl ToldNames {
    /// Starts or ends lying.
    pub(super) fn lie(&mut self, lies: Option<Lies>) {
        self.lies = lies;
    }

    /// Keeps the file of a name that is about to change.
    pub(super) fn keep(&mut self, name: &str, file: Option<u64>) {
        self.past.entry(name.to_owned()).or_default().push(file);
    }

    /// The file that an open of a name gets.
    pub(super) fn file(&mut self, current: &BTreeMap<String, u64>, name: &str) -> Option<u64> {
        let now = current.get(name).copied();
        let Some(Lies { rng, .. }) = lying(&mut self.lies) else { return now };
        match rng.below(3) {
            0 => None,
            1 => {
                let all: Vec<Option<u64>> =
                    self.past.get(name).into_iter().flatten().copied().chain([now]).collect();
                *rng.pick(&all)
            }
            _ => another(current, rng),
        }
    }

    /// The names that a list of a subfolder returns; `there` are the true ones.
    pub(super) fn list(&mut self, subfolder: &str, there: Vec<String>) -> Vec<String> {
        let Some(Lies { rng, .. }) = lying(&mut self.lies) else { return there };
        let within = |name: &String| match name.split_once('/') {
            Some((folder, file)) => (folder == subfolder).then(|| file.to_owned()),
            None => subfolder.is_empty().then(|| name.clone()),
        };
        let once: Vec<String> = self.past.keys().filter_map(within).collect();
        let mut told: BTreeSet<String> = there.into_iter().filter(|_| rng.chance(3, 4)).collect();
        told.extend(once.into_iter().filter(|_| rng.chance(1, 4)));
        told.into_iter().collect()
    }
}

/// The file of a random name.
fn another(current: &BTreeMap<String, u64>, rng: &mut Rng) -> Option<u64> {
    let all: Vec<u64> = current.values().copied().collect();
    (!all.is_empty()).then(|| *rng.pick(&all))
}
