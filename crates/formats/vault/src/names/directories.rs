//! The entries of directories in the namespace: finding, setting, removing, and reading them in
//! order.

use crate::fs_error::errno;
use crate::names::entries::{Bucket, BucketEntry, DOT, DOT_DOT, NameHash, hash_of_cookie};
use crate::namespace::tables::{self, Table};
use crate::namespace::{Namespace, Pair};
use crate::{DirEntry, FileKind, FsResult, NAME_MAX};
use std::sync::Arc;

/// Buckets that are read at once.
const STEP: usize = 64;
/// Hashes of names are below this number.
const MOST_HASH: u64 = 1 << 56;

/// The value of a key before an entry changed.
pub(crate) struct Undo {
    key: Vec<u8>,
    before: Option<Vec<u8>>,
}

/// The directories of a vault.
pub(crate) struct Directories {
    namespace: Arc<Namespace>,
    hash: NameHash,
}

/// Checks that a name can be the name of an entry.
pub(crate) fn check_name(name: &[u8]) -> FsResult<()> {
    match name {
        [] => errno(libc::ENOENT),
        _ if name.len() > NAME_MAX => errno(libc::ENAMETOOLONG),
        _ if name.iter().any(|byte| matches!(byte, 0 | b'/')) => errno(libc::EINVAL),
        _ => Ok(()),
    }
}

impl Directories {
    pub(crate) fn new(namespace: Arc<Namespace>, hash: NameHash) -> Directories {
        Directories { namespace, hash }
    }

    /// The node with a name.
    pub(crate) fn find(&self, directory: u64, name: &[u8]) -> FsResult<Option<(u64, FileKind)>> {
        let Some(bytes) = self.namespace.get(&self.key(directory, name))? else { return Ok(None) };
        Ok(Bucket::parse(&bytes)?.find(name).map(|entry| (entry.ino, entry.kind)))
    }

    /// Makes or replaces an entry, and returns the undo information. ENOSPC if 16 other names share
    /// the hash, which does not happen by chance.
    pub(crate) fn set(&self, directory: u64, name: &[u8], ino: u64, kind: FileKind) -> FsResult<Undo> {
        let (key, mut bucket) = self.bucket(directory, name)?;
        let before = bucket.encode();
        if !bucket.set(name, ino, kind) {
            return errno(libc::ENOSPC);
        }
        self.namespace.put(&key, bucket.encode().as_deref());
        Ok(Undo { key, before })
    }

    /// Undoes a change; the directory must not have changed since.
    pub(crate) fn undo(&self, change: &Undo) {
        self.namespace.put(&change.key, change.before.as_deref());
    }

    /// Removes an entry.
    pub(crate) fn remove(&self, directory: u64, name: &[u8]) -> FsResult<()> {
        let (key, mut bucket) = self.bucket(directory, name)?;
        bucket.remove(name);
        self.namespace.put(&key, bucket.encode().as_deref());
        Ok(())
    }

    /// Whether a directory has no entries.
    pub(crate) fn is_empty(&self, directory: u64) -> FsResult<bool> {
        let prefix = tables::of_inode(Table::Entries, directory);
        Ok(self.namespace.scan(&prefix, &prefix, 1)?.is_empty())
    }

    /// Calls `each` with the entries after a cookie until it returns false.
    pub(crate) fn read(
        &self,
        directory: u64,
        parent: u64,
        after: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let dots: [(u64, &[u8], u64); 2] = [(DOT, b".", directory), (DOT_DOT, b"..", parent)];
        for (cookie, name, ino) in dots {
            if after < cookie && !each(DirEntry { cookie, name, ino, kind: FileKind::Directory }) {
                return Ok(());
            }
        }
        let prefix = tables::of_inode(Table::Entries, directory);
        let from = tables::bucket(directory, hash_of_cookie(after));
        scan(&self.namespace, from, &prefix, &mut |_, hash, entry| {
            let cookie = entry.cookie(hash);
            cookie <= after || each(DirEntry { cookie, name: &entry.name, ino: entry.ino, kind: entry.kind })
        })
    }

