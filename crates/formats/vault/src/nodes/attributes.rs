//! Changes of attributes and extended attributes.

use crate::content::file_contents::FileContents;
use crate::content::length;
use crate::fs_error::errno;
use crate::namespace::tables::{self, Table};
use crate::nodes::acl::{self, ACL_ACCESS_XATTR, AclKind};
use crate::nodes::inodes::{Inode, InodeBody};
use crate::{Attr, AttrChanges, FileKind, FsError, FsResult, NAME_MAX, SetXattrMode, XATTR_MAX};
use lacuna_integrity::Choice;
use std::sync::Arc;

/// The extended attribute with the scheme of a file, or of new files and directories in a
/// directory.
pub const INTEGRITY_XATTR: &[u8] = b"user.lacuna.integrity";
/// The most bytes of all names of a node's extended attributes together, as in Linux.
const LIST_MAX: usize = 64 << 10;

/// Changes attributes.
pub(crate) fn set(contents: &FileContents, ino: u64, changes: &AttrChanges) -> FsResult<Attr> {
    let inode = contents.inodes.get(ino)?;
    let mut body = inode.body.write();
    body.live_record()?;
    let now = contents.services.now();
    let list = match changes.mode {
        Some(mode) => acl::with_mode(&contents.namespace, ino, &body.record, mode)?,
        None => None,
    };
    if let Some(size) = changes.size {
        body.record.check_is_file()?;
        let result = length::truncate(contents, &inode, &mut body, size);
        if result.is_err() {
            // The change may be partial.
            contents.inodes.mark_changed(&inode, &mut body);
        }
        result?;
        body.record.mtime = now;
    }
    let record = &mut body.record;
    let owner_changes = changes.uid.is_some() || changes.gid.is_some();
    record.uid = changes.uid.unwrap_or(record.uid);
    record.gid = changes.gid.unwrap_or(record.gid);
    if owner_changes && record.kind != FileKind::Directory {
        record.clear_set_ids(true);
    }
    record.mode = changes.mode.map_or(record.mode, |mode| mode & 0o7777);
    if let Some(list) = list {
        contents.namespace.put(&tables::xattr(ino, ACL_ACCESS_XATTR), Some(&list));
    }
    record.atime = changes.atime.unwrap_or(record.atime);
    record.mtime = changes.mtime.unwrap_or(record.mtime);
    record.ctime = changes.ctime.unwrap_or(now);
    contents.inodes.mark_changed(&inode, &mut body);
    Ok(body.record.attr(ino))
}

/// Clears set-user-ID and set-group-ID as a write by an ordinary user does.
pub(crate) fn clear_set_ids(contents: &FileContents, ino: u64, is_member: bool) -> FsResult<()> {
    change(contents, ino, |_, body| {
        if body.record.clear_set_ids(is_member) {
            body.set_change_times(contents.services.now(), false);
            return Ok(true);
        }
        Ok(false)
    })
}

/// Reads an extended attribute. ENODATA if there is none.
pub(crate) fn get_xattr(contents: &FileContents, ino: u64, name: &[u8]) -> FsResult<Vec<u8>> {
    let inode = contents.inodes.get(ino)?;
    let body = inode.body.read();
    let record = body.live_record()?;
    if name == INTEGRITY_XATTR {
        let set = record.choice.ok_or(FsError::Errno(libc::ENODATA))?;
        return Ok(set.name().as_bytes().to_vec());
    }
    if !record.has_xattrs {
        return errno(libc::ENODATA);
    }
    contents.namespace.get(&tables::xattr(ino, name))?.ok_or(FsError::Errno(libc::ENODATA))
}

