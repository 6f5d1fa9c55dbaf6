//! The namespace: names, attributes and trusted storage of the vault's files, in tables of keys and
//! values.
//!
//! Recent changes lie in memory above the database and in the batch of the next commit, which makes
//! them durable at the cost of one record. A checkpoint applies them to the database. So a change
//! costs an insertion into a map, and a short-lived file never reaches the database.

mod change_batch;
mod copies;
mod database;
mod db_backend;
mod objects;
pub(crate) mod tables;

pub(crate) use copies::CopyReadOptions;
pub(crate) use database::Pair;
pub(crate) use db_backend::PagePosition;

/// Calls `each` with the key and the new value of every change of a batch.
///
/// Errors: [`Kind::Corrupt`] for a malformed batch.
pub(crate) fn each_change(batch: &[u8], each: impl FnMut(&[u8], Option<&[u8]>)) -> Result<()> {
    ChangeBatch::read(batch, each)
}

use crate::{BLOCK, VaultLog};

use change_batch::ChangeBatch;
use database::{Database, TableSnapshot, error_of, is_earlier_failure};
use db_backend::DbBackend;
use lacuna_contracts::{Budget, Error, Kind, Result, Secret};
use lacuna_vault_store::Store;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes per transaction of the database, and the number of changes above the database at which
/// they are applied to it.
const CHUNK: usize = 2048;
/// The most pages that one checkpoint rewrites because a copy was lost.
const RENEWED: u64 = 1024;
/// Pairs that are removed at once.
const REMOVED: usize = 1024;
/// Bytes of changes above the database at which they are applied to it.
const RECENT: usize = 4 << 20;
/// Bytes of the database in memory at which a checkpoint is due: the store's journal must hold
/// them.
const WAITING: usize = 8 << 20;
/// Bytes that a checkpoint leaves free.
const SPARE: u64 = 256 << 10;
/// The most attempts at a read that fails because reads of other threads failed.
const TRIES: usize = 8;
/// The approximate memory of a change besides its bytes.
const OVERHEAD: usize = 96;

struct Layers {
    recent: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Bytes that `recent` takes.
    bytes: usize,
    below: Arc<TableSnapshot>,
}

/// Copies of figures of `layers` and `pending` for admission, which reads them at each write.
/// Updated under their locks.
#[derive(Default)]
struct NamespaceFigures {
    /// The number and the bytes of changes above the database.
    recent: AtomicUsize,
    recent_bytes: AtomicUsize,
    /// Bytes of the next commit's batch.
    pending_bytes: AtomicUsize,
}

/// Commits a root and the changes since the last commit.
type RootCommit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// The namespace of an open vault.
pub(crate) struct Namespace {
    store: Arc<Store>,
    backend: Arc<DbBackend>,
    database: Database,
    layers: RwLock<Layers>,
    /// Changes since the last commit.
    pending: Mutex<ChangeBatch>,
    figures: NamespaceFigures,
    /// Held while changes are applied to the database.
    applying: Mutex<()>,
}

impl Namespace {
    /// The empty namespace of a new vault.
    pub(crate) fn create(
        store: &Arc<Store>,
        master: &Secret<32>,
        budget: Budget,
        log: &VaultLog,
    ) -> Result<Namespace> {
        let backend = Arc::new(DbBackend::create(store, master, log)?);
        let database = Database::open(backend.clone(), budget)?;
        database.create_tables()?;
        Namespace::new(store.clone(), backend, database)
    }

    /// The names of the backing files of the namespace with this root.
    pub(crate) fn backing_files(store: &Arc<Store>, root: &[u8]) -> Result<Vec<String>> {
        DbBackend::backing_files(store, root)
    }

    /// The namespace of a root and of the batches committed after it.
    pub(crate) fn open(
        store: &Arc<Store>,
        master: &Secret<32>,
        root: &[u8],
        puts: &[Vec<u8>],
        reading: CopyReadOptions,
        budget: Budget,
    ) -> Result<Namespace> {
        let backend = Arc::new(DbBackend::open(store, master, root, reading, budget.share(1, 4))?);
        let database = Database::open(backend.clone(), budget.share(3, 4))?;
        let namespace = Namespace::new(store.clone(), backend, database)?;
        let mut layers = namespace.layers.write();
        for batch in puts {
            ChangeBatch::read(batch, |key, value| layers.put(key, value))?;
        }
        namespace.figures.update(&layers);
        drop(layers);
        Ok(namespace)
    }

