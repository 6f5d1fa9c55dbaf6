//! The content of an open file: its protected file and its untrusted storage.

use crate::namespace::{Namespace, tables};
use crate::nodes::inode_record::InodeRecord;
use lacuna_contracts::Result;
use lacuna_integrity::{Part, ProtectedFile, Untrusted};
use lacuna_vault_store::{ObjectId, Store};
use std::sync::atomic::{AtomicBool, Ordering};

/// The content of an open file.
pub(crate) struct OpenFile {
    pub(crate) protected: ProtectedFile,
    /// The number of blocks that its memory was budgeted for.
    pub(crate) budgeted_blocks: u64,
}

/// The untrusted storage of one file: its blocks in an object of the store, its pages in the
/// namespace.
pub(crate) struct FileStorage<'a> {
    store: &'a Store,
    namespace: &'a Namespace,
    ino: u64,
    object: u64,
    has_us: AtomicBool,
}

impl<'a> FileStorage<'a> {
    pub(crate) fn new(
        store: &'a Store,
        namespace: &'a Namespace,
        ino: u64,
        record: &InodeRecord,
    ) -> FileStorage<'a> {
        let has_us = AtomicBool::new(record.has_us);
        FileStorage { store, namespace, ino, object: record.object, has_us }
    }

    /// Whether the namespace may hold pages.
    pub(crate) fn has_us(&self) -> bool {
        self.has_us.load(Ordering::Relaxed)
    }
}

impl Untrusted for FileStorage<'_> {
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()> {
        if self.object == 0 {
            out.fill(0);
            return Ok(());
        }
        self.store.read(ObjectId(self.object), first, out)
    }

    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()> {
        self.store.write(ObjectId(self.object), first, sealed)
    }

    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>> {
        if !self.has_us() {
            return Ok(None);
        }
        self.namespace.get(&tables::us(self.ino, part, page))
    }

    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()> {
        if bytes.is_some() {
            self.has_us.store(true, Ordering::Relaxed);
        }
        if self.has_us() {
            self.namespace.put(&tables::us(self.ino, part, page), bytes);
        }
        Ok(())
    }
}
