//! A medium that has no space left.

use crate::fixture::*;
use crate::model::*;
use lacuna_core::{Disk, Error, Kind, Result};
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use lacuna_sealed::{Cipher, Layout, Params, SEGMENT_BLOCKS};
use lacuna_sim::{CrashMedium, Fault, FaultMedium, Rng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A disk on a medium on which the ring and all that is in use was touched, and `spare` bytes more may be.
fn nearly_full(params: &Params, spare: u64) -> Arc<FaultMedium<MemoryMedium>> {
    let inner = new_disk(params);
    let disk = open(&inner, params, 1);
    write(&disk, 0, 20, 1).unwrap();
    disk.close().unwrap();
    let medium = Arc::new(FaultMedium::new(inner));
    let g = params.geometry();
    let touched = g.data + g.stride;
    medium.add(Fault::Quota { bytes: touched + spare });
    for at in (0..touched).step_by(1 << 20) {
        let mut bytes = vec![0; (touched - at).min(1 << 20) as usize];
        medium.read_at(at, &mut bytes).unwrap();
        medium.write_at(at, &bytes).unwrap();
    }
    medium
}

/// Small writes to ever new segments until the medium is full. Everything acknowledged is there afterwards.
#[test]
fn a_full_medium_loses_nothing_acknowledged() {
    for (cipher, layout) in FORMATS.into_iter().filter(|(_, layout)| *layout != Layout::Kv) {
        for (spare, flush_every) in [(0, 40), (0, 1000), (40_000, 7), (300_000, 40), (1 << 20, 5)] {
            let params = params(cipher, layout, 40 * SEGMENT_BLOCKS);
            let medium = nearly_full(&params, spare);
            let mut rng = Rng::new(spare + flush_every);
            let mut model = Model::default();
            let disk = open_with(medium.clone(), &params, options(2)).unwrap();
            let mut error = None;
            for n in 0..4000u64 {
                let block = rng.below(params.blocks - 3);
                // An acknowledged write must be there even if it was never flushed.
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
            assert_eq!(write(&disk, 0, 1, 9).unwrap_err().kind(), Kind::FailStop);
            assert!(disk.close().is_err());
            drop(disk);
            medium.heal();
            let disk = open_with(medium, &params, options(3)).unwrap();
            model.assert_allows(&disk, &format!("{} {}, {spare} spare", cipher.name(), layout.name()));
            disk.close().unwrap();
        }
    }
}

/// The same if it is a stream that finds the medium full: small writes acknowledged before it are kept.
#[test]
fn a_stream_that_fills_the_medium_loses_no_small_write() {
    let params = params(Cipher::XtsRandom, Layout::SegmentEnd, 8 * SEGMENT_BLOCKS);
    let medium = nearly_full(&params, 100_000);
    let disk = open_with(medium.clone(), &params, options(2)).unwrap();
    write(&disk, 3, 2, 5).unwrap();
    let error = write(&disk, 2 * SEGMENT_BLOCKS, 512, 6).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(disk.close().is_err());
    drop(disk);
    medium.heal();
    let disk = open_with(medium, &params, options(3)).unwrap();
    for (block, stamp) in [(2, 1), (3, 5), (4, 5), (5, 1)] {
        assert_eq!(stamp_of(block, &read(&disk, block).unwrap()), Some(stamp), "block {block}");
    }
}

/// Writes half of the next large write and then says that the medium is full, as a file system does that copies
/// on write; heals at once.
struct FullHalfWay {
    inner: Arc<CrashMedium>,
    armed: AtomicBool,
}

impl Medium for FullHalfWay {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.inner.read(batch)
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
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.inner.write_durable(batch)
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }
}

/// A stream is written over and the medium is full half-way: what was torn is not kept as if it were whole.
#[test]
fn a_shadow_torn_by_a_full_medium_is_never_a_mixture() {
    for (cipher, layout) in FORMATS {
        let params = params(cipher, layout, BLOCKS);
        let (image, mut model) = used_disk(&params);
        let inner = Arc::new(CrashMedium::from_image(image));
        let medium = Arc::new(FullHalfWay { inner: inner.clone(), armed: AtomicBool::new(false) });
        let disk = open_with(medium.clone(), &params, options(2)).unwrap();
        perform(&disk, Op::Write(SEGMENT_BLOCKS, 64), 50, &mut model).unwrap();
        perform(&disk, Op::Write(20, 1), 51, &mut model).unwrap();
        medium.armed.store(true, Ordering::SeqCst);
        let error = perform(&disk, Op::Write(SEGMENT_BLOCKS, 64), 52, &mut model).unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        assert!(disk.close().is_err());
        drop(disk);
        let disk = open_with(inner, &params, options(3)).unwrap();
        model.assert_allows(&disk, &format!("{} {}", cipher.name(), layout.name()));
        assert!(read(&disk, 20).unwrap() == content(20, 51));
    }
}
