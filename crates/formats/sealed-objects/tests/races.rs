//! Disks on objects under many threads: every read returns, for each block, one whole version, no
//! older than the last one acknowledged before the read began; also while metadata is evicted,
//! learned and folded concurrently, and when the client is killed.

mod scripted_stores;

use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_medium::{ObjectStore, ObjectTransaction};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores};
use lacuna_sim::{InterceptedObjects, MemoryObjects, ObjectInterceptor, Rng};
use scripted_stores::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const THREADS: u64 = 6;
/// Blocks that belong to one thread, next to those of other threads; chunks are shared.
const REGION: u64 = 96;
const BLOCKS: u64 = 2 * SEGMENT_BLOCKS + 200;

/// The versions of one block in the order of the owner's writes.
struct BlockHistory {
    stamps: Vec<u64>,
    /// The number of acknowledged versions.
    acknowledged: usize,
    /// The index of the last version known to be durable.
    durable: usize,
}

struct SharedDisk {
    disk: ObjectDisk,
    histories: Vec<Mutex<BlockHistory>>,
    stamp: AtomicU64,
    dead: AtomicBool,
}

impl SharedDisk {
    fn new(disk: ObjectDisk) -> SharedDisk {
        let history = |_| Mutex::new(BlockHistory { stamps: vec![0], acknowledged: 1, durable: 0 });
        SharedDisk {
            disk,
            histories: (0..BLOCKS).map(history).collect(),
            stamp: AtomicU64::new(1),
            dead: AtomicBool::new(false),
        }
    }

    fn each(&self, first: u64, count: u64, mut f: impl FnMut(u64, &mut BlockHistory)) {
        (first..first + count)
            .for_each(|block| f(block, &mut self.histories[block as usize].lock().unwrap()));
    }

    /// Writes or discards blocks that belong to the calling thread.
    fn change(&self, rng: &mut Rng, first: u64, count: u64) {
        let discards = rng.chance(1, 12);
        let stamp = if discards { 0 } else { self.stamp.fetch_add(1, Ordering::SeqCst) };
        self.each(first, count, |_, history| history.stamps.push(stamp));
        let done = if discards {
            self.disk.discard(BlockAddr(first), count)
        } else {
            write(&self.disk, first, count, stamp)
        };
        match done {
            Ok(()) => self.each(first, count, |_, history| history.acknowledged = history.stamps.len()),
            Err(e) => self.record_death(e.kind()),
        }
    }

    fn record_death(&self, kind: Kind) {
        assert!([Kind::Io, Kind::FailStop].contains(&kind), "{kind:?}");
        self.dead.store(true, Ordering::SeqCst);
    }

    fn check_read(&self, first: u64, count: u64) {
        let mut since = vec![];
        self.each(first, count, |_, history| since.push(history.acknowledged - 1));
        let found = match stamps(&self.disk, first, count) {
            Ok(found) => found,
            // Data that never reaches the store is not readable.
            Err(e) => return self.record_death(e.kind()),
        };
        let mut nth = 0;
        self.each(first, count, |block, history| {
            let allowed = &history.stamps[since[nth]..];
            assert!(allowed.contains(&found[nth]), "block {block} is {}, may be {allowed:?}", found[nth]);
            nth += 1;
        });
    }

    fn flush(&self) {
        let mut before = vec![];
        self.each(0, BLOCKS, |_, history| before.push(history.acknowledged - 1));
        match self.disk.flush() {
            Ok(()) => self.each(0, BLOCKS, |block, history| {
                history.durable = history.durable.max(before[block as usize]);
            }),
            Err(e) => self.record_death(e.kind()),
        }
    }

    fn run_thread(&self, thread: u64, seed: u64, acts: u64) {
        let mut rng = Rng::new(seed * 100 + thread);
        for _ in 0..acts {
            if self.dead.load(Ordering::SeqCst) {
                break;
            }
            let regions = BLOCKS / REGION;
            let region = rng.below(regions / THREADS) * THREADS + thread;
            let from = rng.below(REGION);
            let count = match rng.below(8) {
                0 => REGION - from,
                1 => (REGION - from).min(1 + rng.below(20)),
                _ => 1,
            };
            match rng.below(20) {
                0..10 => self.change(&mut rng, region * REGION + from, count),
                10 => self.change(&mut rng, region * REGION, REGION),
                11 if rng.chance(1, 3) => self.flush(),
                _ => {
                    let first = rng.below(BLOCKS);
                    self.check_read(first, (1 + rng.below(150)).min(BLOCKS - first));
                }
            }
        }
    }

