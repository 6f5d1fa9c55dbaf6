//! A failed sync, and a reopening while the system's cache still holds data that the medium does
//! not have: in each format, reads return the medium's content, and data flushed after that
//! persists.

use lacuna_contracts::{Budget, Disk, Result, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_deniable::{Params as DeniableParams, StripeGeometry};
use lacuna_levels::{DiskKeys, LevelFormat, OpenOptions as LevelOptions, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{HidingMode, Params as ObliviousParams, Plan};
use lacuna_sealed::{CachedSlots, OpenOptions, Params, SealedDisk};
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
