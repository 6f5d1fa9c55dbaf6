//! Disks with levels and background threads: concurrent clients, and media that fail.

use super::disks::{counter, create, open_with, options};
use crate::{FailingSyncMedium, StopAtEnd, flush_until_refused};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_levels::{LevelDisk, LevelFormat, Levels, OpenOptions, Pace, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::versions::{content, fill, stamp_of};
use lacuna_sim::{
    Fault, FaultMedium, InterceptedMedium, MediumInterceptor, OpKind, RecordedOp, Recorder, Rng,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

const CLIENTS: u64 = 3;

/// A medium that blocks every sync while `held` is set.
struct BlockedSyncs {
    memory: MemoryMedium,
    are_blocked: Arc<AtomicBool>,
}

impl MediumInterceptor for BlockedSyncs {
    fn inner(&self) -> &dyn Medium {
        &self.memory
    }

    fn sync(&self) -> Result<()> {
        while self.are_blocked.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.memory.sync()
    }
}

/// The parameters of a disk that is opened with its background threads.
pub struct ThreadedDisk<'a, F> {
    /// The parameters of the format.
    pub params: &'a F,
    /// The number of its levels.
    pub levels: usize,
}

impl<F: LevelFormat> ThreadedDisk<'_, F> {
    /// Opens the disk on a medium.
    ///
    /// # Panics
    ///
    /// If it does not open.
    pub fn open(&self, medium: &Arc<dyn Medium>, seed: u64) -> (Arc<F::Disk>, Vec<Arc<LevelDisk>>) {
        let options = OpenOptions { background: true, ..options(seed, !seed) };
        let disk = open_with(medium, self.params, self.levels, options).unwrap();
        let levels = level_disks(&disk);
        (disk, levels)
    }

    fn create(&self, medium: &Arc<dyn Medium>) {
        create(medium, self.params, self.levels, 1).unwrap();
    }

    /// Runs several clients on all levels, in three sessions, and checks after each session that
    /// the disk has the data of all clients when it is opened again.
    ///
    /// # Panics
    ///
    /// If it has not.
    pub fn assert_serves_many_clients(&self) {
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(self.params.end()));
        self.create(&medium);
        for seed in 1..4 {
            let (disk, levels) = self.open(&medium, seed);
            let left: Vec<(usize, Vec<(u64, u64)>)> = std::thread::scope(|scope| {
                let clients =
                    (0..self.levels).flat_map(|level| (0..CLIENTS).map(move |client| (level, client)));
                let levels = &levels;
                let running: Vec<_> = clients
                    .map(|(level, client)| (level, scope.spawn(move || work(&levels[level], client, seed))))
                    .collect();
                running.into_iter().map(|(level, client)| (level, client.join().unwrap())).collect()
            });
            // The beats of the clock cover these flushes; a close does not wait for them.
            levels.iter().for_each(|level| level.flush().unwrap());
            levels.iter().for_each(|level| level.close().unwrap());
            drop((levels, disk));
            let (again, levels) = self.open(&medium, seed + 100);
            for (level, blocks) in left {
                for (addr, stamp) in blocks {
                    let mut block = vec![0; BLOCK_SIZE];
                    levels[level].read(BlockAddr(addr), &mut block).unwrap();
                    assert_eq!(stamp_of(addr, &block), Some(stamp), "level {level}, block {addr}");
                }
            }
            // Each client starts with zeros.
            for level in &levels {
                level.discard(BlockAddr(0), level.blocks()).unwrap();
            }
            again.close().unwrap();
        }
    }

    /// The writes to the medium, in order, of a public workload of `count` writes. With
    /// `hidden_is_busy`, another client writes to the first hidden level as fast as it can.
    ///
    /// # Panics
    ///
    /// If level 0 fails.
    pub fn record_writes(&self, count: u64, hidden_is_busy: bool) -> Vec<RecordedOp> {
        let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(self.params.end()))));
        let medium: Arc<dyn Medium> = recorder.clone();
        self.create(&medium);
        let (disk, levels) = self.open(&medium, 1);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            if hidden_is_busy {
                scope.spawn(|| {
                    let (mut rng, hidden) = (Rng::new(9), &levels[1]);
                    while !done.load(Ordering::Relaxed) {
                        let _no_cover = hidden.write(BlockAddr(rng.below(hidden.blocks())), &[3; BLOCK_SIZE]);
                    }
                });
            }
            let _stop = StopAtEnd(&done);
            let mut rng = Rng::new(5);
            for n in 0..count {
                let addr = rng.below(levels[0].blocks());
                levels[0].write(BlockAddr(addr), &[n as u8; BLOCK_SIZE]).unwrap();
                if n % 700 == 0 {
                    levels[0].flush().unwrap();
                }
            }
        });
        // Not `close`: after losing hidden data it would not write the end of the log. The games
        // compare such closes.
        disk.cover_closing(Pace::Immediate).unwrap();
        drop((levels, disk));
        recorder.take().into_iter().filter(|record| record.kind == OpKind::Write).collect()
    }

    /// Makes operations of a kind fail, starting with the `nth`: the disk stops, nothing hangs, and
    /// flushed data reads correctly later.
    ///
    /// # Panics
    ///
    /// If this does not hold.
    pub fn assert_stops_at(&self, op: OpKind, nth: u64) {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(self.params.end()))));
        let medium: Arc<dyn Medium> = faulty.clone();
        self.create(&medium);
        let (disk, levels) = self.open(&medium, 1);
        let mut block = vec![0; BLOCK_SIZE];
        fill(1, 5, &mut block);
        levels[0].write(BlockAddr(1), &block).unwrap();
        levels[0].flush().unwrap();
        faulty.add(Fault::FailFrom { op, nth, error: Kind::Io });
        let failed = (0..10_000).find_map(|n| {
            let level = &levels[n % self.levels];
            level.write(BlockAddr(2 + n as u64 % (level.blocks() - 2)), &block).err()
        });
        let kind = failed.expect("it is noticed").kind();
        assert!(matches!(kind, Kind::Io | Kind::FailStop), "{kind:?}");
        for level in &levels {
            assert_eq!(level.write(BlockAddr(0), &block).unwrap_err().kind(), Kind::FailStop);
            assert!(level.flush().is_err());
        }
        let _failed = disk.close();
        drop((levels, disk));
        faulty.heal();
        let mut back = vec![0; BLOCK_SIZE];
        self.open(&medium, 2).1[0].read(BlockAddr(1), &mut back).unwrap();
        assert!(back == block);
    }

    /// Refuses writes for want of space, starting with the `nth`, for some time: requests fail
    /// meanwhile, the disk goes on, and acknowledged data is there later. The paced clock must
    /// beat.
    ///
    /// # Panics
    ///
    /// If this does not hold.
    pub fn assert_continues_after_refusals(&self, nth: u64) {
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(self.params.end()))));
        let medium: Arc<dyn Medium> = faulty.clone();
        self.create(&medium);
        let (disk, levels) = self.open(&medium, 1);
        let (public, hidden) = (&levels[0], &levels[1]);
        let blocks = public.blocks().min(50);
        hidden.write(BlockAddr(1), &content(1, 7)).unwrap();
        faulty.add(Fault::FailFrom { op: OpKind::Write, nth, error: Kind::NoSpace });
        let mut stamps = vec![0; blocks as usize];
        let mut write = |n: u64| {
            stamps[(n % blocks) as usize] = n + 1;
            public.write(BlockAddr(n % blocks), &content(n % blocks, n + 1))?;
            if n % 50 == 49 { public.flush() } else { Ok(()) }
        };
        let refused = (0..10_000).find_map(|n| Some((n, write(n).err()?)));
        let (last, error) = refused.expect("it is noticed");
        assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| hidden.flush());
            let again: Vec<_> = (0..3).map(|_| write(last).and_then(|()| public.flush())).collect();
            faulty.heal();
            for refused in again {
                assert_eq!(refused.unwrap_err().kind(), Kind::NoSpace);
            }
            write(last).unwrap();
            public.flush().unwrap();
            // The flush waits until there is room, or fails because there is none.
            let outcome = waiting.join().unwrap();
            assert!(outcome.as_ref().err().is_none_or(|e| e.kind() == Kind::NoSpace), "{outcome:?}");
        });
        hidden.flush().unwrap();
        levels.iter().for_each(|level| level.close().unwrap());
        drop((levels, disk));
        let (_again, levels) = self.open(&medium, 2);
        let reads = |level: &LevelDisk, block: u64, stamp: u64| {
            let mut back = vec![0; BLOCK_SIZE];
            level.read(BlockAddr(block), &mut back).unwrap();
            assert_eq!(stamp_of(block, &back), Some(stamp), "level {}, block {block}", level.level());
        };
        reads(&levels[1], 1, 7);
        (0..blocks).zip(stamps).for_each(|(block, stamp)| reads(&levels[0], block, stamp));
    }

    /// Checks that a flush of a hidden level with all blocks in unsynced stripes or batches ends
    /// when the level is given up, and that a flush of durable blocks does not wait for later
    /// writes. The disk must have no paced clock.
    ///
    /// # Panics
    ///
    /// If this does not hold.
    pub fn assert_flush_ends_when_level_is_given_up(&self) {
        let (memory, held) = (MemoryMedium::new(self.params.end()), Arc::new(AtomicBool::new(false)));
        let medium: Arc<dyn Medium> =
            Arc::new(InterceptedMedium(BlockedSyncs { memory, are_blocked: Arc::clone(&held) }));
        self.create(&medium);
        let cover_timeout = Duration::from_secs(24 * 60 * 60);
        let options = OpenOptions { background: true, cover_timeout, ..options(1, !1) };
        let disk = open_with(&medium, self.params, self.levels, options).unwrap();
        let levels = level_disks(&disk);
        let (public, hidden) = (&levels[0], &levels[1]);
        let hold = |hold| held.store(hold, Ordering::Release);
        hidden.write(BlockAddr(1), &content(1, 7)).unwrap();
        hold(true);
        let mut writes = (0..1000).take_while(|_| counter(hidden, "waiting_for_cover") > 0);
        writes.try_for_each(|n| public.write(BlockAddr(n % public.blocks()), &content(n, n))).unwrap();
        let (sender, receiver) = channel();
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| sender.send(hidden.flush()));
            // By now the flush waits, or finds the level given up.
            std::thread::sleep(Duration::from_millis(200));
            disk.set_no_wait(1, true);
            let ended = receiver.recv_timeout(Duration::from_secs(60));
            hold(false);
            public.flush().unwrap();
            ended
        });
        let refused = ended.expect("it ends while no sync does").unwrap_err();
        assert_eq!(refused.kind(), Kind::NoCover, "{refused}");
        hold(true);
        // These stripes or batches contain no block of the level.
        (0..8).try_for_each(|n| public.write(BlockAddr(n), &content(n, 9))).unwrap();
        let flushed = hidden.flush();
        hold(false);
        flushed.expect("its blocks are durable");
        disk.set_no_wait(1, false);
        levels.iter().for_each(|level| level.close().unwrap());
    }

    /// The number of syncs of the medium after its `nth` sync failed. Linux reports dropped pages
    /// to one caller only: a second sync would return success.
    pub fn count_syncs_after_failed_sync(&self, nth: u64) -> u64 {
        let failing = Arc::new(FailingSyncMedium::new(Arc::new(MemoryMedium::new(self.params.end()))));
        let medium: Arc<dyn Medium> = failing.clone();
        self.create(&medium);
        let (disk, levels) = self.open(&medium, nth);
        failing.fail_sync(nth);
        flush_until_refused(&*levels[0], 4);
        let _failed = disk.close();
        drop((levels, disk));
        failing.syncs_after()
    }
}

/// Writes, reads and discards in a part of a level that only this client uses. Returns the stamps
/// of its blocks.
fn work(level: &LevelDisk, client: u64, seed: u64) -> Vec<(u64, u64)> {
    let part = level.blocks() / CLIENTS;
    let mut rng = Rng::new(seed * 31 + client);
    let mut left = vec![0; part as usize];
    let mut block = vec![0; BLOCK_SIZE];
    for stamp in 1..400 {
        let at = rng.below(part);
        let addr = BlockAddr(client * part + at);
        match rng.below(8) {
            0 => {
                level.discard(addr, 1).unwrap();
                left[at as usize] = 0;
            }
            1..4 => {
                level.read(addr, &mut block).unwrap();
                assert_eq!(stamp_of(addr.0, &block), Some(left[at as usize]), "block {}", addr.0);
            }
            _ => {
                fill(addr.0, stamp, &mut block);
                level.write(addr, &block).unwrap();
                left[at as usize] = stamp;
            }
        }
        if stamp % 50 == 0 {
            level.flush().unwrap();
        }
    }
    (client * part..).zip(left).collect()
}
