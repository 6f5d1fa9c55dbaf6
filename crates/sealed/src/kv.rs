//! The `kv` layout's store: `redb` in a region of the medium, the paper's OMAP (paper 004, section 3.1). One
//! key per block: its place on the medium (slot times 1024 plus index); the value is the block's metadata.
//!
//! Entries written since the last commit wait in memory. Every commit is durable, so that after a power cut
//! the store is what it was at its last commit; the journal repeats what came after.
//!
//! `redb` trusts its medium: on one that was altered, or that answers two reads of one place differently, it may panic. Such a panic
//! ends here, as an error ([`guarded`]).

use lacuna_core::{Budget, Error, Kind, Result};
use lacuna_medium::Medium;
use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, StorageBackend, TableDefinition};
use std::collections::BTreeMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("metadata");
/// Entries that wait for a commit at most.
const WAITING: usize = 16384;
/// The region begins with the store's length in bytes and the complement of that, alone in their block: a flipped
/// bit must not pass for a store of another length, least of all for a new one.
const LEN_BLOCK: u64 = 4096;

/// The most space that is taken ahead of what the store uses.
const AHEAD: u64 = 64 << 20;

pub(crate) struct KvStore {
    /// There until this is dropped.
    db: Option<Database>,
    /// The region as the store has it, for a look ahead.
    region: Arc<Region>,
    meta_size: usize,
    waiting: Mutex<BTreeMap<u64, [u8; 32]>>,
}

impl KvStore {
    /// Opens the store in a region of the medium, making it if the region is blank.
    pub(crate) fn open(
        medium: Arc<dyn Medium>,
        region: (u64, u64),
        meta_size: usize,
        budget: Budget,
    ) -> Result<Self> {
        let region = Arc::new(Region::open(medium, region)?);
        let db = guarded("open", || {
            Database::builder()
                .set_cache_size(budget.get() as usize)
                .create_with_backend(Backend(region.clone()))
                .map_err(|e| failed("open", e))
        })?;
        let store = KvStore { db: Some(db), region, meta_size, waiting: Mutex::default() };
        store.commit()?;
        Ok(store)
    }

    fn db(&self) -> &Database {
        self.db.as_ref().expect("the store is not dropped yet")
    }

    /// Reads the metadata of consecutive places; absent entries are zeros.
    pub(crate) fn read(&self, first: u64, meta: &mut [u8]) -> Result<()> {
        meta.fill(0);
        // The waiting entries stay locked until the tree was read, or a commit could hide between the two.
        let waiting = self.waiting.lock();
        guarded("read", || self.read_stored(first, meta))?;
        let count = (meta.len() / self.meta_size) as u64;
        for (key, value) in waiting.range(first..first + count) {
            self.part_of(meta, key - first).copy_from_slice(&value[..self.meta_size]);
        }
        Ok(())
    }

    /// Reads the entries that the store has.
    fn read_stored(&self, first: u64, meta: &mut [u8]) -> Result<()> {
        let count = (meta.len() / self.meta_size) as u64;
        let view = self.db().begin_read().map_err(|e| failed("read", e))?;
        let table = view.open_table(TABLE).map_err(|e| failed("read", e))?;
        for entry in table.range(first..first + count).map_err(|e| failed("read", e))? {
            let (key, value) = entry.map_err(|e| failed("read", e))?;
            // A store that was altered may give what was not asked for.
            let index = key.value().checked_sub(first).filter(|index| *index < count);
            let Some(index) = index.filter(|_| value.value().len() == self.meta_size) else {
                return Err(Error::new(Kind::Corrupt, "metadata entry of the key-value store")
                    .found(format!("{} bytes for place {}", value.value().len(), key.value()))
                    .expected(format!(
                        "{} bytes for one of {count} places from {first} on",
                        self.meta_size
                    )));
            };
            self.part_of(meta, index).copy_from_slice(value.value());
        }
        Ok(())
    }

    /// Sets the metadata of consecutive places; zeros remove an entry.
    pub(crate) fn write(&self, first: u64, meta: &[u8]) -> Result<()> {
        let mut waiting = self.waiting.lock();
        for (key, entry) in (first..).zip(meta.chunks_exact(self.meta_size)) {
            let mut value = [0; 32];
            value[..entry.len()].copy_from_slice(entry);
            waiting.insert(key, value);
        }
        if waiting.len() > WAITING { self.commit_locked(&mut waiting) } else { Ok(()) }
    }

    /// Takes the space for the store to grow by as much again, so that a commit does not fail for want of it: the store
    /// takes no more after an error.
    pub(crate) fn prepare_growth(&self) -> Result<()> {
        let region = &self.region;
        let len = region.len.load(Ordering::SeqCst);
        let ahead = len.min(AHEAD).min(region.room - len);
        region.medium.allocate(region.start + LEN_BLOCK + len, ahead).map(drop)
    }

