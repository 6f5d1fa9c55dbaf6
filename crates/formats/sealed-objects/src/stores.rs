//! The stores of a disk on objects.

use lacuna_medium::ObjectStore;
use std::sync::Arc;

/// The two families of objects of a disk.
#[derive(Clone)]
pub struct Stores {
    /// Segments: object `n` holds blocks `1024 * n` to `1024 * n + 1023`.
    pub data: Arc<dyn ObjectStore>,
    /// The snapshot table and the version table.
    pub book: Arc<dyn ObjectStore>,
}
