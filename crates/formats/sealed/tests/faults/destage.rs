//! Failures while destaging: the journal keeps the blocks that did not reach their slots.

use crate::fixture::*;
use crate::model::*;
use lacuna_contracts::{Budget, Disk, Error, Kind, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_medium::{Medium, MemoryMedium, WriteExtent};
use lacuna_sealed::{OpenOptions, Params};
use lacuna_sim::{Fault, FaultMedium, InterceptedMedium, MediumInterceptor, OpKind};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// A small disk with the smallest journal, all of its segments mapped, and slots for four streams.
fn mapped_disk() -> (Params, Arc<MemoryMedium>) {
    let plan = params(Cipher::Xts, 8 * SEGMENT_BLOCKS);
    let params = Params { spare: 4, ..plan };
    assert_eq!(params.journal_len, 8 << 20);
    let inner = new_disk(&params);
    let disk = open(&inner, &params, 1);
    for segment in 0..8 {
        write(&disk, segment * SEGMENT_BLOCKS, 4, 1).unwrap();
    }
    disk.close().unwrap();
    (params, inner)
}

/// Blocks for small writes behind the beginning of the later segments, so that none is part of a
/// stream.
fn small_writes() -> impl Iterator<Item = u64> {
    (0..4 * 100).map(|n| (4 + n / 100) * SEGMENT_BLOCKS + (1 + n % 100) * 8)
}

/// Fills the journal with flushed blocks to nearly the half at which everything is destaged, and
/// opens streams of more than the other half. Then arms a failure and writes on, and asserts that
/// the journal is never retired.
fn fail_while_destaging(
    medium: Arc<dyn Medium>,
    params: &Params,
    arm: impl FnOnce(),
    what: &str,
) -> FaultModel {
    let options = OpenOptions { budget: Budget::bytes(64 << 20), ..options(2) };
    let disk = open_with(medium, params, options).unwrap();
    let mut model = FaultModel::default();
    (0..8).for_each(|segment| model.set(segment * SEGMENT_BLOCKS, 4, 1));
    model.flushed();
    let mut places = small_writes();
    while status(&disk, "journal_used") < 3_600_000 {
        perform(&disk, Op::Write(places.next().unwrap(), 8), 2, &mut model).unwrap();
        perform(&disk, Op::Flush, 0, &mut model).unwrap();
    }
    for segment in 0..4 {
        perform(&disk, Op::Write(segment * SEGMENT_BLOCKS, 400), 3, &mut model).unwrap();
    }
    let retired = status(&disk, "journal_retirements");
    arm();
    let error = places.find_map(|at| perform(&disk, Op::Write(at, 8), 4, &mut model).err());
    let error = error.unwrap_or_else(|| panic!("{what}: no failure"));
    assert!(matches!(error.kind(), Kind::Io | Kind::NoSpace), "{what}: {error}");
    for _ in 0..2 {
        assert_eq!(disk.flush().unwrap_err().kind(), Kind::FailStop, "{what}");
        assert!(disk.close().is_err(), "{what}");
    }
    assert_eq!(status(&disk, "journal_retirements"), retired, "{what}: the journal was retired");
    model
}

/// A write to a slot fails once, and the next commit needs more room than the journal has: the
/// journal is not retired.
#[test]
fn a_journal_with_blocks_that_were_not_destaged_is_never_retired() {
    let (params, inner) = mapped_disk();
    let before = inner.snapshot();
    // The first write is the batch that goes to the journal; the later ones destage. If the medium
    // refuses a destaging write, its blocks stay in the journal and nothing fails.
    for (error, failing) in [(Kind::NoSpace, &[1][..]), (Kind::Io, &[1, 2, 3, 20])] {
        for &nth in failing {
            let what = format!("{error:?} at write {nth}");
            let inner = Arc::new(MemoryMedium::from_bytes(before.clone()));
            let medium = Arc::new(FaultMedium::new(inner.clone()));
            let arm = || medium.add(Fault::FailNth { op: OpKind::Write, nth, error });
            let model = fail_while_destaging(medium.clone(), &params, arm, &what);
            assert_eq!(medium.fired(), 1, "{what}");
            model.assert_allows(&open(&inner, &params, 3), &what);
        }
    }
}

/// One sync reports a full medium and drops unsynced writes, as page caches do; the next one
/// succeeds.
struct DroppingSync {
    inner: Arc<MemoryMedium>,
    armed: AtomicBool,
    /// The range where it drops writes.
    drops: Range<u64>,
    /// The old content under every write in that range since the last sync.
    below: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl MediumInterceptor for DroppingSync {
    fn inner(&self) -> &dyn Medium {
        &*self.inner
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        for extent in batch.iter().filter(|e| self.drops.contains(&e.offset)) {
            let mut old = vec![0; extent.data.len()];
            self.inner.read_at(extent.offset, &mut old)?;
            self.below.lock().unwrap().push((extent.offset, old));
        }
        self.inner.write(batch)
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
}

fn fail_one_sync(params: &Params, inner: &Arc<MemoryMedium>, drops: Range<u64>, what: &str) {
    let below = Mutex::default();
    let medium = Arc::new(InterceptedMedium(DroppingSync {
        inner: inner.clone(),
        armed: AtomicBool::new(false),
        drops,
        below,
    }));
    let arm = || medium.0.armed.store(true, Ordering::SeqCst);
    let model = fail_while_destaging(medium.clone(), params, arm, what);
    assert!(!medium.0.armed.load(Ordering::SeqCst));
    model.assert_allows(&open(inner, params, 3), what);
}

/// If a failed sync drops destaged blocks, nothing flushed is lost, although a later sync succeeds.
#[test]
fn a_sync_that_fails_once_loses_nothing_flushed() {
    let (params, inner) = mapped_disk();
    let g = params.geometry();
    fail_one_sync(&params, &inner, g.data..g.data_of(8), "slots dropped by a failed sync");
}

/// If a failed sync drops streams too, their blocks do not replace flushed ones.
#[test]
fn a_sync_that_fails_and_drops_streams_loses_nothing_flushed() {
    let (params, inner) = mapped_disk();
    fail_one_sync(&params, &inner, 0..u64::MAX, "everything dropped by a failed sync");
}
