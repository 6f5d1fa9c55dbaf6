//! Detects parameters from before the disk grew, such as those of a restored header.
//!
//! The disk is not opened with such parameters: the slots of segments beyond the recorded size
//! would count as free.

use crate::geometry::Params;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Result, SEGMENT_BLOCKS};

/// The least size of the disk, by the entries of the map within and beyond it.
pub(crate) struct GrowthCheck<'p> {
    params: &'p Params,
    segments: u64,
    /// The number of segments that the disk must have had.
    min_segments: u64,
}

impl<'p> GrowthCheck<'p> {
    pub(crate) fn new(params: &'p Params) -> Self {
        let segments = u64::from(params.geometry().segments);
        GrowthCheck { params, segments, min_segments: segments }
    }

    /// Notes a segment with a verified entry, and its slot's number plus 1.
    pub(crate) fn note(&mut self, segment: u64, slot: u32) {
        let by_slot = u64::from(slot).saturating_sub(u64::from(self.params.spare));
        self.min_segments = self.min_segments.max(segment + 1).max(by_slot);
    }

    /// Errors: [`Kind::RolledBack`] if the disk was larger.
    pub(crate) fn check(&self) -> Result<()> {
        if self.min_segments > self.segments {
            Err(header_too_old(self.params, self.min_segments))
        } else {
            Ok(())
        }
    }
}

/// Slots of a disk at the largest size that its map allows.
pub(crate) fn max_slots(params: &Params) -> u32 {
    params.map_capacity + params.spare
}

/// The error for parameters of a disk that had at least `segments` segments.
pub(crate) fn header_too_old(params: &Params, segments: u64) -> Error {
    let (block, whole) = (BLOCK_SIZE as u64, segments.saturating_sub(1) * SEGMENT_BLOCKS);
    // Only a part of the last segment may belong to the disk.
    let size = whole.max(params.blocks) * block;
    Error::new(Kind::RolledBack, "the header is older than the disk, which has grown since")
        .found(format!(
            "data of a disk of more than {size} bytes, and a header that says {}",
            params.blocks * block
        ))
        .expected("a header with the current size of the disk")
        .hint(format!("resize the disk to the size that it had (more than {size} bytes), then open it"))
}
