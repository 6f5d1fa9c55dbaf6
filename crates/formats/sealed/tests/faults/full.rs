//! A medium without free space.

use crate::fixture::*;
use crate::model::*;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium, WriteExtent};
use lacuna_sealed::{OpenOptions, Params};
use lacuna_sim::{CrashMedium, Fault, FaultMedium, InterceptedMedium, MediumImage, MediumInterceptor, Rng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A disk on a medium that has allocated the journal and everything in use, and may allocate
/// `spare` bytes more.
fn nearly_full(params: &Params, spare: u64) -> Arc<FaultMedium<MemoryMedium>> {
    let inner = new_disk(params);
    let disk = open(&inner, params, 1);
    write(&disk, 0, 20, 1).unwrap();
    disk.close().unwrap();
    let medium = Arc::new(FaultMedium::new(inner));
    limit_to_first_slot(&medium, params, spare);
    medium
}

/// Gives space to the journal, the map and the first slot, and lets the medium allocate `spare`
/// bytes more.
fn limit_to_first_slot<M: Medium>(medium: &FaultMedium<M>, params: &Params, spare: u64) {
    let g = params.geometry();
    let meta = SEGMENT_BLOCKS * params.cipher.meta_size() as u64;
    let first = g.data_of(0);
    let held = [0..g.meta_of(0) + meta, first..first + SEGMENT_BLOCKS * BLOCK_SIZE as u64];
    let bytes = held.iter().map(|range| range.end - range.start).sum::<u64>() + spare;
    medium.add(Fault::Quota { bytes });
    for range in held {
        for at in range.clone().step_by(1 << 20) {
            let mut bytes = vec![0; (range.end - at).min(1 << 20) as usize];
            medium.read_at(at, &mut bytes).unwrap();
            medium.write_at(at, &bytes).unwrap();
        }
    }
}

/// Small writes to new segments until the medium is full lose no acknowledged block.
#[test]
fn a_full_medium_loses_nothing_acknowledged() {
    for cipher in CIPHERS {
        for (spare, flush_every) in [(0, 40), (0, 1000), (40_000, 7), (300_000, 40), (1 << 20, 5)] {
            let params = params(cipher, 40 * SEGMENT_BLOCKS);
            let medium = nearly_full(&params, spare);
            let mut rng = Rng::new(spare + flush_every);
            let mut model = FaultModel::default();
            model.set(0, 20, 1);
            model.flushed();
            let disk = open_with(medium.clone(), &params, options(2)).unwrap();
            let mut error = None;
            for n in 0..4000u64 {
                let block = rng.below(params.blocks - 3);
                // An acknowledged write must survive even if it was never flushed.
                let mut after = model.clone();
                after.set(block, 2, n + 1);
                error = write(&disk, block, 2, n + 1).err();
                if error.is_none() {
                    after.flushed();
                }
                model = after;
                if error.is_none() && n % flush_every == 0 {
                    error = disk.flush().err();
                }
                if error.is_some() {
                    break;
                }
            }
            let error = error.expect("the medium fills up");
            assert_eq!(error.kind(), Kind::NoSpace);
            assert!(disk.is_medium_full());
            // The disk goes on while its journal has room beside the reserve, and a write without
            // room leaves nothing behind.
            let mut refused = 0;
            for n in 0.. {
                let (block, stamp) = (n * 577 % (params.blocks - 3), 10_000 + n);
                match write(&disk, block, 1, stamp) {
                    Ok(()) => drop(model.0.insert(block, vec![stamp])),
                    Err(e) => {
                        assert_eq!(e.kind(), Kind::NoSpace);
                        refused += 1;
                    }
                }
                if refused == 5 {
                    break;
                }
                assert!(n < 4000);
            }
            assert_eq!(status(&disk, "dirty"), 0);
            disk.flush().unwrap();
            model.assert_allows(&disk, "on the full medium");
            disk.close().unwrap();
            drop(disk);
            medium.heal();
            let disk = open_with(medium, &params, options(3)).unwrap();
            model.assert_allows(&disk, &format!("{}, {spare} spare", cipher.name()));
            disk.close().unwrap();
        }
    }
}

/// Makes small writes to new segments until the medium is full, and leaves the disk unclosed.
fn filled(params: &Params, spare: u64, seed: u64) -> (Arc<FaultMedium<MemoryMedium>>, FaultModel) {
    let medium = nearly_full(params, spare);
    let mut rng = Rng::new(seed);
    let mut model = FaultModel::default();
    model.set(0, 20, 1);
    model.flushed();
    let disk = open_with(medium.clone(), params, options(2)).unwrap();
    for n in 1.. {
        let block = rng.below(params.blocks - 3);
        model.set(block, 2, n);
        let done = write(&disk, block, 2, n).and_then(|()| disk.flush());
        match done {
            Ok(()) => model.flushed(),
            Err(e) => {
                assert_eq!(e.kind(), Kind::NoSpace);
                break;
            }
        }
        assert!(n < 10_000);
    }
    (medium, model)
}

/// A disk on a full medium can be opened and written a little several times; after discards
/// everything is destaged.
#[test]
fn a_full_medium_can_be_opened_and_written() {
    for cipher in CIPHERS {
        for spare in [0, 40_000, 1 << 20] {
            let what = format!("{}, {spare} spare", cipher.name());
            let params = params(cipher, 40 * SEGMENT_BLOCKS);
            let (medium, mut model) = filled(&params, spare, spare + 7);
            // Reading needs no space.
            let reading = OpenOptions { read_only: true, ..options(3) };
            model.note_read(&open_with(medium.clone(), &params, reading).unwrap(), &what);
            for round in 0..5u64 {
                let disk = open_with(medium.clone(), &params, options(10 + round)).unwrap();
                assert!(disk.is_medium_full(), "{what}");
                model.assert_allows(&disk, &what);
                for n in 0..8 {
                    // Acknowledged writes are durable here: the disk is dropped without a flush.
                    write(&disk, 39 * SEGMENT_BLOCKS + n * 16, 1, 20_000 + round).unwrap();
                    model.set(39 * SEGMENT_BLOCKS + n * 16, 1, 20_000 + round);
                    model.flushed();
                }
                if round % 2 == 1 {
                    disk.close().unwrap();
                }
            }
            let disk = open_with(medium.clone(), &params, options(20)).unwrap();
            assert!(disk.is_medium_full(), "{what}");
            let gone = 5 * SEGMENT_BLOCKS + 500;
            disk.discard(BlockAddr(0), gone).unwrap();
            for (block, versions) in &mut model.0 {
                if *block < gone {
                    *versions = vec![0];
                }
            }
            // Space freed elsewhere works too.
            disk.flush().unwrap();
            if disk.is_medium_full() {
                medium.heal();
            }
            model.assert_allows(&disk, &what);
            disk.close().unwrap();
            drop(disk);
            let disk = open_with(medium.clone(), &params, options(21)).unwrap();
            assert_eq!((disk.is_medium_full(), status(&disk, "batches_replayed")), (false, 0), "{what}");
            model.assert_allows(&disk, &what);
            // The disk streams again.
            medium.heal();
            write(&disk, 20 * SEGMENT_BLOCKS, SEGMENT_BLOCKS, 9).unwrap();
            disk.close().unwrap();
        }
    }
}

/// A full medium that never gets space accepts writes until the journal is full as well, then
/// refuses the next write and loses nothing.
#[test]
fn the_reserve_ends_with_a_refusal_and_loses_nothing() {
    let params = params(Cipher::Gcm, 40 * SEGMENT_BLOCKS);
    let (medium, mut model) = filled(&params, 0, 3);
    let disk = open_with(medium.clone(), &params, options(4)).unwrap();
    model.note_read(&disk, "filled");
    let mut taken = 0;
    let error = loop {
        let block = (taken * 577) % (params.blocks - 3);
        match write(&disk, block, 1, 50_000 + taken) {
            Ok(()) => {
                model.set(block, 1, 50_000 + taken);
                model.flushed();
            }
            Err(e) => {
                model.set(block, 1, 50_000 + taken);
                break e;
            }
        }
        taken += 1;
        assert!(taken < 10_000);
    };
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("free space"), "{error}");
    assert!(taken >= 50, "{taken} writes in the reserve");
    drop(disk);
    medium.heal();
    let disk = open_with(medium, &params, options(5)).unwrap();
    model.assert_allows(&disk, "reserve");
    disk.close().unwrap();
}

