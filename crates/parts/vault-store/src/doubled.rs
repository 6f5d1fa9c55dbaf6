//! Doubled objects: those of which the folder holds a second file, and a third.
//!
//! What is written to a doubled object goes to the journal, always, and from there to both files by
//! a checkpoint: to the second after the first is durable, and a superblock that says so. So at any
//! time one of the two is whole, as at the last checkpoint or at the one that is under way, its
//! root is in two places, and a doubled object costs nothing but the second write of what a
//! checkpoint brings. Which of the copies of a page is right is for its reader to verify: none is
//! believed because of where it lies.
//!
//! The third file is for those who bring out what there is of a damaged folder, so that two bad
//! blocks are not all copies of a page: nothing else reads it. A checkpoint brings to it what it
//! brought to the second, after that is durable: so the root before is whole in one file until the
//! new one is in two.

use crate::keys::StoreKeys;
use lacuna_contracts::{Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Which of the further files of a doubled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Further {
    Second = 1,
    Third = 2,
}

impl Further {
    pub(crate) const ALL: [Further; 2] = [Further::Second, Further::Third];
}

/// The doubled objects of a store, and their further files.
pub(crate) struct Doubled {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    objects: RwLock<BTreeSet<u64>>,
    files: Mutex<BTreeMap<(u64, Further), Arc<dyn FolderFile>>>,
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

    /// The name of a further file of an object.
    pub(crate) fn name(&self, object: u64, which: Further) -> String {
        self.keys.further_name(object, which as u8)
    }

    /// A further file of an object, if it has one.
    pub(crate) fn file(&self, object: u64, which: Further) -> Result<Option<Arc<dyn FolderFile>>> {
        if let Some(open) = self.files.lock().get(&(object, which)) {
            return Ok(Some(open.clone()));
        }
        match self.folder.open(&self.name(object, which)) {
            Ok(file) => Ok(Some(self.keep(object, which, file))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e.of_read()),
        }
    }

    /// A further file for an object that has none.
    pub(crate) fn make_file(&self, object: u64, which: Further) -> Result<Arc<dyn FolderFile>> {
        Ok(self.keep(object, which, self.folder.create(&self.name(object, which))?))
    }

    fn keep(&self, object: u64, which: Further, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert((object, which), file.clone());
        file
    }

    /// Removes a further file of an object, if it has one.
    pub(crate) fn remove_file(&self, object: u64, which: Further) -> Result<()> {
        self.files.lock().remove(&(object, which));
        self.folder.remove(&self.name(object, which))
    }
}