    /// Checks the blocks that a later client reads.
    fn check_durable(&self, disk: &ObjectDisk) {
        for first in (0..BLOCKS).step_by(64) {
            let found = stamps(disk, first, 64.min(BLOCKS - first)).unwrap();
            for (block, found) in (first..).zip(found) {
                let history = self.histories[block as usize].lock().unwrap();
                let allowed = &history.stamps[history.durable..];
                assert!(allowed.contains(&found), "block {block} is {found}, may be {allowed:?}");
            }
        }
    }
}

fn options_for(seed: u64, background: bool) -> ObjectOptions {
    // Space for two metadata pages in each shard of their cache, and for 64 dirty blocks.
    let budget = Budget::bytes(64 * 2 * 1200 * 4);
    ObjectOptions { budget, background, random: Arc::new(SeededRandom::new(seed)), ..options(seed) }
}

fn run_threads(kind: CipherAndLayout, seed: u64, acts: u64, killed: bool, options: ObjectOptions) {
    println!("{kind:?}, seed {seed}, killed {killed}, background {}", options.background);
    let params = plan(kind, BLOCKS);
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    scripted.script.seed(seed);
    scripted.script.max_delay_micros.store(150, Ordering::SeqCst);
    let shared_disk = SharedDisk::new(scripted.open_with(&params, options).unwrap());
    if killed {
        let now = scripted.script.transactions.load(Ordering::SeqCst);
        scripted.script.dies_at.store(now + 1 + seed * 7 % 120, Ordering::SeqCst);
    }
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let shared_disk = &shared_disk;
            threads.spawn(move || shared_disk.run_thread(thread, seed, acts));
        }
    });
    match shared_disk.disk.close() {
        Ok(()) => shared_disk.each(0, BLOCKS, |_, history| history.durable = history.acknowledged - 1),
        Err(e) => assert!(killed, "{e}"),
    }
    let again = scripted.again();
    shared_disk.check_durable(&again.open(&params, 1));
}

#[test]
fn threads_on_shared_chunks_read_written_versions() {
    for kind in all_ciphers_and_layouts() {
        run_threads(kind, 1, 200, false, options_for(1, true));
        run_threads(kind, 2, 100, false, options_for(2, false));
        run_threads(kind, 3, 60, false, ObjectOptions { write_through: true, ..options_for(3, true) });
    }
}

#[test]
fn a_killed_client_leaves_every_block_whole() {
    for kind in all_ciphers_and_layouts() {
        for seed in 0..6 {
            run_threads(kind, seed, 150, true, options_for(seed, seed % 3 != 0));
        }
    }
}

#[test]
fn the_cache_stays_within_its_budget_on_a_slow_store() {
    let params = ObjectParams::plan(Cipher::XtsRandom, ObjectLayout::Adaptive, 64 * SEGMENT_BLOCKS).unwrap();
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    scripted.script.max_delay_micros.store(400, Ordering::SeqCst);
    let disk = scripted.open_with(&params, ObjectOptions { background: true, ..options(1) }).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let disk = &disk;
                threads.spawn(move || {
                    let mut rng = Rng::new(thread);
                    for stamp in 1..600 {
                        let first = rng.below(64 * SEGMENT_BLOCKS - 40);
                        write(disk, first, 1 + rng.below(40), stamp).unwrap();
                    }
                })
            })
            .collect();
        threads.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::SeqCst) {
                most = most.max(status(&disk, "dirty"));
                std::thread::yield_now();
            }
            // The cache holds at least a quarter of the budget, and never more than half of it.
            assert!((1 << 18..=1 << 19).contains(&most), "{most}");
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::SeqCst);
    });
    disk.close().unwrap();
    assert_eq!(status(&disk, "dirty"), 0);
    assert!(scripted.script.largest.load(Ordering::SeqCst) <= 64 * BLOCK_SIZE as u64);
}

