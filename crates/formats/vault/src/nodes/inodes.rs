//! Inodes in memory: one object for each inode in use, a bounded number of unused ones, and the
//! list of changed ones.
//!
//! There is at most one object of an inode in memory: it is evicted only while there is no other
//! reference to it, and it is loaded under the lock of its shard. Changed attributes stay here
//! until a commit, or until there are too many of them, so a hundred writes to a file cost one
//! record.

use crate::content::open_file::OpenFile;
use crate::namespace::{Namespace, tables};
use crate::nodes::inode_record::InodeRecord;
use crate::{FsError, FsResult, Time};
use lacuna_contracts::{BoundedCache, Budget, Result};
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Parts of the cache, each under its own lock.
const SHARDS: usize = 16;
/// The approximate memory of an inode without an open file.
const INODE_BYTES: u64 = 768;

/// One inode.
pub(crate) struct Inode {
    pub(crate) ino: u64,
    pub(crate) body: RwLock<InodeBody>,
}

/// The current state of an inode.
pub(crate) struct InodeBody {
    pub(crate) record: InodeRecord,
    /// The file's content, if it is open.
    pub(crate) file: Option<OpenFile>,
    /// Whether it differs from the namespace; then it is on the list.
    dirty: bool,
    /// Whether it was removed.
    pub(crate) is_removed: bool,
}

impl InodeBody {
    /// The record. ENOENT if the inode was removed or is being removed: then its blocks are gone,
    /// and so is the record of used write counters.
    pub(crate) fn live_record(&self) -> FsResult<&InodeRecord> {
        if self.is_removed || self.record.is_being_removed() {
            Err(FsError::Errno(libc::ENOENT))
        } else {
            Ok(&self.record)
        }
    }
}

/// The inodes of an open vault.
pub(crate) struct Inodes {
    namespace: Arc<Namespace>,
    shards: Vec<Mutex<BoundedCache<u64, Arc<Inode>>>>,
    changed: Mutex<Vec<Arc<Inode>>>,
    /// Inodes that differ from the namespace, listed or being written back. An atomic copy:
    /// admission reads it at each write.
    changed_count: AtomicUsize,
    /// The most inodes that may be changed.
    changed_most: usize,
    next: AtomicU64,
    /// The namespace's value of `next`. Locked while the namespace is updated, so that of two
    /// threads that write back, the later number stays.
    next_kept: Mutex<u64>,
}

impl Inodes {
    /// Starts with an empty cache; the next new inode gets the number `next`.
    pub(crate) fn new(namespace: Arc<Namespace>, next: u64, budget: Budget) -> Inodes {
        let most = (budget.get() / INODE_BYTES / SHARDS as u64) as usize;
        let shards: Vec<Mutex<BoundedCache<u64, Arc<Inode>>>> =
            (0..SHARDS).map(|_| Mutex::new(BoundedCache::new(most))).collect();
        let changed_most = SHARDS * shards[0].lock().capacity() / 2;
        let changed_count = AtomicUsize::new(0);
        let (changed, next, next_kept) = (Mutex::default(), AtomicU64::new(next), Mutex::new(next));
        Inodes { namespace, shards, changed, changed_count, changed_most, next, next_kept }
    }

    /// Loads an inode. ENOENT if there is none.
    pub(crate) fn get(&self, ino: u64) -> FsResult<Arc<Inode>> {
        let mut shard = self.shard(ino).lock();
        if let Some(inode) = shard.get(ino) {
            return Ok(inode.clone());
        }
        let bytes = self.namespace.get(&tables::inode(ino))?.ok_or(FsError::Errno(libc::ENOENT))?;
        let inode = Arc::new(Inode::new(ino, InodeRecord::parse(&bytes)?));
        insert(&mut shard, &inode);
        Ok(inode)
    }

    /// Makes a new inode, which counts as changed.
    pub(crate) fn create(&self, record: InodeRecord) -> Arc<Inode> {
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        let inode = Arc::new(Inode::new(ino, record));
        self.mark_changed(&inode, &mut inode.body.write());
        insert(&mut self.shard(ino).lock(), &inode);
        inode
    }

