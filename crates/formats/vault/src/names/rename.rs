//! Renaming: moves an entry, replaces another, exchanges two, or leaves a whiteout.

use crate::fs_error::errno;
use crate::names::directories::check_name;
use crate::names::tree::Tree;
use crate::nodes::inode_record::InodeRecord;
use crate::nodes::inodes::Inode;
use crate::space_budget::SpaceRequest;
use crate::{FileKind, FsError, FsResult, ROOT, RenameMode, Time};
use std::sync::Arc;

/// A name in a directory, by its inode.
#[derive(Clone, Copy)]
pub(crate) struct EntryName<'a> {
    pub(crate) parent: u64,
    pub(crate) name: &'a [u8],
}

/// A name with its directory's inode.
struct ResolvedName<'a> {
    directory: Arc<Inode>,
    name: &'a [u8],
}

/// The node of a name.
struct NamedNode {
    inode: Arc<Inode>,
    kind: FileKind,
}

impl NamedNode {
    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// The space that renaming from this name takes: a whiteout is a new node.
pub(crate) fn reserve(name: &[u8], mode: RenameMode) -> SpaceRequest {
    match mode {
        RenameMode::Whiteout { .. } => SpaceRequest::Write(name.len() as u64),
        RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange => SpaceRequest::Metadata,
    }
}

/// Renames an entry.
pub(crate) fn rename(tree: &Tree, from: EntryName<'_>, to: EntryName<'_>, mode: RenameMode) -> FsResult<()> {
    let _changes = tree.change_lock.lock();
    let (from, to) = (place(tree, from)?, place(tree, to)?);
    let moved = node(tree, &from)?.ok_or(FsError::Errno(libc::ENOENT))?;
    let there = node(tree, &to)?;
    if moved.is_directory() && is_within(tree, to.directory.ino, moved.inode.ino)? {
        return errno(libc::EINVAL);
    }
    match (mode, there) {
        (RenameMode::NoReplace | RenameMode::Whiteout { replaces: false, .. }, Some(_)) => {
            errno(libc::EEXIST)
        }
        (RenameMode::Exchange, None) => errno(libc::ENOENT),
        (RenameMode::Exchange, Some(there)) => exchange(tree, &from, &moved, &to, &there),
        (_, Some(there)) if there.inode.ino == moved.inode.ino => Ok(()),
        (RenameMode::Whiteout { uid, gid, .. }, there) => {
            replace(tree, &from, &moved, &to, there, Some((uid, gid)))
        }
        (_, there) => replace(tree, &from, &moved, &to, there, None),
    }
}

/// Moves an entry over another. A whiteout of the owner `whiteout` takes the old name.
fn replace(
    tree: &Tree,
    from: &ResolvedName<'_>,
    moved: &NamedNode,
    to: &ResolvedName<'_>,
    there: Option<NamedNode>,
    whiteout: Option<(u32, u32)>,
) -> FsResult<()> {
    if let Some(there) = &there {
        match (moved.is_directory(), there.is_directory()) {
            (true, false) => return errno(libc::ENOTDIR),
            (false, true) => return errno(libc::EISDIR),
            (true, true) => tree.check_removable(&there.inode)?,
            (false, false) => {}
        }
    }
    let now = tree.services.now();
    // First the change that can fail for lack of space.
    let set = tree.directories.set(to.directory.ino, to.name, moved.inode.ino, moved.kind)?;
    let vacated = vacate(tree, from, whiteout, now);
    vacated.inspect_err(|_| tree.directories.undo(&set))?;
    let moves = i64::from(moved.is_directory());
    let replaced = i64::from(there.as_ref().is_some_and(NamedNode::is_directory));
    tree.note_entries_changed(&from.directory, now, -moves);
    tree.note_entries_changed(&to.directory, now, moves - replaced);
    note_renamed(tree, moved, to);
    there.map_or(Ok(()), |there| tree.drop_name(&there.inode, now))
}

/// Takes the old name from a node that was moved, and gives it to a whiteout if that has an owner
/// (user and group).
fn vacate(tree: &Tree, from: &ResolvedName<'_>, whiteout: Option<(u32, u32)>, now: Time) -> FsResult<()> {
    let Some((uid, gid)) = whiteout else { return tree.directories.remove(from.directory.ino, from.name) };
    let mut record = InodeRecord::new(FileKind::CharDevice, now);
    (record.uid, record.gid, record.parent) = (uid, gid, from.directory.ino);
    record.take_group_of(from.directory.body.read().live_record()?);
    let inode = tree.inodes.create(record);
    let set = tree.directories.set(from.directory.ino, from.name, inode.ino, FileKind::CharDevice);
    if set.is_err() {
        tree.inodes.remove(&inode, &mut inode.body.write());
    }
    set.map(drop)
}

fn exchange(
    tree: &Tree,
    from: &ResolvedName<'_>,
    moved: &NamedNode,
    to: &ResolvedName<'_>,
    there: &NamedNode,
) -> FsResult<()> {
    if there.is_directory() && is_within(tree, from.directory.ino, there.inode.ino)? {
        return errno(libc::EINVAL);
    }
    let now = tree.services.now();
    let set = tree.directories.set(to.directory.ino, to.name, moved.inode.ino, moved.kind)?;
    let other = tree.directories.set(from.directory.ino, from.name, there.inode.ino, there.kind);
    other.inspect_err(|_| tree.directories.undo(&set))?;
    let gained = i64::from(there.is_directory()) - i64::from(moved.is_directory());
    tree.note_entries_changed(&from.directory, now, gained);
    tree.note_entries_changed(&to.directory, now, -gained);
    note_renamed(tree, moved, to);
    note_renamed(tree, there, from);
    Ok(())
}

/// Updates a node after its name changed.
fn note_renamed(tree: &Tree, node: &NamedNode, at: &ResolvedName<'_>) {
    let mut body = node.inode.body.write();
    body.record.parent = at.directory.ino;
    body.set_change_times(tree.services.now(), false);
    tree.inodes.mark_changed(&node.inode, &mut body);
}

fn place<'a>(tree: &Tree, EntryName { parent, name }: EntryName<'a>) -> FsResult<ResolvedName<'a>> {
    let directory = tree.directory(parent)?;
    check_name(name)?;
    if matches!(name, b"." | b"..") {
        return errno(libc::EBUSY);
    }
    Ok(ResolvedName { directory, name })
}

fn node(tree: &Tree, at: &ResolvedName<'_>) -> FsResult<Option<NamedNode>> {
    let Some((ino, kind)) = tree.directories.find(at.directory.ino, at.name)? else { return Ok(None) };
    Ok(Some(NamedNode { inode: tree.inodes.get(ino)?, kind }))
}

/// Whether a directory is `above` or lies in it.
fn is_within(tree: &Tree, directory: u64, above: u64) -> FsResult<bool> {
    let mut at = directory;
    while at != above && at != ROOT {
        at = tree.inodes.get(at)?.body.read().live_record()?.parent;
    }
    Ok(at == above)
}
