//! The entries of directories in the namespace: finding, setting, removing and reading them in order.

use crate::entries::{Bucket, DOT, DOT_DOT, Entry, NameHash, hash_of_cookie};
use crate::fs_error::errno;
use crate::namespace::tables::{self, Table};
use crate::namespace::{Namespace, Pair};
use crate::{DirEntry, FileKind, FsResult, NAME_MAX};
use std::sync::Arc;

/// Buckets that are read at once.
const STEP: usize = 64;

/// The directories of a vault.
pub(crate) struct Directories {
    namespace: Arc<Namespace>,
    hash: NameHash,
}

/// Refuses what cannot be the name of a new entry or an old one.
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

    /// What a name stands for.
    pub(crate) fn find(&self, directory: u64, name: &[u8]) -> FsResult<Option<(u64, FileKind)>> {
        let Some(bytes) = self.namespace.get(&self.key(directory, name))? else { return Ok(None) };
        Ok(Bucket::parse(&bytes)?.find(name).map(|entry| (entry.ino, entry.kind)))
    }

    /// Makes or replaces an entry. ENOSPC if 16 others share the hash of its name, which chance does not bring about.
    pub(crate) fn set(&self, directory: u64, name: &[u8], ino: u64, kind: FileKind) -> FsResult<()> {
        let (key, mut bucket) = self.bucket(directory, name)?;
        if !bucket.set(name, ino, kind) {
            return errno(libc::ENOSPC);
        }
        self.namespace.put(&key, bucket.encode().as_deref());
        Ok(())
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

/// Calls `each` with the directory, hash and entry of every bucket whose key is at least `from` and begins with `prefix`, until
/// it returns false. Nothing is locked meanwhile.
pub(crate) fn scan(
    namespace: &Namespace,
    mut from: Vec<u8>,
    prefix: &[u8],
    each: &mut dyn FnMut(u64, u64, &Entry) -> bool,
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
