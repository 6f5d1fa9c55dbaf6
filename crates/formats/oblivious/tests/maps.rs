//! Maps of several leaves, and of more than memory holds: the places of their pages are never lost,
//! neither while the disk is open nor when it is opened after a flush, however short the sessions
//! are.

mod fixture;

use fixture::{
    DiskModel, DiskWorkload, counter, create, fill, flush_hidden, models, open, open_with, options, stamp_of,
};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, ObliviousDisk, Params, Plan};
use lacuna_sim::Rng;
use std::sync::Arc;

/// Blocks of a leaf.
const LEAF: u64 = 512;
/// Leaves: two times the number that a cache may hold.
const LEAVES: u64 = 40;

fn open_small(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> Arc<ObliviousDisk> {
    let options = lacuna_oblivious::OpenOptions { budget: Budget::bytes(320 << 10), ..options(seed, !seed) };
    open_with(medium, params, 2, options).unwrap()
}

#[test]
fn maps_larger_than_memory_match_their_models() {
    let params = Params::plan(560 << 20, Plan::DEFAULT).unwrap();
    assert!(params.blocks > LEAVES * LEAF);
    let mut memory = Arc::new(MemoryMedium::new(params.end()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    let mut models = models(&open_small(&medium, &params, 9));
    for session in 0..3 {
        let medium: Arc<dyn Medium> = memory.clone();
        let disk = open_small(&medium, &params, session);
        let levels = disk.levels();
        for (level, model) in levels.iter().zip(&mut models) {
            model.check_after_cut(&**level).unwrap();
        }
        for round in 0..12_000u64 {
            if round % 12 == 0 {
                disk.refresh().unwrap();
            }
            let at = usize::from(round % 3 == 2);
            let (rng, next_stamp) = (&mut rng, &mut next_stamp);
            let mut worked = DiskWorkload { disk: &*levels[at], model: &mut models[at], rng, next_stamp };
            match round % 100 {
                7 => worked.discard(700).unwrap(),
                8..30 => worked.check_read(3).unwrap(),
                _ => worked.write(1).unwrap(),
            }
        }
        levels[0].flush().unwrap();
        flush_hidden(&disk, &levels[1]).unwrap();
        models.iter_mut().for_each(DiskModel::record_flush);
        assert!(
            counter(&levels[0], "map_pages_waiting") > 16,
            "or nothing has left memory before it was written"
        );
        // The power is cut.
        memory = Arc::new(MemoryMedium::from_bytes(memory.snapshot()));
    }
}

/// Writes a block of a level; the paced clock beats while there is no room.
fn put(disk: &Arc<ObliviousDisk>, level: usize, at: u64, stamp: u64) {
    let mut data = [0; BLOCK_SIZE];
    fill(at, stamp, &mut data);
    loop {
        match disk.levels()[level].write(BlockAddr(at), &data) {
            Err(e) if e.kind() == Kind::NoCover => disk.refresh().unwrap(),
            done => return done.unwrap(),
        }
    }
}

/// Asserts that a block reads as it was written last.
fn expect(disk: &Arc<ObliviousDisk>, level: usize, at: u64, stamp: u64) {
    let mut data = [0; BLOCK_SIZE];
    let read = disk.levels()[level].read(BlockAddr(at), &mut data);
    assert!(read.is_ok(), "level {level}, block {at}: {read:?}");
    assert_eq!(stamp_of(at, &data), Some(stamp), "level {level}, block {at}");
}

/// Writes and flushes a block of every leaf in each session, of both levels or of level 0, until
/// the journal has wrapped around twice. No session is long enough to write all changed pages.
fn work_in_short_sessions(levels: usize) {
    let params = Params::plan(64 << 20, Plan::DEFAULT).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.end()));
    create(&medium, &params, levels, 1).unwrap();
    let lengths: Vec<u64> = {
        let disk = open(&medium, &params, levels, 1).unwrap();
        disk.levels().iter().map(|level| level.blocks()).collect()
    };
    let leaves: Vec<u64> = lengths.iter().map(|blocks| blocks / LEAF).collect();
    let (mut last_batch, mut session) = (0, 0);
    while last_batch < 2 * u64::from(params.journal) {
        let disk = open(&medium, &params, levels, 100 + session).unwrap();
        let began_at = counter(&disk.levels()[0], "last_batch");
        for (level, leaves) in leaves.iter().enumerate() {
            (0..*leaves).for_each(|leaf| put(&disk, level, leaf * LEAF + session % LEAF, 1 + session));
        }
        match disk.levels().get(1) {
            Some(hidden) => flush_hidden(&disk, hidden).unwrap(),
            None => disk.levels()[0].flush().unwrap(),
        }
        // No close: its cover would write more pages.
        last_batch = counter(&disk.levels()[0], "last_batch");
        // More batches are forced only if a map is too far behind.
        assert!(last_batch - began_at <= 4, "session {session}");
        session += 1;
    }
    let disk = open(&medium, &params, levels, 1).unwrap();
    for (level, leaves) in leaves.iter().enumerate() {
        for at in session.saturating_sub(LEAF)..session {
            (0..*leaves).for_each(|leaf| expect(&disk, level, leaf * LEAF + at % LEAF, 1 + at));
        }
    }
}

/// If not all pages of a map were ever written, the map is replayed from the journal; a disk that
/// let the journal overwrite those changes would not open.
#[test]
fn short_sessions_lose_nothing_of_level_0() {
    work_in_short_sessions(1);
}

#[test]
fn short_sessions_lose_nothing_of_a_hidden_level() {
    work_in_short_sessions(2);
}
