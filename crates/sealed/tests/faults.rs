//! A medium that fails: the disk says so, takes no more writes, and after mending holds what it promised.

mod fixture;

use fixture::*;
use lacuna_core::{BlockAddr, Budget, Disk, Error, Kind, Result};
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use lacuna_sealed::{Cipher, Layout, OpenOptions, Params, SEGMENT_BLOCKS, Sealed};
use lacuna_sim::{CrashMedium, Fault, FaultMedium, Image, OpKind, Rng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const BLOCKS: u64 = 3 * SEGMENT_BLOCKS + 100;
const FORMATS: [(Cipher, Layout); 5] = [
    (Cipher::Xts, Layout::SegmentEnd),
    (Cipher::XtsRandom, Layout::SegmentEnd),
    (Cipher::XtsRandom, Layout::Interleaved),
    (Cipher::Gcm, Layout::SegmentEnd),
    (Cipher::Gcm, Layout::Kv),
];

type Faulty = FaultMedium<CrashMedium>;

/// Versions a block may have when the disk is opened again: the first is the last flushed.
#[derive(Clone, Default)]
struct Model(BTreeMap<u64, Vec<u64>>);

impl Model {
    fn set(&mut self, first: u64, count: u64, stamp: u64) {
        (first..first + count).for_each(|b| self.0.entry(b).or_insert_with(|| vec![0]).push(stamp));
    }

    fn flushed(&mut self) {
        self.0.values_mut().for_each(|versions| *versions = vec![*versions.last().unwrap()]);
    }

    fn may_be(&self, block: u64, stamp: u64) -> bool {
        self.0.get(&block).map_or(stamp == 0, |versions| versions.contains(&stamp))
    }

    fn assert_allows(&self, disk: &Sealed, what: &str) {
        for &block in self.0.keys() {
            let data = read(disk, block).unwrap_or_else(|e| panic!("{what}: block {block}: {e}"));
            let stamp = stamp_of(block, &data).unwrap_or_else(|| panic!("{what}: block {block} is mixed"));
            assert!(self.may_be(block, stamp), "{what}: block {block} reads {stamp}: {:?}", self.0[&block]);
        }
    }
}

#[derive(Clone, Copy)]
enum Op {
    Write(u64, u64),
    Discard(u64, u64),
    Flush,
}

/// Every way to the medium: small writes, streams to new and to mapped segments (completed and declined),
/// discards of blocks and of segments, and then the close. The ring holds batches from before.
const WORK: [Op; 20] = [
    Op::Write(3, 2),
    Op::Write(SEGMENT_BLOCKS + 7, 3),
    Op::Flush,
    Op::Write(SEGMENT_BLOCKS * 2, 40),
    Op::Flush,
    Op::Write(0, 1024),
    Op::Write(10, 2),
    Op::Flush,
    Op::Discard(5, 3),
    Op::Discard(SEGMENT_BLOCKS * 2 + 8, 4),
    Op::Write(SEGMENT_BLOCKS * 2, 8),
    Op::Flush,
    Op::Write(4, 100),
    Op::Write(200, 70),
    Op::Discard(SEGMENT_BLOCKS * 2, SEGMENT_BLOCKS),
    Op::Write(SEGMENT_BLOCKS * 3, 100),
    Op::Flush,
    Op::Write(SEGMENT_BLOCKS * 2 + 1, 2),
    Op::Write(6, 1),
    Op::Discard(SEGMENT_BLOCKS * 3, 2),
];

fn perform(disk: &Sealed, op: Op, stamp: u64, model: &mut Model) -> Result<()> {
    match op {
        Op::Write(first, count) => {
            model.set(first, count, stamp);
            write(disk, first, count, stamp)
        }
        Op::Discard(first, count) => {
            model.set(first, count, 0);
            disk.discard(BlockAddr(first), count)
        }
        Op::Flush => disk.flush().map(|()| model.flushed()),
    }
}

/// A disk that was in use and not closed: homes, a map, and batches in the ring.
fn used_disk(params: &Params) -> (Image, Model) {
    let medium = Arc::new(CrashMedium::new(params.geometry().medium_len()));
    create(&*medium, params);
    let mut model = Model::default();
    let disk = open_with(medium.clone(), params, options(1)).unwrap();
    for (op, stamp) in [Op::Write(0, 12), Op::Write(300, 2)].into_iter().zip(1..) {
        perform(&disk, op, stamp, &mut model).unwrap();
    }
    disk.close().unwrap();
    let disk = open_with(medium.clone(), params, options(2)).unwrap();
    for (op, stamp) in
        [Op::Write(2, 2), Op::Write(SEGMENT_BLOCKS, 2), Op::Discard(300, 1)].into_iter().zip(10..)
    {
        perform(&disk, op, stamp, &mut model).unwrap();
    }
    disk.flush().unwrap();
    model.flushed();
    (medium.image(), model)
}

/// Runs the work until something fails, and asserts how the disk behaves from then on. Whether all went well.
fn run_until_failure(medium: &Arc<Faulty>, params: &Params, model: &mut Model, what: &str) -> bool {
    let Ok(disk) = open_with(medium.clone(), params, options(3)) else { return false };
    for (op, stamp) in WORK.into_iter().zip(100..) {
        if let Err(e) = perform(&disk, op, stamp, model) {
            assert!(matches!(e.kind(), Kind::Io | Kind::NoSpace), "{what}: {e}");
            let attempted = match op {
                Op::Write(first, count) | Op::Discard(first, count) => first..first + count,
                Op::Flush => 0..0,
            };
            assert_fail_stop(&disk, model, attempted, what);
            return false;
        }
    }
    match disk.close() {
        Ok(()) => {
            model.flushed();
            // What the key-value store does when it is dropped is reported by nobody and must not matter.
            // Nor does space that could not be given back.
            let hint = what.contains("op: Discard");
            assert!(hint || medium.fired() == 0, "{what}: every failure is reported");
            medium.fired() == 0
        }
        Err(_) => {
            assert_eq!(write(&disk, 0, 1, 1).unwrap_err().kind(), Kind::FailStop, "{what}");
            false
        }
    }
}

fn assert_fail_stop(disk: &Sealed, model: &Model, attempted: Range<u64>, what: &str) {
    let before = model.clone();
    for stamp in [9000, 9001] {
        assert_eq!(write(disk, 50, 1, stamp).unwrap_err().kind(), Kind::FailStop, "{what}");
        assert_eq!(write(disk, 1024, 64, stamp).unwrap_err().kind(), Kind::FailStop, "{what}");
        assert_eq!(disk.discard(BlockAddr(0), 1024).unwrap_err().kind(), Kind::FailStop, "{what}");
        assert_eq!(disk.flush().unwrap_err().kind(), Kind::FailStop, "{what}");
    }
    // What was acknowledged reads as it was written, except where the failed request itself went.
    for (&block, versions) in before.0.iter().filter(|(b, _)| !attempted.contains(b)) {
        let data = read(disk, block).unwrap_or_else(|e| panic!("{what}: block {block} while failed: {e}"));
        assert_eq!(stamp_of(block, &data), versions.last().copied(), "{what}: block {block} while failed");
    }
    let cause = disk.close().unwrap_err();
    assert!(matches!(cause.kind(), Kind::Io | Kind::NoSpace), "{what}: {cause}");
    assert_eq!(write(disk, 50, 1, 1).unwrap_err().kind(), Kind::FailStop, "{what}");
}

/// One fault; then mended, with and without a power cut on top.
fn fault_and_mend(params: &Params, start: &(Image, Model), fault: Fault) -> bool {
    let what = format!("{} {} {fault:?}", params.cipher.name(), params.layout.name());
    let medium = Arc::new(FaultMedium::new(Arc::new(CrashMedium::from_image(start.0.clone()))));
    let mut model = start.1.clone();
    medium.add(fault);
    let well = run_until_failure(&medium, params, &mut model, &what);
    let fired = medium.fired() > 0;
    assert!(well || fired, "{what}: nothing is reported but faults");
    medium.heal();
    let cut = medium.inner().after_cut(&mut Rng::new(medium.inner().ops()));
    for image in [medium.inner().image(), cut] {
        let medium = Arc::new(CrashMedium::from_image(image));
        let disk = open_with(medium.clone(), params, options(4)).unwrap_or_else(|e| panic!("{what}: {e}"));
        model.assert_allows(&disk, &what);
        write(&disk, 77, 1, 7777).unwrap();
        disk.close().unwrap();
        let disk = open_with(medium, params, options(5)).unwrap();
        assert!(read(&disk, 77).unwrap() == content(77, 7777));
        model.0.remove(&77);
        model.assert_allows(&disk, &what);
    }
    fired
}

/// Every operation of a kind fails in turn, until there are no more.
fn every_operation_fails_once(formats: &[(Cipher, Layout)], least: u64, fault: impl Fn(u64) -> Fault) {
    for &(cipher, layout) in formats {
        let params = params(cipher, layout, BLOCKS);
        let start = used_disk(&params);
        let failed = (1..).take_while(|n| fault_and_mend(&params, &start, fault(*n))).count() as u64;
        println!("{} {}: {failed} operations", cipher.name(), layout.name());
        assert!(failed >= least, "{failed}");
    }
}

#[test]
fn every_write_fails_once() {
    every_operation_fails_once(&FORMATS, 30, |nth| Fault::FailNth {
        op: OpKind::Write,
        nth,
        error: Kind::Io,
    });
}

#[test]
fn every_write_and_all_later_ones_fail() {
    every_operation_fails_once(&FORMATS[..1], 30, |nth| Fault::FailFrom {
        op: OpKind::Write,
        nth,
        error: Kind::Io,
    });
}

#[test]
fn every_sync_fails_once() {
    every_operation_fails_once(&FORMATS, 4, |nth| Fault::FailNth { op: OpKind::Sync, nth, error: Kind::Io });
}

#[test]
fn every_discard_fails_once() {
    every_operation_fails_once(&FORMATS, 2, |nth| Fault::FailNth {
        op: OpKind::Discard,
        nth,
        error: Kind::Io,
    });
}

#[test]
fn every_write_stops_short_once() {
    for bytes in [512, 5120] {
        every_operation_fails_once(&FORMATS[2..4], 30, |nth| Fault::Short { op: OpKind::Write, nth, bytes });
    }
}

#[test]
fn every_write_finds_the_medium_full_once() {
    let (op, error) = (OpKind::Write, Kind::NoSpace);
    every_operation_fails_once(&FORMATS[..2], 30, |nth| Fault::FailNth { op, nth, error });
    every_operation_fails_once(&FORMATS[3..4], 30, |nth| Fault::FailFrom { op, nth, error });
}

/// A read that fails is that read's failure alone.
#[test]
fn a_failed_read_does_not_stop_writing() {
    for (cipher, layout) in FORMATS.into_iter().filter(|(_, layout)| *layout != Layout::Kv) {
        let params = params(cipher, layout, BLOCKS);
        let (image, mut model) = used_disk(&params);
        let medium = Arc::new(FaultMedium::new(Arc::new(CrashMedium::from_image(image))));
        let disk = open_with(medium.clone(), &params, options(3)).unwrap();
        for nth in 1..3 {
            medium.add(Fault::FailNth { op: OpKind::Read, nth, error: Kind::Io });
            medium.add(Fault::Short { op: OpKind::Read, nth: nth + 1, bytes: 100 });
        }
        let failed = (0..12).filter(|b| read(&disk, *b).is_err_and(|e| e.kind() == Kind::Io)).count();
        assert!(failed >= 3, "{failed}");
        model.assert_allows(&disk, "after failed reads");
        perform(&disk, Op::Write(1, 3), 500, &mut model).unwrap();
        perform(&disk, Op::Flush, 0, &mut model).unwrap();
        disk.close().unwrap();
        model.assert_allows(&open_with(medium, &params, options(4)).unwrap(), "after reopening");
    }
}

// --- full media ---

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

// --- the ring keeps what did not get home ---

/// A small disk with the smallest ring, all of its segments mapped, and homes for four streams.
fn mapped_disk() -> (Params, Arc<MemoryMedium>) {
    let plan = params(Cipher::Xts, Layout::SegmentEnd, 8 * SEGMENT_BLOCKS);
    let params = Params { spare: 4, ..plan };
    assert_eq!(params.ring_len, 8 << 20);
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    for segment in 0..8 {
        write(&disk, segment * SEGMENT_BLOCKS, 4, 1).unwrap();
    }
    disk.close().unwrap();
    (params, inner)
}

/// Small writes after the beginning of the later segments, none of which is part of a stream.
fn small_writes() -> impl Iterator<Item = u64> {
    (0..4 * 100).map(|n| (4 + n / 100) * SEGMENT_BLOCKS + (1 + n % 100) * 8)
}

/// Fills the ring to nearly its half with what was flushed, and streams with more than its other half; then
/// arms a failure and writes on until the ring should be retired and is not, ever.
fn fail_on_the_way_home(medium: Arc<dyn Medium>, params: &Params, arm: impl FnOnce(), what: &str) -> Model {
    let options = OpenOptions { budget: Budget::bytes(64 << 20), ..options(2) };
    let disk = open_with(medium, params, options).unwrap();
    let mut model = Model::default();
    (0..8).for_each(|segment| model.set(segment * SEGMENT_BLOCKS, 4, 1));
    model.flushed();
    let mut places = small_writes();
    while status(&disk, "ring_used") < 3_800_000 {
        perform(&disk, Op::Write(places.next().unwrap(), 8), 2, &mut model).unwrap();
        perform(&disk, Op::Flush, 0, &mut model).unwrap();
    }
    for segment in 0..4 {
        perform(&disk, Op::Write(segment * SEGMENT_BLOCKS, 400), 3, &mut model).unwrap();
    }
    let retired = status(&disk, "ring_retirements");
    arm();
    let error = places.find_map(|at| perform(&disk, Op::Write(at, 8), 4, &mut model).err());
    let error = error.unwrap_or_else(|| panic!("{what}: no failure"));
    assert!(matches!(error.kind(), Kind::Io | Kind::NoSpace), "{what}: {error}");
    for _ in 0..2 {
        assert_eq!(disk.flush().unwrap_err().kind(), Kind::FailStop, "{what}");
        assert!(disk.close().is_err(), "{what}");
    }
    assert_eq!(status(&disk, "ring_retirements"), retired, "{what}: the ring was retired");
    model
}

/// A write home fails once, and what the last attempt gathers is more than the ring has room for.
#[test]
fn a_ring_with_blocks_that_did_not_get_home_is_never_retired() {
    let (params, inner) = mapped_disk();
    let before = inner.snapshot();
    for error in [Kind::NoSpace, Kind::Io] {
        // The first is the batch that goes to the ring, all others are on their way home.
        for nth in [1, 2, 3, 20] {
            let what = format!("{error:?} at write {nth}");
            let inner = Arc::new(MemoryMedium::from_bytes(before.clone()));
            let medium = Arc::new(FaultMedium::new(inner.clone()));
            let arm = || medium.add(Fault::FailNth { op: OpKind::Write, nth, error });
            let model = fail_on_the_way_home(medium.clone(), &params, arm, &what);
            assert_eq!(medium.fired(), 1, "{what}");
            model.assert_allows(&open(&inner, &params, 3), &what);
        }
    }
}

/// One sync finds the medium full and drops what it should have kept, as page caches do; the next succeeds.
struct DroppingSync {
    inner: Arc<MemoryMedium>,
    armed: AtomicBool,
    /// Where it drops writes.
    drops: Range<u64>,
    /// What was below every write there since the last sync.
    below: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Medium for DroppingSync {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.inner.read(batch)
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch.iter().filter(|e| self.drops.contains(&e.offset)) {
            let mut old = vec![0; extent.data.len()];
            self.inner.read_at(extent.offset, &mut old)?;
            self.below.lock().unwrap().push((extent.offset, old));
        }
        self.inner.write(batch)
    }
    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.inner.write_durable(batch)
    }
    fn sync(&self) -> Result<()> {
        let below = std::mem::take(&mut *self.below.lock().unwrap());
        if !self.armed.swap(false, Ordering::SeqCst) {
            return self.inner.sync();
        }
        for (offset, old) in below.into_iter().rev() {
            self.inner.write_at(offset, &old)?;
        }
        Err(Error::new(Kind::NoSpace, "no space left on the medium"))
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }
    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }
}

