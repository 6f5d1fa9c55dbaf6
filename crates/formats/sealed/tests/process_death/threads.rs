//! Deaths of a process while several of its threads write. Several requests are in flight then, and
//! some of them arrive later. No seed repeats a run.
//!
//! The blocks of each run of 64 belong to one thread, so that it knows their versions: the threads
//! meet in segments, streams and commits. The process opens the disk alone; deaths during openings
//! are those of the other plays.

use crate::dying_medium::open_kept;
use crate::fixture::random_work::BLOCKS;
use crate::fixture::run_content;
use crate::play::Outcome;
use crate::seed_and_ends;
use crate::standstill::{DeathEvents, EventMedium, Standstill};
use crate::surviving_disk::SurvivingDisk;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_medium::Medium;
use lacuna_sealed::SealedDisk;
use lacuna_sim::{EndsModel, InterceptedMedium, LateMedium, Rng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const THREADS: u64 = 4;
/// The blocks of a run.
const RUN: u64 = 64;
/// A loss must be noticed within this number of ends.
const MOST_ENDS: u64 = 300;
/// In this number of ends several requests must have been in flight at least once.
const ENOUGH_ENDS: u64 = 15;

/// A loss, described.
type Loss = String;

/// One thread, which ends when the process begins to die.
struct DyingThread<'a> {
    number: u64,
    disk: &'a SealedDisk,
    model: &'a Mutex<EndsModel>,
    standstill: &'a Standstill,
    next_stamp: &'a AtomicU64,
    rng: Rng,
}

