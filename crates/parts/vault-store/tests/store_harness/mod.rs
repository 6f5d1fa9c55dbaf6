//! A store on a simulated folder beside a plain model of its expected content.
#![allow(dead_code)]

mod concurrent_ops;
#[path = "../cut_anchor/mod.rs"]
mod cut_anchor;
pub(crate) mod machine;

use concurrent_ops::{ConcurrentOp, ConcurrentOps, InterleavedFolder};
use cut_anchor::CutAnchor;
use lacuna_contracts::{Error, Kind, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_vault_store::{
    FILES, JournalSize, MemoryAnchor, ObjectId, PAGE, Recovered, Store, StoreBacking, StoreKeys, StoreOptions,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const UUID: [u8; 16] = [0x1a; 16];

/// A journal that needs checkpoints soon.
pub(crate) const SMALL: JournalSize =
    JournalSize { checkpoint_at: 48 * PAGE as u64, max: 1024 * PAGE as u64 };

/// The most pages of an object of the model.
pub(crate) const PAGES: u64 = 80;

/// The contents of one state: the stamp of each page of each object.
pub(crate) type ModelContents = BTreeMap<u64, BTreeMap<u64, u64>>;

/// The bytes of a page with a stamp. Stamp 0 is zeros.
pub(crate) fn page(stamp: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE];
    if stamp > 0 {
        let word = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
        bytes[..8].copy_from_slice(&stamp.to_le_bytes());
    }
    bytes
}

/// The keys of every store here.
pub(crate) fn keys() -> StoreKeys {
    StoreKeys::derive(&Secret::copy_from(&[0x77; 32]), &UUID)
}

/// The environment of a store here.
pub(crate) fn base(folder: &CrashFolder, memory: &Arc<MemoryAnchor>, seed: u64) -> StoreBacking {
    shared_base(&InterleavedFolder { folder: folder.clone(), others: Arc::default() }, memory, seed)
}

fn shared_base(shared: &InterleavedFolder, memory: &Arc<MemoryAnchor>, seed: u64) -> StoreBacking {
    let (time, folder) = (AtomicU64::new(1_700_000_000), &shared.folder);
    StoreBacking {
        folder: Arc::new(shared.clone()),
        anchor: Arc::new(CutAnchor { memory: memory.clone(), folder: folder.clone() }),
        random: Arc::new(SeededRandom::new(seed)),
        clock: Arc::new(move || time.fetch_add(1, Ordering::Relaxed)),
        uuid: UUID,
    }
}

/// The options of stores here.
pub(crate) fn options() -> StoreOptions {
    StoreOptions { journal: SMALL, ..StoreOptions::default() }
}

/// One folder, the anchor of one machine, and their expected contents.
pub(crate) struct StoreHarness {
    pub(crate) folder: CrashFolder,
    pub(crate) memory: Arc<MemoryAnchor>,
    pub(crate) rng: Rng,
    /// The current contents; those of the last commit that returned, with its stamp; and those of
    /// commits that may be in progress, with theirs.
    pub(crate) now: ModelContents,
    pub(crate) committed: (u64, ModelContents),
    pub(crate) pending: Vec<(u64, ModelContents)>,
    pub(crate) stamp: u64,
    /// The last object that was written with many pages.
    written: Option<u64>,
    pub(crate) others: Arc<ConcurrentOps>,
    pub(crate) seed: u64,
    pub(crate) sessions: u64,
}

impl StoreHarness {
    /// A new store, made without a power cut.
    pub(crate) fn new(seed: u64) -> (StoreHarness, Arc<Store>) {
        let (folder, memory) = (CrashFolder::new(), Arc::new(MemoryAnchor::default()));
        let others = Arc::<ConcurrentOps>::default();
        let shared = InterleavedFolder { folder: folder.clone(), others: others.clone() };
        let store = Arc::new(Store::create(shared_base(&shared, &memory, seed), keys(), &options()).unwrap());
        others.use_store(&store);
        let world = StoreHarness {
            folder,
            memory,
            rng: Rng::new(seed),
            now: ModelContents::new(),
            committed: (0, ModelContents::new()),
            pending: Vec::new(),
            stamp: 0,
            written: None,
            others,
            seed,
            sessions: 0,
        };
        (world, store)
    }

    pub(crate) fn base(&mut self) -> StoreBacking {
        self.sessions += 1;
        let shared = InterleavedFolder { folder: self.folder.clone(), others: self.others.clone() };
        shared_base(&shared, &self.memory, self.seed * 1000 + self.sessions)
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Restores the power: the folder holds a possible content after a cut.
    pub(crate) fn power_up(&mut self, cut_after: Option<u64>) -> FolderImage {
        self.folder.cut_now();
        let image = self.folder.after_cut(&mut self.rng);
        self.folder = CrashFolder::from_image(&image);
        cut_after.into_iter().for_each(|n| self.folder.cut_after(n));
        image
    }

    /// Opens the store, and checks that it holds exactly the last commit, or a commit that was in
    /// progress.
    pub(crate) fn open(&mut self, options: &StoreOptions) -> Result<Arc<Store>> {
        let base = self.base();
        let (store, recovered) = Store::open(base, keys(), options)?;
        self.identify_state(&store, &recovered)?;
        self.check_no_stray_files(&store)?;
        let store = Arc::new(store);
        self.others.use_store(&store);
        Ok(store)
    }

    /// Checks that every file in the folder is referred to.
    fn check_no_stray_files(&self, store: &Store) -> Result<()> {
        let own = FILES.map(str::to_owned);
        let objects = self.now.keys().map(|object| store.object_name(ObjectId(*object)));
        let known: BTreeSet<String> = own.into_iter().chain(objects).collect();
        let snapshot = self.folder.snapshot();
        match snapshot.names().find(|name| !known.contains(*name)) {
            Some(name) => Err(Error::new(Kind::Other, format!("the file {name} belongs to nothing"))),
            None => Ok(()),
        }
    }

    /// After an opening: finds out which of the states it is, and checks that it is whole.
    pub(crate) fn identify_state(&mut self, store: &Store, recovered: &Recovered) -> Result<()> {
        let number = |bytes: &Vec<u8>| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let found = recovered.puts.last().or(recovered.root.as_ref()).map_or(0, number);
        if let Some(at) = self.pending.iter().position(|(stamp, _)| *stamp == found) {
            self.committed = self.pending.swap_remove(at);
        }
        self.pending.clear();
        if found != self.committed.0 {
            let words = format!("state {found} was found, and {} was committed", self.committed.0);
            return Err(Error::new(Kind::Other, words));
        }
        self.now = self.committed.1.clone();
        self.compare(store)
    }

    /// Compares every page.
    pub(crate) fn compare(&self, store: &Store) -> Result<()> {
        let mut all = vec![0; PAGES as usize * PAGE];
        for (object, pages) in &self.now {
            store.read(ObjectId(*object), 0, &mut all)?;
            for (number, bytes) in (0..).zip(all.chunks_exact(PAGE)) {
                let stamp = pages.get(&number).copied().unwrap_or(0);
                if bytes != page(stamp) {
                    let found = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    let words = format!("object {object}, page {number}: stamp {found} instead of {stamp}");
                    return Err(Error::new(Kind::Other, words));
                }
            }
        }
        Ok(())
    }

    fn pick(&mut self) -> Option<u64> {
        let objects: Vec<u64> = self.now.keys().copied().collect();
        // Often the newest.
        if self.rng.chance(1, 3) {
            objects.last().copied()
        } else {
            (!objects.is_empty()).then(|| *self.rng.pick(&objects))
        }
    }

    /// One random operation of a user of the store.
    pub(crate) fn step(&mut self, store: &Store) -> Result<()> {
        if store.needs_commit() || store.needs_checkpoint() {
            return self.commit(store, store.needs_checkpoint() || self.rng.clone().chance(1, 2));
        }
        // Many objects make a slow test and no better one.
        let most = if self.now.len() > 24 { 80 } else { 0 };
        match most.max(self.rng.below(100)) {
            0..14 => {
                let object = store.new_object()?;
                let taken = self.now.insert(object.0, BTreeMap::new());
                assert!(taken.is_none(), "object {} was given twice", object.0);
                if self.rng.chance(4, 5) {
                    return self.write(store, object.0);
                }
            }
            14..70 => {
                if let Some(object) = self.pick() {
                    return self.write(store, object);
                }
            }
            70..80 => {
                if let Some(object) = self.pick() {
                    // Often just before the end, where pages may be uncommitted.
                    let end = self.now[&object].last_key_value().map_or(0, |(page, _)| page + 1);
                    let near = end.saturating_sub(self.rng.below(6));
                    let pages = if self.rng.chance(1, 2) { near } else { self.rng.below(PAGES + 4) };
                    store.truncate(ObjectId(object), pages)?;
                    self.now.get_mut(&object).unwrap().retain(|page, _| *page < pages);
                }
            }
            80..84 => {
                if let Some(object) = self.pick() {
                    store.remove(ObjectId(object))?;
                    self.now.remove(&object);
                }
            }
            84..88 => self.compare_one(store)?,
            88..98 => return self.commit(store, false),
            _ => return self.commit(store, true),
        }
        Ok(())
    }

    fn compare_one(&mut self, store: &Store) -> Result<()> {
        let Some(object) = self.pick() else { return Ok(()) };
        let (first, count) = (self.rng.below(PAGES), 1 + self.rng.below(8));
        let mut bytes = vec![1; count as usize * PAGE];
        store.read(ObjectId(object), first, &mut bytes)?;
        for (number, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            let stamp = self.now[&object].get(&number).copied().unwrap_or(0);
            assert!(bytes == page(stamp), "seed {}, object {object}, page {number}: not {stamp}", self.seed);
        }
        Ok(())
    }

    /// Runs this number of steps; none of them may fail.
    pub(crate) fn run_steps(&mut self, store: &Store, steps: u64) -> Result<()> {
        (0..steps).try_for_each(|_| self.step(store))
    }

    /// Runs this number of steps; some may fail for lack of space. Returns how many did.
    pub(crate) fn count_refused_steps(&mut self, store: &Store, steps: u64) -> u64 {
        (0..steps).map(|_| u64::from(self.step(store).is_err_and(|e| e.kind() == Kind::NoSpace))).sum()
    }

    /// Writes some pages of an object: single ones, runs, and repeated appends.
    pub(crate) fn write(&mut self, store: &Store, object: u64) -> Result<()> {
        let end = self.now[&object].last_key_value().map_or(0, |(page, _)| page + 1);
        let count = *self.rng.pick(&[1, 1, 1, 2, 5, 20]);
        let first = if self.rng.chance(1, 2) { end } else { self.rng.below(PAGES) };
        let first = first.min(PAGES - count);
        let stamps: Vec<u64> = (0..count).map(|_| self.next_stamp()).collect();
        let bytes: Vec<u8> = stamps.iter().flat_map(|stamp| page(*stamp)).collect();
        store.write(ObjectId(object), first, &bytes)?;
        self.written = if count == 20 { Some(object) } else { self.written };
        self.now.get_mut(&object).unwrap().extend((first..).zip(stamps));
        Ok(())
    }

    /// Commits, while other threads write, remove and commit.
    pub(crate) fn commit(&mut self, store: &Store, root: bool) -> Result<()> {
        let stamp = self.next_stamp();
        self.pending.push((stamp, self.now.clone()));
        let said = [&stamp.to_le_bytes()[..], &self.rng.bytes(300)].concat();
        self.plan(root);
        let done = if root { store.commit(&[], Some(&said)) } else { store.commit(&said, None) };
        self.apply_concurrent();
        done?;
        if stamp > self.committed.0 {
            let at = self.pending.iter().position(|(pending, _)| *pending == stamp);
            self.committed = self.pending.swap_remove(at.expect("it was pushed"));
        }
        self.pending.clear();
        Ok(())
    }

    /// Plans the actions of other threads during a commit. A commit of theirs can only succeed
    /// during a checkpoint.
    fn plan(&mut self, root: bool) {
        let mut others = Vec::new();
        for _ in 0..self.rng.below(4) {
            // Often one that is being appended to.
            let last =
                self.written.filter(|object| self.now.contains_key(object) && self.rng.clone().chance(1, 2));
            let Some(object) = last.or_else(|| self.pick()) else { break };
            let (first, stamp) = (self.rng.below(PAGES), self.next_stamp());
            let end = self.now[&object].last_key_value().map_or(0, |(page, _)| page + 1);
            let first = if self.rng.chance(1, 2) { end.min(PAGES - 1) } else { first };
            let deed = match self.rng.below(8) {
                0 => ConcurrentOp::Remove(object),
                _ => ConcurrentOp::Write { object, first, bytes: page(stamp) },
            };
            others.push((self.rng.below(3), deed));
        }
        others.into_iter().for_each(|(after, deed)| self.others.plan(after, deed));
        if root && self.rng.chance(1, 2) {
            let stamp = self.next_stamp();
            self.others.plan(self.rng.below(3), ConcurrentOp::Commit(stamp.to_le_bytes().to_vec()));
        }
    }

    /// Applies the actions of other threads to the model.
    fn apply_concurrent(&mut self) {
        for (deed, done) in self.others.settle() {
            match deed {
                ConcurrentOp::Write { object, first, bytes } if done => {
                    let stamp = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                    self.now.get_mut(&object).map(|pages| pages.insert(first, stamp));
                }
                ConcurrentOp::Remove(object) if done => drop(self.now.remove(&object)),
                ConcurrentOp::Commit(said) => {
                    let state = (u64::from_le_bytes(said.try_into().unwrap()), self.now.clone());
                    if done { self.committed = state } else { self.pending.push(state) }
                }
                _ => {}
            }
        }
    }
}
