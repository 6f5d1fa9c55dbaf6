//! A failed sync, and a reopening while the system's cache still holds data that the medium does
//! not have: in each format, reads return the medium's content, and data flushed after that
//! persists.

use lacuna_contracts::{BlockAddr, Budget, Disk, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_deniable::{Params as DeniableParams, StripeGeometry};
use lacuna_levels::{DiskKeys, LevelFormat, OpenOptions as LevelOptions, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, Params as ObliviousParams, Plan};
use lacuna_sealed::{CachedSlots, OpenOptions, Params, SealedDisk};
use lacuna_sim::versions::run_content;
use lacuna_testkit::levels::seeded_randomness;
use lacuna_testkit::{FailingSyncMedium, check_reopen_after_failed_sync};
use std::sync::Arc;

const UUID: [u8; 16] = [6; 16];
/// Milliseconds between cover writes, which carry the flushed data of hidden levels.
const COVER: u32 = 5;
/// The number of levels, for formats with levels.
const LEVELS: usize = 3;

fn masters() -> Vec<Secret<32>> {
    lacuna_testkit::levels::master_keys(LEVELS)
}

/// Options with background threads.
fn level_options() -> LevelOptions {
    LevelOptions { background: true, ..lacuna_testkit::levels::options(1, 2) }
}

/// Tests a format with levels.
fn fail_syncs_with_levels(name: &str, params: &impl LevelFormat) {
    let masters = masters();
    let masters = DiskKeys { keys: &masters, uuid: &UUID };
    fail_syncs(
        name,
        params.end(),
        |medium| params.create(medium, masters, seeded_randomness(4, 5)),
        |medium| {
            let disk = Arc::new(params.open(medium, masters, level_options())?);
            Ok(level_disks(&disk).into_iter().map(|level| level as Arc<dyn Disk>).collect())
        },
    );
}

/// Fails one or another sync of disks on media of this length, created by `create` and opened by
/// `open`.
fn fail_syncs(
    name: &str,
    len: u64,
    create: impl Fn(&Arc<dyn Medium>) -> Result<()>,
    open: impl Fn(Arc<dyn Medium>) -> Result<Vec<Arc<dyn Disk>>>,
) {
    for (nth, closing) in (1..6).flat_map(|nth| [(nth, false), (nth, true)]) {
        let below: Arc<dyn Medium> = Arc::new(MemoryMedium::new(len));
        create(&below).unwrap();
        let failing = Arc::new(FailingSyncMedium::new(below));
        let played = check_reopen_after_failed_sync(&failing, nth, closing, &|| open(failing.clone()));
        played.unwrap_or_else(|e| panic!("{name}, sync {nth} failed, closing: {closing}: {e}"));
    }
}

#[test]
fn sealed_disks_reopen_from_the_medium_after_a_failed_sync() {
    for cipher in [Cipher::Gcm, Cipher::XtsRandom] {
        let params = Params::plan(cipher, 2048, Some(1 << 40)).unwrap();
        let master = Secret::copy_from(&[5; 32]);
        fail_syncs(
            "sealed",
            params.geometry().end(),
            |medium| SealedDisk::create(&**medium, &params, &master),
            |medium| {
                let random = Arc::new(SeededRandom::new(3));
                let options = OpenOptions {
                    budget: Budget::bytes(4 << 20),
                    read_only: false,
                    write_through: false,
                    background: true,
                    random,
                    kept: None,
                    cached: CachedSlots::Dropped,
                };
                let disk = SealedDisk::open(medium, &params, &master, &UUID, options)?;
                Ok(vec![Arc::new(disk) as Arc<dyn Disk>])
            },
        );
    }
}

#[test]
fn deniable_disks_reopen_from_the_medium_after_a_failed_sync() {
    fail_syncs_with_levels(
        "deniable",
        &DeniableParams::plan(24 << 20, StripeGeometry::DEFAULT, 200, COVER).unwrap(),
    );
}

#[test]
fn oblivious_disks_reopen_from_the_medium_after_a_failed_sync() {
    for hiding in [HidingMode::Opportunistic, HidingMode::Plausible] {
        let plan = Plan { hiding, cover_millis: COVER, ..Plan::DEFAULT };
        fail_syncs_with_levels("oblivious", &ObliviousParams::plan(24 << 20, plan).unwrap());
    }
}

/// Puts bytes into the cache that the medium never gets.
fn falsify(failing: &FailingSyncMedium, offset: u64) {
    failing.write_at(offset, &[0xa5; 64]).unwrap();
    failing.fail_sync(1);
    failing.sync().unwrap_err();
    failing.fail_sync(0);
}

/// An opening that keeps the cached pages of slots reads everything else from the medium. It reads
/// the slots too if the journal shows that the disk was not closed.
#[test]
fn a_sealed_disk_that_keeps_cached_slots_reads_the_rest_from_the_medium() {
    let params = Params::plan(Cipher::Gcm, 2 * SEGMENT_BLOCKS, Some(1 << 40)).unwrap();
    let (g, master) = (params.geometry(), Secret::copy_from(&[5; 32]));
    let below: Arc<dyn Medium> = Arc::new(MemoryMedium::new(g.end()));
    SealedDisk::create(&*below, &params, &master).unwrap();
    let failing = Arc::new(FailingSyncMedium::new(below));
    let open = |cached: CachedSlots| {
        let options = OpenOptions {
            budget: Budget::bytes(4 << 20),
            read_only: false,
            write_through: false,
            background: false,
            random: Arc::new(SeededRandom::new(3)),
            kept: None,
            cached,
        };
        SealedDisk::open(failing.clone(), &params, &master, &UUID, options).unwrap()
    };
    let data = run_content(0, SEGMENT_BLOCKS, 1);
    let reads_data = |disk: &SealedDisk| {
        let mut read = vec![0; data.len()];
        disk.read(BlockAddr(0), &mut read).is_ok_and(|()| read == data)
    };
    let disk = open(CachedSlots::Dropped);
    disk.write(BlockAddr(0), &data).unwrap();
    disk.close().unwrap();
    drop(disk);
    let mut entry = [0; 8];
    failing.read_at(g.map, &mut entry).unwrap();
    let slot = g.data_of((u64::from_le_bytes(entry) - 1) as u32);

    // Both retired records, the first batch, and the map.
    [g.journal, g.journal + 4096, g.journal + 8192, g.map].iter().for_each(|at| falsify(&failing, *at));
    assert!(reads_data(&open(CachedSlots::Kept)));
    // The pages of slots come from the cache: the caller was wrong to have them kept.
    falsify(&failing, slot);
    assert!(!reads_data(&open(CachedSlots::Kept)));
    let disk = open(CachedSlots::Dropped);
    assert!(reads_data(&disk));
    disk.write(BlockAddr(SEGMENT_BLOCKS), &data[..4096]).unwrap();
    disk.flush().unwrap();
    drop(disk);
    falsify(&failing, slot);
    assert!(reads_data(&open(CachedSlots::Kept)));
}
