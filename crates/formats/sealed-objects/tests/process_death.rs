//! Deaths of the process and losses of its machine in one history, compared with a model. The
//! objects survive both. A transaction in flight at the end happened or did not.
//!
//! A round opens the disk, with the kept memory if the round before ended with the death of the
//! process, and compares every block: after a death it must read as its last acknowledged version,
//! after a loss of the machine, with its memory, as its last flushed version or any later one. Then
//! it runs random operations until the next end, which comes in the middle of a change of the store
//! or before a change of the kept memory, during opening too.
//!
//! `LACUNA_CUTS` is the number of ends for all ciphers and layouts together (default 400),
//! `LACUNA_SEED` the seed.

mod scripted_stores;

use lacuna_contracts::{BlockAddr, Disk, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_medium::{ObjectStore, ObjectTransaction, Query, QueryAnswer, SnapshotId};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores};
use lacuna_sim::{
    End, EndsModel, InterceptedObjects, MemoryObjects, ObjectInterceptor, Rng, RunDigest, env_number,
};
use scripted_stores::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Two segments and a part of one.
const BLOCKS: u64 = 2 * SEGMENT_BLOCKS + 300;

/// The process of a round, which ends at a certain change of the store or of the memory.
struct DyingProcess {
    memory: KeptMemory,
    is_dead: AtomicBool,
    /// The memory as the end left it.
    left: Mutex<Option<KeptMemory>>,
    /// Changes of the store before the end.
    changes_left: AtomicU64,
    changes: AtomicU64,
    rng: Mutex<Rng>,
}

impl DyingProcess {
    fn new(memory: &KeptMemory, rng: &mut Rng) -> Arc<DyingProcess> {
        let process = Arc::new(DyingProcess {
            memory: memory.clone(),
            is_dead: AtomicBool::new(false),
            left: Mutex::default(),
            changes_left: AtomicU64::new(u64::MAX),
            changes: AtomicU64::new(0),
            rng: Mutex::new(Rng::new(rng.next_u64())),
        });
        let long = rng.chance(1, 6);
        if rng.chance(1, 2) {
            process.changes_left.store(rng.below(if long { 600 } else { 40 }), Ordering::SeqCst);
            return process;
        }
        let (left, dying) = (AtomicU64::new(rng.below(if long { 6000 } else { 800 })), process.clone());
        memory.observe_changes(move || {
            if left.fetch_sub(1, Ordering::SeqCst) == 0 {
                dying.die();
            }
        });
        process
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    fn die(&self) {
        if !self.is_dead.swap(true, Ordering::SeqCst) {
            *self.left.lock().unwrap() = Some(self.memory.as_if_died().unwrap());
        }
    }

    /// Performs a change that may be the last one.
    fn change<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_dead() {
            return Err(gone());
        }
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.changes_left.fetch_sub(1, Ordering::SeqCst) == 0 {
            self.die();
            return self.land(change);
        }
        change()
    }

    /// A change that was in flight when the process died.
    fn land<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.rng.lock().unwrap().chance(1, 2) {
            let _unheard = change();
        }
        Err(gone())
    }
}

fn gone() -> Error {
    Error::new(Kind::Io, "the test's process is dead")
}

/// A store as a process sees it.
struct DyingStore {
    inner: MemoryObjects,
    process: Arc<DyingProcess>,
}

impl DyingStore {
    fn stores(scripted: &ScriptedStores, process: &Arc<DyingProcess>) -> Stores {
        let store = |objects: &Arc<MemoryObjects>| -> Arc<dyn ObjectStore> {
            let process = process.clone();
            Arc::new(InterceptedObjects(DyingStore { inner: objects.reopened(), process }))
        };
        Stores { data: store(&scripted.data), book: store(&scripted.book) }
    }
}

impl ObjectInterceptor for DyingStore {
    fn inner(&self) -> &dyn ObjectStore {
        &self.inner
    }
    fn apply(&self, batch: &[ObjectTransaction<'_>]) -> Vec<Result<u64>> {
        let begun = !self.process.is_dead();
        let apply = |transaction: &ObjectTransaction<'_>| {
            let perform = || self.inner.apply_one(transaction.clone());
            // All transactions of a batch are in flight together.
            if begun && self.process.is_dead() {
                return self.process.land(perform);
            }
            self.process.change(perform)
        };
        batch.iter().map(apply).collect()
    }
    fn query(&self, batch: &mut [Query<'_>]) -> Vec<Result<QueryAnswer>> {
        if self.process.is_dead() {
            return batch.iter().map(|_| Err(gone())).collect();
        }
        self.inner.query(batch)
    }
    fn create_snapshot(&self) -> Result<SnapshotId> {
        self.process.change(|| self.inner.create_snapshot())
    }
    fn remove_snapshot(&self, id: SnapshotId) -> Result<()> {
        self.process.change(|| self.inner.remove_snapshot(id))
    }
    fn roll_back(&self, object: u64, id: SnapshotId) -> Result<()> {
        self.process.change(|| self.inner.roll_back(object, id))
    }
}

/// The contents that the disk may have.
struct DiskHistory {
    model: EndsModel,
    /// Each snapshot with its content.
    snapshots: Vec<(String, Vec<u64>)>,
    next_stamp: u64,
}

impl DiskHistory {
    fn new() -> DiskHistory {
        DiskHistory { model: EndsModel::new("the disk", BLOCKS), snapshots: vec![], next_stamp: 0 }
    }