fn fail_one_sync(params: &Params, inner: &Arc<MemoryMedium>, drops: Range<u64>, what: &str) {
    let below = Mutex::default();
    let medium = Arc::new(DroppingSync { inner: inner.clone(), armed: AtomicBool::new(false), drops, below });
    let arm = || medium.armed.store(true, Ordering::SeqCst);
    let model = fail_on_the_way_home(medium.clone(), params, arm, what);
    assert!(!medium.armed.load(Ordering::SeqCst));
    model.assert_allows(&open(inner, params, 3), what);
}

/// Everything went home but was not kept there; that a later sync succeeds means nothing.
#[test]
fn a_sync_that_fails_once_loses_nothing_flushed() {
    let (params, inner) = mapped_disk();
    let g = params.geometry();
    fail_one_sync(&params, &inner, g.data..g.data + 8 * g.stride, "homes dropped by a failed sync");
}

/// Streams were not kept either: what they covered must not replace what was flushed before.
#[test]
fn a_sync_that_fails_and_drops_streams_loses_nothing_flushed() {
    let (params, inner) = mapped_disk();
    fail_one_sync(&params, &inner, 0..u64::MAX, "everything dropped by a failed sync");
}

/// A read of metadata fails once in a cache of a few pages: its page must not take another's place in the index.
#[test]
fn metadata_survives_failed_reads_in_a_tiny_cache() {
    // Two blocks in each of 256 pages of metadata, or nearly.
    let params = params(Cipher::Gcm, Layout::SegmentEnd, 32 * SEGMENT_BLOCKS);
    let places: Vec<u64> = (0..256).map(|n| n * 128 + 65).collect();
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    let mut model = Model::default();
    for &place in &places {
        perform(&disk, Op::Write(place, 2), 1, &mut model).unwrap();
    }
    disk.close().unwrap();
    let medium = Arc::new(FaultMedium::new(inner.clone()));
    let options = OpenOptions { budget: Budget::bytes(1), ..options(2) };
    let disk = open_with(medium.clone(), &params, options).unwrap();
    let mut rng = Rng::new(7);
    let mut failed = 0;
    for stamp in 10..1000 {
        // Of the reads of a block, its metadata's is the second, if its page is not in the cache.
        let place = places[rng.below(256) as usize];
        medium.add(Fault::FailNth { op: OpKind::Read, nth: 2, error: Kind::Io });
        failed += u64::from(read(&disk, place).is_err());
        medium.heal();
        read(&disk, place).unwrap();
        perform(&disk, Op::Write(place, 2), stamp, &mut model).unwrap();
        read(&disk, places[rng.below(256) as usize]).unwrap();
        if stamp % 4 == 0 {
            perform(&disk, Op::Flush, 0, &mut model).unwrap();
        }
    }
    assert!(failed > 100, "{failed}");
    perform(&disk, Op::Flush, 0, &mut model).unwrap();
    model.assert_allows(&disk, "after failed reads");
    disk.close().unwrap();
    model.assert_allows(&open(&inner, &params, 3), "after reopening");
}

