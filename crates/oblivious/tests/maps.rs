//! Maps of several leaves, and of more than memory holds: where their pages are is never forgotten, neither while the disk
//! is open nor by whoever opens what was flushed; however short the sessions are, and whatever waits in the stash.

mod fixture;

use fixture::{Model, Worked, counter, create, fill, flush_hidden, open, open_with, options, stamp_of};
use lacuna_core::{BLOCK_SIZE, BlockAddr, Budget, Disk, Kind};
use lacuna_crypto::{RandomSource, SeededRandom};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Levels, Oblivious, Params, Plan};
use lacuna_sim::Rng;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Blocks of a leaf.
const LEAF: u64 = 512;
/// Twice as many leaves as a cache may hold.
const LEAVES: u64 = 40;

fn open_small(medium: &Arc<dyn Medium>, params: &Params, seed: u64) -> Arc<Oblivious> {
    let options = lacuna_oblivious::OpenOptions { budget: Budget::bytes(320 << 10), ..options(seed, !seed) };
    open_with(medium, params, 2, options).unwrap()
}

#[test]
fn maps_larger_than_memory_read_like_their_models() {
    let params = Params::plan(420 << 20, Plan::DEFAULT).unwrap();
    assert!(params.blocks > LEAVES * LEAF);
    let mut memory = Arc::new(MemoryMedium::new(params.medium_len()));
    let medium: Arc<dyn Medium> = memory.clone();
    create(&medium, &params, 2, 1).unwrap();
    let (mut rng, mut next_stamp) = (Rng::new(1), 0);
    let mut models = [Model::new("level 0", params.blocks), Model::new("level 1", params.hidden_blocks)];
    for session in 0..3 {
        let medium: Arc<dyn Medium> = memory.clone();
        let disk = open_small(&medium, &params, session);
        let levels = disk.levels();
        for (level, model) in levels.iter().zip(&mut models) {
            model.compare(&**level).unwrap();
        }
        for round in 0..12_000u64 {
            let at = usize::from(round % 3 == 2);
            let (rng, next_stamp) = (&mut rng, &mut next_stamp);
            let mut worked = Worked { disk: &*levels[at], model: &mut models[at], rng, next_stamp };
            match round % 100 {
                7 => worked.discard(700).unwrap(),
                8..30 => worked.compare(3).unwrap(),
                _ => worked.write(1).unwrap(),
            }
        }
        levels[0].flush().unwrap();
        flush_hidden(&disk, &levels[1]).unwrap();
        models.iter_mut().for_each(Model::flushed);
        assert!(
            counter(&levels[0], "map_pages_waiting") > 16,
            "or nothing has left memory before it was written"
        );
        // The power goes.
        memory = Arc::new(MemoryMedium::from_bytes(memory.snapshot()));
    }
}

/// Writes a block of a level; the paced clock beats while it has no room.
fn put(disk: &Arc<Oblivious>, level: usize, at: u64, stamp: u64) {
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
fn expect(disk: &Arc<Oblivious>, level: usize, at: u64, stamp: u64) {
    let mut data = [0; BLOCK_SIZE];
    let read = disk.levels()[level].read(BlockAddr(at), &mut data);
    assert!(read.is_ok(), "level {level}, block {at}: {read:?}");
    assert_eq!(stamp_of(at, &data), Some(stamp), "level {level}, block {at}");
}

/// Writes a block of every leaf, of both levels or of level 0, in each session, and closes it, until the journal came round
/// twice. No session is long enough to write all pages that changed.
fn work_in_short_sessions(levels: usize) {
    let params = Params::plan(64 << 20, Plan::DEFAULT).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, &params, levels, 1).unwrap();
    let leaves = &[params.blocks, params.hidden_blocks].map(|blocks| blocks / LEAF)[..levels];
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
        disk.close().unwrap();
        last_batch = counter(&disk.levels()[0], "last_batch");
        // More would be those that a disk is forced to write whose map is too far behind.
        assert_eq!(last_batch - began_at, 3, "session {session}");
        session += 1;
    }
    let disk = open(&medium, &params, levels, 1).unwrap();
    for (level, leaves) in leaves.iter().enumerate() {
        for at in session.saturating_sub(LEAF)..session {
            (0..*leaves).for_each(|leaf| expect(&disk, level, leaf * LEAF + at % LEAF, 1 + at));
        }
    }
}

/// A map whose pages were never all written is replayed from the journal; a disk that let that come round would not open.
#[test]
fn short_sessions_lose_nothing_of_level_0() {
    work_in_short_sessions(1);
}

#[test]
fn short_sessions_lose_nothing_of_a_hidden_level() {
    work_in_short_sessions(2);
}

/// Draws the first cells only, one after another: every batch meets the pages that lie there.
struct FirstCells {
    random: SeededRandom,
    drawn: AtomicU64,
    cells: u64,
}