/// Sets an extended attribute. EEXIST and ENODATA according to `how`, ERANGE and E2BIG for a too
/// long name or value; those of [`acl::accept`] for an access control list.
pub(crate) fn set_xattr(
    contents: &FileContents,
    ino: u64,
    name: &[u8],
    value: &[u8],
    how: SetXattrMode,
) -> FsResult<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return errno(libc::ERANGE);
    }
    if value.len() > XATTR_MAX {
        return errno(libc::E2BIG);
    }
    change(contents, ino, |inode, body| {
        let there = has_xattr(contents, ino, body, name)?;
        match how {
            SetXattrMode::Create if there => return errno(libc::EEXIST),
            SetXattrMode::Replace if !there => return errno(libc::ENODATA),
            _ => {}
        }
        if name == INTEGRITY_XATTR {
            let choice = Choice::from_name(value).ok_or(FsError::Errno(libc::EINVAL))?;
            set_choice(contents, inode, body, Some(choice))?;
        } else {
            let listed = list(contents, ino, body)?.iter().map(|name| name.len() + 1).sum::<usize>();
            if !there && listed + name.len() + 1 > LIST_MAX {
                return errno(libc::ENOSPC);
            }
            let stored = match AclKind::of_name(name) {
                Some(kind) => acl::accept(kind, value, &mut body.record)?,
                None => Some(value),
            };
            body.record.has_xattrs |= stored.is_some();
            if there || stored.is_some() {
                contents.namespace.put(&tables::xattr(ino, name), stored);
            }
        }
        body.set_change_times(contents.services.now(), false);
        Ok(true)
    })
}

/// Removes an extended attribute. ENODATA if there is none.
pub(crate) fn remove_xattr(contents: &FileContents, ino: u64, name: &[u8]) -> FsResult<()> {
    change(contents, ino, |inode, body| {
        if !has_xattr(contents, ino, body, name)? {
            return errno(libc::ENODATA);
        }
        if name == INTEGRITY_XATTR {
            set_choice(contents, inode, body, None)?;
        } else {
            contents.namespace.put(&tables::xattr(ino, name), None);
        }
        body.set_change_times(contents.services.now(), false);
        Ok(true)
    })
}

/// The names of all extended attributes.
pub(crate) fn list_xattrs(contents: &FileContents, ino: u64) -> FsResult<Vec<Vec<u8>>> {
    let inode = contents.inodes.get(ino)?;
    let body = inode.body.read();
    body.live_record()?;
    list(contents, ino, &body)
}

fn list(contents: &FileContents, ino: u64, body: &InodeBody) -> FsResult<Vec<Vec<u8>>> {
    let mut names = vec![];
    if body.record.has_xattrs {
        let prefix = tables::of_inode(Table::Xattrs, ino);
        let pairs = contents.namespace.scan(&prefix, &prefix, LIST_MAX)?;
        names.extend(pairs.into_iter().map(|(key, _)| key[prefix.len()..].to_vec()));
    }
    if body.record.choice.is_some() {
        names.push(INTEGRITY_XATTR.to_vec());
    }
    Ok(names)
}

fn has_xattr(contents: &FileContents, ino: u64, body: &InodeBody, name: &[u8]) -> FsResult<bool> {
    if name == INTEGRITY_XATTR {
        return Ok(body.record.choice.is_some());
    }
    Ok(body.record.has_xattrs && contents.namespace.get(&tables::xattr(ino, name))?.is_some())
}

/// Sets the choice of scheme; existing blocks are converted. Only for files and directories.
fn set_choice(
    contents: &FileContents,
    inode: &Arc<Inode>,
    body: &mut InodeBody,
    choice: Option<Choice>,
) -> FsResult<()> {
    if !matches!(body.record.kind, FileKind::File | FileKind::Directory) {
        return errno(libc::EPERM);
    }
    body.record.choice = choice;
    if body.record.object == 0 || body.record.kind != FileKind::File {
        return Ok(());
    }
    let effective = choice.unwrap_or(contents.default_choice());
    contents.change_locked_file(inode, body, |_, _, work| {
        work.open.protected.set_choice(effective);
        Ok(())
    })
}

/// Runs `work` on an inode; it returns whether the inode changed.
fn change(
    contents: &FileContents,
    ino: u64,
    work: impl FnOnce(&Arc<Inode>, &mut InodeBody) -> FsResult<bool>,
) -> FsResult<()> {
    let inode: Arc<Inode> = contents.inodes.get(ino)?;
    let mut body = inode.body.write();
    body.live_record()?;
    if work(&inode, &mut body)? {
        contents.inodes.mark_changed(&inode, &mut body);
    }
    Ok(())
}
