//! Constructs the layout that the parameters of a disk name.

pub(crate) mod adaptive;
pub(crate) mod chain;
pub(crate) mod chained;
pub(crate) mod chunks;
pub(crate) mod interleaved;
pub(crate) mod kv;
pub(crate) mod metadata_pages;
pub(crate) mod placement;
pub(crate) mod segment_end;
pub(crate) mod tail_cache;

use crate::layouts::adaptive::Adaptive;
use crate::layouts::chain::ChainKey;
use crate::layouts::chained::Chained;
use crate::layouts::interleaved::Interleaved;
use crate::layouts::kv::Kv;
use crate::layouts::placement::Placement;
use crate::layouts::segment_end::SegmentEnd;
use crate::params::{ObjectLayout, ObjectParams};
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
