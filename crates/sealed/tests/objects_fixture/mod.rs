//! What the tests of disks on objects begin with: stores in memory, small disks, the adversary's hands, and a client
//! that is cut off in the midst of its work.
#![allow(dead_code)]

use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Error, Kind, Result, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_medium::{Found, MemoryObject, MemoryObjects, ObjectStore, Query, SnapshotId, Step, Transaction};
use lacuna_sealed::{Cipher, ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

pub const MASTER: [u8; 32] = [5; 32];
pub const UUID: [u8; 16] = [6; 16];

/// A disk in memory.
pub struct Scene {
    pub params: ObjectParams,
    pub data: Arc<MemoryObjects>,
    pub book: Arc<MemoryObjects>,
}

pub fn master() -> Secret<32> {
    Secret::copy_from(&MASTER)
}

/// Every cipher with every layout that makes a difference to it.
pub fn all_kinds() -> Vec<(Cipher, ObjectLayout)> {
    let kinds = Cipher::ALL.into_iter().flat_map(|c| ObjectLayout::ALL.map(|l| (c, l)));
    kinds.filter(|(c, l)| c.meta_size() > 0 || *l == ObjectLayout::SegmentEnd).collect()
}

impl Scene {
    /// A new disk.
    pub fn new(cipher: Cipher, layout: ObjectLayout, blocks: u64) -> Scene {
        Scene::of(ObjectParams::plan(cipher, layout, blocks).unwrap())
    }

    /// A new disk with these parameters.
    pub fn of(params: ObjectParams) -> Scene {
        let keys = params.layout.needs_keys();
        let scene = Scene {
            params,
            data: Arc::new(MemoryObjects::new(keys)),
            book: Arc::new(MemoryObjects::new(keys)),
        };
        ObjectDisk::create(&scene.stores(), &params, &master(), &UUID).unwrap();
        scene
    }

    pub fn stores(&self) -> Stores {
        Stores { data: Arc::new(self.data.reopened()), book: Arc::new(self.book.reopened()) }
    }

    /// Everything as it stands, to go its own way.
    pub fn copied(&self) -> Scene {
        Scene { params: self.params, data: Arc::new(self.data.copied()), book: Arc::new(self.book.copied()) }
    }

    pub fn open_with(&self, stores: Stores, change: impl FnOnce(&mut ObjectOptions)) -> Result<ObjectDisk> {
        let mut options = ObjectOptions {
            budget: Budget::bytes(1 << 20),
            read_only: false,
            background: false,
            write_through: false,
            snapshot: None,
            random: Arc::new(SeededRandom::new(7)),
        };
        change(&mut options);
        ObjectDisk::open(stores, &self.params, &master(), &UUID, options)
    }

    pub fn open(&self) -> ObjectDisk {
        self.open_seeded(7)
    }

    pub fn open_seeded(&self, seed: u64) -> ObjectDisk {
        self.open_with(self.stores(), |o| o.random = Arc::new(SeededRandom::new(seed))).unwrap()
    }

    pub fn try_open_at(&self, snapshot: &str) -> Result<ObjectDisk> {
        self.open_with(self.stores(), |o| o.snapshot = Some(snapshot.into()))
    }

    pub fn open_at(&self, snapshot: &str) -> ObjectDisk {
        self.try_open_at(snapshot).unwrap()
    }

    /// Opens, does something, closes.
    pub fn session(&self, f: impl FnOnce(&ObjectDisk)) {
        let disk = self.open();
        f(&disk);
        disk.close().unwrap();
    }

    /// Opens, writes blocks of one stamp, closes.
    pub fn write(&self, first: u64, count: u64, stamp: u64) {
        self.session(|disk| write(disk, first, count, stamp));
    }

    /// Changes bytes of a data object.
    pub fn poke(&self, object: u64, offset: u64, data: &[u8]) {
        self.change(object, vec![Step::Write { offset, data }]);
    }

    /// Does something to a data object behind the disk's back.
    pub fn change(&self, object: u64, steps: Vec<Step<'_>>) {
        self.data.reopened().apply_one(Transaction { object, steps }).unwrap();
    }

    /// Flips a bit of a data object.
    pub fn flip(&self, object: u64, offset: u64) {
        let byte = self.data.object(object).unwrap().bytes()[offset as usize] ^ 0x10;
        self.poke(object, offset, &[byte]);
    }

    /// Flips a bit of the value of a key of a data object.
    pub fn flip_key(&self, object: u64, key: &[u8], at: usize) {
        let mut value = self.data.object(object).unwrap().keys()[key].clone();
        value[at] ^= 0x10;
        self.change(object, vec![Step::SetKeys(vec![(key.to_vec(), value)])]);
    }

    pub fn meta(&self) -> u64 {
        self.params.cipher.meta_size() as u64
    }

    /// Where the ciphertext of a block lies in its object.
    pub fn data_at(&self, block: u64) -> u64 {
        let between = if self.params.layout == ObjectLayout::Interleaved { self.meta() } else { 0 };
        block % 1024 * (4096 + between)
    }

    pub fn ciphertext(&self, block: u64) -> Vec<u8> {
        let at = self.data_at(block) as usize;
        self.data.object(block / 1024).unwrap().bytes()[at..at + BLOCK_SIZE].to_vec()
    }
}

/// The metadata of a block in an object, wherever the layout keeps it.
pub fn meta_of(object: &MemoryObject, params: &ObjectParams, block: u64) -> Vec<u8> {
    let (x, m) = ((block % 1024) as usize, params.cipher.meta_size());
    let bytes = |at: usize| object.bytes()[at..at + m].to_vec();
    match params.layout {
        ObjectLayout::Interleaved => bytes(x * (4096 + m) + 4096),
        ObjectLayout::SegmentEnd => bytes(1024 * 4096 + x * m),
        ObjectLayout::Kv => object.keys()[&(x as u16).to_be_bytes().to_vec()].clone(),
        ObjectLayout::Adaptive => {
            let (key, at) = adaptive_place(object, params, x);
            object.keys()[&key][at..at + m].to_vec()
        }
    }
}

/// The key, and the place in its value, where the layout adaptive has the metadata of block `x` of an object.
pub fn adaptive_place(object: &MemoryObject, params: &ObjectParams, x: usize) -> (Vec<u8>, usize) {
    let (chunk, index, m) = ((x / 128) as u8, x % 128, params.cipher.meta_size());
    if params.binds_entries() {
        let deltas = (0..=255).rev().map(|n| vec![b'p', chunk, b'd', n]);
        for (key, delta) in deltas.filter_map(|key| object.keys().get(&key).map(|delta| (key, delta))) {
            let mut entries = delta[16..].chunks_exact(1 + m);
            if let Some(nth) = entries.position(|entry| usize::from(entry[0]) == index) {
                return (key, 16 + nth * (1 + m) + 1);
            }
        }
        return (vec![b'p', chunk], index * m);
    }
    let apart = vec![b'p', chunk, b'd', index as u8];
    if object.keys().contains_key(&apart) {
        return (apart, 0);
    }
    let amendment = vec![b'p', chunk, b'a'];
    let entries = object.keys().get(&amendment).into_iter().flat_map(|a| a.chunks_exact(1 + m));
    if let Some(nth) = entries.map(|entry| usize::from(entry[0])).position(|i| i == index) {
        return (amendment, nth * (1 + m) + 1);
    }
    (vec![b'p', chunk], index * m)
}

/// The content of a block that `stamp` names; stamp 0 is zeros.
pub fn content(block: u64, stamp: u64) -> Vec<u8> {
    let mut out = vec![0; BLOCK_SIZE];
    if stamp != 0 {
        let mut word = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block;
        for chunk in out.chunks_exact_mut(8) {
            chunk.copy_from_slice(&word.to_le_bytes());
            word = word.wrapping_add(stamp | 1);
        }
    }
    out
}

pub fn write(disk: &ObjectDisk, first: u64, count: u64, stamp: u64) {
    let data: Vec<u8> = (first..first + count).flat_map(|block| content(block, stamp)).collect();
    disk.write(BlockAddr(first), &data).unwrap();
}

pub fn read(disk: &ObjectDisk, block: u64) -> Result<Vec<u8>> {
    let mut out = vec![0xa5; BLOCK_SIZE];
    disk.read(BlockAddr(block), &mut out).map(|()| out)
}

#[track_caller]
pub fn assert_reads(disk: &ObjectDisk, block: u64, stamp: u64) {
    assert!(read(disk, block).unwrap() == content(block, stamp), "block {block}, stamp {stamp}");
}

/// A client that is cut off from both stores after so many changes. The last one before that happens, but nobody
/// tells the client, if `unheard`.
#[derive(Clone)]
pub struct Cut {
    left: Arc<AtomicI64>,
    unheard: bool,
}

impl Cut {
    pub fn after(changes: i64, unheard: bool) -> Cut {
        Cut { left: Arc::new(AtomicI64::new(changes)), unheard }
    }

    pub fn stores(&self, scene: &Scene) -> Stores {
        let cut = |objects: &MemoryObjects| -> Arc<dyn ObjectStore> {
            Arc::new(CutStore { inner: objects.reopened(), cut: self.clone() })
        };
        Stores { data: cut(&scene.data), book: cut(&scene.book) }
    }

    /// Whether the client was cut off.
    pub fn happened(&self) -> bool {
        self.left.load(Ordering::SeqCst) < 0
    }

    fn change<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let gone = || Error::new(Kind::Io, "the connection is gone");
        match self.left.fetch_sub(1, Ordering::SeqCst) {
            0 if self.unheard => f().and_then(|_| Err(gone())),
            left if left > 0 => f(),
            _ => Err(gone()),
        }
    }
}

struct CutStore {
    inner: MemoryObjects,
    cut: Cut,
}

impl ObjectStore for CutStore {
    fn apply(&self, batch: &[Transaction<'_>]) -> Vec<Result<u64>> {
        batch.iter().map(|t| self.cut.change(|| self.inner.apply_one(t.clone()))).collect()
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<Found>> {
        self.inner.query(batch)
    }
    fn object_limit(&self) -> u64 {
        self.inner.object_limit()
    }
    fn has_keys(&self) -> bool {
        self.inner.has_keys()
    }
    fn list(&self) -> Result<Vec<u64>> {
        self.inner.list()
    }
    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.cut.change(|| self.inner.create_snapshot())
    }
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.cut.change(|| self.inner.remove_snapshot(id))
    }
    fn set_snapshots(&self, ids: &[SnapshotId]) -> Result<()> {
        self.inner.set_snapshots(ids)
    }
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.cut.change(|| self.inner.roll_back(object, id))
    }
    fn at_snapshot(&self, id: SnapshotId) -> Result<Arc<dyn ObjectStore>> {
        self.inner.at_snapshot(id)
    }
}
