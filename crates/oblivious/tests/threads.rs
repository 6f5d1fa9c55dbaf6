//! With its threads: many clients at once on both levels, the paced cover beating, closing without cover, and a medium that
//! fails.

mod fixture;

use fixture::regions::Regions;
use fixture::{Worked, create, fill, models, open as open_alone, open_with, options, stamp_of};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Hiding, LevelDisk, Levels, Oblivious, OpenOptions, Params, Plan};
use lacuna_sim::{FailedSync, Fault, FaultMedium, OpKind, Recorder, Rng, flush_until_refused};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CLIENTS: u64 = 3;

fn params(hiding: Hiding, cover_millis: u32) -> Params {
    let plan = Plan { hiding, operations: 6, cover_millis, ..Plan::DEFAULT };
    Params::plan(12 << 20, plan).unwrap()
}

fn open(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> Arc<Oblivious> {
    let options = OpenOptions { background: true, ..options(seed, !seed) };
    open_with(medium, params, 2, options).unwrap()
}

/// Writes, reads and discards in a part of a level that is this client's alone. Returns what it left.
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

fn many_clients(params: &Params) {
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, params, 2, 1).unwrap();
    for seed in 1..4 {
        let disk = open(&medium, params, seed);
        let levels = disk.levels();
        let left: Vec<(usize, Vec<(u64, u64)>)> = std::thread::scope(|scope| {
            let clients = (0..2).flat_map(|level| (0..CLIENTS).map(move |client| (level, client)));
            let levels = &levels;
            let running: Vec<_> = clients
                .map(|(level, client)| (level, scope.spawn(move || work(&levels[level], client, seed))))
                .collect();
            running.into_iter().map(|(level, client)| (level, client.join().unwrap())).collect()
        });
        levels.iter().for_each(|level| level.close().unwrap());
        drop((levels, disk));
        let again = open(&medium, params, seed + 100);
        let levels = again.levels();
        for (level, blocks) in left {
            for (addr, stamp) in blocks {
                let mut block = vec![0; BLOCK_SIZE];
                levels[level].read(BlockAddr(addr), &mut block).unwrap();
                assert_eq!(stamp_of(addr, &block), Some(stamp), "level {level}, block {addr}");
            }
        }
        // Each client begins with zeros again.
        for level in &levels {
            level.discard(BlockAddr(0), level.blocks()).unwrap();
        }
        again.close().unwrap();
    }
}

#[test]
fn many_clients_on_both_levels() {
    many_clients(&params(Hiding::Opportunistic, 3));
}

/// Here every operation makes batches; flushes of hidden levels wait for those and for the clock.
#[test]
fn many_clients_on_a_plausible_disk() {
    many_clients(&params(Hiding::Plausible, 3));
}

/// What waits when a disk is closed without cover may be lost, and that is said; what was public is whole.
#[test]
fn closing_without_cover_says_so_and_keeps_level_0_whole() {
    let params = params(Hiding::Opportunistic, 0);
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, &params, 2, 1).unwrap();
    let mut models = models(&open_alone(&medium, &params, 2, 1).unwrap());
    let (mut rng, mut next_stamp) = (Rng::new(4), 0);
    for session in 1..20 {
        let disk = open(&medium, &params, session);
        let levels = disk.levels();
        for round in 0..60 {
            let at = round % 2;
            let (disk, model) = (&*levels[at], &mut models[at]);
            Worked { disk, model, rng: &mut rng, next_stamp: &mut next_stamp }.write(2).unwrap();
        }
        let model = &mut models[1];
        Worked { disk: &*levels[1], model, rng: &mut rng, next_stamp: &mut next_stamp }.write(60).unwrap();
        assert_eq!(levels[1].close().unwrap_err().kind(), Kind::NoCover);
        assert_eq!(levels[0].close().unwrap_err().kind(), Kind::NoCover);
        assert!(levels[0].write(BlockAddr(0), &[0; BLOCK_SIZE]).is_err(), "it is closed");
        drop((levels, disk));
        models[0].flushed();
        let again = open_alone(&medium, &params, 2, session).unwrap();
        for (level, model) in again.levels().iter().zip(&mut models) {
            model.compare(&**level).unwrap();
        }
    }
}

