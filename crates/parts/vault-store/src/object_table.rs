//! The table of objects: what is known of those that were changed since the last checkpoint, and the files of all.

use crate::doubled::Doubled;
use crate::ids::PAGE;
use crate::keys::StoreKeys;
use crate::object::Object;
use lacuna_contracts::{BoundedCache, Error, Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Files and names that are synced one by one; beyond, everything is synced with one call.
pub(crate) const SYNCS: usize = 16;

/// An object that several callers may hold.
pub(crate) type Shared = Arc<RwLock<Object>>;

/// Objects and their files, by number.
pub(crate) struct ObjectTable {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    changed: RwLock<HashMap<u64, Shared>>,
    files: Mutex<BoundedCache<u64, Arc<dyn FolderFile>>>,
    /// Objects that have a second file.
    pub(crate) doubled: Doubled,
    /// Subfolders whose names changed and are not durable yet, those of files of changed objects aside ([`Object::name_unsynced`]).
    names: Mutex<BTreeSet<String>>,
}

impl ObjectTable {
    /// A table of no objects.
    pub(crate) fn new(folder: Arc<dyn Folder>, keys: Arc<StoreKeys>) -> ObjectTable {
        let files = Mutex::new(BoundedCache::new(folder.open_files()));
        let doubled = Doubled::new(folder.clone(), keys.clone());
        ObjectTable { folder, keys, changed: RwLock::default(), files, doubled, names: Mutex::default() }
    }

    /// The name of an object's file.
    pub(crate) fn name(&self, object: u64) -> String {
        self.keys.object_name(object)
    }

    /// What is known of an object that was changed since the last checkpoint.
    pub(crate) fn get(&self, object: u64) -> Option<Shared> {
        self.changed.read().get(&object).cloned()
    }

    /// The same; from now on something is known of it.
    pub(crate) fn get_or_make(&self, object: u64) -> Shared {
        if let Some(known) = self.get(object) {
            return known;
        }
        self.changed.write().entry(object).or_default().clone()
    }

    /// How many are known.
    pub(crate) fn len(&self) -> usize {
        self.changed.read().len()
    }

    /// Pages of doubled objects that lie in the journal, and how many of the objects there are.
    pub(crate) fn doubled_in_journal(&self) -> (u64, u64) {
        let all = self.doubled.all();
        let pages = all.iter().filter_map(|object| self.get(*object)).map(|object| object.read().journaled());
        (pages.sum(), all.len() as u64)
    }

    /// Forgets those of `objects` that are idle. No object changes meanwhile: the caller sees to that.
    pub(crate) fn forget_idle(&self, objects: &[u64], commit: u64) {
        let mut changed = self.changed.write();
        for object in objects {
            if changed.get(object).is_some_and(|known| known.read().is_idle(commit)) {
                changed.remove(object);
            }
        }
    }

    /// The file of an object, if it has one.
    pub(crate) fn file(&self, object: u64) -> Result<Option<Arc<dyn FolderFile>>> {
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

    /// The file of a locked object, if it has one. A `new` object, which is in no record, has none before it is made: looking would gain
    /// nothing.
    pub(crate) fn file_of(
        &self,
        number: u64,
        object: &Object,
        new: bool,
    ) -> Result<Option<Arc<dyn FolderFile>>> {
        if may_have_file(object, new) { self.file(number) } else { Ok(None) }
    }

    /// The same; one is made if there is none.
    pub(crate) fn file_or_make(
        &self,
        number: u64,
        object: &mut Object,
        new: bool,
    ) -> Result<Arc<dyn FolderFile>> {
        if let Some(file) = self.file_of(number, object, new)? {
            return Ok(file);
        }
        let file = self.make_file(number)?;
        object.name_unsynced = true;
        Ok(file)
    }

    /// Reads pages from the file of an object; what it does not have is zeros.
    pub(crate) fn read(&self, object: u64, first: u64, out: &mut [u8]) -> Result<()> {
        if let Some(file) = self.file(object)? {
            return file.read_at(first * PAGE as u64, out);
        }
        out.fill(0);
        Ok(())
    }

    /// The second file of a doubled object; one is made if there is none.
    pub(crate) fn second_or_make(&self, object: u64) -> Result<Arc<dyn FolderFile>> {
        if let Some(file) = self.doubled.file(object)? {
            return Ok(file);
        }
        self.note_name(&self.doubled.name(object));
        self.doubled.make_file(object)
    }

    /// A new file for an object that has none.
    fn make_file(&self, object: u64) -> Result<Arc<dyn FolderFile>> {
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

    /// Closes the files that no caller uses now.
    fn let_go(&self) {
        self.files.lock().clear();
    }

    fn keep(&self, object: u64, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert(object, file.clone());
        file
    }

    /// Removes the files of an object: its own, and the second one of a doubled object.
    pub(crate) fn remove_files(&self, object: u64) -> Result<()> {
        let name = self.name(object);
        self.note_name(&name);
        self.files.lock().remove(object);
        self.folder.remove(&name)?;
        if self.doubled.has(object) {
            self.note_name(&self.doubled.name(object));
            self.doubled.remove_file(object)?;
        }
        Ok(())
    }

    fn note_name(&self, name: &str) {
        self.names.lock().insert(subfolder(name).to_owned());
    }

    /// Makes names durable that changed: those of files that were removed, and of second files that were made.
    pub(crate) fn sync_names(&self) -> Result<()> {
        let names = std::mem::take(&mut *self.names.lock());
        let synced = if names.len() > SYNCS {
            self.folder.sync_all()
        } else {
            names.iter().try_for_each(|folder| self.folder.sync_names(folder))
        };
        synced.map_err(Error::of_sync).inspect_err(|_| self.names.lock().extend(names))
    }

    /// Makes objects durable, and the names of those whose files are new.
    pub(crate) fn sync(&self, objects: &[u64]) -> Result<()> {
        let named = |id: u64| self.get(id).is_some_and(|object| object.read().name_unsynced);
        let new: Vec<u64> = objects.iter().copied().filter(|id| named(*id)).collect();
        let folders: BTreeSet<String> = new.iter().map(|id| subfolder(&self.name(*id)).to_owned()).collect();
        if objects.len() + folders.len() > SYNCS {
            self.folder.sync_all().map_err(Error::of_sync)?;
        } else {
            for id in objects {
                // One that another program removed is missed when it is read.
                if let Some(file) = self.file(*id)? {
                    file.sync().map_err(Error::of_sync)?;
                }
            }
            folders.iter().try_for_each(|folder| self.folder.sync_names(folder)).map_err(Error::of_sync)?;
        }
        for id in new {
            if let Some(object) = self.get(id) {
                object.write().name_unsynced = false;
            }
        }
        Ok(())
    }
}

/// Whether there may be a file of an object.
pub(crate) fn may_have_file(object: &Object, new: bool) -> bool {
    !new || object.name_unsynced
}

/// The subfolder in which a name stands.
pub(crate) fn subfolder(name: &str) -> &str {
    name.split_once('/').map_or("", |(folder, _)| folder)
}
