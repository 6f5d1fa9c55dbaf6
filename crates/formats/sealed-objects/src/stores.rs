//! Where a disk on objects lies.

use lacuna_medium::ObjectStore;
use std::sync::Arc;

/// The two families of objects that a disk lives on.
#[derive(Clone)]
pub struct Stores {
    /// Segments: object `n` holds the blocks from `1024 * n` on.
    pub data: Arc<dyn ObjectStore>,
    /// The table of snapshots and the version table.
    pub book: Arc<dyn ObjectStore>,
}
