//! With its threads: many clients at once on all levels, the paced cover beating, and a medium that fails.

mod fixture;

use fixture::{UUID, create, fill, masters, options, stamp_of};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_deniable::{Deniable, Geometry, LevelDisk, OpenOptions, Params};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_sim::{FailedSync, Fault, FaultMedium, OpKind, Recorder, Rng, flush_until_refused};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const CLIENTS: u64 = 3;
const LEVELS: usize = 3;

fn params() -> Params {
    Params::plan((2 << 20) + 200 * 13 * BLOCK_SIZE as u64, Geometry { public: 4, hidden: 8 }, 200, 3).unwrap()
}

fn open(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> Arc<Deniable> {
    let options = OpenOptions { background: true, ..options(seed, !seed) };
    Arc::new(Deniable::open(medium.clone(), params, &masters(LEVELS), &UUID, options).unwrap())
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

#[test]
fn many_clients_on_all_levels() {
    let params = params();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, &params, LEVELS, 1).unwrap();
    for seed in 1..4 {
        let disk = open(&medium, &params, seed);
        let levels = disk.levels();
        let left: Vec<(usize, Vec<(u64, u64)>)> = std::thread::scope(|scope| {
            let clients = (0..LEVELS).flat_map(|level| (0..CLIENTS).map(move |client| (level, client)));
            let levels = &levels;
            let running: Vec<_> = clients
                .map(|(level, client)| (level, scope.spawn(move || work(&levels[level], client, seed))))
                .collect();
            running.into_iter().map(|(level, client)| (level, client.join().unwrap())).collect()
        });
        levels.iter().for_each(|level| level.close().unwrap());
        drop((levels, disk));
        let again = open(&medium, &params, seed + 100);
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

/// Where the writes of a public workload went, in order, while another client writes to the hidden level as fast as it
/// can, or does not.
fn places(params: &Params, busy: bool) -> Vec<(u64, u64)> {
    let recorder = Arc::new(Recorder::new(Arc::new(MemoryMedium::new(params.medium_len()))));
    let medium: Arc<dyn Medium> = recorder.clone();
    create(&medium, params, LEVELS, 1).unwrap();
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
        for n in 0..6000 {
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
    let writes = recorder.take().into_iter().filter(|record| record.kind == OpKind::Write);
    writes.map(|record| (record.offset, record.len)).collect()
}

/// The trace of the game, with threads: when a checkpoint is written must not depend on who was faster.
#[test]
fn the_order_of_writes_is_no_matter_of_speed() {
    let params = Params { cover_millis: 0, ..params() };
    let idle = places(&params, false);
    let checkpoints = idle.iter().filter(|(_, len)| *len == BLOCK_SIZE as u64).count();
    assert!(checkpoints > 100, "{checkpoints} checkpoints");
    for _ in 0..3 {
        assert!(places(&params, true) == idle);
    }
}

#[test]
fn a_medium_that_fails_stops_everything_and_hangs_nothing() {
    for kind in [OpKind::Write, OpKind::Sync] {
        let params = params();
        let faulty = Arc::new(FaultMedium::new(Arc::new(MemoryMedium::new(params.medium_len()))));
        let medium: Arc<dyn Medium> = faulty.clone();
        create(&medium, &params, LEVELS, 1).unwrap();
        let disk = open(&medium, &params, 1);
        let levels = disk.levels();
        let block = vec![5; BLOCK_SIZE];
        levels[0].write(BlockAddr(1), &block).unwrap();
        levels[0].flush().unwrap();
        faulty.add(Fault::FailFrom { op: kind, nth: 3, error: Kind::Io });
        let failed = (0..10_000).find_map(|n| {
            let level = &levels[n % LEVELS];
            level.write(BlockAddr(n as u64 % level.blocks()), &block).err()
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
        let params = params();
        let failing = Arc::new(FailedSync::new(Arc::new(MemoryMedium::new(params.medium_len()))));
        let medium: Arc<dyn Medium> = failing.clone();
        create(&medium, &params, LEVELS, 1).unwrap();
        let disk = open(&medium, &params, nth);
        let levels = disk.levels();
        failing.fail_sync(nth);
        flush_until_refused(&*levels[0], 4);
        let _failed = disk.close();
        drop((levels, disk));
        assert_eq!(failing.syncs_after(), 0, "sync {nth} failed");
    }
}
