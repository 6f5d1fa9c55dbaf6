//! How far the batches have come, what heads say of that, and what the threads have to do next.

use crate::params::Params;

/// What a head says: batches that were durable with all before them, in the ring and in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) synced: u64,
    pub(crate) applied: u64,
}

impl Claims {
    pub(crate) fn max(self, other: Claims) -> Claims {
        Claims { synced: self.synced.max(other.synced), applied: self.applied.max(other.applied) }
    }
}

impl Params {
    /// What the head of batch `seq` says if nothing else is known, whatever the speed of the machine (deniability contract):
    /// that what ended two parts ago is durable, and what ended four parts ago durable in place.
    pub(crate) fn schedule(&self, seq: u64) -> Claims {
        let number = seq.saturating_sub(1) / self.part();
        Claims {
            synced: number.saturating_sub(1) * self.part(),
            applied: number.saturating_sub(3) * self.part(),
        }
    }
}

/// How far the batches have come; each of these says it of a batch and all before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Written to ring and journal.
    pub(super) written: u64,
    /// Durable in ring and journal.
    pub(super) synced: u64,
    /// Written in place; and durable there.
    pub(super) applied: u64,
    pub(super) applied_durable: u64,
    /// The last batch that was there when the disk was opened: it is not brought in place before another part has ended, for
    /// nothing is done to a disk that is only looked at.
    found: u64,
    /// What a batch waits for that is going to say so.
    pub(super) wanted: Claims,
    /// There are threads that sync parts of the ring and write them in place; otherwise that is done where a part ends.
    pub(super) threads: bool,
}

impl Progress {
    /// Everything up to batch `end` is durable in the ring, and in place up to batch `applied`, as the head of `end` says.
    pub(crate) fn at(end: u64, applied: u64) -> Progress {
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

    /// Whether a sync is due: for such a part, or because a batch waits for what was written in place to be durable. Nobody
    /// else needs that before the next part ends, whose sync serves for both.
    pub(crate) fn wants_sync(&self, part: u64) -> bool {
        let awaited = self.applied_durable < self.wanted.applied && self.applied > self.applied_durable;
        self.has_ended(part) || awaited
    }

    /// The end of the last part that is durable, if it is not in place.
    pub(crate) fn due_in_place(&self, part: u64) -> Option<u64> {
        let end = last_end(self.synced, part);
        (end > self.applied && end > self.found).then_some(end)
    }

    pub(crate) fn has_threads(&self) -> bool {
        self.threads
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn synced(&self) -> u64 {
        self.synced
    }

    /// Whether what a head says is so.
    pub(super) fn bears_out(&self, claims: Claims) -> bool {
        self.synced >= claims.synced && self.applied_durable >= claims.applied
    }
}

/// The last batch, up to `seq`, with which a part of the ring ends.
fn last_end(seq: u64, part: u64) -> u64 {
    seq / part * part
}
