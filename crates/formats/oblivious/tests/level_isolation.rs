//! Every level keeps its blocks, whatever the other levels do: no flushed block is lost by a clean
//! close or by a power cut, and no level falls so far behind that it cannot be opened.

mod fixture;

use fixture::{create, fill, open, stamp_of};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, LevelDisk, Levels, ObliviousDisk, Params, Plan};
use lacuna_sim::Rng;
use std::sync::Arc;

fn plan(hiding: HidingMode) -> Plan {
    Plan { hiding, ..Plan::DEFAULT }
}

fn block(addr: u64, stamp: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_SIZE];
    fill(addr, stamp, &mut data);
    data
}

/// Writes a block; while it must wait, level 0 writes blocks of its own.
fn write(levels: &[Arc<LevelDisk>], level: usize, addr: u64, stamp: u64) {
    loop {
        match levels[level].write(BlockAddr(addr), &block(addr, stamp)) {
            Err(e) if e.kind() == Kind::NoCover => cover(levels, stamp),
            done => return done.unwrap(),
        }
    }
}

/// A public operation.
fn cover(levels: &[Arc<LevelDisk>], n: u64) {
    let addr = n % levels[0].blocks();
    levels[0].write(BlockAddr(addr), &block(addr, 1)).unwrap();
}

/// Flushes a level while level 0 is flushed.
fn flush(levels: &[Arc<LevelDisk>], level: usize) {
    for n in 0..100_000 {
        (0..40).for_each(|more| cover(levels, n * 40 + more));
        levels[0].flush().unwrap();
        match levels[level].flush() {
            Err(e) if e.kind() == Kind::NoCover => {}
            done => return done.unwrap(),
        }
    }
    panic!("level {level} is never flushed");
}

/// The number of blocks that do not read as they should.
fn lost(level: &LevelDisk, stamps: &[u64]) -> usize {
    let wrong = |(addr, stamp): (u64, &u64)| {
        let mut data = vec![0; BLOCK_SIZE];
        *stamp != 0
            && (level.read(BlockAddr(addr), &mut data).is_err() || stamp_of(addr, &data) != Some(*stamp))
    };
    (0..).zip(stamps).filter(|pair| wrong(*pair)).count()
}

struct TestDisk {
    params: Params,
    memory: Arc<MemoryMedium>,
    medium: Arc<dyn Medium>,
}

impl TestDisk {
    fn new(room: u64, levels: usize) -> TestDisk {
        let params = Params::plan(room, plan(HidingMode::Opportunistic)).unwrap();
        let memory = Arc::new(MemoryMedium::new(params.end()));
        let medium: Arc<dyn Medium> = memory.clone();
        create(&medium, &params, levels, 1).unwrap();
        TestDisk { params, memory, medium }
    }

    fn open(&self, levels: usize, seed: u64) -> Arc<ObliviousDisk> {
        open(&self.medium, &self.params, levels, seed).unwrap()
    }
}

/// Level 2 is filled; then level 1 alone is written, and the disk closed: level 2 has everything,
/// also if the power is cut instead.
#[test]
fn writes_to_one_level_leave_the_others_intact() {
    let disks = TestDisk::new(256 << 20, 3);
    let disk = disks.open(3, 2);
    let levels = disk.levels();
    let count = levels[2].blocks().min(3000);
    (0..count).for_each(|addr| write(&levels, 2, addr, addr + 1));
    flush(&levels, 2);
    let stamps: Vec<u64> = (1..=count).collect();
    disk.close().unwrap();
    drop((levels, disk));
    let disk = disks.open(3, 3);
    let levels = disk.levels();
    let most = levels[1].blocks().min(2000);
    for n in 0..6000 {
        write(&levels, 1, n % most, n + 1);
        if n % 4 == 0 {
            cover(&levels, n);
        }
    }
    flush(&levels, 1);
    flush(&levels, 2);
    let killed: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(disks.memory.snapshot()));
    disk.close().unwrap();
    drop((levels, disk));
    let after = open(&killed, &disks.params, 3, 5).unwrap();
    assert_eq!(lost(&after.levels()[2], &stamps), 0, "after a power cut");
    let again = disks.open(3, 4);
    assert_eq!(lost(&again.levels()[2], &stamps), 0, "after a close");
}

/// Level 2 is written; then level 1 streams, with a queue that is never empty, until the journal
/// has wrapped around more than once, and the power is cut: the map of level 2 kept up, and the
/// level opens.
#[test]
fn a_streaming_level_does_not_starve_other_maps() {
    let disks = TestDisk::new(96 << 20, 3);
    let disk = disks.open(3, 2);
    let levels = disk.levels();
    let (most, small) = (levels[1].blocks().min(3000), levels[2].blocks().min(500));
    (0..small).for_each(|addr| write(&levels, 2, addr, addr + 1));
    flush(&levels, 2);
    let stamps: Vec<u64> = (1..=small).collect();
    let last_batch = || fixture::counter(&levels[0], "last_batch");
    let end = last_batch() + 3 * u64::from(disks.params.journal) / 2;
    let mut n = 0;
    while last_batch() < end {
        n += 1;
        // As fast as the disk takes it.
        for more in 0..8 {
            let addr = (8 * n + more) % most;
            match levels[1].write(BlockAddr(addr), &block(addr, n)) {
                Err(e) if e.kind() == Kind::NoCover => {}
                done => done.unwrap(),
            }
        }
        cover(&levels, n);
    }
    levels[0].flush().unwrap();
    let killed: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(disks.memory.snapshot()));
    let after = open(&killed, &disks.params, 3, 5).unwrap();
    assert_eq!(lost(&after.levels()[2], &stamps), 0);
}

/// The most levels that a disk can have, each as full as possible and rewritten again and again, in
/// sessions that end with a close or a power cut.
#[test]
fn full_busy_levels_lose_nothing() {
    let levels = usize::from(Params::HIDDEN_LEVELS) + 1;
    let mut disks = TestDisk::new(24 << 20, levels);
    let mut rng = Rng::new(1);
    let mut stamps: Vec<Vec<u64>> = Vec::new();
    for session in 0..4 {
        let disk = disks.open(levels, session);
        let open = disk.levels();
        if session == 0 {
            stamps = open.iter().map(|level| vec![0; level.blocks() as usize]).collect();
            assert!(stamps.iter().all(|stamps| !stamps.is_empty()), "every level has blocks");
        }
        for n in 0..4000u64 {
            let stamp = session * 4000 + n + 1;
            for level in (0..levels).rev() {
                let blocks = open[level].blocks();
                let addr = if session == 0 { n % blocks } else { rng.below(blocks) };
                let written = open[level].write(BlockAddr(addr), &block(addr, stamp));
                match written {
                    Ok(()) => stamps[level][addr as usize] = stamp,
                    Err(e) => assert_eq!(e.kind(), Kind::NoCover),
                }
            }
        }
        open[1..].iter().for_each(|level| fixture::flush_hidden(&disk, level).unwrap());
        if session % 2 == 0 {
            disk.close().unwrap();
        } else {
            let memory = Arc::new(MemoryMedium::from_bytes(disks.memory.snapshot()));
            disks.medium = memory.clone();
            disks.memory = memory;
        }
        drop((open, disk));
        let again = disks.open(levels, session + 50);
        for (level, stamps) in again.levels().iter().zip(&stamps) {
            assert_eq!(lost(level, stamps), 0, "level {}, session {session}", level.level());
        }
        again.close().unwrap();
    }
}