// --- writes that land elsewhere, or nowhere ---

/// `gcm` notices a write that reports success and lands in another block's place, or nowhere.
#[test]
fn gcm_notices_misdirected_and_lost_writes() {
    let params = params(Cipher::Gcm, Layout::SegmentEnd, SEGMENT_BLOCKS);
    for lost in [false, true] {
        let inner = new_disk(&params);
        let disk = open(&inner, &params, 1);
        write(&disk, 0, 30, 1).unwrap();
        disk.close().unwrap();
        let victim = data_at(&*inner, &params, 20).start as u64;
        let medium = Arc::new(FaultMedium::new(inner.clone()));
        let disk = open_with(medium.clone(), &params, options(2)).unwrap();
        write(&disk, 5, 1, 2).unwrap();
        disk.flush().unwrap();
        // Of what is left to write, the block's way home comes first.
        medium.add(if lost {
            Fault::Lose { op: OpKind::Write, nth: 1 }
        } else {
            Fault::Misdirect { nth: 1, to: victim }
        });
        disk.close().unwrap();
        assert_eq!(medium.fired(), 1);
        medium.heal();
        let disk = open_with(medium, &params, options(3)).unwrap();
        let mut bad = vec![];
        let report = disk.check(|_| {}, |b| bad.push((b.block.0, b.error.kind()))).unwrap();
        let expected =
            if lost { vec![(5, Kind::Corrupt)] } else { vec![(5, Kind::Corrupt), (20, Kind::Corrupt)] };
        assert_eq!(bad, expected);
        assert_eq!(report.good, 30 - bad.len() as u64);
        for block in (0..30).filter(|b| !bad.contains(&(*b, Kind::Corrupt))) {
            assert!(read(&disk, block).unwrap() == content(block, 1));
        }
    }
}
