//! Deaths of the process and power cuts in one history, compared with a model.
//!
//! A round opens the chip, with the kept memory if the round before ended with the death of the
//! process, and compares every block and all keys: after a death a block must read as its last
//! acknowledged version, after a power cut as its last flushed version or any later one. Then it
//! runs random operations, purges among them, until the next end, which comes in the middle of an
//! operation of the chip or before a change of the kept memory, during opening too.
//!
//! `LACUNA_CUTS` is the number of ends per chip (default 200), `LACUNA_SEED` the seed.

mod fixture;

use fixture::{SMALL, TestDisk, master, overwrite, write};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Kind, Result};
use lacuna_flash::{FlashDisk, OpenOptions};
use lacuna_kept_memory::KeptMemory;
use lacuna_nand::{Chip, ChipFault, ChipGeometry, Flash, Mapping, Peb, PowerCut, SimulatedChip, WearModel};
use lacuna_sim::versions::{DiskWorkload, origin_of, run_content};
use lacuna_sim::{End, EndsModel, Rng, RunDigest, env_number};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The memory as the end of a round left it.
#[derive(Default)]
struct LeftMemory(Mutex<Option<KeptMemory>>);

impl LeftMemory {
    /// Keeps the state of the memory, unless the round ended before.
    fn note(&self, memory: &KeptMemory) {
        self.0.lock().unwrap().get_or_insert_with(|| memory.as_if_died().unwrap());
    }
}

/// A chip. The process may die in its operations.
struct DyingChip {
    chip: Arc<SimulatedChip>,
    memory: KeptMemory,
    last: Arc<LeftMemory>,
}

impl DyingChip {
    fn noted<T>(&self, done: std::result::Result<T, ChipFault>) -> std::result::Result<T, ChipFault> {
        if self.chip.is_off() {
            self.last.note(&self.memory);
        }
        done
    }
}

impl Chip for DyingChip {
    fn geometry(&self) -> ChipGeometry {
        self.chip.geometry()
    }
    fn read(&self, block: Peb, offset: u32, buf: &mut [u8]) -> std::result::Result<(), ChipFault> {
        self.chip.read(block, offset, buf)
    }
    fn program(&self, block: Peb, first: u32, data: &[u8]) -> std::result::Result<(), ChipFault> {
        self.noted(self.chip.program(block, first, data))
    }
    fn erase(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        self.noted(self.chip.erase(block))
    }
    fn is_bad(&self, block: Peb) -> std::result::Result<bool, ChipFault> {
        self.chip.is_bad(block)
    }
    fn mark_bad(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        self.noted(self.chip.mark_bad(block))
    }
}

/// The use of a disk from one opening to an end.
struct Round {
    chip: Arc<SimulatedChip>,
    memory: KeptMemory,
    last: Arc<LeftMemory>,
}

impl Round {
    /// Opens the disk; the use comes to its end at a random place.
    fn begin(
        test_disk: &mut TestDisk,
        memory: KeptMemory,
        end: End,
        rng: &mut Rng,
    ) -> (Round, Result<FlashDisk>) {
        test_disk.seed += 1;
        let chip = Arc::new(SimulatedChip::open(test_disk.memory.clone(), test_disk.seed).unwrap());
        let round = Round { chip, memory, last: Arc::default() };
        let dying =
            DyingChip { chip: round.chip.clone(), memory: round.memory.clone(), last: round.last.clone() };
        let flash: Arc<dyn Flash> = Arc::new(Mapping::open(Arc::new(dying)).unwrap());
        round.arm(end, rng);
        let options = OpenOptions { kept: Some(round.memory.clone()), ..test_disk.options() };
        let disk = FlashDisk::open(flash, &test_disk.params, &master(), &options);
        (round, disk)
    }

