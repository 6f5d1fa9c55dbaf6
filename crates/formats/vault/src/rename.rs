//! Renaming: moves an entry, replaces another, or exchanges two.

use crate::directories::check_name;
use crate::fs_error::errno;
use crate::inodes::Inode;
use crate::tree::Tree;
use crate::{FileKind, FsError, FsResult, ROOT, RenameMode};
use std::sync::Arc;

/// A name in a directory, by its inode.
#[derive(Clone, Copy)]
pub(crate) struct EntryName<'a> {
    pub(crate) parent: u64,
    pub(crate) name: &'a [u8],
}

/// A name with its directory's inode.
struct Place<'a> {
    directory: Arc<Inode>,
    name: &'a [u8],
}

/// The node of a name.
struct Node {
    inode: Arc<Inode>,
    kind: FileKind,
}

impl Node {
    fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// Renames an entry.
pub(crate) fn rename(tree: &Tree, from: EntryName<'_>, to: EntryName<'_>, mode: RenameMode) -> FsResult<()> {
    let _changes = tree.changes.lock();
    let (from, to) = (place(tree, from)?, place(tree, to)?);
    let moved = node(tree, &from)?.ok_or(FsError::Errno(libc::ENOENT))?;
    let there = node(tree, &to)?;
    if moved.is_directory() && is_within(tree, to.directory.ino, moved.inode.ino)? {
        return errno(libc::EINVAL);
    }
    match (mode, there) {
        (RenameMode::NoReplace, Some(_)) => errno(libc::EEXIST),
        (RenameMode::Exchange, None) => errno(libc::ENOENT),
        (RenameMode::Exchange, Some(there)) => exchange(tree, &from, &moved, &to, &there),
        (RenameMode::Replace, Some(there)) if there.inode.ino == moved.inode.ino => Ok(()),
        (_, there) => replace(tree, &from, &moved, &to, there),
    }
}

fn replace(tree: &Tree, from: &Place<'_>, moved: &Node, to: &Place<'_>, there: Option<Node>) -> FsResult<()> {
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
    let removed = tree.directories.remove(from.directory.ino, from.name);
    removed.inspect_err(|_| tree.directories.undo(&set))?;
    let moves = i64::from(moved.is_directory());
    let replaced = i64::from(there.as_ref().is_some_and(Node::is_directory));
    tree.changed(&from.directory, now, -moves);
    tree.changed(&to.directory, now, moves - replaced);
    settle(tree, moved, to);
    there.map_or(Ok(()), |there| tree.unnamed(&there.inode, now))
}

fn exchange(tree: &Tree, from: &Place<'_>, moved: &Node, to: &Place<'_>, there: &Node) -> FsResult<()> {
    if there.is_directory() && is_within(tree, from.directory.ino, there.inode.ino)? {
        return errno(libc::EINVAL);
    }
    let now = tree.services.now();
    let set = tree.directories.set(to.directory.ino, to.name, moved.inode.ino, moved.kind)?;
    let other = tree.directories.set(from.directory.ino, from.name, there.inode.ino, there.kind);
    other.inspect_err(|_| tree.directories.undo(&set))?;
    let gained = i64::from(there.is_directory()) - i64::from(moved.is_directory());
    tree.changed(&from.directory, now, gained);
    tree.changed(&to.directory, now, -gained);
    settle(tree, moved, to);
    settle(tree, there, from);
    Ok(())
}

/// Updates a node after its name changed.
fn settle(tree: &Tree, node: &Node, at: &Place<'_>) {
    let mut body = node.inode.body.write();
    body.record.parent = at.directory.ino;
    body.changed_at(tree.services.now(), false);
    tree.inodes.touch(&node.inode, &mut body);
}

fn place<'a>(tree: &Tree, EntryName { parent, name }: EntryName<'a>) -> FsResult<Place<'a>> {
    let directory = tree.directory(parent)?;
    check_name(name)?;
    if matches!(name, b"." | b"..") {
        return errno(libc::EBUSY);
    }
    Ok(Place { directory, name })
}

fn node(tree: &Tree, at: &Place<'_>) -> FsResult<Option<Node>> {
    let Some((ino, kind)) = tree.directories.find(at.directory.ino, at.name)? else { return Ok(None) };
    Ok(Some(Node { inode: tree.inodes.get(ino)?, kind }))
}

/// Whether a directory is `above` or lies in it.
fn is_within(tree: &Tree, directory: u64, above: u64) -> FsResult<bool> {
    let mut at = directory;
    while at != above && at != ROOT {
        at = tree.inodes.get(at)?.body.read().alive()?.parent;
    }
    Ok(at == above)
}