    /// Makes everything written so far durable.
    pub(crate) fn commit(&self) -> Result<()> {
        self.commit_locked(&mut self.waiting.lock())
    }

    fn commit_locked(&self, waiting: &mut BTreeMap<u64, [u8; 32]>) -> Result<()> {
        guarded("commit", || self.store(waiting))?;
        waiting.clear();
        Ok(())
    }

    /// Commits these entries.
    fn store(&self, entries: &BTreeMap<u64, [u8; 32]>) -> Result<()> {
        let change = self.db().begin_write().map_err(|e| failed("commit", e))?;
        {
            let mut table = change.open_table(TABLE).map_err(|e| failed("commit", e))?;
            for (key, value) in entries {
                let value = &value[..self.meta_size];
                if lacuna_crypto::is_zero(value) {
                    table.remove(key).map_err(|e| failed("commit", e))?;
                } else {
                    table.insert(key, value).map_err(|e| failed("commit", e))?;
                }
            }
        }
        change.commit().map_err(|e| failed("commit", e))
    }

    fn part_of<'a>(&self, meta: &'a mut [u8], index: u64) -> &'a mut [u8] {
        let at = index as usize * self.meta_size;
        &mut meta[at..at + self.meta_size]
    }
}

impl Drop for KvStore {
    fn drop(&mut self) {
        let db = self.db.take();
        // It writes when it is dropped. No caller is left to take an error.
        drop(guarded("close", || {
            drop(db);
            Ok(())
        }));
    }
}

/// Does something with the store, and makes an error of a panic.
fn guarded<R>(operation: &str, act: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|_| {
        Err(Error::new(Kind::Corrupt, format!("{operation} of the metadata key-value store"))
            .found("what no such store writes")
            .remedy("restore the disk from a backup; a check of the disk shows what can still be read"))
    })
}

fn failed(operation: &str, e: impl Into<redb::Error>) -> Error {
    let e = e.into();
    let kind = match &e {
        redb::Error::Io(io) => match io.get_ref().and_then(|e| e.downcast_ref::<Error>()) {
            Some(below) => below.kind(),
            None if io.kind() == io::ErrorKind::InvalidData => Kind::Corrupt,
            None => Kind::Io,
        },
        redb::Error::Corrupted(_) => Kind::Corrupt,
        _ => Kind::Io,
    };
    Error::new(kind, format!("{operation} of the metadata key-value store"))
        .found(e.to_string())
        .remedy("check the medium; a check of the disk shows what can still be read")
}

/// A region of the medium as `redb` wants it: bytes with a length of their own.
struct Region {
    medium: Arc<dyn Medium>,
    start: u64,
    room: u64,
    len: AtomicU64,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes)", self.len.load(Ordering::Relaxed))
    }
}

impl Region {
    fn open(medium: Arc<dyn Medium>, (start, len): (u64, u64)) -> Result<Self> {
        let mut stored = [0; 16];
        medium.read_at(start, &mut stored)?;
        let room = len - LEN_BLOCK;
        let stored = u128::from_le_bytes(stored);
        let (len, complement) = (stored as u64, (stored >> 64) as u64);
        if stored != 0 && (len > room || complement != !len) {
            return Err(Error::new(Kind::Corrupt, "the key-value region's length is not usable")
                .found(format!("{len} bytes, with complement {complement:016x}"))
                .expected(format!("at most {room} bytes, with complement {:016x}", !len))
                .remedy("restore the disk from a backup"));
        }
        Ok(Region { medium, start, room, len: AtomicU64::new(len) })
    }

    fn at(&self, offset: u64, len: usize) -> io::Result<u64> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len.load(Ordering::SeqCst) => Ok(self.start + LEN_BLOCK + offset),
            _ => Err(io::Error::other("access past the end of the key-value region")),
        }
    }
}

/// The region in the hands of the store.
#[derive(Debug)]
struct Backend(Arc<Region>);

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len.load(Ordering::SeqCst))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.medium.read_at(self.0.at(offset, out.len())?, out).map_err(io::Error::other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        if len > self.0.room {
            return Err(io::Error::other("the key-value region is full"));
        }
        let old = self.0.len.load(Ordering::SeqCst);
        if len > old {
            let (at, more) = (self.0.start + LEN_BLOCK + old, len - old);
            self.0.medium.discard(at, more).map_err(io::Error::other)?;
            // Its space with it, so that the store can be opened and written when the medium is full.
            self.0.medium.allocate(at, more.min(AHEAD)).map_err(io::Error::other)?;
        }
        self.0
            .medium
            .write_at(self.0.start, &(u128::from(!len) << 64 | u128::from(len)).to_le_bytes())
            .map_err(io::Error::other)?;
        self.0.len.store(len, Ordering::SeqCst);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        // As for `Store::sync`.
        self.0.medium.sync().map_err(|e| io::Error::other(e.with_kind(Kind::Io)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.medium.write_at(self.0.at(offset, data.len())?, data).map_err(io::Error::other)
    }
}
