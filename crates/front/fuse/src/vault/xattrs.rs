//! Extended attributes: the names that the vault stores, and the changes of permissions that come
//! with access control lists.

use crate::vault::caller::Caller;
use crate::vault::ops::VaultOps;
use fuser::{Errno, ReplyXattr};
use lacuna_vault::{ACL_ACCESS_XATTR, ACL_DEFAULT_XATTR, AttrChanges, FsError, FsResult, SetXattrMode};
use std::sync::atomic::Ordering;

/// The name spaces of extended attributes that the vault stores.
const NAME_SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// The permission bit that a caller outside of the group may not keep.
const SET_GROUP_ID: u16 = 0o2000;

/// Sets an extended attribute. `flags` are those of `setxattr`.
pub(crate) fn set(
    front: &VaultOps,
    ino: u64,
    name: &[u8],
    value: &[u8],
    flags: i32,
    caller: Caller,
) -> FsResult<()> {
    check_name(front, name)?;
    let how = match flags {
        libc::XATTR_CREATE => SetXattrMode::Create,
        libc::XATTR_REPLACE => SetXattrMode::Replace,
        _ => SetXattrMode::Any,
    };
    if name == ACL_ACCESS_XATTR {
        clear_set_group_id(front, ino, caller)?;
    }
    front.vault.set_xattr(ino, name, value, how)
}

/// The value of an extended attribute. The kernel also asks for the access control list of a
/// deleted node that a process still uses: it has none.
pub(crate) fn get(front: &VaultOps, ino: u64, name: &[u8]) -> FsResult<Vec<u8>> {
    check_name(front, name)?;
    match front.vault.get_xattr(ino, name) {
        Err(FsError::Errno(libc::ENOENT | libc::ESTALE))
            if is_access_list(name) && front.nodes.deleted_attr(ino).is_some() =>
        {
            Err(FsError::Errno(libc::ENODATA))
        }
        found => found,
    }
}

/// Removes an extended attribute. A node without an access control list may lose it: other file
/// systems report no error either.
pub(crate) fn remove(front: &VaultOps, ino: u64, name: &[u8]) -> FsResult<()> {
    check_name(front, name)?;
    match front.vault.remove_xattr(ino, name) {
        Err(FsError::Errno(libc::ENODATA)) if is_access_list(name) => Ok(()),
        done => done,
    }
}

/// Answers with the value, or with its length if the caller gives no room.
pub(crate) fn reply_value(value: &[u8], room: u32, reply: ReplyXattr) {
    if room == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > room as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

/// Checks whether the vault stores an extended attribute of this name. Of the name space `system`,
/// which belongs to the file system itself, it stores access control lists, if the kernel obeys
/// them: storing a list that is not obeyed would promise a protection that is not enforced. The
/// kernel knows no other name spaces than these, and passes on every name to FUSE.
fn check_name(front: &VaultOps, name: &[u8]) -> FsResult<()> {
    if is_access_list(name) && front.access_lists.load(Ordering::Relaxed) {
        return Ok(());
    }
    let rest = NAME_SPACES.iter().find_map(|space| name.strip_prefix(*space));
    match rest {
        None => Err(FsError::Errno(libc::EOPNOTSUPP)),
        Some([]) => Err(FsError::Errno(libc::EINVAL)),
        Some(_) => Ok(()),
    }
}

fn is_access_list(name: &[u8]) -> bool {
    [ACL_ACCESS_XATTR, ACL_DEFAULT_XATTR].contains(&name)
}

/// Clears set-group-ID before a caller changes permissions by a list, as `chmod` does for a caller
/// outside of the group.
fn clear_set_group_id(front: &VaultOps, ino: u64, caller: Caller) -> FsResult<()> {
    let attr = front.vault.attr(ino)?;
    if attr.mode & SET_GROUP_ID != 0 && !caller.keeps_set_group_id(attr.gid) {
        let mode = Some(attr.mode & !SET_GROUP_ID);
        front.vault.set_attr(ino, &AttrChanges { mode, ..AttrChanges::default() })?;
    }
    Ok(())
}
