//! Signs that a disk is larger than its parameters say: they are from before it grew, as those of a header that was restored.
//!
//! Its segments beyond `params` have slots that would count as free. So nothing may be written with such parameters, and the disk
//! is not opened at all, unless it can only be read as it is ([`Outgrown::check`]).

use crate::geometry::Params;
use lacuna_core::{Advice, BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS, Setting};

/// What the entries of the map say of the size, those beyond the disk among them.
pub(crate) struct Outgrown<'p> {
    params: &'p Params,
    segments: u64,
    /// How many segments the disk must have had.
    least: u64,
    /// Of each slot that any map can name, whether an entry does.
    taken: Vec<bool>,
    /// Whether a segment beyond the disk has a slot that another one has too.
    shared: bool,
}

impl<'p> Outgrown<'p> {
    pub(crate) fn new(params: &'p Params) -> Self {
        let segments = u64::from(params.geometry().segments);
        let taken = vec![false; most_slots(params) as usize];
        Outgrown { params, segments, least: segments, taken, shared: false }
    }

    /// Takes note of a segment whose entry verifies, and of its slot's number plus 1. Those of the disk come before those beyond.
    pub(crate) fn note(&mut self, segment: u64, slot: u32) {
        let by_slot = u64::from(slot).saturating_sub(u64::from(self.params.spare));
        self.least = self.least.max(segment + 1).max(by_slot);
        let again = std::mem::replace(&mut self.taken[slot as usize - 1], true);
        self.shared |= again && segment >= self.segments;
    }

    /// Errors: [`Kind::RolledBack`] if the disk was larger. If an earlier version opened it with these parameters and wrote to it,
    /// what is there can be read, and `read_only` passes.
    pub(crate) fn check(&self, read_only: bool) -> Result<()> {
        match (self.least > self.segments, self.shared) {
            (false, _) => Ok(()),
            (true, true) if read_only => Ok(()),
            (true, true) => Err(overwritten()),
            (true, false) => Err(larger(self.params, self.least)),
        }
    }
}

/// Slots of a disk that is as large as its map lets it be.
pub(crate) fn most_slots(params: &Params) -> u32 {
    params.map_capacity + params.spare
}

/// The error for parameters of a disk that had at least `segments` segments.
pub(crate) fn larger(params: &Params, segments: u64) -> Error {
    let (block, whole) = (BLOCK_SIZE as u64, segments.saturating_sub(1) * SEGMENT_BLOCKS);
    // What lies beyond may be in the last segment, of which the disk has a part.
    let size = whole.max(params.blocks) * block;
    Error::new(Kind::RolledBack, "the header is older than the disk, which has grown since")
        .found(format!(
            "what only a disk of more than {size} bytes has, and a header that says {}",
            params.blocks * block
        ))
        .expected("a header that knows the size of its disk")
        .remedy(format!("resize the disk to the size that it had (more than {size} bytes), then open it"))
}

/// Two segments have one slot, so that a larger size would lose both.
fn overwritten() -> Error {
    Error::new(
        Kind::RolledBack,
        "the header is older than the disk, which was written since as if it had not grown",
    )
    .found("a slot that belongs to a segment of the disk and to one beyond its end")
    .expected("a header that knows the size of its disk")
    .remedy(
        Advice::from(
            "do not resize it, which would lose more: copy what can be read to another disk, opened with ",
        )
        .setting(Setting::ReadOnly),
    )
}
