//! Doubled objects: those of which the folder holds a second file.
//!
//! What is written to a doubled object goes to the journal, always, and from there to both files by a checkpoint: to the second after the
//! first is durable, and a superblock that says so. So at any time one of the two is whole, as at the last checkpoint or at the one that is
//! under way, its root is in two places, and a doubled object costs nothing but the second write of what a checkpoint brings. Which of the
//! copies of a page is right is for its reader to verify: none is believed because of where it lies.

use crate::keys::StoreKeys;
use lacuna_contracts::{Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The doubled objects of a store, and their second files.
pub(crate) struct Doubled {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    objects: RwLock<BTreeSet<u64>>,
    files: Mutex<BTreeMap<u64, Arc<dyn FolderFile>>>,
}

impl Doubled {
    /// None so far.
    pub(crate) fn new(folder: Arc<dyn Folder>, keys: Arc<StoreKeys>) -> Doubled {
        Doubled { folder, keys, objects: RwLock::default(), files: Mutex::default() }
    }

    /// From now on an object is doubled.
    pub(crate) fn add(&self, object: u64) {
        self.objects.write().insert(object);
    }

    /// Whether an object is doubled.
    pub(crate) fn has(&self, object: u64) -> bool {
        self.objects.read().contains(&object)
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.objects.read().iter().copied().collect()
    }

    /// The name of an object's second file.
    pub(crate) fn name(&self, object: u64) -> String {
        self.keys.second_name(object)
    }

    /// The second file of an object, if it has one.
    pub(crate) fn file(&self, object: u64) -> Result<Option<Arc<dyn FolderFile>>> {
        if let Some(open) = self.files.lock().get(&object) {
            return Ok(Some(open.clone()));
        }
        match self.folder.open(&self.name(object)) {
            Ok(file) => Ok(Some(self.keep(object, file))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A second file for an object that has none.
    pub(crate) fn make_file(&self, object: u64) -> Result<Arc<dyn FolderFile>> {
        Ok(self.keep(object, self.folder.create(&self.name(object))?))
    }

    fn keep(&self, object: u64, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert(object, file.clone());
        file
    }

    /// Removes the second file of an object, if it has one.
    pub(crate) fn remove_file(&self, object: u64) -> Result<()> {
        self.files.lock().remove(&object);
        self.folder.remove(&self.name(object))
    }
}