    /// Lists an inode as changed.
    pub(crate) fn mark_changed(&self, inode: &Arc<Inode>, body: &mut InodeBody) {
        if !body.dirty && !body.is_removed {
            body.dirty = true;
            self.changed_count.fetch_add(1, Ordering::AcqRel);
            self.changed.lock().push(inode.clone());
        }
    }

    /// The number of changed inodes.
    pub(crate) fn changed_count(&self) -> usize {
        self.changed_count.load(Ordering::Acquire)
    }

    /// Whether too many inodes are changed.
    pub(crate) fn has_too_many_changed(&self) -> bool {
        self.changed_count() >= self.changed_most
    }

    /// Writes the records of changed inodes to the namespace. First calls `before` with each, to
    /// write its content's TS into the record. After an error the rest is listed again.
    ///
    /// Other threads may change inodes and write back meanwhile. One inode is locked at a time, so
    /// each record is one state of its inode: every change calls `mark_changed` under the lock that
    /// it was made under, and a later change lists the inode again. Only if no transaction runs
    /// meanwhile, as in a commit, does the namespace have one state of all inodes when this
    /// returns.
    pub(crate) fn write_back(
        &self,
        mut before: impl FnMut(&Inode, &mut InodeBody) -> Result<()>,
    ) -> Result<()> {
        let mut changed = std::mem::take(&mut *self.changed.lock());
        while let Some(inode) = changed.pop() {
            let mut body = inode.body.write();
            if !body.is_removed {
                if let Err(e) = before(&inode, &mut body) {
                    drop(body);
                    changed.push(inode);
                    self.changed.lock().append(&mut changed);
                    return Err(e);
                }
                self.write_record(&inode, &mut body);
            }
            // Only after the namespace has it: until then admission counts it here.
            self.changed_count.fetch_sub(1, Ordering::AcqRel);
        }
        self.write_next();
        Ok(())
    }

    /// Writes the next inode number to the namespace.
    fn write_next(&self) {
        let mut kept = self.next_kept.lock();
        let next = self.next.load(Ordering::Relaxed);
        if *kept != next {
            self.namespace.put(&tables::meta("next inode"), Some(&next.to_le_bytes()));
            *kept = next;
        }
    }

    /// Removes an inode from the namespace and the cache.
    pub(crate) fn remove(&self, inode: &Inode, body: &mut InodeBody) {
        body.is_removed = true;
        body.file = None;
        self.namespace.put(&tables::inode(inode.ino), None);
        self.shard(inode.ino).lock().remove(inode.ino);
    }

    /// The number of inodes ever made.
    pub(crate) fn made(&self) -> u64 {
        self.next.load(Ordering::Relaxed) - 1
    }

    fn write_record(&self, inode: &Inode, body: &mut InodeBody) {
        self.namespace.put(&tables::inode(inode.ino), Some(&body.record.encode()));
        body.dirty = false;
    }

    fn shard(&self, ino: u64) -> &Mutex<BoundedCache<u64, Arc<Inode>>> {
        &self.shards[ino as usize % SHARDS]
    }
}

impl Inode {
    fn new(ino: u64, record: InodeRecord) -> Inode {
        Inode { ino, body: RwLock::new(InodeBody { record, file: None, dirty: false, is_removed: false }) }
    }
}

impl InodeBody {
    /// Sets the times of a change of attributes or, with `content`, of content.
    pub(crate) fn set_change_times(&mut self, now: Time, content: bool) {
        self.record.ctime = now;
        if content {
            self.record.mtime = now;
        }
    }
}

/// Puts an inode in the cache. If the cache is full, evicts an inode without other references; the
/// list holds references to changed ones.
fn insert(shard: &mut BoundedCache<u64, Arc<Inode>>, inode: &Arc<Inode>) {
    if shard.is_full() {
        shard.evict(|_, held| Arc::strong_count(held) == 1);
    }
    shard.put(inode.ino, inode.clone());
}
