//! What a folder that lies says of its names: that there is no such file, or the file that a name
//! named before, or another's.

use crate::lies::lying;
use crate::{Lies, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// What names named since they are kept, and the lies that are told with it.
#[derive(Default)]
pub(super) struct ToldNames {
    /// Of each name, the files that it named, and nothing where it named none.
    past: BTreeMap<String, Vec<Option<u64>>>,
    lies: Option<Lies>,
}

impl ToldNames {
    /// Lies from now on, or no longer.
    pub(super) fn lie(&mut self, lies: Option<Lies>) {
        self.lies = lies;
    }

    /// Keeps what a name names, which is about to change.
    pub(super) fn keep(&mut self, name: &str, file: Option<u64>) {
        self.past.entry(name.to_owned()).or_default().push(file);
    }

    /// The file that a name is said to name.
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

    /// The names that a subfolder is said to have, of those that it has.
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

/// A file of any name.
fn another(current: &BTreeMap<String, u64>, rng: &mut Rng) -> Option<u64> {
    let all: Vec<u64> = current.values().copied().collect();
    (!all.is_empty()).then(|| *rng.pick(&all))
}
