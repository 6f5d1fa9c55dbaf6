//! The possible states of a vault at its next opening.

use super::dump::{Dump, assert_same, of_model, of_vault};
use super::model::FsModel;
use super::ops::StepResult;
use lacuna_vault::Vault;
use std::collections::BTreeMap;

/// The states that a crash may leave: the state after the last sync that returned, and after each
/// operation since.
#[derive(Clone)]
pub struct States {
    pub model: FsModel,
    pub since: Vec<FsModel>,
}

impl States {
    pub fn new(model: FsModel) -> States {
        States { since: vec![model.clone()], model }
    }

    /// Records a step.
    pub fn note_step(&mut self, step: &StepResult) {
        if *step == StepResult::Durable {
            self.since.clear();
        }
        self.since.push(self.model.clone());
    }

    /// After a crash: checks that the vault is one of the states, whole, and continues with that
    /// state.
    pub fn recover(&mut self, vault: &Vault, context: &str) {
        let found = of_vault(vault);
        let numbered = |model: &FsModel| (model.reopened(), of_model(&model.reopened()));
        let candidates: Vec<(FsModel, Dump)> = self.since.iter().rev().map(numbered).collect();
        let Some((model, _)) = candidates.iter().find(|(_, dump)| *dump == found) else {
            let nearest = candidates.iter().min_by_key(|(_, dump)| differences(&found, dump));
            assert_same(
                &found,
                &nearest.unwrap().1,
                &format!("{context}: none of {} states", candidates.len()),
            );
            return;
        };
        *self = States::new(model.clone());
    }
}

fn differences(one: &Dump, other: &Dump) -> usize {
    let all: BTreeMap<_, _> = one.iter().chain(other).collect();
    all.keys().filter(|path| one.get(**path) != other.get(**path)).count()
}
