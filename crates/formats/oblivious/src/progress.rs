//! The progress of the batches, the claims of heads about it, and the work that is due next.
//!
//! Deniability contract: the claims of a head follow from the numbers of batches alone, whatever
//! the speed of the machine.

use crate::cells::place::BatchSeq;
use crate::params::Params;

/// The claims of a head: batches that were durable with all before them, in the ring and in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// The last batch that was durable in the ring.
    pub(crate) synced: BatchSeq,
    /// The last batch that was durable in place.
    pub(crate) applied: BatchSeq,
}

impl Claims {
    /// The claims of the head of batch `seq` by the schedule alone: the second part before its own
    /// is durable, and the fourth is durable in place.
    pub(crate) fn on_schedule(params: &Params, seq: BatchSeq) -> Claims {
        let part = params.part_batches();
        let number = seq.0.saturating_sub(1) / part;
        let end_of = |parts: u64| BatchSeq(number.saturating_sub(parts) * part);
        Claims { synced: end_of(1), applied: end_of(3) }
    }

    /// The later of both claims.
    pub(crate) fn max(self, other: Claims) -> Claims {
        Claims { synced: self.synced.max(other.synced), applied: self.applied.max(other.applied) }
    }
}

/// The progress of the batches; each number means a batch and all before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchProgress {
    /// Written to ring and journal.
    pub(crate) written: BatchSeq,
    /// Durable in ring and journal.
    pub(crate) synced: BatchSeq,
    /// Written in place, and durable there.
    pub(crate) applied: BatchSeq,
    pub(crate) applied_durable: BatchSeq,
    /// The last batch that was there when the disk was opened. Such batches go in place only after
    /// another part has ended, because a disk that is only read must stay as it is.
    pub(crate) opened_at: BatchSeq,
    /// The claims of the head of a pending batch.
    pub(crate) wanted: Claims,
    /// Whether threads sync parts of the ring and write them in place; otherwise the writer of a
    /// batch does both at the end of a part.
    pub(crate) has_threads: bool,
}

impl BatchProgress {
    /// All batches up to `end` are durable in the ring, and in place up to batch `applied`, as the
    /// head of `end` claims.
    pub(crate) fn at(end: BatchSeq, applied: BatchSeq) -> BatchProgress {
        BatchProgress {
            written: end,
            synced: end,
            applied,
            applied_durable: applied,
            opened_at: end,
            wanted: Claims::default(),
            has_threads: false,
        }
    }

    /// Whether a part of the ring has ended and is not durable.
    pub(crate) fn has_unsynced_part(&self, part: u64) -> bool {
        last_part_end(self.written, part) > self.synced
    }

    /// Whether a sync is due: for such a part, or because a pending batch needs the writes in place
    /// to be durable. Otherwise these wait for the end of the next part, with a sync that serves
    /// for both.
    pub(crate) fn is_sync_due(&self, part: u64) -> bool {
        let awaited = self.applied_durable < self.wanted.applied && self.applied > self.applied_durable;
        self.has_unsynced_part(part) || awaited
    }

    /// The end of the last durable part, if it is not in place.
    pub(crate) fn destage_due(&self, part: u64) -> Option<BatchSeq> {
        let end = last_part_end(self.synced, part);
        (end > self.applied && end > self.opened_at).then_some(end)
    }

    /// Whether claims are true.
    pub(crate) fn satisfies(&self, claims: Claims) -> bool {
        self.synced >= claims.synced && self.applied_durable >= claims.applied
    }
}

/// The last batch up to `seq` that ends a part of the ring.
fn last_part_end(seq: BatchSeq, part: u64) -> BatchSeq {
    BatchSeq(seq.0 / part * part)
}
