//! The format on simulated media: no power cut loses flushed blocks, compared with a model, and
//! moved or altered slots do not verify.
//!
//! `LACUNA_CUTS` sets the power cuts (default 500), `LACUNA_SEED` the seed.

use lacuna_sim::cuts::{CutOutcome, Cuts};
use lacuna_sim::versions::{DiskModel, DiskWorkload, run_content};
use lacuna_sim::{CrashMedium, Rng, env_number};
use lacuna_storage::format::{Format, OpenContext, OpenFormat, Params};
use lacuna_storage::{
    Backing, BlockAddr, DiskCheckReport, DiskKeys, HEADER_AREA, Kind, Medium, OpenDiskOptions, Result, Secret,
};
use std::sync::Arc;
use two_slots::TwoSlots;

const BLOCKS: u64 = 60;
/// Bytes of the two slots of a block.
const PAIR: u64 = 9216;

fn params() -> Box<dyn Params> {
    TwoSlots.parse(&BLOCKS.to_le_bytes()).unwrap()
}

/// Calls `with` with the medium as a backing, and the keys of the disk.
fn with_medium<T>(
    medium: &Arc<CrashMedium>,
    with: impl FnOnce(&Backing, DiskKeys<'_>) -> Result<T>,
) -> Result<T> {
    let keys = [Secret::copy_from(&[1; 32])];
    with(&Backing::File(medium.clone()), DiskKeys { keys: &keys, uuid: &[2; 16] })
}

fn create() -> Arc<CrashMedium> {
    let params = params();
    let medium = Arc::new(CrashMedium::new(params.medium_len()));
    with_medium(&medium, |backing, keys| params.create(backing, keys)).unwrap();
    medium
}

fn open(medium: &Arc<CrashMedium>) -> Result<Box<dyn OpenFormat>> {
    with_medium(medium, |backing, keys| {
        let options = OpenDiskOptions::default();
        params()
            .open(backing, &OpenContext { keys, options, rescue: false, keeper: None, keeps_cached: false })
    })
}

/// Runs random operations until the power cut.
fn work(worked: &mut DiskWorkload<'_>) -> Result<()> {
    for _ in 0..40 {
        let count = 1 + worked.rng.below(6);
        match worked.rng.below(10) {
            0..6 => worked.write(count)?,
            6 => worked.discard(count)?,
            7 => worked.check_read(count)?,
            _ => {
                worked.disk.flush()?;
                worked.model.record_flush();
            }
        }
    }
    worked.disk.close()?;
    worked.model.record_flush();
    Ok(())
}

/// Simulates at least `cuts` power cuts with writes in flight on a medium, which ignores syncs if
/// `lies` is set.
fn simulate(seed: u64, cuts: u64, lies: bool) -> CutOutcome {
    let (mut rng, mut power) = (Rng::new(seed), Cuts::default());
    let (mut model, mut next_stamp) = (DiskModel::new("two-slots", BLOCKS), 0);
    let mut image = create().image();
    let mut lost = None;
    while power.cuts_during_work() < cuts && lost.is_none() {
        let medium = Arc::new(CrashMedium::from_image(image));
        medium.ignore_syncs(lies);
        medium.cut_after(rng.below(120));
        if let Ok(disk) = open(&medium) {
            let (model, rng, next_stamp) = (&mut model, &mut rng, &mut next_stamp);
            // An error is the power cut or a consequence of it.
            let _ = work(&mut DiskWorkload { disk: disk.disk(), model, rng, next_stamp });
        }
        image = power.cut(&medium, &mut rng);
        let after = Arc::new(CrashMedium::from_image(image.clone()));
        lost = match open(&after) {
            Ok(disk) => model.check_after_cut(disk.disk()).err(),
            Err(e) => Some(format!("does not open: {e}")),
        };
    }
    // The nonces come from the system, so a seed does not give the same bytes again.
    power.finish(seed, lost).unrepeatable()
}

#[test]
fn no_power_cut_loses_flushed_blocks() {
    let (seed, cuts) = (env_number("LACUNA_SEED", 1), env_number("LACUNA_CUTS", 500));
    simulate(seed, cuts, false).assert_nothing_lost("two-slots: ", cuts, seed);
}

#[test]
fn a_medium_that_ignores_syncs_is_detected() {
    simulate(1, 500, true).assert_loss_detected();
}

#[test]
fn a_check_reports_moved_slots() {
    let medium = create();
    let disk = open(&medium).unwrap();
    // Write both slots of both blocks: beside a slot that was never written, a damaged slot counts
    // as torn.
    for stamp in [1, 2] {
        disk.disk().write(BlockAddr(3), &run_content(3, 2, stamp)).unwrap();
        disk.disk().flush().unwrap();
    }
    disk.close().unwrap();
    let mut slots = vec![0; PAIR as usize];
    medium.read_at(HEADER_AREA + 3 * PAIR, &mut slots).unwrap();
    medium.write_at(HEADER_AREA + 4 * PAIR, &slots).unwrap();

    let disk = open(&medium).unwrap();
    let mut found = Vec::new();
    let report =
        disk.check(&mut |_| Ok(()), &mut |_, bad| found.push((bad.block, bad.error.kind()))).unwrap();
    assert_eq!(found, [(BlockAddr(4), Kind::Corrupt)]);
    assert_eq!(report, DiskCheckReport { good: BLOCKS - 1, unwritten: 0, bad: 1 });
}

#[test]
fn an_altered_byte_of_a_slot_is_refused() {
    let medium = create();
    let disk = open(&medium).unwrap();
    for stamp in [1, 2] {
        disk.disk().write(BlockAddr(0), &run_content(0, 1, stamp)).unwrap();
        disk.disk().flush().unwrap();
    }
    disk.close().unwrap();
    let (written, mut read) = (medium.image(), run_content(0, 1, 0));
    // The nonce, the tag, the number, the first and the last of the zeros, the block.
    for at in [0, 24, 40, 48, 511, 512, 4607] {
        let medium = Arc::new(CrashMedium::from_image(written.clone()));
        for slot in [0, PAIR / 2] {
            let mut byte = [0];
            medium.read_at(HEADER_AREA + slot + at, &mut byte).unwrap();
            medium.write_at(HEADER_AREA + slot + at, &[byte[0] ^ 1]).unwrap();
        }
        let disk = open(&medium).unwrap();
        assert_eq!(disk.disk().read(BlockAddr(0), &mut read).unwrap_err().kind(), Kind::Corrupt, "byte {at}");
    }
}
