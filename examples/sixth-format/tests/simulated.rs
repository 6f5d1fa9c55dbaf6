//! The format on simulated media: no power cut loses flushed blocks, compared with a model, and
//! moved or altered slots do not verify.
//!
//! `LACUNA_CUTS` sets the power cuts (default 500), `LACUNA_SEED` the seed.

use lacuna_sim::cuts::{Cuts, Outcome};
use lacuna_sim::versions::{Model, Worked, run};
use lacuna_sim::{CrashMedium, Rng, setting};
use lacuna_storage::format::{Format, OpenFormat, OpenWith, Params};
use lacuna_storage::{
    Backing, BlockAddr, CheckReport, HEADER_AREA, Kind, Masters, Medium, Opening, Result, Secret,
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
fn on<T>(medium: &Arc<CrashMedium>, with: impl FnOnce(&Backing, Masters<'_>) -> Result<T>) -> Result<T> {
    let keys = [Secret::copy_from(&[1; 32])];
    with(&Backing::File(medium.clone()), Masters { keys: &keys, uuid: &[2; 16] })
}

fn create() -> Arc<CrashMedium> {
    let params = params();
    let medium = Arc::new(CrashMedium::new(params.medium_len()));
    on(&medium, |backing, keys| params.create(backing, keys)).unwrap();
    medium
}

fn open(medium: &Arc<CrashMedium>) -> Result<Box<dyn OpenFormat>> {
    on(medium, |backing, keys| {
        params().open(backing, &OpenWith { keys, opening: Opening::default(), rescue: false })
    })
}

/// Runs random operations until the power cut.
fn work(worked: &mut Worked<'_>) -> Result<()> {
    for _ in 0..40 {
        let count = 1 + worked.rng.below(6);
        match worked.rng.below(10) {
            0..6 => worked.write(count)?,
            6 => worked.discard(count)?,
            7 => worked.compare(count)?,
            _ => {
                worked.disk.flush()?;
                worked.model.flushed();
            }
        }
    }
    worked.disk.close()?;
    worked.model.flushed();
    Ok(())
}

/// Simulates at least `cuts` power cuts with writes in flight on a medium, which ignores syncs if
/// `lies` is set.
fn simulate(seed: u64, cuts: u64, lies: bool) -> Outcome {
    let (mut rng, mut power) = (Rng::new(seed), Cuts::default());
    let (mut model, mut next_stamp) = (Model::new("two-slots", BLOCKS), 0);
    let mut image = create().image();
    let mut lost = None;
    while power.in_flight() < cuts && lost.is_none() {
        let medium = Arc::new(CrashMedium::from_image(image));
        medium.ignore_syncs(lies);
        medium.cut_after(rng.below(120));
        if let Ok(disk) = open(&medium) {
            let (model, rng, next_stamp) = (&mut model, &mut rng, &mut next_stamp);
            // An error is the power cut or a consequence of it.
            let _ = work(&mut Worked { disk: disk.disk(), model, rng, next_stamp });
        }
        image = power.cut(&medium, &mut rng);
        let after = Arc::new(CrashMedium::from_image(image.clone()));
        lost = match open(&after) {
            Ok(disk) => model.compare(disk.disk()).err(),
            Err(e) => Some(format!("does not open: {e}")),
        };
    }
    // The nonces come from the system, so a seed does not give the same bytes again.
    power.end(seed, lost).unrepeatable()
}

#[test]
fn no_power_cut_loses_what_was_flushed() {
    let (seed, cuts) = (setting("LACUNA_SEED", 1), setting("LACUNA_CUTS", 500));
    simulate(seed, cuts, false).nothing_is_lost("two-slots: ", cuts, seed);
}

#[test]
fn a_medium_that_lies_about_syncs_is_caught() {
    simulate(1, 500, true).is_caught();
}

#[test]
fn a_check_tells_of_slots_that_were_moved() {
    let medium = create();
    let disk = open(&medium).unwrap();
    // Write both slots of both blocks: beside a slot that was never written, a damaged slot counts
    // as torn.
    for stamp in [1, 2] {
        disk.disk().write(BlockAddr(3), &run(3, 2, stamp)).unwrap();
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
    assert_eq!(report, CheckReport { good: BLOCKS - 1, unwritten: 0, bad: 1 });
}

#[test]
fn no_byte_of_a_slot_can_be_altered() {
    let medium = create();
    let disk = open(&medium).unwrap();
    for stamp in [1, 2] {
        disk.disk().write(BlockAddr(0), &run(0, 1, stamp)).unwrap();
        disk.disk().flush().unwrap();
    }
    disk.close().unwrap();
    let (written, mut read) = (medium.image(), run(0, 1, 0));
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