    fn new(store: Arc<Store>, backend: Arc<DbBackend>, database: Database) -> Result<Namespace> {
        let below = Arc::new(database.snapshot()?);
        let layers = RwLock::new(Layers { recent: BTreeMap::new(), bytes: 0, below });
        let (pending, applying) = (Mutex::default(), Mutex::new(()));
        let figures = NamespaceFigures::default();
        Ok(Namespace { store, backend, database, layers, pending, figures, applying })
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.read_layers(|layers| {
            if let Some(value) = layers.recent.get(key) {
                return Ok(value.clone());
            }
            let below = layers.below.clone();
            // A read of the database need not block changes of the layers above it.
            RwLockReadGuard::unlocked(layers, || below.get(key))
        })
    }

    /// Sets or removes a value.
    pub(crate) fn put(&self, key: &[u8], value: Option<&[u8]>) {
        let mut layers = self.layers.write();
        layers.put(key, value);
        self.figures.update(&layers);
        drop(layers);
        let mut pending = self.pending.lock();
        pending.add(key, value);
        self.figures.pending_bytes.store(pending.len(), Ordering::Release);
    }

    /// At most `most` pairs with keys that are at least `from` and begin with `prefix`, in order.
    pub(crate) fn scan(&self, from: &[u8], prefix: &[u8], most: usize) -> Result<Vec<Pair>> {
        self.read_layers(|layers| layers.scan(from, prefix, most))
    }

    /// Reads from the layers. A read that fails only because a read of another thread failed is
    /// repeated on the reopened database.
    fn read_layers<T>(
        &self,
        read: impl Fn(&mut RwLockReadGuard<'_, Layers>) -> std::result::Result<T, redb::StorageError>,
    ) -> Result<T> {
        for _ in 0..TRIES {
            let mut layers = self.layers.read();
            let below = layers.below.clone();
            let done = read(&mut layers);
            drop(layers);
            match done {
                Ok(found) => return Ok(found),
                Err(e) if is_earlier_failure(&e) => self.reopen(&below)?,
                Err(e) => return Err(self.failed(&below, e)),
            }
        }
        Err(Error::new(Kind::Io, "cannot use the namespace").found("repeated failures of other reads"))
    }

    /// Removes every pair with a key that begins with `prefix`.
    pub(crate) fn remove_all(&self, prefix: &[u8]) -> Result<()> {
        let mut from = prefix.to_vec();
        while self.remove_some(&mut from, prefix)? {}
        Ok(())
    }

    /// Removes some of the pairs with keys that are at least `from` and begin with `prefix`, and
    /// advances `from`, so that removed pairs are not scanned again. Returns whether there may be
    /// more.
    pub(crate) fn remove_some(&self, from: &mut Vec<u8>, prefix: &[u8]) -> Result<bool> {
        let pairs = self.scan(from, prefix, REMOVED)?;
        pairs.iter().for_each(|(key, _)| self.put(key, None));
        let Some((last, _)) = pairs.last().filter(|_| pairs.len() == REMOVED) else { return Ok(false) };
        from.clone_from(last);
        from.push(0);
        Ok(true)
    }

    /// Bytes of the next commit's batch.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.figures.pending_bytes.load(Ordering::Acquire)
    }

    /// Whether changes should be applied to the database soon, with [`Namespace::apply`].
    pub(crate) fn needs_apply(&self) -> bool {
        let (changes, bytes) = self.figures.recent();
        changes >= CHUNK || bytes >= RECENT
    }

    /// Whether a checkpoint is due: the database has much in memory, or the next commit must
    /// include a root.
    pub(crate) fn needs_checkpoint(&self) -> bool {
        self.backend.pending_bytes() >= WAITING || self.needs_root()
    }

    /// Applies changes to the database, which keeps them in memory until the next checkpoint. Other
    /// threads may change the namespace meanwhile.
    pub(crate) fn apply(&self) -> Result<()> {
        let _alone = self.applying.lock();
        while self.needs_apply() {
            self.apply_chunk()?;
        }
        Ok(())
    }

    /// Commits the changes since the last commit. The caller prevents other changes of the
    /// namespace until `commit` returns, or has failed before anything is durable.
    pub(crate) fn commit(&self, commit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let pending = self.take_pending();
        commit(pending.bytes()).inspect_err(|_| self.restore_pending(pending))
    }

