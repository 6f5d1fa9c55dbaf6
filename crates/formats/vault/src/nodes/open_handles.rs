//! The open handles of nodes: a node without a name lives until its last handle is released.

use crate::content::file_contents::FileContents;
use crate::namespace::Namespace;
use crate::namespace::tables::{self, Table};
use crate::nodes::inodes::{Inode, InodeBody, Inodes};
use crate::{FsError, FsResult};
use lacuna_contracts::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The open handles of a vault's nodes.
pub(crate) struct OpenHandles {
    namespace: Arc<Namespace>,
    inodes: Arc<Inodes>,
    contents: Arc<FileContents>,
    counts: Mutex<HashMap<u64, u32>>,
}

impl OpenHandles {
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        inodes: Arc<Inodes>,
        contents: Arc<FileContents>,
    ) -> OpenHandles {
        OpenHandles { namespace, inodes, contents, counts: Mutex::default() }
    }

    /// Acquires a handle. ENOENT if there is no such node.
    pub(crate) fn acquire(&self, ino: u64) -> FsResult<()> {
        let inode = self.inodes.get(ino)?;
        let body = inode.body.read();
        body.live_record()?;
        // Under the inode's lock: the removal of the last name reads the count under the same lock.
        *self.counts.lock().entry(ino).or_default() += 1;
        Ok(())
    }

    /// Releases a handle. Returns whether it was the last of its node.
    pub(crate) fn release(&self, ino: u64) -> bool {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&ino) else { return false };
        *count -= 1;
        if *count == 0 {
            counts.remove(&ino);
            return true;
        }
        false
    }

    /// Called after the last handle is released: removes a node without a name, and writes changes
    /// into the inode.
    pub(crate) fn reclaim(&self, ino: u64) -> FsResult<()> {
        let inode = match self.inodes.get(ino) {
            Ok(inode) => inode,
            Err(FsError::Errno(_)) => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut body = inode.body.write();
        if body.is_removed || self.counts.lock().contains_key(&ino) {
            return Ok(());
        }
        if body.record.nlink == 0 {
            if self.contents.remove_or_queue(&inode, &mut body)? {
                self.namespace.put(&tables::orphan(ino), None);
            }
            return Ok(());
        }
        self.contents.save_trusted(&inode, &mut body)?;
        self.contents.queue_conversion(&inode, &body);
        Ok(())
    }

    /// Handles the loss of a node's last name.
    pub(crate) fn note_last_unlink(&self, inode: &Arc<Inode>, body: &mut InodeBody) -> FsResult<()> {
        let is_open = self.counts.lock().contains_key(&inode.ino);
        let removed = if is_open { Ok(false) } else { self.contents.remove_or_queue(inode, body) };
        let gone = match removed {
            // The name is gone; the rest is removed at the next opening.
            Err(e) if e.changed_nothing() => {
                let found = e.summary();
                self.contents.services.log(&format!("a deleted file stays until the next opening: {found}"));
                false
            }
            done => done?,
        };
        if !gone {
            self.namespace.put(&tables::orphan(inode.ino), Some(&[]));
        }
        Ok(())
    }

    /// The number of open nodes.
    pub(crate) fn count(&self) -> usize {
        self.counts.lock().len()
    }

    /// Removes nodes that had no name and were open when the vault was last used.
    pub(crate) fn remove_orphans(&self) -> Result<u64> {
        let prefix = [Table::Orphans as u8];
        let orphans = self.namespace.scan(&prefix, &prefix, usize::MAX)?;
        for (key, _) in &orphans {
            let ino = tables::inode_of(key);
            match self.reclaim(ino) {
                Ok(()) => match self.inodes.get(ino) {
                    // Large files are removed piece by piece.
                    Ok(_) => {}
                    Err(FsError::Errno(_)) => self.namespace.put(key, None),
                    Err(FsError::Storage(e)) => return Err(e),
                },
                Err(FsError::Storage(e)) => return Err(e),
                Err(FsError::Errno(_)) => {}
            }
        }
        Ok(orphans.len() as u64)
    }
}
