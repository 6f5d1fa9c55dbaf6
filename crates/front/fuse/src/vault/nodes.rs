//! State of nodes that the vault does not keep: open writers, and the last attributes of deleted
//! nodes.

use lacuna_vault::Attr;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

/// State of nodes that the kernel knows.
#[derive(Default)]
pub(crate) struct Nodes {
    /// Number of open handles that may write, by node: only such a node has written pages in the
    /// kernel that the vault lacks.
    writers: Mutex<HashMap<u64, u64>>,
    /// The last attributes of nodes without a name. A process may be in a deleted directory, or
    /// hold a path to a node (`O_PATH`) without an open file. Each entry stays until the kernel
    /// forgets the node, which it does as soon as no process uses it.
    deleted: Mutex<HashMap<u64, Attr>>,
    /// Replaced nodes, which count as open until the kernel forgets them.
    held_open: Mutex<HashSet<u64>>,
}

impl Nodes {
    /// Counts an opened handle that may write.
    pub(crate) fn writer_opened(&self, ino: u64) {
        *self.writers.lock().entry(ino).or_default() += 1;
    }

    /// Counts a closed handle that may write; the kernel has sent all its pages before.
    pub(crate) fn writer_closed(&self, ino: u64) {
        let mut writers = self.writers.lock();
        if let Some(count) = writers.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                writers.remove(&ino);
            }
        }
    }

    /// Whether the kernel may hold written pages of the node.
    pub(crate) fn may_be_dirty(&self, ino: u64) -> bool {
        self.writers.lock().contains_key(&ino)
    }

    /// Remembers the attributes of a node that is about to lose its last name.
    pub(crate) fn retain_deleted(&self, attr: &Attr) {
        self.deleted.lock().insert(attr.ino, Attr { nlink: 0, ..*attr });
    }

    /// Drops the attributes of nodes that the kernel has forgotten, or that kept their name.
    pub(crate) fn forget(&self, nodes: impl IntoIterator<Item = u64>) {
        let mut deleted = self.deleted.lock();
        if deleted.is_empty() {
            return;
        }
        for ino in nodes {
            deleted.remove(&ino);
        }
    }

    /// Counts a replaced node as open.
    pub(crate) fn hold_open(&self, ino: u64) {
        self.held_open.lock().insert(ino);
    }

    /// Stops counting a node as open; returns whether it was counted.
    pub(crate) fn release(&self, ino: u64) -> bool {
        self.held_open.lock().remove(&ino)
    }

    /// Stops counting all nodes as open, and returns them.
    pub(crate) fn release_all(&self) -> HashSet<u64> {
        std::mem::take(&mut self.held_open.lock())
    }

    /// The last attributes of a deleted node.
    pub(crate) fn deleted_attr(&self, ino: u64) -> Option<Attr> {
        self.deleted.lock().get(&ino).copied()
    }
}
