//! The table of objects that were changed since the last checkpoint, and the open files of all
//! objects.

use crate::ids::PAGE;
use crate::keys::StoreKeys;
use crate::objects::doubled::{DoubledObjects, ExtraFile};
use crate::objects::object::Object;
use lacuna_contracts::{BoundedCache, Error, Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// The most files and names that are synced one by one; more are synced with one call.
pub(crate) const SYNCS: usize = 16;

/// An object that several callers may hold.
pub(crate) type SharedObject = Arc<RwLock<Object>>;

/// Objects and their files, by number.
pub(crate) struct ObjectTable {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    changed: RwLock<HashMap<u64, SharedObject>>,
    files: Mutex<BoundedCache<u64, Arc<dyn FolderFile>>>,
    /// Objects that have further files.
    pub(crate) doubled: DoubledObjects,
    /// Subfolders with changed names that are not durable, except names of changed objects' files
    /// ([`Object::name_unsynced`]).
    unsynced_folders: Mutex<BTreeSet<String>>,
}

impl ObjectTable {
    /// An empty table.
    pub(crate) fn new(folder: Arc<dyn Folder>, keys: Arc<StoreKeys>) -> ObjectTable {
        let files = Mutex::new(BoundedCache::new(folder.open_files()));
        let doubled = DoubledObjects::new(folder.clone(), keys.clone());
        ObjectTable {
            folder,
            keys,
            changed: RwLock::default(),
            files,
            doubled,
            unsynced_folders: Mutex::default(),
        }
    }

    /// The name of an object's file.
    pub(crate) fn name(&self, object: u64) -> String {
        self.keys.object_name(object)
    }

    /// The entry of an object that was changed since the last checkpoint.
    pub(crate) fn get(&self, object: u64) -> Option<SharedObject> {
        self.changed.read().get(&object).cloned()
    }

    /// The entry of an object; a new one if there is none.
    pub(crate) fn get_or_make(&self, object: u64) -> SharedObject {
        if let Some(known) = self.get(object) {
            return known;
        }
        self.changed.write().entry(object).or_default().clone()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.changed.read().len()
    }

    /// The number of journaled pages of doubled objects, and the number of doubled objects.
    pub(crate) fn doubled_in_journal(&self) -> (u64, u64) {
        let all = self.doubled.all();
        let pages = all.iter().filter_map(|object| self.get(*object)).map(|object| object.read().journaled());
        (pages.sum(), all.len() as u64)
    }

    /// Drops the entries of idle `objects`. The caller ensures that no object changes meanwhile.
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
            // There may be no descriptors left: close the files of other objects.
            Err(e) if e.kind() == Kind::Memory => {
                self.close_files();
                open()
            }
            opened => opened,
        };
        match opened {
            Ok(file) => Ok(Some(self.cache_file(object, file))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e.of_read()),
        }
    }

    /// The file of a locked object, if it has one. A `new` object, which is in no record, has none
    /// before it is made, so there is no lookup.
    pub(crate) fn file_of(
        &self,
        number: u64,
        object: &Object,
        new: bool,
    ) -> Result<Option<Arc<dyn FolderFile>>> {
        if may_have_file(object, new) { self.file(number) } else { Ok(None) }
    }

    /// The file of a locked object; it is made if there is none.
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

    /// Reads pages from the file of an object; missing pages are zeros.
    pub(crate) fn read(&self, object: u64, first: u64, out: &mut [u8]) -> Result<()> {
        if let Some(file) = self.file(object)? {
            return file.read_at(first * PAGE as u64, out).map_err(Error::of_read);
        }
        out.fill(0);
        Ok(())
    }

    /// A further file of a doubled object; it is made if there is none.
    pub(crate) fn extra_or_create(&self, object: u64, which: ExtraFile) -> Result<Arc<dyn FolderFile>> {
        if let Some(file) = self.doubled.file(object, which)? {
            return Ok(file);
        }
        self.change_name(&self.doubled.name(object, which), || self.doubled.make_file(object, which))
    }

    /// Makes the file of an object that has none.
    fn make_file(&self, object: u64) -> Result<Arc<dyn FolderFile>> {
        let create = || self.folder.create(&self.name(object));
        let created = create().or_else(|e| {
            if e.kind() != Kind::Memory {
                return Err(e);
            }
            self.close_files();
            create()
        });
        Ok(self.cache_file(object, created?))
    }

    /// Closes files that no caller is using.
    fn close_files(&self) {
        self.files.lock().clear();
    }

    fn cache_file(&self, object: u64, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert(object, file.clone());
        file
    }

    /// Removes all files of an object, including the further ones.
    pub(crate) fn remove_files(&self, object: u64) -> Result<()> {
        let name = self.name(object);
        self.files.lock().remove(object);
        self.change_name(&name, || self.folder.remove(&name))?;
        if self.doubled.has(object) {
            for which in ExtraFile::ALL {
                let name = self.doubled.name(object, which);
                self.change_name(&name, || self.doubled.remove_file(object, which))?;
            }
        }
        Ok(())
    }

    /// Changes a name and then notes it, whatever the outcome. If it were noted before, a
    /// checkpoint that syncs names meanwhile would take the note, and no later one would make the
    /// change durable.
    fn change_name<T>(&self, name: &str, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = change();
        self.unsynced_folders.lock().insert(subfolder(name).to_owned());
        done
    }

    /// Makes changed names durable: those of removed files and of new further files.
    pub(crate) fn sync_names(&self) -> Result<()> {
        let names = std::mem::take(&mut *self.unsynced_folders.lock());
        let synced = if names.len() > SYNCS {
            self.folder.sync_all()
        } else {
            names.iter().try_for_each(|folder| self.folder.sync_names(folder))
        };
        synced.map_err(Error::of_sync).inspect_err(|_| self.unsynced_folders.lock().extend(names))
    }

    /// Makes objects durable, and the names of new files.
    pub(crate) fn sync(&self, objects: &[u64]) -> Result<()> {
        let named = |id: u64| self.get(id).is_some_and(|object| object.read().name_unsynced);
        let new: Vec<u64> = objects.iter().copied().filter(|id| named(*id)).collect();
        let folders: BTreeSet<String> = new.iter().map(|id| subfolder(&self.name(*id)).to_owned()).collect();
        if objects.len() + folders.len() > SYNCS {
            self.folder.sync_all().map_err(Error::of_sync)?;
        } else {
            for id in objects {
                // A file that another program removed is detected when it is read.
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

/// The subfolder of a name.
pub(crate) fn subfolder(name: &str) -> &str {
    name.split_once('/').map_or("", |(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::Secret;
    use lacuna_medium::FsSpace;
    use lacuna_sim::{CrashFolder, Rng};
    use std::sync::{OnceLock, Weak};

    /// A folder that runs a checkpoint's sync of names during a removal.
    #[derive(Default)]
    struct SyncDuringRemove {
        folder: CrashFolder,
        table: OnceLock<Weak<ObjectTable>>,
    }

    impl Folder for SyncDuringRemove {
        fn open(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
            self.folder.open(name)
        }

        fn create(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
            self.folder.create(name)
        }

        fn remove(&self, name: &str) -> Result<()> {
            if let Some(table) = self.table.get().and_then(Weak::upgrade) {
                table.sync_names()?;
            }
            self.folder.remove(name)
        }

        fn rename(&self, from: &str, to: &str) -> Result<()> {
            self.folder.rename(from, to)
        }

        fn list(&self, subfolder: &str) -> Result<Vec<String>> {
            self.folder.list(subfolder)
        }

        fn sync_names(&self, subfolder: &str) -> Result<()> {
            self.folder.sync_names(subfolder)
        }

        fn sync_all(&self) -> Result<()> {
            self.folder.sync_all()
        }

        fn space(&self) -> Result<FsSpace> {
            self.folder.space()
        }

        fn read_only(&self) -> bool {
            self.folder.read_only()
        }
    }

    #[test]
    fn a_removal_during_a_sync_of_names_is_durable_after_the_next_sync() {
        let removing = Arc::new(SyncDuringRemove::default());
        let keys = StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16]);
        let table = Arc::new(ObjectTable::new(removing.clone(), Arc::new(keys)));
        assert!(removing.table.set(Arc::downgrade(&table)).is_ok());
        table.file_or_make(1, &mut Object::default(), true).unwrap();
        removing.folder.sync_all().unwrap();
        table.remove_files(1).unwrap();
        table.sync_names().unwrap();
        for seed in 0..50 {
            let left = removing.folder.after_cut(&mut Rng::new(seed));
            assert!(!left.files.contains_key(&table.name(1)), "seed {seed}");
        }
    }
}