/// A full medium with the contents of `image`: only the journal, the map and the first slot have
/// space.
fn full_with(params: &Params, image: &MediumImage) -> Arc<FaultMedium<CrashMedium>> {
    let medium = Arc::new(FaultMedium::new(Arc::new(CrashMedium::from_image(image.clone()))));
    limit_to_first_slot(&medium, params, 0);
    medium.sync().unwrap();
    medium
}

/// Opens a disk on a full medium and repeatedly writes a few blocks, more than the journal has room
/// for at once. Returns whether all writes succeeded; `retired` is set to the number of partial
/// retirements of the journal.
fn rewrite(
    medium: &Arc<FaultMedium<CrashMedium>>,
    params: &Params,
    model: &mut FaultModel,
    retired: &mut u64,
) -> bool {
    let Ok(disk) = open_with(medium.clone(), params, options(9)) else { return false };
    for n in 0..700 {
        let block = 5 * SEGMENT_BLOCKS + n * 37 % 300;
        let (op, stamp) =
            if n % 50 == 49 { (Op::Discard(block, 2), 0) } else { (Op::Write(block, 1), 5000 + n) };
        let done = perform(&disk, op, stamp, model);
        match op {
            Op::Write(..) if done.is_ok() => model.flushed(),
            _ => {}
        }
        if done.is_err() {
            return false;
        }
    }
    assert!(disk.is_medium_full());
    *retired = status(&disk, "journal_retirements");
    disk.close().unwrap();
    model.flushed();
    true
}

