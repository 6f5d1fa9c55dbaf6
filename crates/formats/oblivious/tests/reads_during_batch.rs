//! Reads continue beside a batch, both of blocks that it takes and of all other blocks, while it is
//! on its way to the medium and while it fails.

mod fixture;

use fixture::{create, fill, flush_hidden, open_with, options, params, stamp_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Error, Kind, Result};
use lacuna_medium::{Medium, MemoryMedium, WriteExtent};
use lacuna_oblivious::{LevelDisk, OpenOptions, Params, Plan};
use lacuna_sim::{InterceptedMedium, MediumInterceptor, Rng, SlowMedium};
use lacuna_testkit::StopAtEnd;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Longer than any step here takes.
const TOO_LONG: Duration = Duration::from_secs(60);

/// A write that is held up: it reports that it waits, and gets its result.
type HeldWrite = (Sender<()>, Receiver<Result<()>>);

/// A medium that, once told so, holds up its next write until it gets the result.
struct WriteGate {
    medium: Arc<dyn Medium>,
    next: Mutex<Option<HeldWrite>>,
}

impl WriteGate {
    /// Holds up the next write. Returns the report that it waits, and the sender of its result.
    fn close(&self) -> (Receiver<()>, Sender<Result<()>>) {
        let ((waits, receiver), (end, ended)) = (channel(), channel());
        *self.next.lock() = Some((waits, ended));
        (receiver, end)
    }
}

/// The gate as a medium.
struct GatedMedium(Arc<WriteGate>);

impl MediumInterceptor for GatedMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.0.medium
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        let held = self.0.next.lock().take();
        if let Some((waits, ended)) = held {
            waits.send(()).unwrap();
            ended.recv_timeout(TOO_LONG).expect("it is told in time")?;
        }
        self.0.medium.write(batch)
    }
}

fn write(level: &LevelDisk, addr: u64, stamp: u64) -> Result<()> {
    let mut block = vec![0; BLOCK_SIZE];
    fill(addr, stamp, &mut block);
    level.write(BlockAddr(addr), &block)
}

fn read(level: &LevelDisk, addr: u64) -> Option<u64> {
    let mut block = vec![0; BLOCK_SIZE];
    level.read(BlockAddr(addr), &mut block).unwrap();
    stamp_of(addr, &block)
}

/// Both levels are read, old blocks and blocks that a batch takes, while the batch's write to the
/// ring is held up.
#[test]
fn levels_are_read_while_a_batch_is_written() {
    for fails in [false, true] {
        let params = params();
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
        let gate = Arc::new(WriteGate { medium, next: Mutex::default() });
        let medium: Arc<dyn Medium> = Arc::new(InterceptedMedium(GatedMedium(Arc::clone(&gate))));
        create(&medium, &params, 2, 1).unwrap();
        let disk = open_with(&medium, &params, 2, options(1, 2)).unwrap();
        let levels = disk.levels();
        levels.iter().for_each(|level| (0..8).for_each(|addr| write(level, addr, 1).unwrap()));
        levels[0].flush().unwrap();
        flush_hidden(&disk, &levels[1]).unwrap();
        levels.iter().for_each(|level| write(level, 3, 2).unwrap());
        std::thread::scope(|scope| {
            let (waits, end) = gate.close();
            let flush = scope.spawn(|| levels[0].flush());
            waits.recv_timeout(TOO_LONG).unwrap();
            for level in &levels {
                assert_eq!(
                    (0..8).map(|addr| read(level, addr)).collect::<Vec<_>>(),
                    [1, 1, 1, 2, 1, 1, 1, 1].map(Some)
                );
                assert!(level.extents(BlockAddr(0), 8).unwrap()[0].written);
                assert!(!level.status().items.is_empty());
            }
            // Hidden operations never wait for public ones.
            write(&levels[1], 5, 3).unwrap();
            end.send(if fails { Err(Error::new(Kind::Io, "not this one")) } else { Ok(()) }).unwrap();
            assert_eq!(flush.join().unwrap().is_err(), fails);
        });
        assert_eq!(
            (read(&levels[0], 3), read(&levels[1], 3), read(&levels[1], 5)),
            (Some(2), Some(2), Some(3))
        );
        if fails {
            assert_eq!(write(&levels[0], 4, 2).unwrap_err().kind(), Kind::FailStop);
            assert_eq!(levels[1].flush().unwrap_err().kind(), Kind::FailStop);
        }
    }
}

/// Blocks of a level with the stamps that they may have: at least the acknowledged one, at most the
/// one last begun.
struct StampBounds {
    acknowledged: Vec<AtomicU64>,
    begun: Vec<AtomicU64>,
}

impl StampBounds {
    fn new(blocks: u64) -> StampBounds {
        let zeros = || (0..blocks).map(|_| AtomicU64::new(0)).collect();
        StampBounds { acknowledged: zeros(), begun: zeros() }
    }

    fn write(&self, level: &LevelDisk, addr: u64, stamp: u64) {
        self.begun[addr as usize].store(stamp, Ordering::SeqCst);
        write(level, addr, stamp).unwrap();
        self.acknowledged[addr as usize].store(stamp, Ordering::SeqCst);
    }

    fn check(&self, level: &LevelDisk, addr: u64) {
        let least = self.acknowledged[addr as usize].load(Ordering::SeqCst);
        let stamp = read(level, addr).expect("one version, whole");
        let most = self.begun[addr as usize].load(Ordering::SeqCst);
        assert!((least..=most).contains(&stamp), "block {addr} is {stamp}, of {least} to {most}");
    }
}

/// Readers see only versions that may exist. Maps have more leaves than memory holds, so pages that
/// a batch writes are evicted and needed again at once.
#[test]
fn readers_see_only_allowed_versions() {
    let plan = Plan { operations: 6, cover_millis: 5, ..Plan::DEFAULT };
    let params = Params::plan(64 << 20, plan).unwrap();
    let memory: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&memory, &params, 2, 1).unwrap();
    let medium = SlowMedium::wrap(memory, 1);
    let options = OpenOptions { budget: Budget::bytes(64 << 10), background: true, ..options(1, 2) };
    let disk = open_with(&medium, &params, 2, options).unwrap();
    let levels = disk.levels();
    let stamps: Vec<StampBounds> = levels.iter().map(|level| StampBounds::new(level.blocks())).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&done);
        for (seed, (level, stamps)) in (1..).zip(levels.iter().zip(&stamps)) {
            for reader in 0..2 {
                let done = &done;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 10 + reader);
                    while !done.load(Ordering::Relaxed) {
                        stamps.check(level, rng.below(level.blocks()));
                    }
                });
            }
        }
        let writers: Vec<_> = (1..)
            .zip(levels.iter().zip(&stamps))
            .map(|(seed, (level, stamps))| {
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    (1..=2000).for_each(|stamp| stamps.write(level, rng.below(level.blocks()), stamp));
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    for (level, stamps) in levels.iter().zip(&stamps) {
        level.flush().unwrap();
        (0..level.blocks()).for_each(|addr| stamps.check(level, addr));
    }
    levels.iter().for_each(|level| level.close().unwrap());
}
