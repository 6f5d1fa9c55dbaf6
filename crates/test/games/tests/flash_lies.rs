//! A chip that answers two reads of one place differently, with any earlier version of the place or
//! with the content of another. A block reads as a whole version of its own, including zeros, or
//! fails. If first reads of all places are true, it reads as its latest version or fails: no second
//! read overrides a first one.
//!
//! Reads of the simulation's own data are true. `LACUNA_LIES` sets the openings (default 200),
//! `LACUNA_SEED` the first seed.

#[path = "../../../formats/flash/tests/fixture/mod.rs"]
mod fixture;

use fixture::{SMALL, master, random};
use lacuna_contracts::{Budget, Disk, ManualClock, Result};
use lacuna_flash::{FlashDisk, OpenOptions, Params};
use lacuna_medium::Medium;
use lacuna_nand::{Flash, Mapping, SimulatedChip, WearModel};
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{CrashMedium, HonestReads, Rng};
use lacuna_testkit::openings::{LieScenario, OpeningResults, Promise};
use std::sync::Arc;

/// The number of sessions before the chip lies.
const SESSIONS: u64 = 3;

fn flash_on(medium: Arc<dyn Medium>, seed: u64) -> Result<Arc<dyn Flash>> {
    let chip = Arc::new(SimulatedChip::open(medium, seed)?);
    Ok(Arc::new(Mapping::open(chip)?))
}

fn open(medium: Arc<dyn Medium>, params: &Params, read_only: bool, seed: u64) -> Result<FlashDisk> {
    let options = OpenOptions {
        budget: Budget::bytes(1 << 17),
        read_only,
        policy: None,
        clock: Arc::new(ManualClock::default()),
        random: random(seed),
        kept: None,
    };
    FlashDisk::open(flash_on(medium, seed)?, params, &master(), &options)
}

fn work(disk: &FlashDisk, model: &mut DiskModel, rng: &mut Rng, next_stamp: &mut u64) {
    for _ in 0..30 + rng.below(60) {
        let choice = rng.below(40);
        let count = 1 + rng.below(6);
        let mut worked = DiskWorkload { disk, model, rng, next_stamp };
        let done = match choice {
            0 => disk.flush().and_then(|()| disk.purge()).map(drop),
            1..6 => worked.discard(count),
            6..12 => disk.flush(),
            _ => worked.write(count),
        };
        done.unwrap();
    }
    disk.flush().unwrap();
}

fn open_one_disk(shown: &mut OpeningResults) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let len = SimulatedChip::medium_len(SMALL);
    let memory = Arc::new(CrashMedium::new(len));
    let made = rng.next_u64();
    SimulatedChip::create(&*memory, SMALL, WearModel::default(), made).unwrap();
    memory.keep_history();
    Mapping::create(&SimulatedChip::open(memory.clone(), made).unwrap(), made).unwrap();
    let flash = flash_on(memory.clone(), made).unwrap();
    let params = Params::fitting(flash.geometry(), 32, 150).unwrap();
    FlashDisk::create(&flash, &params, &master(), &random(made)).unwrap();
    drop(flash);
    let (mut model, mut next_stamp) = (DiskModel::new("the disk", params.blocks), 0);
    for _ in 0..SESSIONS {
        let disk = open(memory.clone(), &params, false, rng.next_u64()).unwrap();
        work(&disk, &mut model, &mut rng, &mut next_stamp);
        if rng.chance(1, 3) {
            disk.close().unwrap();
        }
    }
    let own = 0..len - SMALL.len();
    let truths =
        |first| HonestReads { first_reads: first, ranges: vec![own.clone()], ..HonestReads::default() };
    let latest = Promise::Latest { may_undo_discards: false };
    let kinds = [(truths(false), Promise::Own), (truths(true), latest)];
    let open = |medium: Arc<dyn Medium>, read_only, seed| -> Result<Vec<Arc<dyn Disk>>> {
        Ok(vec![Arc::new(open(medium, &params, read_only, seed)?)])
    };
    let (models, afterwards) = ([model], Promise::Own);
    LieScenario {
        seed,
        medium: &memory,
        models: &models,
        open: &open,
        may_write: true,
        lie_kinds: &kinds,
        promise_after_writes: afterwards,
    }
    .open_under_lies(&mut rng, shown);
}

#[test]
fn every_block_reads_as_its_own_version_on_a_lying_chip() {
    let mut shown = OpeningResults::new(200, 1);
    while shown.remaining() > 0 {
        open_one_disk(&mut shown);
    }
    shown.assert_nothing_wrong("flash");
}
