//! Constructs the layout that the parameters of a disk name.

use crate::adaptive::Adaptive;
use crate::chain::ChainKey;
use crate::chained::Chained;
use crate::interleaved::Interleaved;
use crate::kv::Kv;
use crate::params::{ObjectLayout, ObjectParams};
use crate::placement::Placement;
use crate::segment_end::SegmentEnd;
use lacuna_contracts::Budget;
use std::sync::Arc;

/// The layout of a disk. `budget` bounds the metadata that it caches; `key` makes the tags of
/// entries that a seal binds.
pub(crate) fn new_placement(params: &ObjectParams, budget: Budget, key: ChainKey) -> Arc<dyn Placement> {
    let meta = params.cipher.meta_size();
    match params.layout {
        ObjectLayout::Interleaved => Arc::new(Interleaved::new(meta)),
        ObjectLayout::SegmentEnd => Arc::new(SegmentEnd::new(meta)),
        ObjectLayout::Kv => Arc::new(Kv::new(meta)),
        ObjectLayout::Adaptive if params.binds_entries() => Arc::new(Chained::new(meta, budget, key)),
        ObjectLayout::Adaptive => Arc::new(Adaptive::new(meta, budget)),
    }
}
