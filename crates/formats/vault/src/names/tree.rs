//! The tree of directories: lookup, and operations that make, link and remove names.
//!
//! Changes of the tree exclude each other, so the findings of one stay true until it is done.
//! Lookups do not wait for changes. At most one inode is locked at a time.

use crate::fs_error::errno;
use crate::names::directories::{Directories, check_name};
use crate::namespace::{Namespace, tables};
use crate::nodes::acl;
use crate::nodes::inode_record::InodeRecord;
use crate::nodes::inodes::{Inode, Inodes};
use crate::nodes::open_handles::OpenHandles;
use crate::services::Services;
use crate::{Attr, DirEntry, FileKind, FsError, FsResult, LINK_MAX, NewNode, ROOT, SYMLINK_MAX, Time};
use parking_lot::Mutex;
use std::sync::Arc;

/// Permission bits with set-user-ID, set-group-ID and sticky.
const MODE: u16 = 0o7777;

/// The tree of an open vault.
pub(crate) struct Tree {
    pub(crate) services: Arc<Services>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) directories: Directories,
    pub(crate) handles: Arc<OpenHandles>,
    pub(crate) change_lock: Mutex<()>,
}

impl Tree {
    pub(crate) fn lookup(&self, parent: u64, name: &[u8]) -> FsResult<Attr> {
        if name.len() > crate::NAME_MAX {
            return errno(libc::ENAMETOOLONG);
        }
        let ino = match name {
            b"." => parent,
            b".." => self.inodes.get(parent)?.body.read().live_record()?.parent,
            _ => match self.directories.find(parent, name)? {
                Some((ino, _)) => ino,
                None => return self.directory(parent).and(errno(libc::ENOENT)),
            },
        };
        self.attr(ino)
    }

    pub(crate) fn attr(&self, ino: u64) -> FsResult<Attr> {
        let inode = self.inodes.get(ino)?;
        let body = inode.body.read();
        Ok(body.live_record()?.attr(ino))
    }

    pub(crate) fn create_node(
        &self,
        parent: u64,
        name: &[u8],
        new: NewNode<'_>,
        mode: u16,
        uid: u32,
        gid: u32,
    ) -> FsResult<Attr> {
        let _changes = self.change_lock.lock();
        let directory = self.directory(parent)?;
        self.check_free(parent, name)?;
        let now = self.services.now();
        let mut record = InodeRecord::new(new.kind(), now);
        (record.mode, record.uid, record.gid, record.parent) = (mode & MODE, uid, gid, parent);
        match new {
            NewNode::Symlink(target) if target.len() > SYMLINK_MAX => return errno(libc::ENAMETOOLONG),
            NewNode::Symlink([]) => return errno(libc::ENOENT),
            NewNode::Symlink(target) => record.target = target.to_vec(),
            NewNode::CharDevice(rdev) | NewNode::BlockDevice(rdev) => record.rdev = rdev,
            NewNode::Directory => record.nlink = 2,
            NewNode::File | NewNode::Fifo | NewNode::Socket => {}
        }
        let lists = {
            let body = directory.body.read();
            let above = body.live_record()?;
            record.take_group_of(above);
            if matches!(new, NewNode::File | NewNode::Directory) {
                record.choice = above.choice;
            }
            acl::inherit(&self.namespace, parent, above, &mut record)?
        };
        let inode = self.inodes.create(record);
        let put = |is_kept: bool| {
            for (attribute, list) in &lists {
                let key = tables::xattr(inode.ino, attribute);
                self.namespace.put(&key, is_kept.then_some(list.as_slice()));
            }
        };
        put(true);
        if let Err(e) = self.directories.set(parent, name, inode.ino, new.kind()) {
            put(false);
            self.inodes.remove(&inode, &mut inode.body.write());
            return Err(e);
        }
        self.note_entries_changed(&directory, now, i64::from(new.kind() == FileKind::Directory));
        let body = inode.body.read();
        Ok(body.record.attr(inode.ino))
    }

    pub(crate) fn link(&self, ino: u64, parent: u64, name: &[u8]) -> FsResult<Attr> {
        let _changes = self.change_lock.lock();
        let inode = self.inodes.get(ino)?;
        {
            let body = inode.body.read();
            let record = body.live_record()?;
            match record.kind {
                FileKind::Directory => return errno(libc::EPERM),
                _ if record.nlink == 0 => return errno(libc::ENOENT),
                _ if record.nlink >= LINK_MAX => return errno(libc::EMLINK),
                _ => {}
            }
        }
        let directory = self.directory(parent)?;
        self.check_free(parent, name)?;
        let now = self.services.now();
        let kind = inode.body.read().record.kind;
        self.directories.set(parent, name, ino, kind)?;
        self.note_entries_changed(&directory, now, 0);
        let mut body = inode.body.write();
        body.record.nlink += 1;
        body.record.parent = parent;
        body.set_change_times(now, false);
        self.inodes.mark_changed(&inode, &mut body);
        Ok(body.record.attr(ino))
    }