    fn acknowledge(&mut self, process: &DyingProcess, first: u64, count: u64) {
        if !process.is_dead() {
            self.model.acknowledge(first, count);
        }
    }

    fn record_flush(&mut self, process: &DyingProcess) {
        if !process.is_dead() {
            self.model.acknowledge(0, BLOCKS);
            self.model.note_flush();
        }
    }

    /// Compares a disk that was just opened: it has made durable all that it reads.
    fn check(&mut self, disk: &dyn Disk) -> std::result::Result<(), String> {
        self.model.check(disk)?;
        self.model.note_flush();
        Ok(())
    }

    fn check_snapshots(
        &self,
        params: &ObjectParams,
        stores: &ScriptedStores,
    ) -> std::result::Result<(), String> {
        for (name, content) in &self.snapshots {
            let view = ObjectOptions { snapshot: Some(name.clone()), ..options(1) };
            let failed = |e: Error| format!("the snapshot {name}: {e}");
            let disk = stores.again().open_with(params, view).map_err(failed)?;
            if stamps(&disk, 0, BLOCKS).map_err(failed)? != *content {
                return Err(format!("the snapshot {name} has another content"));
            }
        }
        Ok(())
    }

    /// One random operation.
    fn act(&mut self, disk: &ObjectDisk, process: &DyingProcess, rng: &mut Rng) -> Result<()> {
        match rng.below(100) {
            0..50 => self.write(disk, process, place(rng, 6)),
            50..57 => self.write(disk, process, place(rng, 90)),
            57..60 => self.write(disk, process, place(rng, 400)),
            60..68 => self.discard(disk, process, place(rng, 100)),
            68..72 => {
                let first = rng.below(BLOCKS.div_ceil(SEGMENT_BLOCKS)) * SEGMENT_BLOCKS;
                self.discard(disk, process, (first, SEGMENT_BLOCKS.min(BLOCKS - first)))
            }
            72..80 => {
                disk.flush()?;
                self.record_flush(process);
                Ok(())
            }
            80..82 => self.make_snapshot(disk, process),
            82 => self.roll_back(disk, process),
            _ => {
                let (first, count) = place(rng, 200);
                let found = stamps(disk, first, count)?;
                for (block, found) in (first..).zip(found) {
                    assert_eq!(found, self.model.now().latest(block), "block {block} while running");
                }
                Ok(())
            }
        }
    }

    fn write(&mut self, disk: &ObjectDisk, process: &DyingProcess, (first, count): (u64, u64)) -> Result<()> {
        self.next_stamp += 1;
        self.model.begin(first, count, self.next_stamp);
        write(disk, first, count, self.next_stamp)?;
        self.acknowledge(process, first, count);
        Ok(())
    }

    fn discard(
        &mut self,
        disk: &ObjectDisk,
        process: &DyingProcess,
        (first, count): (u64, u64),
    ) -> Result<()> {
        self.model.begin(first, count, 0);
        disk.discard(BlockAddr(first), count)?;
        self.acknowledge(process, first, count);
        Ok(())
    }

    fn make_snapshot(&mut self, disk: &ObjectDisk, process: &DyingProcess) -> Result<()> {
        if self.snapshots.len() == 3 {
            let (oldest, _) = self.snapshots.remove(0);
            disk.remove_snapshot(&oldest)?;
        }
        self.next_stamp += 1;
        let name = format!("s{}", self.next_stamp);
        disk.create_snapshot(&name)?;
        self.record_flush(process);
        if !process.is_dead() {
            let content = (0..BLOCKS).map(|block| self.model.now().latest(block)).collect();
            self.snapshots.push((name, content));
        }
        Ok(())
    }

