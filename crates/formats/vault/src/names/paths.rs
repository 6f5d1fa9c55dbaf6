//! Plain paths of nodes, for the log and for reports.

use crate::ROOT;
use crate::names::directories;
use crate::namespace::Namespace;
use crate::namespace::tables::{self, Table};
use crate::nodes::inodes::Inodes;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The most directories of a path: a loop, which only damage can make, must end.
const DEPTH: usize = 4096;

/// The path of a node.
pub(crate) fn path_of(inodes: &Inodes, namespace: &Namespace, ino: u64) -> OsString {
    let parent = inodes.get(ino).map(|inode| inode.body.read().record.parent);
    path_from(inodes, namespace, ino, parent.unwrap_or(0))
}

/// The path of a node that got its last name in `parent`; its own inode may be locked.
pub(crate) fn path_from(inodes: &Inodes, namespace: &Namespace, ino: u64, parent: u64) -> OsString {
    let (mut path, mut at, mut parent) = (Vec::new(), ino, parent);
    for _ in 0..DEPTH {
        if at == ROOT {
            return if path.is_empty() { "/".into() } else { OsString::from_vec(path) };
        }
        // The node may have lost its latest name and have other names.
        let in_parent = name_in(namespace, &tables::of_inode(Table::Entries, parent), at);
        let Some((directory, name)) = in_parent.or_else(|| name_in(namespace, &[Table::Entries as u8], at))
        else {
            break;
        };
        path = [&b"/"[..], &name[..], &path[..]].concat();
        at = directory;
        parent = match inodes.get(at) {
            Ok(inode) => inode.body.read().record.parent,
            Err(_) => break,
        };
    }
    OsString::from_vec([format!("(inode {at})").into_bytes(), path].concat())
}

/// A name of a node among the entries with keys that begin with `prefix`, and its directory.
fn name_in(namespace: &Namespace, prefix: &[u8], ino: u64) -> Option<(u64, Vec<u8>)> {
    let mut found = None;
    let scanned = directories::scan(namespace, prefix.to_vec(), prefix, &mut |directory, _, entry| {
        if entry.ino == ino {
            found = Some((directory, entry.name.clone()));
        }
        found.is_none()
    });
    scanned.ok().and(found)
}