impl FirstCells {
    /// Opens a disk that is to draw from so many cells.
    fn open(
        medium: &Arc<dyn Medium>,
        params: &Params,
        cells: u64,
        begin: u64,
        budget: Budget,
    ) -> Arc<Oblivious> {
        let random = FirstCells { random: SeededRandom::new(3), drawn: AtomicU64::new(begin), cells };
        let options =
            lacuna_oblivious::OpenOptions { budget, public_random: Arc::new(random), ..options(1, 2) };
        open_with(medium, params, 2, options).unwrap()
    }
}

impl RandomSource for FirstCells {
    fn fill(&self, out: &mut [u8]) {
        match <&mut [u8; 8]>::try_from(&mut *out) {
            Ok(word) => *word = (self.drawn.fetch_add(7, Ordering::Relaxed) % self.cells).to_le_bytes(),
            Err(_) => self.random.fill(out),
        }
    }
}

/// Of a leaf that a lower level displaced, and that is wanted in the batch that puts it elsewhere, the page is not on the
/// medium yet.
#[test]
fn pages_are_found_in_the_batch_that_moves_them() {
    let params = Params::plan(400 << 20, Plan::DEFAULT).unwrap();
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::new(params.medium_len()));
    create(&medium, &params, 2, 1).unwrap();
    // Few leaves stay in memory, and those of a level lie in few cells.
    let disk = FirstCells::open(&medium, &params, 251, 0, Budget::bytes(64 << 10));
    let leaves = params.hidden_blocks.div_ceil(LEAF);
    (0..leaves).for_each(|leaf| put(&disk, 1, leaf * LEAF, 1));
    flush_hidden(&disk, &disk.levels()[1]).unwrap();
    (0..2 * params.cycle).for_each(|_| disk.refresh().unwrap());
    for round in 0..400 {
        let changed = round % leaves;
        let others = || (0..leaves).filter(|leaf| *leaf != changed);
        others().for_each(|leaf| expect(&disk, 1, leaf * LEAF, 1));
        put(&disk, 1, changed * LEAF + 1, 2 + round);
        others().for_each(|leaf| expect(&disk, 1, leaf * LEAF, 1));
        (0..29).for_each(|at| put(&disk, 0, at, 2 + round));
        (0..3).for_each(|_| disk.refresh().unwrap());
    }
}

/// A hidden level with three blocks in two leaves, and all cells that are drawn taken by level 0: what they held waits in
/// the stash, the root of the map among it. Returns the disk with its blocks.
fn crowd_out_the_root(
    medium: &Arc<dyn Medium>,
    params: &Params,
    began_before: bool,
) -> (Arc<Oblivious>, [u64; 3]) {
    let blocks = [0, 5, 605];
    create(medium, params, 2, 1).unwrap();
    if began_before {
        // Pages and blocks of a session whose cells are not drawn again.
        let disk = open(medium, params, 2, 4).unwrap();
        blocks[1..].iter().for_each(|at| put(&disk, 1, *at, 9));
        flush_hidden(&disk, &disk.levels()[1]).unwrap();
        (0..3 * params.cycle).for_each(|_| disk.refresh().unwrap());
        disk.close().unwrap();
    }
    let (cells, begin) = if began_before { (19, 1) } else { (20, 0) };
    let disk = FirstCells::open(medium, params, cells, begin, Budget::bytes(16 << 20));
    blocks[..if began_before { 1 } else { 3 }].iter().for_each(|at| put(&disk, 1, *at, 9));
    flush_hidden(&disk, &disk.levels()[1]).unwrap();
    (0..3 * params.cycle).for_each(|_| disk.refresh().unwrap());
    (0..cells).for_each(|at| put(&disk, 0, at, 9));
    disk.levels()[0].flush().unwrap();
    assert!(counter(&disk.levels()[1], "waiting_for_cells") > 0, "or nothing is in the stash");
    (disk, blocks)
}

/// The pages above the leaves are read from where they wait, while the map is made again.
#[test]
fn a_map_is_opened_whose_root_waits_in_the_stash() {
    let params = Params::plan(20 << 20, Plan { operations: 6, ..Plan::DEFAULT }).unwrap();
    assert!(params.hidden_blocks > LEAF, "or the root is a leaf");
    for (began_before, closed) in [(false, false), (false, true), (true, false), (true, true)] {
        let memory = Arc::new(MemoryMedium::new(params.medium_len()));
        let medium: Arc<dyn Medium> = memory.clone();
        let (disk, blocks) = crowd_out_the_root(&medium, &params, began_before);
        blocks.iter().for_each(|at| expect(&disk, 1, *at, 9));
        if closed {
            disk.close().unwrap();
        }
        let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(memory.snapshot()));
        let again = open(&medium, &params, 2, 9).unwrap();
        blocks.iter().for_each(|at| expect(&again, 1, *at, 9));
    }
}
