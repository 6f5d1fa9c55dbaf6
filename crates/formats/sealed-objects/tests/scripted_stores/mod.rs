//! Common parts of the tests of disks on objects: small disks, and a store that delays, fails, or
//! loses its client.
#![allow(dead_code)]

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result};
use lacuna_crypto::Cipher;
use lacuna_medium::{ObjectKey, ObjectStep, ObjectStore, ObjectTransaction, Query, QueryAnswer};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores};
use lacuna_sim::{InterceptedObjects, MemoryObjects, ObjectInterceptor, Rng};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[path = "../fixture/mod.rs"]
mod fixture;

#[allow(unused_imports)]
pub(crate) use fixture::{MASTER, UUID, all_ciphers_and_layouts, content, master, options, run_content};

/// A kind of disk: its cipher and its layout.
pub(crate) type CipherAndLayout = (Cipher, ObjectLayout);

/// The parameters of a disk of this kind.
pub(crate) fn plan((cipher, layout): CipherAndLayout, blocks: u64) -> ObjectParams {
    ObjectParams::plan(cipher, layout, blocks).unwrap()
}

/// The stamp of a block. Fails if the block is a mixture of versions, or another block's.
pub(crate) fn stamp_of(block: u64, data: &[u8]) -> u64 {
    let stamp = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(
        data == content(block, stamp),
        "block {block} mixes several versions, beginning like stamp {stamp}"
    );
    stamp
}

/// The two stores of a disk, in memory, with a common script.
pub(crate) struct ScriptedStores {
    pub data: Arc<MemoryObjects>,
    pub book: Arc<MemoryObjects>,
    pub script: Arc<StoreScript>,
}

impl ScriptedStores {
    pub(crate) fn new() -> ScriptedStores {
        ScriptedStores::over(Arc::new(MemoryObjects::new(true)), Arc::new(MemoryObjects::new(true)))
    }

    /// A new client of the same objects, with an empty script.
    pub(crate) fn again(&self) -> ScriptedStores {
        ScriptedStores::over(Arc::new(self.data.reopened()), Arc::new(self.book.reopened()))
    }

    fn over(data: Arc<MemoryObjects>, book: Arc<MemoryObjects>) -> ScriptedStores {
        ScriptedStores { data, book, script: Arc::new(StoreScript::default()) }
    }

    pub(crate) fn stores(&self) -> Stores {
        let staged = |inner: &Arc<MemoryObjects>| -> Arc<dyn ObjectStore> {
            Arc::new(InterceptedObjects(ScriptedStore { inner: inner.clone(), script: self.script.clone() }))
        };
        Stores { data: staged(&self.data), book: staged(&self.book) }
    }

    pub(crate) fn create(&self, params: &ObjectParams) {
        ObjectDisk::create(&self.stores(), params, &master(), &UUID).unwrap();
    }

    pub(crate) fn open_with(&self, params: &ObjectParams, options: ObjectOptions) -> Result<ObjectDisk> {
        ObjectDisk::open(self.stores(), params, &master(), &UUID, options)
    }

    pub(crate) fn open(&self, params: &ObjectParams, seed: u64) -> ObjectDisk {
        self.open_with(params, options(seed)).unwrap()
    }
}

/// The store's scripted behaviour beyond its normal work.
#[derive(Default)]
pub(crate) struct StoreScript {
    /// Transactions seen.
    pub transactions: AtomicU64,
    /// At this transaction (0: never) the client dies. Each transaction in flight happens or not;
    /// later ones fail.
    pub dies_at: AtomicU64,
    /// This transaction (0: none) fails; it may have happened or not.
    pub fails_at: AtomicU64,
    /// Every query fails.
    pub queries_fail: AtomicBool,
    /// The largest delay of transactions and queries, in microseconds.
    pub max_delay_micros: AtomicU64,
    /// The digest of everything written so far.
    pub digest: AtomicU64,
    /// The source of random decisions.
    pub rng: Mutex<Option<Rng>>,
    /// The largest number of bytes that one transaction wrote.
    pub largest: AtomicU64,
}

impl StoreScript {
    fn roll(&self, below: u64) -> u64 {
        self.rng.lock().unwrap().get_or_insert_with(|| Rng::new(1)).below(below)
    }

