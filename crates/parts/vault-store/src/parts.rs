//! The shared parts of reading, writing, commits and checkpoints. Each has its own state and locks.

use crate::health::Health;
use crate::interval::Interval;
use crate::journal::Journal;
use crate::keys::StoreKeys;
use crate::object_table::ObjectTable;
use lacuna_medium::Folder;
use std::sync::Arc;

/// The shared parts of an open store. None of them refers to another.
pub(crate) struct Parts {
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) keys: Arc<StoreKeys>,
    pub(crate) health: Health,
    pub(crate) objects: ObjectTable,
    pub(crate) interval: Interval,
    pub(crate) journal: Journal,
}
