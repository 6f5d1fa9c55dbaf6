//! Which nodes are open: a node without a name lives until its last opening ends.

use crate::contents::Contents;
use crate::inodes::{Body, Inode, Inodes};
use crate::namespace::Namespace;
use crate::namespace::tables::{self, Table};
use crate::{FsError, FsResult};
use lacuna_contracts::Result;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The open handles of a vault's nodes.
pub(crate) struct OpenHandles {
    namespace: Arc<Namespace>,
    inodes: Arc<Inodes>,
    contents: Arc<Contents>,
    counts: Mutex<HashMap<u64, u32>>,
}

impl OpenHandles {
    pub(crate) fn new(
        namespace: Arc<Namespace>,
        inodes: Arc<Inodes>,
        contents: Arc<Contents>,
    ) -> OpenHandles {
        OpenHandles { namespace, inodes, contents, counts: Mutex::default() }
    }

    /// ENOENT if there is no such node.
    pub(crate) fn acquire(&self, ino: u64) -> FsResult<()> {
        let inode = self.inodes.get(ino)?;
        let body = inode.body.read();
        body.alive()?;
        // Under the inode's lock: who removes its last name looks at the count under the same lock.
        *self.counts.lock().entry(ino).or_default() += 1;
        Ok(())
    }

    /// Whether the last opening of a node ended by this.
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

    /// After the last opening ended: what has no name goes, and what changed is brought into the
    /// inode.
    pub(crate) fn reclaim(&self, ino: u64) -> FsResult<()> {
        let inode = match self.inodes.get(ino) {
            Ok(inode) => inode,
            Err(FsError::Errno(_)) => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut body = inode.body.write();
        if body.gone || self.counts.lock().contains_key(&ino) {
            return Ok(());
        }
        if body.record.nlink == 0 {
            if self.contents.remove_or_begin(&inode, &mut body)? {
                self.namespace.put(&tables::orphan(ino), None);
            }
            return Ok(());
        }
        self.contents.finish(&inode, &mut body)?;
        self.contents.look_again(&inode, &body);
        Ok(())
    }

    /// A node has lost its last name.
    pub(crate) fn unnamed(&self, inode: &Arc<Inode>, body: &mut Body) -> FsResult<()> {
        let is_open = self.counts.lock().contains_key(&inode.ino);
        let removed = if is_open { Ok(false) } else { self.contents.remove_or_begin(inode, body) };
        let gone = match removed {
            // The name is gone: what is left goes at the next opening.
            Err(e) if e.changed_nothing() => {
                let found = e.finding();
                self.contents
                    .services
                    .log(&format!("a file without a name stays until the next opening: {found}"));
                false
            }
            done => done?,
        };
        if !gone {
            self.namespace.put(&tables::orphan(inode.ino), Some(&[]));
        }
        Ok(())
    }

    /// How many nodes are open.
    pub(crate) fn count(&self) -> usize {
        self.counts.lock().len()
    }

    /// Removes what had no name and was open when the vault was last used.
    pub(crate) fn remove_orphans(&self) -> Result<u64> {
        let prefix = [Table::Orphans as u8];
        let orphans = self.namespace.scan(&prefix, &prefix, usize::MAX)?;
        for (key, _) in &orphans {
            let ino = tables::inode_of(key);
            match self.reclaim(ino) {
                Ok(()) => match self.inodes.get(ino) {
                    // Large ones go a piece at a time.
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
