//! The namespace: what the vault knows of its files beside their content, in tables of keys and
//! values.
//!
//! Recent changes lie in memory above the database and in the batch of the next commit, which makes
//! them durable for the price of one record. A checkpoint brings them into the database. So a
//! change costs an insertion into a map, and a file that is made and removed soon never reaches the
//! database.

mod copies;
mod database;
mod db_backend;
mod objects;
mod puts;
pub(crate) mod tables;

pub(crate) use copies::Reading;
pub(crate) use database::Pair;
pub(crate) use db_backend::Spot;

/// Calls `each` with the key and the new value of every change of a batch.
///
/// Errors: [`Kind::Corrupt`] for what no version wrote.
pub(crate) fn each_change(batch: &[u8], each: impl FnMut(&[u8], Option<&[u8]>)) -> Result<()> {
    Puts::read(batch, each)
}

use crate::{BLOCK, Log};
use database::{Database, Snapshot, described, is_of_another};
use db_backend::DbBackend;
use lacuna_contracts::{Budget, Error, Kind, Result, Secret};
use lacuna_vault_store::Store;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use puts::Puts;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes that one transaction of the database takes, and changes above the database from which on
/// they are brought into it.
const CHUNK: usize = 2048;
/// Pages that one checkpoint writes anew, where a copy was lost.
const RENEWED: u64 = 1024;
/// Pairs that are removed in one go.
const REMOVED: usize = 1024;
/// Bytes of changes above the database from which on they are brought into it.
const RECENT: usize = 4 << 20;
/// Bytes of the database in memory from which on a checkpoint is due: the store's journal must hold
/// them.
const WAITING: usize = 8 << 20;
/// Bytes that a checkpoint leaves free.
const SPARE: u64 = 256 << 10;
/// How often a read is done because those of other threads failed.
const TRIES: usize = 8;
/// What a change takes in memory beside its bytes, about.
const OVERHEAD: usize = 96;

struct Layers {
    recent: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Bytes that `recent` takes.
    bytes: usize,
    below: Arc<Snapshot>,
}

/// What admission asks for at each write: copies of what `layers` and `pending` hold, renewed under
/// their locks.
#[derive(Default)]
struct Figures {
    /// Changes above the database, and what they take in bytes.
    recent: AtomicUsize,
    recent_bytes: AtomicUsize,
    /// Bytes of the next commit's batch.
    pending_bytes: AtomicUsize,
}

/// Commits a root, given it and the changes since the last commit.
type RootCommit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// The namespace of an open vault.
pub(crate) struct Namespace {
    store: Arc<Store>,
    backend: Arc<DbBackend>,
    database: Database,
    layers: RwLock<Layers>,
    /// Changes since the last commit.
    pending: Mutex<Puts>,
    figures: Figures,
    /// Held by who brings changes into the database.
    applying: Mutex<()>,
}

impl Namespace {
    /// That of a new vault, empty.
    pub(crate) fn create(
        store: &Arc<Store>,
        master: &Secret<32>,
        budget: Budget,
        log: &Log,
    ) -> Result<Namespace> {
        let backend = Arc::new(DbBackend::create(store, master, log)?);
        let database = Database::open(backend.clone(), budget)?;
        database.create_tables()?;
        Namespace::new(store.clone(), backend, database)
    }

    /// Names of the backing files of the namespace with this root.
    pub(crate) fn backing_files(store: &Arc<Store>, root: &[u8]) -> Result<Vec<String>> {
        DbBackend::backing_files(store, root)
    }

    /// That of a root and of the batches committed after it.
    pub(crate) fn open(
        store: &Arc<Store>,
        master: &Secret<32>,
        root: &[u8],
        puts: &[Vec<u8>],
        reading: Reading,
        budget: Budget,
    ) -> Result<Namespace> {
        let backend = Arc::new(DbBackend::open(store, master, root, reading, budget.share(1, 4))?);
        let database = Database::open(backend.clone(), budget.share(3, 4))?;
        let namespace = Namespace::new(store.clone(), backend, database)?;
        let mut layers = namespace.layers.write();
        for batch in puts {
            Puts::read(batch, |key, value| layers.put(key, value))?;
        }
        namespace.figures.renew(&layers);
        drop(layers);
        Ok(namespace)
    }

    fn new(store: Arc<Store>, backend: Arc<DbBackend>, database: Database) -> Result<Namespace> {
        let below = Arc::new(database.snapshot()?);
        let layers = RwLock::new(Layers { recent: BTreeMap::new(), bytes: 0, below });
        let (pending, applying) = (Mutex::default(), Mutex::new(()));
        let figures = Figures::default();
        Ok(Namespace { store, backend, database, layers, pending, figures, applying })
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.reading(|layers| {
            if let Some(value) = layers.recent.get(key) {
                return Ok(value.clone());
            }
            let below = layers.below.clone();
            // Reads of the database need not keep others from changing what lies above it.
            RwLockReadGuard::unlocked(layers, || below.get(key))
        })
    }

