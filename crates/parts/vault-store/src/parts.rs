//! The parts that reading, writing, commits and checkpoints have in common. Each owns its state and
//! its locks.

use crate::health::Health;
use crate::interval::Interval;
use crate::journal::Journal;
use crate::keys::StoreKeys;
use crate::object_table::ObjectTable;
use lacuna_medium::Folder;
use std::sync::Arc;

/// The common parts of an open store. None of them knows another one.
pub(crate) struct Parts {
    pub(crate) folder: Arc<dyn Folder>,
    pub(crate) keys: Arc<StoreKeys>,
    pub(crate) health: Health,
    pub(crate) objects: ObjectTable,
    pub(crate) interval: Interval,
    pub(crate) journal: Journal,
}