/// However far the ring is ahead of the cells, what is on the medium at any moment opens and goes on.
#[test]
fn a_disk_opens_from_whatever_a_moment_left() {
    let params = params(Hiding::Opportunistic, 0);
    let memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let disk = open(&medium, &params, 1);
    let (level, done) = (disk.levels().remove(0), AtomicBool::new(false));
    let moments = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(3);
            while !done.load(Ordering::Relaxed) {
                let mut block = vec![0; BLOCK_SIZE];
                let addr = rng.below(level.blocks());
                fill(addr, 1 + addr % 7, &mut block);
                level.write(BlockAddr(addr), &block).unwrap();
            }
        });
        let moments: Vec<Vec<u8>> = (0..40).map(|_| memory.snapshot()).collect();
        done.store(true, Ordering::Relaxed);
        moments
    });
    for moment in moments {
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(moment));
        for session in 0..2 {
            let disk = open(&medium, &params, session);
            let level = &disk.levels()[0];
            for addr in 0..level.blocks() {
                let mut block = vec![0; BLOCK_SIZE];
                level.read(BlockAddr(addr), &mut block).unwrap();
                let stamp = stamp_of(addr, &block);
                assert!(stamp == Some(0) || stamp == Some(1 + addr % 7), "block {addr} reads {stamp:?}");
                if addr % 8 == 0 {
                    level.write(BlockAddr(addr), &block).unwrap();
                }
            }
        }
    }
}

/// Where the writes of a public workload to journal and ring went, in order, while another client writes to the hidden level
/// as fast as it can, or does not.
fn places(params: &Params, busy: bool) -> Vec<(u64, u64)> {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.medium_len()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    create(&medium, params, 2, 1).unwrap();
    let disk = open(&medium, params, 1);
    let (levels, done) = (disk.levels(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        if busy {
            scope.spawn(|| {
                let (mut rng, hidden) = (Rng::new(9), &levels[1]);
                while !done.load(Ordering::Relaxed) {
                    let _no_cover = hidden.write(BlockAddr(rng.below(hidden.blocks())), &[3; BLOCK_SIZE]);
                }
            });
        }
        let mut rng = Rng::new(5);
        for n in 0..3000 {
            let addr = rng.below(levels[0].blocks());
            levels[0].write(BlockAddr(addr), &[n as u8; BLOCK_SIZE]).unwrap();
            if n % 700 == 0 {
                levels[0].flush().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let _no_cover = disk.close();
    drop((levels, disk));
    let cells = Regions::of(params).cells_start as u64;
    let writes = recorder.take().into_iter().filter(|record| record.kind == OpKind::Write);
    writes.filter(|record| record.offset < cells).map(|record| (record.offset, record.len)).collect()
}

/// The trace of the game, with threads: when a batch is written must not depend on who was faster.
#[test]
fn the_order_of_batches_is_no_matter_of_speed() {
    let params = params(Hiding::Opportunistic, 0);
    let idle = places(&params, false);
    assert!(idle.len() > 3 * 500, "{} writes", idle.len());
    for _ in 0..3 {
        assert!(places(&params, true) == idle);
    }
}

#[test]
fn a_medium_that_fails_stops_everything_and_hangs_nothing() {
    for (op, nth) in
        [OpKind::Write, OpKind::Sync, OpKind::Read].into_iter().flat_map(|op| [(op, 3), (op, 20)])
    {
        let params = params(Hiding::Opportunistic, 3);
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(params.medium_len()))));
        let medium: Arc<dyn Medium> = faulty.clone();
        create(&medium, &params, 2, 1).unwrap();
        let disk = open(&medium, &params, 1);
        let levels = disk.levels();
        let mut block = vec![0; BLOCK_SIZE];
        fill(1, 5, &mut block);
        levels[0].write(BlockAddr(1), &block).unwrap();
        levels[0].flush().unwrap();
        faulty.add(Fault::FailFrom { op, nth, error: Kind::Io });
        let failed = (0..10_000).find_map(|n| {
            let level = &levels[n % 2];
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
        open(&medium, &params, 2).levels()[0].read(BlockAddr(1), &mut back).unwrap();
        assert!(back == block);
    }
}

/// Linux tells one caller alone that pages were dropped: a second sync would report that all is well.
#[test]
fn nobody_syncs_again_after_a_sync_that_failed() {
    for nth in 1..8 {
        let params = params(Hiding::Opportunistic, 3);
        let failing = Arc::new(FailedSync::new(Arc::new(MemoryMedium::new(params.medium_len()))));
        let medium: Arc<dyn Medium> = failing.clone();
        create(&medium, &params, 2, 1).unwrap();
        let disk = open(&medium, &params, nth);
        let levels = disk.levels();
        failing.fail_sync(nth);
        flush_until_refused(&*levels[0], 4);
        let _failed = disk.close();
        drop((levels, disk));
        assert_eq!(failing.syncs_after(), 0, "sync {nth} failed");
    }
}
