//! The objects that were changed since the last checkpoint, and the files of objects that are open.

use super::keys::StoreKeys;
use super::object::Object;
use lacuna_core::{BoundedCache, Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;

/// An object that many may hold.
pub(super) type Shared = Arc<RwLock<Object>>;

/// Objects and files, by number.
pub(super) struct Objects {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    changed: RwLock<HashMap<u64, Shared>>,
    files: Mutex<BoundedCache<u64, Arc<dyn FolderFile>>>,
}

impl Objects {
    /// None so far.
    pub(super) fn new(folder: Arc<dyn Folder>, keys: Arc<StoreKeys>) -> Objects {
        let files = Mutex::new(BoundedCache::new(folder.open_files()));
        Objects { folder, keys, changed: RwLock::default(), files }
    }

    /// The name of an object's file.
    pub(super) fn name(&self, object: u64) -> String {
        self.keys.object_name(object)
    }

    /// What is known of an object that was changed since the last checkpoint.
    pub(super) fn get(&self, object: u64) -> Option<Shared> {
        self.changed.read().get(&object).cloned()
    }

    /// The same; from now on something is known of it.
    pub(super) fn get_or_make(&self, object: u64) -> Shared {
        if let Some(known) = self.get(object) {
            return known;
        }
        self.changed.write().entry(object).or_default().clone()
    }

    /// How many are known.
    pub(super) fn len(&self) -> usize {
        self.changed.read().len()
    }

    /// Forgets those of `objects` that are idle. The caller lets nobody change any object meanwhile.
    pub(super) fn forget_idle(&self, objects: &[u64], commit: u64) {
        let mut changed = self.changed.write();
        for object in objects {
            if changed.get(object).is_some_and(|known| known.read().is_idle(commit)) {
                changed.remove(object);
            }
        }
    }

    /// The file of an object, if it has one.
    pub(super) fn file(&self, object: u64) -> Result<Option<Arc<dyn FolderFile>>> {
        if let Some(open) = self.files.lock().get(object) {
            return Ok(Some(open.clone()));
        }
        let open = || self.folder.open(&self.name(object));
        let opened = match open() {
            // There may be no descriptors left: those of other objects go.
            Err(e) if e.kind() == Kind::Memory => {
                self.let_go();
                open()
            }
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(self.keep(object, file))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// A new file for an object that has none.
    pub(super) fn make_file(&self, object: u64) -> Result<Arc<dyn FolderFile>> {
        let create = || self.folder.create(&self.name(object));
        let created = create().or_else(|e| {
            if e.kind() != Kind::Memory {
                return Err(e);
            }
            self.let_go();
            create()
        });
        Ok(self.keep(object, created?))
    }

    /// Closes the files that nobody uses now.
    fn let_go(&self) {
        self.files.lock().clear();
    }

    fn keep(&self, object: u64, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert(object, file.clone());
        file
    }

    /// Removes the file of an object.
    pub(super) fn remove_file(&self, object: u64) -> Result<()> {
        self.files.lock().remove(object);
        self.folder.remove(&self.name(object))
    }
}

/// The subfolder in which a name stands.
pub(super) fn subfolder(name: &str) -> &str {
    name.split_once('/').map_or("", |(folder, _)| folder)
}