    fn roll_back(&mut self, disk: &ObjectDisk, process: &DyingProcess) -> Result<()> {
        let Some((name, content)) = self.snapshots.last().cloned() else { return Ok(()) };
        (0..).zip(content).for_each(|(block, stamp)| self.model.begin(block, 1, stamp));
        disk.rollback(&name)?;
        self.record_flush(process);
        Ok(())
    }
}

/// A range of at most `most` blocks. Half of them overlap.
fn place(rng: &mut Rng, most: u64) -> (u64, u64) {
    let count = 1 + rng.below(most);
    let room = if rng.chance(1, 2) { 400 } else { BLOCKS };
    (rng.below(room.min(BLOCKS - count + 1)), count)
}

/// The result of a simulation.
struct Simulated {
    deaths: u64,
    losses: u64,
    digest: u64,
    /// The violation that ended it, if there was one.
    violation: Option<String>,
}

/// Plays ends of processes. Without `keeps` no memory outlives a process.
fn simulate(kind: CipherAndLayout, seed: u64, ends: u64, keeps: bool) -> Simulated {
    let mut rng = Rng::new(seed);
    let params = plan(kind, BLOCKS);
    let scripted = ScriptedStores::new();
    scripted.create(&params);
    let layout = ObjectDisk::kept_layout(&params, options(0).budget, false);
    let (mut history, mut kept, mut digest) = (DiskHistory::new(), None, RunDigest::new());
    let mut simulated = Simulated { deaths: 0, losses: 0, digest: 0, violation: None };
    while simulated.deaths + simulated.losses < ends {
        let memory: KeptMemory =
            kept.take().filter(|_| keeps).unwrap_or_else(|| KeptMemory::simulated(&layout).unwrap());
        let process = DyingProcess::new(&memory, &mut rng);
        let with = ObjectOptions { kept: Some(memory.clone()), ..options(rng.next_u64()) };
        let stores = DyingStore::stores(&scripted, &process);
        let opened = ObjectDisk::open(stores, &params, &master(), &UUID, with);
        let checks_snapshots = rng.chance(1, 4);
        match &opened {
            Err(e) if !process.is_dead() => simulated.violation = Some(format!("does not open: {e}")),
            Ok(disk) if !process.is_dead() => {
                let mut checked = history.check(disk);
                if checks_snapshots {
                    checked = checked.and_then(|()| history.check_snapshots(&params, &scripted));
                }
                simulated.violation = checked.err();
            }
            _ => {}
        }
        if simulated.violation.is_some() {
            break;
        }
        if let Ok(disk) = &opened {
            for _ in 0..40 + rng.below(120) {
                if process.is_dead() || simulated.violation.is_some() {
                    break;
                }
                if let Err(e) = history.act(disk, &process, &mut rng)
                    && !process.is_dead()
                {
                    simulated.violation = Some(format!("an operation fails: {e}"));
                }
            }
            if !process.is_dead() && rng.chance(1, 8) && disk.close().is_ok() {
                history.record_flush(&process);
            }
        }
        if simulated.violation.is_some() {
            break;
        }
        process.die();
        digest.add_word(process.changes.load(Ordering::SeqCst));
        kept = process.left.lock().unwrap().take();
        let end = if rng.chance(2, 3) { End::ProcessDeath } else { End::PowerCut };
        history.model.note_end(end);
        match end {
            End::ProcessDeath => simulated.deaths += 1,
            End::PowerCut => {
                simulated.losses += 1;
                kept = None;
            }
        }
        drop(opened);
        // The memory has no reference to itself any more.
        memory.observe_changes(|| ());
    }
    simulated.digest = digest.0;
    simulated
}

#[test]
fn neither_deaths_nor_losses_lose_more_than_they_may() {
    let (ends, seed) = (env_number("LACUNA_CUTS", 400), env_number("LACUNA_SEED", 1));
    let kinds = all_ciphers_and_layouts();
    for kind in kinds.iter().copied() {
        let Simulated { deaths, losses, digest, violation } =
            simulate(kind, seed, ends.div_ceil(kinds.len() as u64), true);
        println!("{kind:?}: {deaths} deaths, {losses} losses, seed {seed}, digest {digest:016x}");
        if let Some(violation) = violation {
            panic!("{violation}; LACUNA_SEED={seed} and the same LACUNA_CUTS repeat the run");
        }
    }
}

/// The test works: without the memory a death loses writes.
#[test]
fn a_death_without_the_memory_is_detected() {
    for kind in [(Cipher::Gcm, ObjectLayout::Adaptive), (Cipher::Xts, ObjectLayout::SegmentEnd)] {
        let violation = simulate(kind, 1, 100, false).violation;
        println!("{kind:?}, caught: {}", violation.expect("the simulation must detect lost writes"));
    }
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let run = |seed| simulate((Cipher::Gcm, ObjectLayout::Adaptive), seed, 10, true).digest;
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}
