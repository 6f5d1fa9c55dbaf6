//! Tells the user how mounts were closed.

use crate::terminal::console::{self, Console};
use crate::verbs::open_instances::OpenMount;
use lacuna_daemon::CloseOutcome;
use std::collections::BTreeMap;

/// Prints how mounts were closed.
///
/// Deniability contract: of a disk with levels, a log gets one outcome at the end, regardless of
/// the number of its mounts. If one of them could not be closed, that error is the outcome.
pub(super) struct ClosingReport {
    console: Console,
    /// The outcomes of such disks, by location; `None` after an error.
    of_disks: BTreeMap<Option<String>, Option<CloseOutcome>>,
}

impl ClosingReport {
    pub(super) fn new(console: Console) -> Self {
        ClosingReport { console, of_disks: BTreeMap::new() }
    }

    /// Adds a mount; `None` if it could not be closed, which the caller prints.
    pub(super) fn add(&mut self, mount: &OpenMount, outcome: Option<CloseOutcome>) {
        if mount.is_private() && !console::is_terminal() {
            let of_disk = self.of_disks.entry(mount.location.clone());
            of_disk.and_modify(|before| *before = combined(*before, outcome)).or_insert(outcome);
        } else {
            outcome.into_iter().for_each(|outcome| self.print(outcome));
        }
    }

    /// Prints the outcomes that were held back.
    pub(super) fn end(self) {
        self.of_disks.values().flatten().for_each(|outcome| self.print(*outcome));
    }

    fn print(&self, outcome: CloseOutcome) {
        match outcome {
            CloseOutcome::Cleanly => self.console.detail("the server has ended"),
            CloseOutcome::AfterCrash => self.console.note(
                "the server had died before; its mount was removed, and data that was not flushed \
                 is lost",
            ),
        }
    }
}

/// The outcome of two mounts of a disk: an error, or else a loss, if one of them has it.
fn combined(one: Option<CloseOutcome>, other: Option<CloseOutcome>) -> Option<CloseOutcome> {
    match (one?, other?) {
        (CloseOutcome::Cleanly, CloseOutcome::Cleanly) => Some(CloseOutcome::Cleanly),
        _ => Some(CloseOutcome::AfterCrash),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_of_a_disk_is_the_worst_of_its_mounts_in_any_order() {
        let worst_last = [Some(CloseOutcome::Cleanly), Some(CloseOutcome::AfterCrash), None];
        for (at, one) in worst_last.iter().enumerate() {
            for (other_at, other) in worst_last.iter().enumerate() {
                assert_eq!(combined(*one, *other), worst_last[at.max(other_at)], "{one:?} {other:?}");
            }
        }
    }
}
