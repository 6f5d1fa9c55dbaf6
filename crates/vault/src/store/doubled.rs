//! Doubled objects: those of which the folder holds a second file.
//!
//! What is written to a doubled object goes to the journal, always, and from there to both files by a checkpoint: to the second after the
//! first is durable. So at any time one of the two is whole, as at the last checkpoint or at the one that is under way, and a doubled
//! object costs nothing but the second write of what a checkpoint brings. Which of the copies of a page is right is for its reader to
//! verify: none is believed because of where it lies.

use super::checkpoint::bring_object;
use super::engine::{Engine, range};
use super::keys::StoreKeys;
use super::object::Source;
use super::objects::{Objects, subfolder};
use super::{ObjectId, PAGE, Store, checkpoint};
use lacuna_core::{Kind, Result};
use lacuna_medium::{Folder, FolderFile};
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A place in which a page of a doubled object may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCopy {
    /// Where reads find it: in the journal, or in the first file.
    Current,
    /// In the second file.
    Second,
    /// In the first file, where reads find it in the journal: a checkpoint that was cut short may have brought it there.
    Behind,
}

impl PageCopy {
    /// All of them, the likeliest first.
    pub const ALL: [PageCopy; 3] = [PageCopy::Current, PageCopy::Second, PageCopy::Behind];
}

/// The doubled objects of a store, and their second files.
pub(super) struct Doubled {
    folder: Arc<dyn Folder>,
    keys: Arc<StoreKeys>,
    objects: RwLock<BTreeSet<u64>>,
    files: Mutex<BTreeMap<u64, Arc<dyn FolderFile>>>,
}

impl Doubled {
    /// None so far.
    pub(super) fn new(folder: Arc<dyn Folder>, keys: Arc<StoreKeys>) -> Doubled {
        Doubled { folder, keys, objects: RwLock::default(), files: Mutex::default() }
    }

    /// From now on an object is doubled.
    pub(super) fn add(&self, object: u64) {
        self.objects.write().insert(object);
    }

    /// Whether an object is doubled.
    pub(super) fn has(&self, object: u64) -> bool {
        self.objects.read().contains(&object)
    }

    /// Pages of doubled objects that lie in the journal, and how many of the objects there are.
    pub(super) fn journaled(&self, objects: &Objects) -> (u64, u64) {
        let all: Vec<u64> = self.objects.read().iter().copied().collect();
        let pages =
            all.iter().filter_map(|object| objects.get(*object)).map(|object| object.read().journaled());
        (pages.sum(), all.len() as u64)
    }

    /// The name of an object's second file.
    pub(super) fn name(&self, object: u64) -> String {
        self.keys.second_name(object)
    }

    /// The second file of an object, if it has one.
    fn file(&self, object: u64) -> Result<Option<Arc<dyn FolderFile>>> {
        if let Some(open) = self.files.lock().get(&object) {
            return Ok(Some(open.clone()));
        }
        match self.folder.open(&self.name(object)) {
            Ok(file) => Ok(Some(self.keep(object, file))),
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn make_file(&self, object: u64) -> Result<Arc<dyn FolderFile>> {
        Ok(self.keep(object, self.folder.create(&self.name(object))?))
    }

    fn keep(&self, object: u64, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        self.files.lock().insert(object, file.clone());
        file
    }

    /// Removes the second file of an object, if it has one.
    pub(super) fn remove_file(&self, object: u64) -> Result<()> {
        self.files.lock().remove(&object);
        self.folder.remove(&self.name(object))
    }
}

impl Store {
    /// From now on an object is doubled. To be said before the first write to it, and at each opening before the store is taken up.
    pub fn double(&self, object: ObjectId) {
        self.engine.doubled.add(object.0);
    }

    /// Reads one copy of a page of a doubled object; false if there is no such copy.
    pub fn read_copy(&self, object: ObjectId, page: u64, copy: PageCopy, out: &mut [u8]) -> Result<bool> {
        let (engine, number) = (&self.engine, object.0);
        range(page, 1)?;
        let shared = engine.objects.get(number);
        // Held while it is read: what the journal holds of it stays there.
        let known = shared.as_ref().map(|shared| shared.read());
        let source = known.as_ref().map_or(Source::Own, |known| known.source(page));
        match (copy, source) {
            (PageCopy::Current, Source::Journal(place)) => engine.journal.read(place, out)?,
            (PageCopy::Current, Source::Own) | (PageCopy::Behind, Source::Journal(_)) => {
                engine.read_own(number, page, out)?;
            }
            (PageCopy::Current, Source::Zeros) => out.fill(0),
            (PageCopy::Second, Source::Own | Source::Journal(_)) => match engine.doubled.file(number)? {
                Some(file) => file.read_at(page * PAGE as u64, out)?,
                None => return Ok(false),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether both files of a doubled object hold the same page, or a checkpoint is still to bring it there.
    pub fn is_in_both_files(&self, object: ObjectId, page: u64) -> bool {
        let known = self.engine.objects.get(object.0);
        let settled = known.is_none_or(|known| known.read().source(page) == Source::Own);
        let (mut first, mut second) = ([0; PAGE], [0; PAGE]);
        // A file that is not there and one that ends before read alike: as zeros.
        let is_read = |copy, out: &mut [u8]| self.read_copy(object, page, copy, out).is_ok();
        !settled
            || is_read(PageCopy::Current, &mut first)
                && is_read(PageCopy::Second, &mut second)
                && first == second
    }

    /// Pages of a doubled object that the longer of its files and the journal have.
    pub fn pages(&self, object: ObjectId) -> Result<u64> {
        let engine = &self.engine;
        let files = [engine.objects.file(object.0)?, engine.doubled.file(object.0)?];
        let known = engine.objects.get(object.0).map_or(0, |known| known.read().journaled_end());
        let mut lens = files.into_iter().flatten().map(|file| file.len());
        lens.try_fold(known, |most, len| Ok(most.max(len?.div_ceil(PAGE as u64))))
    }

    /// Name of a doubled object's second file in the folder.
    pub fn second_name(&self, object: ObjectId) -> String {
        self.engine.doubled.name(object.0)
    }

    /// The tag by which a page of an object of the namespace's parts is told from a damaged one. It says nothing of its age.
    pub fn part_tag(&self, object: ObjectId, page: u64, bytes: &[u8]) -> [u8; 16] {
        self.engine.keys.part_tag(object.0, page, bytes)
    }
}

impl Engine {
    /// Brings the pages of doubled objects to their second files, after they are durable in the first, and makes them durable there.
    pub(super) fn bring_seconds(&self, objects: &[u64]) -> Result<()> {
        let mut files = Vec::new();
        for &id in objects.iter().filter(|id| self.doubled.has(**id)) {
            let layer = self.objects.get(id).and_then(|object| object.read().frozen.clone());
            let Some(layer) = layer else { continue };
            let file = match self.doubled.file(id)? {
                Some(file) => file,
                None => {
                    self.names.lock().insert(subfolder(&self.doubled.name(id)).to_owned());
                    self.doubled.make_file(id)?
                }
            };
            bring_object(self, &layer, &*file)?;
            files.push(file);
        }
        files.iter().try_for_each(|file| file.sync())?;
        checkpoint::sync_names(self)
    }
}