/// A power cut on a full medium loses no acknowledged block, wherever the journal's tail is.
#[test]
fn a_power_cut_on_a_full_medium_loses_nothing() {
    // Takes minutes in a debug build: `make test-long` sets the variable and runs it in a release
    // build.
    if std::env::var_os("LACUNA_KILLS").is_none() {
        return eprintln!("skipped: make test-long runs it");
    }
    for cipher in [Cipher::XtsRandom, Cipher::Xts] {
        let params = params(cipher, 40 * SEGMENT_BLOCKS);
        let start = Arc::new(CrashMedium::new(params.geometry().end()));
        create(&*start, &params);
        let medium = full_with(&params, &start.image());
        let mut model = FaultModel::default();
        let disk = open_with(medium.clone(), &params, options(2)).unwrap();
        for n in 1.. {
            let done = perform(&disk, Op::Write(5 * SEGMENT_BLOCKS + n * 37 % 300, 1), n, &mut model)
                .and_then(|()| perform(&disk, Op::Flush, 0, &mut model));
            if done.is_err() {
                break;
            }
        }
        drop(disk);
        let image = medium.inner().image();
        let (mut retired, mut whole) = (0, model.clone());
        let uncut = full_with(&params, &image);
        let before = uncut.inner().ops();
        assert!(rewrite(&uncut, &params, &mut whole, &mut retired));
        assert!(retired > 2, "retired {retired} times");
        let ops = uncut.inner().ops() - before;
        for cut in (0..ops).step_by(1 + ops as usize / 60) {
            let medium = full_with(&params, &image);
            medium.inner().cut_after(cut);
            let mut model = model.clone();
            rewrite(&medium, &params, &mut model, &mut 0);
            let left = medium.inner().after_cut(&mut Rng::new(cut));
            let disk = open_with(full_with(&params, &left), &params, options(3)).unwrap();
            model.assert_allows(&disk, &format!("{}, cut {cut} of {ops}", cipher.name()));
            drop(disk);
            let disk = open_with(Arc::new(CrashMedium::from_image(left)), &params, options(4)).unwrap();
            assert!(!disk.is_medium_full());
            model.assert_allows(&disk, &format!("{}, cut {cut} of {ops}, space", cipher.name()));
        }
    }
}

/// If a stream finds the medium full, small writes acknowledged before it are kept.
#[test]
fn a_stream_that_fills_the_medium_loses_no_small_write() {
    let params = params(Cipher::XtsRandom, 8 * SEGMENT_BLOCKS);
    let medium = nearly_full(&params, 100_000);
    let disk = open_with(medium.clone(), &params, options(2)).unwrap();
    write(&disk, 3, 2, 5).unwrap();
    let error = write(&disk, 2 * SEGMENT_BLOCKS, 512, 6).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    disk.close().unwrap();
    drop(disk);
    medium.heal();
    let disk = open_with(medium, &params, options(3)).unwrap();
    for (block, stamp) in [(2, 1), (3, 5), (4, 5), (5, 1)] {
        assert_eq!(stamp_of(block, &read(&disk, block).unwrap()), Some(stamp), "block {block}");
    }
}

/// Writes half of the next large write and then reports a full medium, as a copy-on-write file
/// system does. Works again at once.
struct HalfFullMedium {
    inner: Arc<CrashMedium>,
    armed: AtomicBool,
}

impl MediumInterceptor for HalfFullMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.inner
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch {
            if extent.data.len() > 100_000 && self.armed.swap(false, Ordering::SeqCst) {
                self.inner.write_at(extent.offset, &extent.data[..100_000])?;
                return Err(Error::new(Kind::NoSpace, "no space left on the medium"));
            }
            self.inner.write_at(extent.offset, extent.data)?;
        }
        Ok(())
    }
}

/// If the medium becomes full while a stream is overwritten, the torn blocks are not kept as if
/// they were whole.
#[test]
fn a_cow_segment_torn_by_a_full_medium_is_never_a_mixture() {
    for cipher in CIPHERS {
        let params = params(cipher, BLOCKS);
        let (image, mut model) = used_disk(&params);
        let inner = Arc::new(CrashMedium::from_image(image));
        let medium = Arc::new(InterceptedMedium(HalfFullMedium {
            inner: inner.clone(),
            armed: AtomicBool::new(false),
        }));
        let disk = open_with(medium.clone(), &params, options(2)).unwrap();
        perform(&disk, Op::Write(SEGMENT_BLOCKS, 64), 50, &mut model).unwrap();
        perform(&disk, Op::Write(20, 1), 51, &mut model).unwrap();
        medium.0.armed.store(true, Ordering::SeqCst);
        let error = perform(&disk, Op::Write(SEGMENT_BLOCKS, 64), 52, &mut model).unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        disk.close().unwrap();
        drop(disk);
        let disk = open_with(inner, &params, options(3)).unwrap();
        model.assert_allows(&disk, cipher.name());
        assert!(read(&disk, 20).unwrap() == content(20, 51));
    }
}