    fn bucket(&self, directory: u64, name: &[u8]) -> FsResult<(Vec<u8>, Bucket)> {
        let key = self.key(directory, name);
        let bucket =
            self.namespace.get(&key)?.map_or(Ok(Bucket::default()), |bytes| Bucket::parse(&bytes))?;
        Ok((key, bucket))
    }

    fn key(&self, directory: u64, name: &[u8]) -> Vec<u8> {
        tables::bucket(directory, self.hash.of(name))
    }
}

/// Calls `each` with the directory, hash and entry of every bucket with a key that is at least
/// `from` and begins with `prefix`, until it returns false. Holds no lock meanwhile.
pub(crate) fn scan(
    namespace: &Namespace,
    mut from: Vec<u8>,
    prefix: &[u8],
    each: &mut dyn FnMut(u64, u64, &BucketEntry) -> bool,
) -> FsResult<()> {
    loop {
        let pairs: Vec<Pair> = namespace.scan(&from, prefix, STEP)?;
        for (key, value) in &pairs {
            let hash = key.last_chunk().map_or(0, |hash| u64::from_be_bytes(*hash));
            for entry in &Bucket::parse(value)?.0 {
                if !each(tables::inode_of(key), hash, entry) {
                    return Ok(());
                }
            }
        }
        let Some((last, _)) = pairs.last().filter(|_| pairs.len() == STEP) else { return Ok(()) };
        from.clone_from(last);
        from.push(0);
    }
}

/// Calls `each` with the entries of a directory that verify, and skips buckets that do not. Returns
/// whether all verify.
pub(crate) fn scan_past_damage(
    namespace: &Namespace,
    directory: u64,
    each: &mut dyn FnMut(&BucketEntry),
) -> bool {
    let prefix = tables::of_inode(Table::Entries, directory);
    let (mut from, mut most, mut all) = (prefix.clone(), STEP, true);
    loop {
        match namespace.scan(&from, &prefix, most) {
            Ok(pairs) => {
                for (_, value) in &pairs {
                    match Bucket::parse(value) {
                        Ok(bucket) => bucket.0.iter().for_each(&mut *each),
                        Err(_) => all = false,
                    }
                }
                let Some((last, _)) = pairs.last().filter(|_| pairs.len() == most) else { return all };
                from.clone_from(last);
                from.push(0);
                most = (2 * most).min(STEP);
            }
            // Read the buckets before the damage one by one.
            Err(_) if most > 1 => most = 1,
            Err(_) => {
                all = false;
                let hash = from.get(prefix.len()..).and_then(|rest| rest.first_chunk());
                let Some(next) =
                    past_damage(namespace, directory, hash.map_or(0, |hash| u64::from_be_bytes(*hash)))
                else {
                    return all;
                };
                from = tables::bucket(directory, next);
            }
        }
    }
}

/// The first hash after `hash`, approximately, where buckets of a directory can be read again after
/// damage at `hash`.
fn past_damage(namespace: &Namespace, directory: u64, hash: u64) -> Option<u64> {
    let prefix = tables::of_inode(Table::Entries, directory);
    let is_read = |hash: u64| namespace.scan(&tables::bucket(directory, hash), &prefix, 1).is_ok();
    let (mut bad, mut step) = (hash, 1);
    let mut good = loop {
        let next = bad.saturating_add(step).min(MOST_HASH);
        if is_read(next) {
            break next;
        }
        if next == MOST_HASH {
            return None;
        }
        (bad, step) = (next, step.saturating_mul(2));
    };
    while good - bad > 1 {
        let middle = bad + (good - bad) / 2;
        *(if is_read(middle) { &mut good } else { &mut bad }) = middle;
    }
    Some(good)
}
