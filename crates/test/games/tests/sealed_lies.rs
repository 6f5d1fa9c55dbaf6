//! A medium that answers two reads of one place differently, with any earlier version of the place
//! or with the content of another. The promises for each cipher:
//!
//! - `gcm`: a block reads as a whole version of its own, including zeros, or fails.
//! - `xts-random`, `xts`, `hctr2`: as with `gcm`, or as noise, since blocks are not authenticated;
//!   never as the content of another block. Map and journal are authenticated, so every session
//!   ends with a result or an error.
//! - If first reads of all places are true, every block reads as its latest version or fails, with
//!   every cipher: no second read overrides a first one.
//!
//! `LACUNA_LIES` sets the openings for all ciphers together (default 200), `LACUNA_SEED` the first
//! seed.

#[path = "../../../formats/sealed/tests/fixture/mod.rs"]
mod fixture;

use fixture::{create, open_with, options, params};
use lacuna_contracts::{BlockAddr, Disk, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::Medium;
use lacuna_sealed::{OpenOptions, SealedDisk};
use lacuna_sim::versions::{DiskModel, DiskWorkload, run_content};
use lacuna_sim::{CrashMedium, HonestReads, Rng};
use lacuna_testkit::openings::{LieScenario, OpeningResults, Promise};
use std::sync::Arc;

const BLOCKS: u64 = SEGMENT_BLOCKS + 60;
/// The number of sessions before the medium lies.
const SESSIONS: u64 = 3;

/// Small writes, discards and flushes at the start of each segment, and sometimes a stream over the
/// first segment.
fn work(disk: &SealedDisk, model: &mut DiskModel, rng: &mut Rng, next_stamp: &mut u64) {
    for _ in 0..20 + rng.below(20) {
        let choice = rng.below(40);
        let count = 1 + rng.below(4);
        let first = rng.below(50) + if rng.chance(1, 2) { SEGMENT_BLOCKS } else { 0 };
        let mut worked = DiskWorkload { disk, model, rng, next_stamp };
        let done = match choice {
            0 => stream(&mut worked),
            1..4 => worked.discard_at(first, count),
            4..12 => disk.flush(),
            _ => worked.write_at(first, count),
        };
        done.unwrap();
    }
    disk.flush().unwrap();
}

/// Writes a new version of the first segment.
fn stream(worked: &mut DiskWorkload<'_>) -> Result<()> {
    *worked.next_stamp += 1;
    let stamp = *worked.next_stamp;
    worked.model.add_version(0, SEGMENT_BLOCKS, stamp);
    (0..SEGMENT_BLOCKS)
        .step_by(256)
        .try_for_each(|first| worked.disk.write(BlockAddr(first), &run_content(first, 256, stamp)))
}

fn open_one_disk(cipher: Cipher, shown: &mut OpeningResults) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let params = params(cipher, BLOCKS);
    let medium = Arc::new(CrashMedium::new(params.geometry().end()));
    create(&*medium, &params);
    medium.keep_history();
    let mut model = DiskModel::new("the disk", BLOCKS);
    let mut next_stamp = 0;
    for _ in 0..SESSIONS {
        let disk = open_with(medium.clone(), &params, options(rng.next_u64())).unwrap();
        work(&disk, &mut model, &mut rng, &mut next_stamp);
        if rng.chance(1, 3) {
            disk.close().unwrap();
        }
    }
    let own = if cipher.authenticates() { Promise::Own } else { Promise::OwnOrNoise };
    let truths = |first| HonestReads { first_reads: first, ..HonestReads::default() };
    let kinds = [(truths(false), own), (truths(true), Promise::Latest { may_undo_discards: false })];
    let open = |medium: Arc<dyn Medium>, read_only, seed| -> Result<Vec<Arc<dyn Disk>>> {
        let disk = open_with(medium, &params, OpenOptions { read_only, ..options(seed) })?;
        Ok(vec![Arc::new(disk)])
    };
    let (models, writes) = ([model], true);
    LieScenario {
        seed,
        medium: &medium,
        models: &models,
        open: &open,
        may_write: writes,
        lie_kinds: &kinds,
        promise_after_writes: own,
    }
    .open_under_lies(&mut rng, shown);
}

fn assert_nothing_wrong(cipher: Cipher) {
    let mut shown = OpeningResults::new(200, Cipher::ALL.len());
    while shown.remaining() > 0 {
        open_one_disk(cipher, &mut shown);
    }
    shown.assert_nothing_wrong(cipher.name());
}

/// Each cipher is tested in a thread of its own, so that a failure does not hide failures of
/// another cipher.
#[test]
fn blocks_read_as_their_cipher_promises() {
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let plays = Cipher::ALL.map(|cipher| (cipher, scope.spawn(move || assert_nothing_wrong(cipher))));
        plays.into_iter().filter_map(|(cipher, play)| play.join().is_err().then(|| cipher.name())).collect()
    });
    assert_eq!(failed, [""; 0], "the faults are printed above");
}