/// A store that holds transactions back while its gate is shut.
struct GatedStore {
    inner: Arc<MemoryObjects>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    shut: AtomicBool,
    /// Transactions that were held back.
    held: AtomicU64,
}

impl ObjectInterceptor for GatedStore {
    fn inner(&self) -> &dyn ObjectStore {
        &*self.inner
    }

    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        let is_shut = || self.gate.shut.load(Ordering::SeqCst);
        self.gate.held.fetch_add(u64::from(is_shut()), Ordering::SeqCst);
        while is_shut() {
            std::thread::yield_now();
        }
        self.inner.apply(batch)
    }
}

#[test]
fn a_large_write_that_waits_for_its_place_in_transit_leaves_its_object_to_others() {
    let params = ObjectParams::plan(Cipher::Xts, ObjectLayout::SegmentEnd, 2 * SEGMENT_BLOCKS).unwrap();
    let (scripted, gate) = (ScriptedStores::new(), Arc::new(Gate::default()));
    scripted.create(&params);
    let data = InterceptedObjects(GatedStore { inner: scripted.data.clone(), gate: gate.clone() });
    let stores = Stores { data: Arc::new(data), book: scripted.book.clone() };
    // The ciphertext of one write of 1 MiB may be in transit at a time.
    let options = ObjectOptions { budget: Budget::bytes(8 << 20), ..options(1) };
    let disk = ObjectDisk::open(stores, &params, &master(), &UUID, options).unwrap();
    gate.shut.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let put = |first| write(&disk, first, 256, 1).unwrap();
        scope.spawn(move || put(0));
        while gate.held.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // If one of these held its object while it waits, the other one would go through the cache.
        scope.spawn(move || put(SEGMENT_BLOCKS));
        scope.spawn(move || put(SEGMENT_BLOCKS + 256));
        std::thread::sleep(Duration::from_millis(50));
        gate.shut.store(false, Ordering::SeqCst);
    });
    assert_eq!((status(&disk, "written_past_the_cache"), status(&disk, "dirty")), (3, 0));
}

#[test]
fn pending_blocks_are_written_in_the_background() {
    let params = ObjectParams::plan(Cipher::XtsRandom, ObjectLayout::Adaptive, 3 * SEGMENT_BLOCKS).unwrap();
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    let disk = scripted.open_with(&params, ObjectOptions { background: true, ..options(1) }).unwrap();
    for segment in 0..3 {
        write(&disk, segment * SEGMENT_BLOCKS, 3, 1).unwrap();
    }
    while status(&disk, "dirty") > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stamps(&scripted.again().open(&params, 1), 0, 4).unwrap(), [1, 1, 1, 0]);
}

#[test]
fn a_snapshot_reads_as_the_disk_at_its_time() {
    for kind in all_ciphers_and_layouts() {
        let params = plan(kind, BLOCKS);
        let scripted = ScriptedStores::new();
        scripted.create(&params);
        let disk = scripted.open(&params, 1);
        let mut rng = Rng::new(7);
        let mut expected: Vec<u64> = vec![0; BLOCKS as usize];
        let mut kept = vec![];
        for stamp in 1..400 {
            let first = rng.below(BLOCKS - 100);
            let count = 1 + rng.below(100);
            write(&disk, first, count, stamp).unwrap();
            expected[first as usize..(first + count) as usize].fill(stamp);
            if stamp % 90 == 0 {
                disk.create_snapshot(&format!("after-{stamp}")).unwrap();
                kept.push((format!("after-{stamp}"), expected.clone()));
                disk.discard(BlockAddr(0), SEGMENT_BLOCKS).unwrap();
                expected[..SEGMENT_BLOCKS as usize].fill(0);
            }
        }
        disk.close().unwrap();
        for (name, expected) in kept {
            let view = ObjectOptions { snapshot: Some(name), background: true, ..options(1) };
            let view = scripted.again().open_with(&params, view).unwrap();
            assert!(view.is_read_only());
            assert_eq!(write(&view, 0, 1, 1).unwrap_err().kind(), Kind::ReadOnly);
            assert_eq!(stamps(&view, 0, BLOCKS).unwrap(), expected);
            assert_eq!(stamps(&view, 0, BLOCKS).unwrap(), expected);
            view.close().unwrap();
        }
    }
}
