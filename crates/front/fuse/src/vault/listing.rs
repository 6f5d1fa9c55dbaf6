//! Entries of a directory, in the portions that the kernel has room for.

use crate::vault::ops::VaultOps;
use fuser::Errno;
use lacuna_vault::{FileKind, FsResult};

/// Number of entries per portion.
const ENTRIES: usize = 64;

/// One entry, kept while its attributes are fetched.
pub(crate) struct ListedEntry {
    /// Position where the next request continues.
    pub cookie: u64,
    pub name: Vec<u8>,
    pub ino: u64,
    pub kind: FileKind,
}

/// Passes the entries of the directory `ino` after a cookie to `add` until it has no room or there
/// are no more.
pub(crate) fn fill(
    front: &VaultOps,
    ino: u64,
    mut after: u64,
    mut add: impl FnMut(&ListedEntry) -> bool,
) -> Result<(), Errno> {
    loop {
        let entries =
            portion(front, ino, after).map_err(|e| front.report_node("read the directory", ino, e))?;
        if entries.iter().any(&mut add) || entries.len() < ENTRIES {
            return Ok(());
        }
        after = entries.last().map_or(after, |e| e.cookie);
    }
}

/// The next entries after a cookie. Attributes are fetched later, when the directory is unlocked
/// again.
fn portion(front: &VaultOps, ino: u64, after: u64) -> FsResult<Vec<ListedEntry>> {
    let mut entries = Vec::with_capacity(ENTRIES);
    front.vault.read_dir(ino, after, &mut |e| {
        let more = entries.len() < ENTRIES;
        if more {
            entries.push(ListedEntry { cookie: e.cookie, name: e.name.to_vec(), ino: e.ino, kind: e.kind });
        }
        more
    })?;
    Ok(entries)
}