impl DyingThread<'_> {
    fn run(mut self, operations: u64) -> std::result::Result<(), Loss> {
        let standstill = self.standstill;
        let _work = standstill.work();
        for _ in 0..operations {
            if !standstill.is_alive() {
                break;
            }
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> std::result::Result<(), Loss> {
        let first = RUN * (self.number + THREADS * self.rng.below(BLOCKS / RUN / THREADS));
        let within = self.rng.below(RUN);
        let count = (1 + self.rng.below(6)).min(RUN - within);
        match self.rng.below(100) {
            0..30 => self.write(first + within, count),
            30..65 => self.write(first, RUN),
            65..72 => {
                self.begin(first + within, count, 0);
                self.end(self.disk.discard(BlockAddr(first + within), count), first + within, count)
            }
            72..78 => self.flush(),
            _ => self.check(first),
        }
    }

    fn write(&self, first: u64, count: u64) -> std::result::Result<(), Loss> {
        let stamp = self.next_stamp.fetch_add(1, Ordering::Relaxed) + 1;
        self.begin(first, count, stamp);
        self.end(self.disk.write(BlockAddr(first), &run_content(first, count, stamp)), first, count)
    }

    /// Notes the versions that a request is about to make.
    fn begin(&self, first: u64, count: u64, stamp: u64) {
        self.model.lock().unwrap().begin(first, count, stamp);
    }

    /// Notes that a request was acknowledged, unless the process has begun to die: then it may be
    /// one that the death interrupted.
    fn end(&self, done: Result<()>, first: u64, count: u64) -> std::result::Result<(), Loss> {
        let mut model = self.model.lock().unwrap();
        if !self.standstill.is_alive() {
            return Ok(());
        }
        done.map_err(|e| format!("a request fails: {e}"))?;
        model.acknowledge(first, count);
        Ok(())
    }

    /// Flushes the disk. Of the other threads it is unknown which writes came before.
    fn flush(&self) -> std::result::Result<(), Loss> {
        let done = self.disk.flush();
        let mut model = self.model.lock().unwrap();
        if !self.standstill.is_alive() {
            return Ok(());
        }
        done.map_err(|e| format!("a flush fails: {e}"))?;
        let own = (0..BLOCKS).filter(|block| block / RUN % THREADS == self.number);
        own.for_each(|block| model.note_block_flush(block));
        Ok(())
    }

    /// Reads an own run, which must have its acknowledged versions.
    fn check(&self, first: u64) -> std::result::Result<(), Loss> {
        let mut data = vec![0; RUN as usize * BLOCK_SIZE];
        let done = self.disk.read(BlockAddr(first), &mut data);
        let model = self.model.lock().unwrap();
        if !self.standstill.is_alive() {
            return Ok(());
        }
        done.map_err(|e| format!("a read fails: {e}"))?;
        (first..)
            .zip(data.chunks_exact(BLOCK_SIZE))
            .try_for_each(|(block, data)| model.now().version_of(block, data).map(drop))
    }
}

/// The play of a disk that several threads use.
struct ThreadedPlay {
    fenced: bool,
    disk: SurvivingDisk,
    model: Mutex<EndsModel>,
    next_stamp: AtomicU64,
    /// The most requests in flight at one end.
    most_in_flight: usize,
}

impl ThreadedPlay {
    fn new(cipher: Cipher, seed: u64, fenced: bool) -> Self {
        ThreadedPlay {
            fenced,
            disk: SurvivingDisk::new(cipher, seed),
            model: Mutex::new(EndsModel::new("the disk", BLOCKS)),
            next_stamp: AtomicU64::new(0),
            most_in_flight: 0,
        }
    }

    /// Plays until something is lost, or for this number of ends.
    fn run(&mut self, ends: u64) {
        while self.disk.outcome.ends() < ends && self.disk.outcome.lost.is_none() {
            self.disk.outcome.lost = self.round().err();
        }
    }

    /// One process: it opens the disk, and its threads use it until the end.
    fn round(&mut self) -> std::result::Result<(), Loss> {
        let memory =
            self.disk.kept.take().unwrap_or_else(|| KeptMemory::simulated(&self.disk.layout).unwrap());
        let events =
            if self.disk.rng.chance(2, 3) { DeathEvents::Requests } else { DeathEvents::RequestsAndChanges };
        let standstill = Arc::new(Standstill::new(events));
        let observer = standstill.clone();
        memory.observe_changes(move || observer.pass_change());
        let below: Arc<dyn Medium> = Arc::new(InterceptedMedium(EventMedium {
            below: self.disk.medium.clone(),
            standstill: standstill.clone(),
        }));
        let late = self.disk.late_medium(below, self.fenced);
        let disk = open_kept(late.clone(), &self.disk.params, &memory, self.disk.rng.next_u64())
            .map_err(|e| format!("does not open: {e}"))?;
        self.model.get_mut().unwrap().check(&disk)?;
        let left = self.use_disk(&disk, &memory, &standstill)?;
        self.most_in_flight = self.most_in_flight.max(late.0.in_flight());
        self.end(&late.0, left);
        Ok(())
    }

    /// Lets the threads work until the process dies. Returns the memory that it leaves.
    fn use_disk(
        &mut self,
        disk: &SealedDisk,
        memory: &KeptMemory,
        standstill: &Standstill,
    ) -> std::result::Result<KeptMemory, Loss> {
        let limit = match (standstill.counts_changes(), self.disk.rng.chance(1, 4)) {
            (false, false) => 60,
            (false, true) => 300,
            (true, false) => 3000,
            (true, true) => 20_000,
        };
        standstill.arm(THREADS as usize, self.disk.rng.below(limit));
        let operations = 20 + self.disk.rng.below(40);
        let rngs: Vec<Rng> = (0..THREADS).map(|_| Rng::new(self.disk.rng.next_u64())).collect();
        let (model, next_stamp) = (&self.model, &self.next_stamp);
        std::thread::scope(|scope| {
            let thread = |(number, rng)| {
                let thread = DyingThread { number, disk, model, standstill, next_stamp, rng };
                scope.spawn(move || thread.run(operations))
            };
            let threads: Vec<_> = (0..).zip(rngs).map(thread).collect();
            standstill.wait();
            self.disk.medium.cut_now();
            let left = memory.as_if_died().unwrap();
            standstill.release();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())?;
            Ok(left)
        })
    }

    /// Ends the round with the death of the process or with a power cut.
    fn end(&mut self, late: &LateMedium, left: KeptMemory) {
        let end = self.disk.draw_end();
        self.model.get_mut().unwrap().note_end(end);
        self.disk.end(end, Some(late), || Some(left));
    }
}

fn threads_lose_nothing(cipher: Cipher) {
    let (seed, ends) = seed_and_ends(10);
    let mut play = ThreadedPlay::new(cipher, seed, true);
    play.run(ends);
    let ThreadedPlay { disk, most_in_flight: most, .. } = play;
    let Outcome { deaths, cuts, lost, .. } = disk.outcome;
    let name = cipher.name();
    println!("{name}, {THREADS} threads: {deaths} deaths, {cuts} cuts, seed {seed}, digest none");
    if let Some(lost) = lost {
        panic!("{name}, {THREADS} threads, seed {seed}: {lost}; no seed repeats a run");
    }
    assert!(most > 1 || ends < ENOUGH_ENDS, "{name}: never more than {most} requests in flight");
}

#[test]
fn threads_that_die_lose_nothing_with_xts_random() {
    threads_lose_nothing(Cipher::XtsRandom);
}

#[test]
fn threads_that_die_lose_nothing_with_gcm() {
    threads_lose_nothing(Cipher::Gcm);
}

/// The test works: without the fence late requests of threads lose data.
#[test]
fn late_requests_of_threads_without_a_fence_lose_data() {
    let mut play = ThreadedPlay::new(Cipher::Gcm, 1, false);
    play.run(MOST_ENDS);
    println!("caught: {}", play.disk.outcome.lost.expect("the simulation must detect late requests"));
}
