//! How far the batches have come, what heads say of that, and what is to be done next.
//!
//! Deniability contract: what a head says follows from the numbers of batches alone, whatever the
//! speed of the machine.

use crate::params::Params;
use crate::place::BatchSeq;

/// What a head says: batches that were durable with all before them, in the ring and in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    /// The last batch that was durable in the ring.
    pub(crate) synced: BatchSeq,
    /// The last batch whose cells were durable in place.
    pub(crate) applied: BatchSeq,
}

impl Claims {
    /// What the head of batch `seq` says if nothing else is known: that what ended two parts ago is
    /// durable, and what ended four parts ago durable in place.
    pub(crate) fn on_schedule(params: &Params, seq: BatchSeq) -> Claims {
        let part = params.part();
        let number = seq.0.saturating_sub(1) / part;
        let end_of = |parts: u64| BatchSeq(number.saturating_sub(parts) * part);
        Claims { synced: end_of(1), applied: end_of(3) }
    }

    /// What either says.
    pub(crate) fn max(self, other: Claims) -> Claims {
        Claims { synced: self.synced.max(other.synced), applied: self.applied.max(other.applied) }
    }
}

/// How far the batches have come; each of these says it of a batch and all before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Written to ring and journal.
    pub(crate) written: BatchSeq,
    /// Durable in ring and journal.
    pub(crate) synced: BatchSeq,
    /// Written in place; and durable there.
    pub(crate) applied: BatchSeq,
    pub(crate) applied_durable: BatchSeq,
    /// The last batch that was there when the disk was opened. It is not brought in place before
    /// another part has ended, for nothing is done to a disk that is only looked at.
    pub(crate) found: BatchSeq,
    /// What a pending batch is going to say.
    pub(crate) wanted: Claims,
    /// Whether threads sync parts of the ring and write them in place; otherwise that is done where
    /// a part ends.
    pub(crate) threads: bool,
}

impl Progress {
    /// Everything up to batch `end` is durable in the ring, and in place up to batch `applied`, as
    /// the head of `end` says.
    pub(crate) fn at(end: BatchSeq, applied: BatchSeq) -> Progress {
        Progress {
            written: end,
            synced: end,
            applied,
            applied_durable: applied,
            found: end,
            wanted: Claims::default(),
            threads: false,
        }
    }

    /// Whether a part of the ring has ended that is not durable.
    pub(crate) fn has_ended(&self, part: u64) -> bool {
        last_end(self.written, part) > self.synced
    }

    /// Whether a sync is due: for such a part, or because a pending batch needs that what was
    /// written in place is durable. Nothing else needs that before the next part ends, whose sync
    /// serves for both.
    pub(crate) fn wants_sync(&self, part: u64) -> bool {
        let awaited = self.applied_durable < self.wanted.applied && self.applied > self.applied_durable;
        self.has_ended(part) || awaited
    }

    /// The end of the last part that is durable, if it is not in place.
    pub(crate) fn due_in_place(&self, part: u64) -> Option<BatchSeq> {
        let end = last_end(self.synced, part);
        (end > self.applied && end > self.found).then_some(end)
    }

    /// Whether what a head says is so.
    pub(crate) fn bears_out(&self, claims: Claims) -> bool {
        self.synced >= claims.synced && self.applied_durable >= claims.applied
    }
}

/// The last batch, up to `seq`, with which a part of the ring ends.
fn last_end(seq: BatchSeq, part: u64) -> BatchSeq {
    BatchSeq(seq.0 / part * part)
}
