//! Doubled objects: objects with a second and a third file in the folder.
//!
//! All writes to a doubled object go to the journal, and a checkpoint writes them back to both
//! files: to the second one after the first and a superblock that refers to it are durable. So at
//! any time one of the two files is whole, as of the last checkpoint or of an unfinished one, and
//! its root is in two places. A doubled object costs only the second write of a checkpoint. The
//! reader must verify which copy of a page is right: the place of a copy proves nothing.
//!
//! The third file is for the rescue of a damaged folder, so that a page survives two bad blocks:
//! only a rescue reads it. A checkpoint writes it after the second file and another superblock are
//! durable: so the previous root is whole in one file until the new root is in two.

use crate::keys::StoreKeys;
use lacuna_contracts::{Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A further file of a doubled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ExtraFile {
    Second = 1,
    Third = 2,
}

impl ExtraFile {
    pub(crate) const ALL: [ExtraFile; 2] = [ExtraFile::Second, ExtraFile::Third];
}

/// The doubled objects of a store, and their further files.
pub(crate) struct DoubledObjects {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    objects: RwLock<BTreeSet<u64>>,
    files: Mutex<BTreeMap<(u64, ExtraFile), Arc<dyn FolderFile>>>,
}

impl DoubledObjects {
    /// No doubled objects.
    pub(crate) fn new(folder: Arc<dyn Folder>, keys: Arc<StoreKeys>) -> DoubledObjects {
        DoubledObjects { folder, keys, objects: RwLock::default(), files: Mutex::default() }
    }

    /// Marks an object as doubled.
    pub(crate) fn add(&self, object: u64) {
        self.objects.write().insert(object);
    }

    /// Whether an object is doubled.
    pub(crate) fn has(&self, object: u64) -> bool {
        self.objects.read().contains(&object)
    }

    /// All doubled objects.
    pub(crate) fn all(&self) -> Vec<u64> {
        self.objects.read().iter().copied().collect()
    }

    /// The name of a further file of an object.
    pub(crate) fn name(&self, object: u64, which: ExtraFile) -> String {
        self.keys.extra_file_name(object, which as u8)
    }

    /// A further file of an object, if it has one.
    pub(crate) fn file(&self, object: u64, which: ExtraFile) -> Result<Option<Arc<dyn FolderFile>>> {
        if let Some(open) = self.files.lock().get(&(object, which)) {
            return Ok(Some(open.clone()));
        }
        match self.folder.open(&self.name(object, which)) {
            Ok(file) => Ok(Some(self.cache_file(object, which, file))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e.of_read()),
        }
    }

    /// Makes a further file of an object that has none.
    pub(crate) fn make_file(&self, object: u64, which: ExtraFile) -> Result<Arc<dyn FolderFile>> {
        Ok(self.cache_file(object, which, self.folder.create(&self.name(object, which))?))
    }

    fn cache_file(&self, object: u64, which: ExtraFile, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert((object, which), file.clone());
        file
    }

    /// Removes a further file of an object, if it has one.
    pub(crate) fn remove_file(&self, object: u64, which: ExtraFile) -> Result<()> {
        self.files.lock().remove(&(object, which));
        self.folder.remove(&self.name(object, which))
    }
}