    /// Applies all changes to the database and commits its root with the changes since the last
    /// commit, under the same condition as [`Namespace::commit`]. `commit` calls
    /// [`Namespace::note_rooted`] as soon as the root is noted. After an error nothing is lost, and
    /// the next commit must also include a root if [`Namespace::needs_root`].
    pub(crate) fn checkpoint(&self, commit: &mut RootCommit<'_>) -> Result<()> {
        let _alone = self.applying.lock();
        while !self.layers.read().recent.is_empty() {
            self.apply_chunk()?;
        }
        self.store.set_journal_limit_raised(true);
        let done = self.write_root(commit);
        self.store.set_journal_limit_raised(false);
        done
    }

    fn write_root(&self, commit: &mut RootCommit<'_>) -> Result<()> {
        self.check_space()?;
        let root = self.backend.flush()?;
        let pending = self.take_pending();
        commit(&root, pending.bytes()).inspect_err(|_| self.restore_pending(pending))
    }

    /// Takes the changes since the last commit out of the next batch.
    fn take_pending(&self) -> ChangeBatch {
        let mut pending = self.pending.lock();
        self.figures.pending_bytes.store(0, Ordering::Release);
        std::mem::take(&mut *pending)
    }

    /// Puts the changes of a failed commit before later ones.
    fn restore_pending(&self, earlier: ChangeBatch) {
        let mut pending = self.pending.lock();
        pending.put_before(earlier);
        self.figures.pending_bytes.store(pending.len(), Ordering::Release);
    }

    /// Called when the commit of the root is noted: if the host refuses its record, it still comes
    /// before any other commit. So the next commit needs no root, which might find no space
    /// although the noted one does.
    pub(crate) fn note_rooted(&self) {
        self.backend.note_rooted();
    }

    /// Verifies the database itself; calls `bad` for each block that fails. Returns the number of
    /// blocks, and the number of pages that only one of the backing files holds.
    pub(crate) fn verify(&self, bad: &mut dyn FnMut(u64, &Error)) -> Result<(u64, u64)> {
        self.backend.verify(bad)
    }

    /// Whether every block of the database verifies.
    pub(crate) fn is_intact(&self) -> bool {
        let mut is_whole = true;
        self.backend.verify(&mut |_, _| is_whole = false).is_ok() && is_whole
    }

    /// Hands pages that not all backing files hold to the store, for the next checkpoint: see
    /// [`DbBackend::rewrite_single_copies`].
    pub(crate) fn rewrite_single_copies(
        &self,
        from: PagePosition,
        parts: bool,
    ) -> Result<(u64, Option<PagePosition>)> {
        self.backend.rewrite_single_copies(from, RENEWED, parts)
    }

    /// Finds pages with copies of other states that only the present root excludes, so that the
    /// commit of the next root replaces them. Returns whether there are any.
    pub(crate) fn find_superseded(&self) -> Result<bool> {
        self.backend.find_superseded()
    }

    /// The number of reads that used another copy of a page because the usual one does not verify.
    pub(crate) fn other_copy_reads(&self) -> u64 {
        self.backend.other_copy_reads()
    }

    /// The name of the backing file of the database.
    pub(crate) fn backing(&self) -> String {
        self.backend.backing()
    }

    /// The approximate free bytes that a checkpoint needs. At most a quarter goes to the journal,
    /// and the same to each of the three files of an object.
    pub(crate) fn checkpoint_space(&self) -> u64 {
        let (changes, bytes) = self.figures.recent();
        // Related changes share leaves, about two leaves each, and no more is altered than exists.
        let altered = (BLOCK / 2 * changes).min(self.backend.len() as usize) + bytes;
        let superseded = 4 * self.backend.superseded_bytes();
        (8 * (self.backend.pending_bytes() + altered) + superseded) as u64 + SPARE
    }

