//! The death of the process that uses a medium: its writes are there, synced or not, and the power
//! stays on.

use super::{CrashMedium, CrashMediumState};
use crate::unsynced_writes::{Fragment, UnsyncedOp};
use crate::{PAGE_SIZE, Rng};

impl CrashMedium {
    /// A medium in the state that a successor finds, if what ended this medium was the death of the
    /// process. Reads see all operations that had returned, and a power cut can still lose those
    /// that were not synced. An operation in flight was done, was not, or was done in part: the
    /// system copies data page by page.
    pub fn after_process_death(&self, rng: &mut Rng) -> CrashMedium {
        let (left, in_flight) = self.split_at_death();
        let mut after = left.state();
        in_flight.iter().for_each(|op| after.land(op, rng));
        drop(after);
        left
    }

    /// A medium in that state without the operations in flight, and these operations.
    pub(super) fn split_at_death(&self) -> (CrashMedium, Vec<UnsyncedOp>) {
        let state = self.state();
        let left = CrashMedium::from_image(state.durable.clone());
        let mut after = left.state();
        after.volatile = state.volatile.clone();
        after.history.clone_from(&state.history);
        let mut in_flight = vec![];
        for op in &state.unsynced {
            if !op.in_flight || state.ended_in_sync {
                after.unsynced.push(UnsyncedOp { in_flight: false, ..op.clone() });
            } else {
                in_flight.push(op.clone());
            }
        }
        drop(after);
        (left, in_flight)
    }
}

impl CrashMediumState {
    /// Does a part of an operation that was in flight.
    pub(super) fn land(&mut self, op: &UnsyncedOp, rng: &mut Rng) {
        let odds = *rng.pick(&[0, 4, 8]);
        let fragments: Vec<Fragment> =
            op.fragments.iter().flat_map(|f| f.parts(PAGE_SIZE)).filter(|_| rng.chance(odds, 8)).collect();
        let length = op.length.filter(|_| odds > 0);
        self.complete(fragments, length);
    }

    /// Does these parts of an operation that was in flight. They are not synced.
    pub(super) fn complete(&mut self, fragments: Vec<Fragment>, length: Option<u64>) {
        if let Some(len) = length {
            self.save_version(len..u64::MAX);
            self.volatile.set_len(len);
        }
        for fragment in &fragments {
            self.save_version(fragment.range.clone());
            fragment.apply(&mut self.volatile);
        }
        if length.is_some() || !fragments.is_empty() {
            self.unsynced.push(UnsyncedOp { fragments, length, in_flight: false });
        }
    }
}