    /// Sets or removes a value.
    pub(crate) fn put(&self, key: &[u8], value: Option<&[u8]>) {
        let mut layers = self.layers.write();
        layers.put(key, value);
        self.figures.renew(&layers);
        drop(layers);
        let mut pending = self.pending.lock();
        pending.add(key, value);
        self.figures.pending_bytes.store(pending.len(), Ordering::Release);
    }

    /// At most `most` pairs whose keys are at least `from` and begin with `prefix`, in order.
    pub(crate) fn scan(&self, from: &[u8], prefix: &[u8], most: usize) -> Result<Vec<Pair>> {
        self.reading(|layers| layers.scan(from, prefix, most))
    }

    /// Reads from the layers. What fails only because a read of another thread failed is read
    /// again, from the database opened anew.
    fn reading<T>(
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
                Err(e) if is_of_another(&e) => self.renew(&below)?,
                Err(e) => return Err(self.failed(&below, e)),
            }
        }
        Err(Error::new(Kind::Io, "cannot use the namespace")
            .found("other reads of it that fail again and again"))
    }

    /// Removes every pair whose key begins with `prefix`.
    pub(crate) fn remove_all(&self, prefix: &[u8]) -> Result<()> {
        let mut from = prefix.to_vec();
        while self.remove_some(&mut from, prefix)? {}
        Ok(())
    }

    /// Removes some of the pairs whose keys are at least `from` and begin with `prefix`, and moves
    /// `from` on: what is removed is not walked over again. Whether there may be more.
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

    /// Whether changes should be brought into the database soon, with [`Namespace::apply`].
    pub(crate) fn wants_apply(&self) -> bool {
        let (changes, bytes) = self.figures.recent();
        changes >= CHUNK || bytes >= RECENT
    }

    /// Whether a checkpoint is due: the database has much in memory, or the next commit must bring
    /// a root.
    pub(crate) fn wants_checkpoint(&self) -> bool {
        self.backend.waiting() >= WAITING || self.needs_root()
    }

    /// Brings changes into the database, which keeps them in memory until the next checkpoint.
    /// Others may change the namespace meanwhile.
    pub(crate) fn apply(&self) -> Result<()> {
        let _alone = self.applying.lock();
        while self.wants_apply() {
            self.apply_chunk()?;
        }
        Ok(())
    }

    /// Commits the changes since the last commit. The caller keeps everybody else from changing the
    /// namespace until `commit` returns or has failed before anything is durable.
    pub(crate) fn commit(&self, commit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let pending = self.take_pending();
        commit(pending.bytes()).inspect_err(|_| self.give_back(pending))
    }

    /// Brings all changes into the database and commits its root, with the changes since the last
    /// commit, under the same condition as [`Namespace::commit`]. `commit` calls
    /// [`Namespace::rooted`] as soon as the root is noted. After an error nothing is lost, and the
    /// next commit must bring a root as well if [`Namespace::needs_root`] says so.
    pub(crate) fn checkpoint(&self, commit: &mut RootCommit<'_>) -> Result<()> {
        let _alone = self.applying.lock();
        while !self.layers.read().recent.is_empty() {
            self.apply_chunk()?;
        }
        self.store.lift_journal(true);
        let done = self.write_root(commit);
        self.store.lift_journal(false);
        done
    }

    fn write_root(&self, commit: &mut RootCommit<'_>) -> Result<()> {
        self.check_space()?;
        let root = self.backend.flush()?;
        let pending = self.take_pending();
        commit(&root, pending.bytes()).inspect_err(|_| self.give_back(pending))
    }

    /// The changes since the last commit, which the next one does not have any more.
    fn take_pending(&self) -> Puts {
        let mut pending = self.pending.lock();
        self.figures.pending_bytes.store(0, Ordering::Release);
        std::mem::take(&mut *pending)
    }

    /// Puts the changes of a commit that failed before those since.
    fn give_back(&self, earlier: Puts) {
        let mut pending = self.pending.lock();
        pending.put_before(earlier);
        self.figures.pending_bytes.store(pending.len(), Ordering::Release);
    }

    /// The commit of the root is noted: where the host refuses its record, no other commit comes
    /// before it. So the next one need not bring a root, which may find no space although this one
    /// does.
    pub(crate) fn rooted(&self) {
        self.backend.rooted();
    }

    /// Verifies the database itself; `bad` is told of each of its blocks that fails. Gives how many
    /// blocks there are, and how many pages only one of the backing files holds.
    pub(crate) fn verify(&self, bad: &mut dyn FnMut(u64, &Error)) -> Result<(u64, u64)> {
        self.backend.verify(bad)
    }

    /// Whether every block of the database verifies.
    pub(crate) fn is_whole(&self) -> bool {
        let mut is_whole = true;
        self.backend.verify(&mut |_, _| is_whole = false).is_ok() && is_whole
    }

    /// Hands pages to the store anew that not all of the backing files hold, for the next
    /// checkpoint: see [`DbBackend::give_again`].
    pub(crate) fn give_again(&self, from: Spot, parts: bool) -> Result<(u64, Option<Spot>)> {
        self.backend.give_again(from, RENEWED, parts)
    }

    /// Reads that took another copy of a page than the usual one, which does not verify.
    pub(crate) fn elsewhere(&self) -> u64 {
        self.backend.elsewhere()
    }

    /// Name of the backing file of the database.
    pub(crate) fn backing(&self) -> String {
        self.backend.backing()
    }

    /// Bytes that a checkpoint finds free if it is to begin, about. A quarter of them at most goes
    /// to the journal, and as much to each of the three files of an object.
    pub(crate) fn owed(&self) -> u64 {
        let (changes, bytes) = self.figures.recent();
        // Changes that belong together share leaves, about two each, and no more is altered than
        // there is.
        let altered = (BLOCK / 2 * changes).min(self.backend.len() as usize) + bytes;
        8 * (self.backend.waiting() + altered) as u64 + SPARE
    }

    /// Refuses a checkpoint that would find no space half way: without it, what makes space can
    /// still be committed. Takes the space in the journal, which all of it needs; the places that
    /// it goes to need three times as much beside it.
    fn check_space(&self) -> Result<()> {
        if self.needs_root() {
            return Ok(());
        }
        let (journal, puts) = (2 * self.backend.waiting() as u64, self.pending_bytes() as u64);
        let (free, needed) =
            (self.store.space()?.free_bytes, self.store.lacks(journal, puts) + 3 * journal + SPARE);
        if free >= needed {
            return self.store.reserve(journal, puts);
        }
        Err(Error::new(Kind::NoSpace, "cannot write a checkpoint of the namespace")
            .found(format!("{free} bytes free on the file system that holds the vault's directory"))
            .expected(format!("{needed} bytes"))
            .remedy("free space there"))
    }

    /// Whether the next commit must bring a root: without it, pages of the database that the store
    /// holds would not be those of the root before.
    pub(crate) fn needs_root(&self) -> bool {
        self.backend.is_unrooted()
    }

    fn apply_chunk(&self) -> Result<()> {
        let chunk: Vec<(Vec<u8>, Option<Vec<u8>>)> = {
            let layers = self.layers.read();
            layers.recent.iter().take(CHUNK).map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        self.database.apply(&chunk)?;
        // The database reuses pages only when nobody reads what they held: the new snapshot lets go
        // of the old one.
        let below = Arc::new(self.database.snapshot()?);
        let mut layers = self.layers.write();
        layers.below = below;
        for (key, value) in chunk {
            // What changed meanwhile stays.
            if layers.recent.get(&key) == Some(&value) {
                layers.bytes -= weight(&key, value.as_deref());
                layers.recent.remove(&key);
            }
        }
        self.figures.renew(&layers);
        Ok(())
    }

    /// Lets reads use the database anew, unless another thread has.
    fn renew(&self, stale: &Arc<Snapshot>) -> Result<()> {
        let mut layers = self.layers.write();
        if Arc::ptr_eq(&layers.below, stale) {
            layers.below = Arc::new(self.database.renewed()?);
        }
        Ok(())
    }

    /// After a read of a snapshot failed: why. The next reads use the database anew; where it
    /// cannot be opened, they say so.
    fn failed(&self, stale: &Arc<Snapshot>, e: redb::StorageError) -> Error {
        let error = described(&e.into());
        match self.renew(stale) {
            Err(why) => error.context(format!("{}, and the database cannot be opened anew", why.finding())),
            Ok(()) if error.kind() == Kind::NotFound => error.with_kind(Kind::Corrupt),
            Ok(()) => error,
        }
    }
}

impl Figures {
    /// Called with the layers locked for a change.
    fn renew(&self, layers: &Layers) {
        self.recent.store(layers.recent.len(), Ordering::Release);
        self.recent_bytes.store(layers.bytes, Ordering::Release);
    }

    fn recent(&self) -> (usize, usize) {
        (self.recent.load(Ordering::Acquire), self.recent_bytes.load(Ordering::Acquire))
    }
}

impl Layers {
    /// [`Namespace::scan`].
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