    /// Refuses a checkpoint that would run out of space half way: without it, a commit that frees
    /// space still fits. Reserves its space in the journal, which needs all of it; writing it back
    /// needs three times that in addition.
    fn check_space(&self) -> Result<()> {
        if self.needs_root() {
            return Ok(());
        }
        let written = 2 * self.backend.pending_bytes() + self.backend.superseded_bytes();
        let (journal, puts) = (written as u64, self.pending_bytes() as u64);
        let (free, needed) =
            (self.store.space()?.free_bytes, self.store.missing_bytes(journal, puts) + 3 * journal + SPARE);
        if free >= needed {
            return self.store.reserve(journal, puts);
        }
        Err(Error::new(Kind::NoSpace, "cannot write a checkpoint of the namespace")
            .found(format!("{free} bytes free on the file system that holds the vault's directory"))
            .expected(format!("{needed} bytes"))
            .hint("free space there"))
    }

    /// Whether the next commit must include a root: otherwise pages of the database in the store
    /// would not match the previous root.
    pub(crate) fn needs_root(&self) -> bool {
        self.backend.is_unrooted()
    }

    fn apply_chunk(&self) -> Result<()> {
        let chunk: Vec<(Vec<u8>, Option<Vec<u8>>)> = {
            let layers = self.layers.read();
            layers.recent.iter().take(CHUNK).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        self.database.apply(&chunk)?;
        // The database reuses pages only when no snapshot reads them: drop the old snapshot.
        let below = Arc::new(self.database.snapshot()?);
        let mut layers = self.layers.write();
        layers.below = below;
        for (key, value) in chunk {
            // Newer changes stay.
            if layers.recent.get(&key) == Some(&value) {
                layers.bytes -= weight(&key, value.as_deref());
                layers.recent.remove(&key);
            }
        }
        self.figures.update(&layers);
        Ok(())
    }

    /// Reopens the database for reads, unless another thread has.
    fn reopen(&self, stale: &Arc<TableSnapshot>) -> Result<()> {
        let mut layers = self.layers.write();
        if Arc::ptr_eq(&layers.below, stale) {
            layers.below = Arc::new(self.database.renewed()?);
        }
        Ok(())
    }

    /// Returns the cause of a failed read of a snapshot, and reopens the database for the next
    /// reads; if that fails, they report it.
    fn failed(&self, stale: &Arc<TableSnapshot>, e: redb::StorageError) -> Error {
        let error = error_of(&e.into());
        match self.reopen(stale) {
            Err(why) => error.context(format!("{}, and the database cannot be reopened", why.summary())),
            Ok(()) if error.kind() == Kind::NotFound => error.with_kind(Kind::Corrupt),
            Ok(()) => error,
        }
    }
}

impl NamespaceFigures {
    /// Called with the layers locked for a change.
    fn update(&self, layers: &Layers) {
        self.recent.store(layers.recent.len(), Ordering::Release);
        self.recent_bytes.store(layers.bytes, Ordering::Release);
    }

    fn recent(&self) -> (usize, usize) {
        (self.recent.load(Ordering::Acquire), self.recent_bytes.load(Ordering::Acquire))
    }
}

impl Layers {
    /// See [`Namespace::scan`].
    fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        most: usize,
    ) -> std::result::Result<Vec<Pair>, redb::StorageError> {
        let above = self.recent.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        let mut above = above.take_while(|(key, _)| key.starts_with(prefix)).peekable();
        let mut pairs: Vec<Pair> = vec![];
        let mut take_above = |pairs: &mut Vec<Pair>, before: Option<&[u8]>| {
            while pairs.len() < most {
                let next = above.next_if(|(key, _)| before.is_none_or(|before| key.as_slice() < before));
                let Some((key, value)) = next else { break };
                pairs.extend(value.as_ref().map(|value| (key.clone(), value.clone())));
            }
            // Whether the key itself was changed since.
            above.peek().is_some_and(|(key, _)| Some(key.as_slice()) == before)
        };
        self.below.scan(from, prefix, &mut |key, value| {
            let changed = take_above(&mut pairs, Some(key));
            if pairs.len() < most && !changed {
                pairs.push((key.to_vec(), value.to_vec()));
            }
            pairs.len() < most
        })?;
        take_above(&mut pairs, None);
        Ok(pairs)
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) {
        self.bytes += weight(key, value);
        if let Some(held) = self.recent.get_mut(key) {
            self.bytes -= weight(key, held.as_deref());
            *held = value.map(<[u8]>::to_vec);
        } else {
            self.recent.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        }
    }
}

fn weight(key: &[u8], value: Option<&[u8]>) -> usize {
    OVERHEAD + key.len() + value.map_or(0, <[u8]>::len)
}