    pub(crate) fn seed(&self, seed: u64) {
        *self.rng.lock().unwrap() = Some(Rng::new(seed));
    }

    pub(crate) fn is_dead(&self) -> bool {
        let dies_at = self.dies_at.load(Ordering::SeqCst);
        dies_at != 0 && self.transactions.load(Ordering::SeqCst) >= dies_at
    }

    fn pause(&self) {
        let slow = self.max_delay_micros.load(Ordering::Relaxed);
        if slow > 0 {
            std::thread::sleep(Duration::from_micros(self.roll(slow + 1)));
        }
    }

    fn note(&self, transaction: &ObjectTransaction<'_>) {
        let mut digest = self.digest.load(Ordering::SeqCst);
        let mut eat = |bytes: &[u8]| {
            for piece in bytes.chunks(8) {
                let mut word = [0; 8];
                word[..piece.len()].copy_from_slice(piece);
                digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x100_0000_01b3).rotate_left(23);
            }
        };
        eat(&transaction.object.to_le_bytes());
        for step in &transaction.steps {
            match step {
                ObjectStep::Write { offset, data } => {
                    eat(&offset.to_le_bytes());
                    eat(data);
                }
                other => eat(format!("{other:?}").as_bytes()),
            }
        }
        self.digest.store(digest, Ordering::SeqCst);
    }
}

fn gone() -> Error {
    Error::new(Kind::Io, "the test's store: the connection is gone")
}

/// A store in memory as one client sees it.
struct ScriptedStore {
    inner: Arc<MemoryObjects>,
    script: Arc<StoreScript>,
}

impl ScriptedStore {
    fn perform(&self, transaction: &ObjectTransaction<'_>) -> Result<u64> {
        let script = &*self.script;
        script.pause();
        let number = script.transactions.fetch_add(1, Ordering::SeqCst) + 1;
        let bytes: usize = transaction
            .steps
            .iter()
            .map(|step| match step {
                ObjectStep::Write { data, .. } => data.len(),
                _ => 0,
            })
            .sum();
        script.largest.fetch_max(bytes as u64, Ordering::Relaxed);
        let dies_at = script.dies_at.load(Ordering::SeqCst);
        let dead = dies_at != 0 && number > dies_at;
        let dying = dies_at != 0 && number == dies_at || script.fails_at.load(Ordering::SeqCst) == number;
        if dead || (dying && script.roll(2) == 0) {
            return Err(gone());
        }
        if script.max_delay_micros.load(Ordering::Relaxed) == 0 {
            script.note(transaction);
        }
        let done = self.inner.apply_one(transaction.clone());
        script.pause();
        // The client may have died while this transaction was in flight: it happened, but its
        // result is an error.
        let unheard = dying || script.dies_at.load(Ordering::SeqCst) != 0 && script.is_dead();
        if unheard { Err(gone()) } else { done }
    }
}

impl ObjectInterceptor for ScriptedStore {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        batch.iter().map(|transaction| self.perform(transaction)).collect()
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        self.script.pause();
        if self.script.queries_fail.load(Ordering::SeqCst) {
            return batch.iter().map(|_| Err(gone())).collect();
        }
        let answers = self.inner.query(batch);
        self.script.pause();
        answers
    }
}

pub(crate) fn write(disk: &ObjectDisk, first: u64, count: u64, stamp: u64) -> Result<()> {
    disk.write(BlockAddr(first), &run_content(first, count, stamp))
}

/// The stamps of consecutive blocks.
pub(crate) fn stamps(disk: &ObjectDisk, first: u64, count: u64) -> Result<Vec<u64>> {
    let mut out = vec![0xa5; count as usize * BLOCK_SIZE];
    disk.read(BlockAddr(first), &mut out)?;
    Ok((first..).zip(out.chunks_exact(BLOCK_SIZE)).map(|(block, data)| stamp_of(block, data)).collect())
}

pub(crate) fn status(disk: &ObjectDisk, name: &str) -> u64 {
    disk.status().items.iter().find(|item| item.name == name).unwrap().value
}

/// A key of an object, for tests that alter it.
pub(crate) fn key(bytes: &[u8]) -> ObjectKey {
    bytes.to_vec()
}
