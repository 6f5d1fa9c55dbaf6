//! Signs that a disk is larger than its parameters say: they are from before it grew, as those of a
//! header that was restored.
//!
//! Its segments beyond `params` have slots that would count as free. So the disk is not opened with
//! such parameters.

use crate::geometry::Params;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};

/// What the entries of the map say of the size, those beyond the disk among them.
pub(crate) struct Outgrown<'p> {
    params: &'p Params,
    segments: u64,
    /// How many segments the disk must have had.
    least: u64,
}

impl<'p> Outgrown<'p> {
    pub(crate) fn new(params: &'p Params) -> Self {
        let segments = u64::from(params.geometry().segments);
        Outgrown { params, segments, least: segments }
    }

    /// Takes note of a segment whose entry verifies, and of its slot's number plus 1.
    pub(crate) fn note(&mut self, segment: u64, slot: u32) {
        let by_slot = u64::from(slot).saturating_sub(u64::from(self.params.spare));
        self.least = self.least.max(segment + 1).max(by_slot);
    }

    /// Errors: [`Kind::RolledBack`] if the disk was larger.
    pub(crate) fn check(&self) -> Result<()> {
        if self.least > self.segments { Err(larger(self.params, self.least)) } else { Ok(()) }
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
