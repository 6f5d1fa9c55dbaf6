//! A folder with slow syncs: during a sync, other threads use the store. They are simulated in one
//! thread, so that a seed determines the run.

use lacuna_contracts::Result;
use lacuna_medium::{Folder, FolderFile, FsSpace};
use lacuna_vault_store::{ObjectId, Store};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// An action of another thread.
#[derive(Clone, Debug)]
pub(crate) enum ConcurrentOp {
    /// Writes pages.
    Write { object: u64, first: u64, bytes: Vec<u8> },
    /// Removes an object.
    Remove(u64),
    /// Commits a batch.
    Commit(Vec<u8>),
}

/// Planned and completed actions.
#[derive(Default)]
pub(crate) struct ConcurrentOps {
    store: Mutex<Weak<Store>>,
    planned: Mutex<VecDeque<(u64, ConcurrentOp)>>,
    /// Actions that began, and whether they succeeded.
    pub(crate) done: Mutex<Vec<(ConcurrentOp, bool)>>,
}

impl ConcurrentOps {
    /// Sets the store that they use.
    pub(crate) fn use_store(&self, store: &Arc<Store>) {
        *self.store.lock() = Arc::downgrade(store);
    }

    /// Plans an action at the sync after the next `after` ones.
    pub(crate) fn plan(&self, after: u64, deed: ConcurrentOp) {
        self.planned.lock().push_back((after, deed));
    }

    /// Drops all planned actions, and returns the completed ones.
    pub(crate) fn settle(&self) -> Vec<(ConcurrentOp, bool)> {
        self.planned.lock().clear();
        std::mem::take(&mut self.done.lock())
    }

    /// Runs at the beginning of a sync.
    fn act(&self) {
        let Some(store) = self.store.lock().upgrade() else { return };
        let due = {
            let mut planned = self.planned.lock();
            match planned.front_mut() {
                Some((_, ConcurrentOp::Commit(_))) if is_committing(&store) => None,
                Some((0, _)) => planned.pop_front(),
                Some((after, _)) => {
                    *after -= 1;
                    None
                }
                None => None,
            }
        };
        let Some((_, deed)) = due else { return };
        let place = self.done.lock().len();
        self.done.lock().push((deed.clone(), false));
        let done = match deed {
            ConcurrentOp::Write { object, first, bytes } => store.write(ObjectId(object), first, &bytes),
            ConcurrentOp::Remove(object) => store.remove(ObjectId(object)),
            ConcurrentOp::Commit(puts) => store.commit(&puts, None),
        };
        self.done.lock()[place].1 = done.is_ok();
    }
}

/// Whether a commit was noted and is not durable: another one would block.
fn is_committing(store: &Store) -> bool {
    let durable = store.status().items.iter().find(|item| item.name == "last_commit").map(|item| item.value);
    durable != Some(store.last_noted_number())
}

/// A folder that runs planned actions during syncs.
#[derive(Clone)]
pub(crate) struct InterleavedFolder {
    pub(crate) folder: lacuna_sim::CrashFolder,
    pub(crate) others: Arc<ConcurrentOps>,
}

struct InterleavedFile {
    inner: Arc<dyn FolderFile>,
    others: Arc<ConcurrentOps>,
}

impl InterleavedFolder {
    fn file(&self, file: Arc<dyn FolderFile>) -> Arc<dyn FolderFile> {
        Arc::new(InterleavedFile { inner: file, others: self.others.clone() })
    }
}

impl Folder for InterleavedFolder {
    fn open(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
        self.folder.open(name).map(|file| self.file(file))
    }

    fn create(&self, name: &str) -> Result<Arc<dyn FolderFile>> {
        self.folder.create(name).map(|file| self.file(file))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.folder.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.folder.rename(from, to)
    }

    fn list(&self, subfolder: &str) -> Result<Vec<String>> {
        self.folder.list(subfolder)
    }

    fn sync_names(&self, subfolder: &str) -> Result<()> {
        self.others.act();
        self.folder.sync_names(subfolder)
    }

    fn sync_all(&self) -> Result<()> {
        self.others.act();
        self.folder.sync_all()
    }

    fn space(&self) -> Result<FsSpace> {
        self.folder.space()
    }

    fn read_only(&self) -> bool {
        self.folder.read_only()
    }
}

impl FolderFile for InterleavedFile {
    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write_at(offset, data)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.punch(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.others.act();
        self.inner.sync()
    }
}