    pub(crate) fn unlink(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        let _changes = self.change_lock.lock();
        let directory = self.directory(parent)?;
        let inode = self.find_inode(parent, name)?;
        if inode.body.read().record.kind == FileKind::Directory {
            return errno(libc::EISDIR);
        }
        let now = self.services.now();
        self.directories.remove(parent, name)?;
        self.note_entries_changed(&directory, now, 0);
        self.drop_name(&inode, now)
    }

    pub(crate) fn rmdir(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        match name {
            b"." => return errno(libc::EINVAL),
            b".." => return errno(libc::ENOTEMPTY),
            _ => {}
        }
        let _changes = self.change_lock.lock();
        let directory = self.directory(parent)?;
        let inode = self.find_inode(parent, name)?;
        self.check_removable(&inode)?;
        let now = self.services.now();
        self.directories.remove(parent, name)?;
        self.note_entries_changed(&directory, now, -1);
        self.drop_name(&inode, now)
    }

    pub(crate) fn read_link(&self, ino: u64) -> FsResult<Vec<u8>> {
        let inode = self.inodes.get(ino)?;
        let body = inode.body.read();
        let record = body.live_record()?;
        if record.kind == FileKind::Symlink { Ok(record.target.clone()) } else { errno(libc::EINVAL) }
    }

    pub(crate) fn read_dir(
        &self,
        ino: u64,
        after: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let parent = self.inodes.get(ino)?.body.read().live_record()?.parent;
        self.directory(ino)?;
        self.directories.read(ino, parent, after, each)
    }

    /// A directory that can take new names. ENOTDIR, and ENOENT for a removed one.
    pub(crate) fn directory(&self, ino: u64) -> FsResult<Arc<Inode>> {
        let inode = self.inodes.get(ino)?;
        {
            let body = inode.body.read();
            let record = body.live_record()?;
            if record.kind != FileKind::Directory {
                return errno(libc::ENOTDIR);
            }
            if record.nlink == 0 {
                return errno(libc::ENOENT);
            }
        }
        Ok(inode)
    }

    /// The inode of a name. ENOENT.
    pub(crate) fn find_inode(&self, parent: u64, name: &[u8]) -> FsResult<Arc<Inode>> {
        check_name(name)?;
        let (ino, _) = self.directories.find(parent, name)?.ok_or(FsError::Errno(libc::ENOENT))?;
        self.inodes.get(ino)
    }

    /// Checks that a directory can be removed: ENOTDIR, EBUSY, ENOTEMPTY.
    pub(crate) fn check_removable(&self, inode: &Inode) -> FsResult<()> {
        if inode.body.read().record.kind != FileKind::Directory {
            return errno(libc::ENOTDIR);
        }
        if inode.ino == ROOT {
            return errno(libc::EBUSY);
        }
        if self.directories.is_empty(inode.ino)? { Ok(()) } else { errno(libc::ENOTEMPTY) }
    }

    /// Updates a directory after its entries changed; `more` is the change of the number of its
    /// subdirectories.
    pub(crate) fn note_entries_changed(&self, directory: &Arc<Inode>, now: Time, more: i64) {
        let mut body = directory.body.write();
        body.set_change_times(now, true);
        body.record.nlink = body.record.nlink.saturating_add_signed(more as i32);
        self.inodes.mark_changed(directory, &mut body);
    }

    /// Updates a node that lost a name. It is removed with its last name, or when its last handle
    /// is released.
    pub(crate) fn drop_name(&self, inode: &Arc<Inode>, now: Time) -> FsResult<()> {
        let mut body = inode.body.write();
        let directory = body.record.kind == FileKind::Directory;
        body.record.nlink = if directory { 0 } else { body.record.nlink.saturating_sub(1) };
        body.set_change_times(now, false);
        self.inodes.mark_changed(inode, &mut body);
        if body.record.nlink == 0 { self.handles.note_last_unlink(inode, &mut body) } else { Ok(()) }
    }

    fn check_free(&self, parent: u64, name: &[u8]) -> FsResult<()> {
        check_name(name)?;
        let taken = matches!(name, b"." | b"..") || self.directories.find(parent, name)?.is_some();
        if taken { errno(libc::EEXIST) } else { Ok(()) }
    }
}