    /// Chooses when the round ends: in an operation of the chip, or before a change of the memory.
    fn arm(&self, end: End, rng: &mut Rng) {
        let is_short = rng.chance(1, 4);
        if rng.chance(1, 2) {
            let after = rng.below(if is_short { 12 } else { 250 });
            let cut = PowerCut { after, seed: rng.next_u64() };
            return match end {
                End::ProcessDeath => self.chip.end_process(cut),
                End::PowerCut => self.chip.cut_power(cut),
            };
        }
        let left = AtomicU64::new(rng.below(if is_short { 60 } else { 1500 }));
        let (chip, memory, last) = (self.chip.clone(), self.memory.clone(), self.last.clone());
        self.memory.observe_changes(move || {
            if left.fetch_sub(1, Ordering::Relaxed) == 0 && !chip.is_off() {
                chip.switch_off();
                last.note(&memory);
            }
        });
    }

    /// Ends the use, if it has not ended. Returns the memory that it left.
    fn end(&self) -> KeptMemory {
        self.chip.switch_off();
        self.last.note(&self.memory);
        // The observer holds the memory.
        self.memory.observe_changes(|| {});
        self.last.0.lock().unwrap().take().expect("it was noted")
    }
}

/// Runs one operation. Returns whether it made everything acknowledged durable.
fn step(disk: &FlashDisk, model: &mut EndsModel, rng: &mut Rng, next_stamp: &mut u64) -> Result<bool> {
    let model = model.for_operation();
    let most = if rng.chance(1, 5) { 60 } else { 4 };
    let count = 1 + rng.below(most).min(model.blocks() / 2);
    let operation = rng.below(40);
    let mut work = DiskWorkload { disk, model, rng, next_stamp };
    match operation {
        0..24 => work.write(count)?,
        24..29 => work.discard(count)?,
        29..33 => work.check_read(count)?,
        33..38 => {
            disk.flush()?;
            return Ok(true);
        }
        _ => {
            disk.purge()?;
            assert_eq!(disk.recoverable(), 0);
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs operations until the end, and closes the disk sometimes.
fn play(disk: &FlashDisk, round: &Round, model: &mut EndsModel, rng: &mut Rng, next_stamp: &mut u64) {
    for _ in 0..40 + rng.below(120) {
        let done = step(disk, model, rng, next_stamp);
        let is_acknowledged = done.is_ok() && !round.chip.is_off();
        model.note_operation(is_acknowledged);
        if !is_acknowledged {
            assert!(round.chip.is_off(), "{done:?}");
            return;
        }
        if matches!(done, Ok(true)) {
            model.note_flush();
        }
    }
    if rng.chance(1, 4) && disk.close().is_ok() && !round.chip.is_off() {
        model.note_flush();
    }
}

/// Compares a disk that was opened after an end.
fn check(disk: &FlashDisk, model: &mut EndsModel) -> std::result::Result<(), String> {
    model.check(disk)?;
    match disk.check_keys() {
        Ok(wrong) if wrong.is_empty() => Ok(()),
        Ok(wrong) => Err(format!("keys {wrong:?}")),
        Err(e) => Err(e.to_string()),
    }
}

#[derive(Default)]
struct History {
    deaths: u64,
    cuts: u64,
    digest: u64,
    lost: Option<String>,
}

fn simulate(geometry: ChipGeometry, key_len: u8, seed: u64, ends: u64, keeps: bool) -> History {
    let mut rng = Rng::new(seed);
    let mut test_disk = TestDisk::new(geometry, WearModel::default(), key_len, 150, seed);
    let mut model = EndsModel::new("the disk", test_disk.params.blocks);
    let layout = FlashDisk::kept_layout(test_disk.options().budget);
    let (mut kept, mut next_stamp) = (None, 0);
    let (mut history, mut digest) = (History::default(), RunDigest::new());
    while history.deaths + history.cuts < ends {
        let end = if rng.chance(2, 3) { End::ProcessDeath } else { End::PowerCut };
        let memory = kept.take().unwrap_or_else(|| KeptMemory::simulated(&layout).unwrap());
        let (round, opened) = Round::begin(&mut test_disk, memory, end, &mut rng);
        match &opened {
            Ok(disk) if !round.chip.is_off() => {
                if let Err(e) = check(disk, &mut model) {
                    history.lost = Some(e);
                    break;
                }
                play(disk, &round, &mut model, &mut rng, &mut next_stamp);
            }
            Err(e) if !round.chip.is_off() => {
                history.lost = Some(format!("does not open: {e}"));
                break;
            }
            _ => {}
        }
        let left = round.end();
        digest.add_word(round.chip.operations());
        model.note_end(end);
        match end {
            End::ProcessDeath => {
                history.deaths += 1;
                kept = keeps.then_some(left);
            }
            End::PowerCut => history.cuts += 1,
        }
    }
    history.digest = digest.0;
    history
}

fn no_end_loses(name: &str, geometry: ChipGeometry, key_len: u8) {
    let (seed, ends) = (env_number("LACUNA_SEED", 1), env_number("LACUNA_CUTS", 200));
    let history = simulate(geometry, key_len, seed, ends, true);
    println!(
        "{name}: {} deaths, {} cuts, seed {seed}, digest {:016x}",
        history.deaths, history.cuts, history.digest
    );
    if let Some(lost) = history.lost {
        panic!("{lost}; LACUNA_SEED={seed} and the same LACUNA_CUTS repeat the run");
    }
}

#[test]
fn neither_deaths_nor_cuts_lose_anything() {
    no_end_loses("plain", SMALL, 32);
}

#[test]
fn neither_deaths_nor_cuts_lose_anything_with_short_keys_and_long_pages() {
    no_end_loses("long pages", ChipGeometry { page: 16384, pages: 8, blocks: 64 }, 16);
}

/// The test works: without the memory a death loses writes.
#[test]
fn a_death_without_the_memory_is_detected() {
    let history = simulate(SMALL, 32, 1, 100, false);
    println!("caught: {}", history.lost.expect("the simulation must detect lost writes"));
}

#[test]
fn the_same_seed_gives_the_same_digest() {
    let run = |seed| simulate(SMALL, 32, seed, 10, true).digest;
    assert_eq!(run(9), run(9));
    assert_ne!(run(9), run(10));
}

fn new_memory(test_disk: &TestDisk) -> KeptMemory {
    KeptMemory::simulated(&FlashDisk::kept_layout(test_disk.options().budget)).unwrap()
}

/// Opens the disk with a memory, on a chip that nothing ends.
fn open_kept(test_disk: &mut TestDisk, memory: &KeptMemory) -> Result<FlashDisk> {
    let flash = test_disk.flash().1;
    let options = OpenOptions { kept: Some(memory.clone()), ..test_disk.options() };
    FlashDisk::open(flash, &test_disk.params, &master(), &options)
}

fn read(disk: &FlashDisk, block: u64) -> Vec<u8> {
    let mut data = vec![0; BLOCK_SIZE];
    disk.read(BlockAddr(block), &mut data).unwrap();
    data
}

/// The published records of a memory: the block and the stamp of each.
fn published(memory: &KeptMemory) -> Vec<(u64, u64)> {
    let records = memory.as_if_died().unwrap().pool(0).take_adopted();
    let mut found: Vec<_> = records.iter().filter_map(|record| origin_of(record.bytes())).collect();
    found.sort_unstable();
    found
}

#[test]
fn no_record_outlives_its_write_a_discard_or_a_purge() {
    let mut test_disk = TestDisk::small(3);
    let memory = new_memory(&test_disk);
    let disk = open_kept(&mut test_disk, &memory).unwrap();
    write(&disk, 0, 4, 1).unwrap();
    write(&disk, 2, 4, 2).unwrap();
    assert_eq!(published(&memory), [(0, 1), (1, 1), (2, 2), (3, 2), (4, 2), (5, 2)]);
    disk.discard(BlockAddr(1), 3).unwrap();
    assert_eq!(published(&memory), [(0, 1), (4, 2), (5, 2)]);
    disk.flush().unwrap();
    assert!(published(&memory).is_empty());
    write(&disk, 4, 1, 3).unwrap();
    disk.purge().unwrap();
    assert!(published(&memory).is_empty());
    // The records that were withdrawn were wiped.
    let free: Vec<_> = (0..16).map(|_| memory.pool(0).take().unwrap()).collect();
    assert!(free.iter().all(|record| record.bytes().iter().all(|byte| *byte == 0)));
}

#[test]
fn adopted_writes_win_over_the_log_and_count_as_recoverable() {
    let mut test_disk = TestDisk::small(4);
    let memory = new_memory(&test_disk);
    let disk = open_kept(&mut test_disk, &memory).unwrap();
    write(&disk, 1, 1, 1).unwrap();
    let memory = memory.as_if_died().unwrap();
    drop(disk);
    let disk = open_kept(&mut test_disk, &memory).unwrap();
    assert_eq!(read(&disk, 1), run_content(1, 1, 1));
    // It may replace a block on the flash: the purge by period is due some time.
    assert_eq!(disk.recoverable(), 1);
    assert!(disk.purge_status().recoverable_for.is_some());
    overwrite(&disk, 0, 3);
    disk.purge().unwrap();
    disk.discard(BlockAddr(0), 1).unwrap();
    write(&disk, 1, 1, 7).unwrap();
    let left = memory.as_if_died().unwrap();
    drop(disk);
    let disk = open_kept(&mut test_disk, &left).unwrap();
    assert_eq!(read(&disk, 0), [0_u8; BLOCK_SIZE]);
    assert_eq!(read(&disk, 1), run_content(1, 1, 7));
    assert_eq!(read(&disk, 2), run_content(2, 1, 2));
    // Once more: the successor dies as well, after a newer version.
    write(&disk, 1, 1, 8).unwrap();
    let left = left.as_if_died().unwrap();
    drop(disk);
    let disk = open_kept(&mut test_disk, &left).unwrap();
    assert_eq!(read(&disk, 1), run_content(1, 1, 8));
    disk.close().unwrap();
    let disk = test_disk.open();
    assert_eq!(read(&disk, 1), run_content(1, 1, 8));
}

#[test]
fn a_disk_that_cannot_be_closed_leaves_its_writes() {
    let mut test_disk = TestDisk::small(6);
    let memory = new_memory(&test_disk);
    let opened = test_disk.flash();
    let options = OpenOptions { kept: Some(memory.clone()), ..test_disk.options() };
    let disk = FlashDisk::open(opened.1, &test_disk.params, &master(), &options).unwrap();
    write(&disk, 3, 2, 1).unwrap();
    opened.0.switch_off();
    assert!(disk.close().is_err());
    drop(disk);
    assert_eq!(published(&memory), [(3, 1), (4, 1)]);
    let left = memory.as_if_died().unwrap();
    let disk = open_kept(&mut test_disk, &left).unwrap();
    disk.close().unwrap();
    drop(disk);
    assert!(published(&left).is_empty());
    assert_eq!(read(&test_disk.open(), 4), run_content(4, 1, 1));
}

#[test]
fn records_of_another_disk_are_refused_and_stay() {
    let mut test_disk = TestDisk::small(5);
    let memory = new_memory(&test_disk);
    let disk = open_kept(&mut test_disk, &memory).unwrap();
    write(&disk, 9, 1, 1).unwrap();
    let record = memory.pool(0).take().unwrap();
    record.words()[0].store(test_disk.params.blocks, Ordering::Relaxed);
    record.publish();
    let left = memory.as_if_died().unwrap();
    drop((record, disk));
    for _ in 0..2 {
        let left = left.as_if_died().unwrap();
        assert_eq!(open_kept(&mut test_disk, &left).err().expect("refused").kind(), Kind::Corrupt);
        assert_eq!(published(&left), [(9, 1)]);
    }
    // A disk that is opened read-only leaves the memory alone.
    test_disk.read_only = true;
    let disk = open_kept(&mut test_disk, &left).unwrap();
    assert_eq!(read(&disk, 9), [0_u8; BLOCK_SIZE]);
    drop(disk);
    assert_eq!(published(&left), [(9, 1)]);
}
