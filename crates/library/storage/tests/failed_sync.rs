//! A failed sync, and a reopening while the system's cache still holds data that the medium does
//! not have: in each format, reads return the medium's content, and data flushed after that
//! persists.

use lacuna_contracts::{Budget, Disk, Result, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_deniable::{Geometry, Params as DeniableParams};
use lacuna_levels::{LevelFormat, Masters, OpenOptions as LevelOptions, level_disks};
use lacuna_medium::{Medium, MemoryMedium};
use lacuna_oblivious::{Hiding, Params as ObliviousParams, Plan};
use lacuna_sealed::{OpenOptions, Params, Sealed};
use lacuna_testkit::levels::seeded;
use lacuna_testkit::{FailedSync, reopens_from_the_medium};
use std::sync::Arc;

const UUID: [u8; 16] = [6; 16];
/// Milliseconds between cover writes, which carry the flushed data of hidden levels.
const COVER: u32 = 5;
/// The number of levels, for formats with levels.
const LEVELS: usize = 3;

fn masters() -> Vec<Secret<32>> {
    lacuna_testkit::levels::masters(LEVELS)
}

/// Options with background threads.
fn level_options() -> LevelOptions {
    LevelOptions { background: true, ..lacuna_testkit::levels::options(1, 2) }
}

/// Tests a format with levels.
fn play_levels(name: &str, params: &impl LevelFormat) {
    let masters = masters();
    let masters = Masters { keys: &masters, uuid: &UUID };
    play(
        name,
        params.end(),
        |medium| params.create(medium, masters, seeded(4, 5)),
        |medium| {
            let disk = Arc::new(params.open(medium, masters, level_options())?);
            Ok(level_disks(&disk).into_iter().map(|level| level as Arc<dyn Disk>).collect())
        },
    );
}

/// Fails one or another sync of disks on media of this length, created by `create` and opened by
/// `open`.
fn play(
    name: &str,
    len: u64,
    create: impl Fn(&Arc<dyn Medium>) -> Result<()>,
    open: impl Fn(Arc<dyn Medium>) -> Result<Vec<Arc<dyn Disk>>>,
) {
    for (nth, closing) in (1..6).flat_map(|nth| [(nth, false), (nth, true)]) {
        let below: Arc<dyn Medium> = Arc::new(MemoryMedium::new(len));
        create(&below).unwrap();
        let failing = Arc::new(FailedSync::new(below));
        let played = reopens_from_the_medium(&failing, nth, closing, &|| open(failing.clone()));
        played.unwrap_or_else(|e| panic!("{name}, sync {nth} failed, closing: {closing}: {e}"));
    }
}

#[test]
fn sealed() {
    for cipher in [Cipher::Gcm, Cipher::XtsRandom] {
        let params = Params::plan(cipher, 2048, Some(1 << 40)).unwrap();
        let master = Secret::copy_from(&[5; 32]);
        play(
            "sealed",
            params.geometry().end(),
            |medium| Sealed::create(&**medium, &params, &master),
            |medium| {
                let random = Arc::new(SeededRandom::new(3));
                let options = OpenOptions {
                    budget: Budget::bytes(4 << 20),
                    read_only: false,
                    write_through: false,
                    background: true,
                    random,
                };
                let disk = Sealed::open(medium, &params, &master, &UUID, options)?;
                Ok(vec![Arc::new(disk) as Arc<dyn Disk>])
            },
        );
    }
}

#[test]
fn deniable() {
    play_levels("deniable", &DeniableParams::plan(24 << 20, Geometry::DEFAULT, 200, COVER).unwrap());
}

#[test]
fn oblivious() {
    for hiding in [Hiding::Opportunistic, Hiding::Plausible] {
        let plan = Plan { hiding, cover_millis: COVER, ..Plan::DEFAULT };
        play_levels("oblivious", &ObliviousParams::plan(24 << 20, plan).unwrap());
    }
}
