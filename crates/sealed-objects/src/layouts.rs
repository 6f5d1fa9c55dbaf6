//! Which layout a disk has.

use super::adaptive::Adaptive;
use super::chain::ChainKey;
use super::chained::Chained;
use super::interleaved::Interleaved;
use super::kv::Kv;
use super::placement::Placement;
use super::segment_end::SegmentEnd;
use super::{ObjectLayout, ObjectParams};
use lacuna_core::Budget;

/// The layout of a disk. `budget` is for what it remembers; `key` makes the tags of what a seal binds.
pub(crate) fn placement(params: &ObjectParams, budget: Budget, key: ChainKey) -> Box<dyn Placement> {
    let meta = params.cipher.meta_size();
    match params.layout {
        ObjectLayout::Interleaved => Box::new(Interleaved::new(meta)),
        ObjectLayout::SegmentEnd => Box::new(SegmentEnd::new(meta)),
        ObjectLayout::Kv => Box::new(Kv::new(meta)),
        ObjectLayout::Adaptive if params.binds_entries() => Box::new(Chained::new(meta, budget, key)),
        ObjectLayout::Adaptive => Box::new(Adaptive::new(meta, budget)),
    }
}
