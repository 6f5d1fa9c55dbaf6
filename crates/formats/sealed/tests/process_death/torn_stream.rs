//! A process that dies while it writes to blocks that a stream covers: the copy of the blocks in
//! the system's cache is torn. The next opening takes over the acknowledged versions, and the power
//! is cut at each of its steps.
//!
//! Such a block reads as its last flushed version or any later one if the opening did not end, and
//! as its acknowledged version or the interrupted one if it did; never as a mixture.

use crate::dying_medium::{DyingMedium, LastState, open_kept};
use crate::fixture::{create, open_with, options, params, write};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_medium::{Medium, WriteExtent};
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::versions::DiskModel;
use lacuna_sim::{CrashMedium, InterceptedMedium, LossPolicy, MediumImage, MediumInterceptor, Rng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The blocks that the stream covers, from the start of its segment.
const COVERED: u64 = 64;
/// The blocks of the interrupted request.
const TORN: std::ops::Range<u64> = 8..12;
/// The bytes of the interrupted request that reach the medium: a block and a part of the next one.
const WRITTEN: usize = BLOCK_SIZE + 3 * 512;
/// The version that was flushed before the stream, if its segment has a slot.
const FLUSHED: u64 = 5;
/// The version of the stream, which was acknowledged.
const ACKNOWLEDGED: u64 = 6;
/// The version of the interrupted write.
const INTERRUPTED: u64 = 7;

/// The request that the death of the process interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interrupted {
    Write,
    Discard,
}

/// Does a part of the next request once it is armed, and then the process dies.
struct TearingMedium {
    medium: Arc<CrashMedium>,
    memory: KeptMemory,
    last: LastState,
    armed: AtomicBool,
}

impl TearingMedium {
    /// Does `part` of a request, after which the process is dead.
    fn tear(&self, part: impl FnOnce() -> Result<()>) -> Result<()> {
        part()?;
        self.medium.cut_now();
        self.last.note(&self.memory);
        Ok(())
    }
}

impl MediumInterceptor for TearingMedium {
    fn inner(&self) -> &dyn Medium {
        &*self.medium
    }
    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        if self.armed.swap(false, Ordering::SeqCst) {
            let WriteExtent { offset, data } = batch[0];
            self.tear(|| self.medium.write_at(offset, &data[..WRITTEN]))?;
        }
        self.medium.write(batch)
    }
    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.tear(|| self.medium.discard(offset, WRITTEN as u64))?;
        }
        self.medium.discard(offset, len)
    }
}

/// A disk after the death of its process in a request to a stream.
struct TornDisk {
    params: Params,
    medium: Arc<CrashMedium>,
    memory: KeptMemory,
    /// The versions that each covered block may have, the flushed one first.
    model: DiskModel,
    what: String,
}

impl TornDisk {
    /// `mapped`: whether the segment of the stream has a slot already.
    fn new(cipher: Cipher, mapped: bool, interrupted: Interrupted) -> TornDisk {
        let what = format!("{}, mapped: {mapped}, {interrupted:?}", cipher.name());
        let params = params(cipher, SEGMENT_BLOCKS + 100);
        let medium = Arc::new(CrashMedium::new(params.geometry().end()));
        create(&*medium, &params);
        let mut model = DiskModel::new(what.as_str(), params.blocks);
        if mapped {
            let disk = open_with(medium.clone(), &params, options(1)).unwrap();
            write(&disk, 0, COVERED, FLUSHED).unwrap();
            disk.close().unwrap();
            model.add_version(0, COVERED, FLUSHED);
            model.record_flush();
        }
        let layout = SealedDisk::kept_layout(&params, options(0).budget);
        let memory = KeptMemory::simulated(&layout).unwrap();
        let tearing = Arc::new(InterceptedMedium(TearingMedium {
            medium: medium.clone(),
            memory: memory.clone(),
            last: LastState::default(),
            armed: AtomicBool::new(false),
        }));
        let disk = open_kept(tearing.clone(), &params, &memory, 2).unwrap();
        write(&disk, 0, COVERED, ACKNOWLEDGED).unwrap();
        model.add_version(0, COVERED, ACKNOWLEDGED);
        tearing.0.armed.store(true, Ordering::SeqCst);
        let count = TORN.end - TORN.start;
        let (done, version) = match interrupted {
            Interrupted::Write => (write(&disk, TORN.start, count, INTERRUPTED), INTERRUPTED),
            Interrupted::Discard => (disk.discard(BlockAddr(TORN.start), count), 0),
        };
        model.add_version(TORN.start, count, version);
        assert!(done.is_err() && medium.is_cut(), "{what}: no request reached the stream");
        let memory = tearing.0.last.take().expect("the process died");
        TornDisk { params, medium, memory, model, what }
    }

    /// A new medium as the death left it.
    fn left(&self) -> Arc<CrashMedium> {
        Arc::new(self.medium.after_process_death(&mut Rng::new(0)))
    }

    /// Opens the disk with the memory, and cuts the power after `ops` operations of the medium.
    /// Returns the medium, and whether the opening had ended.
    fn open_until(&self, ops: u64) -> (Arc<CrashMedium>, bool) {
        let medium = self.left();
        medium.cut_after(ops);
        let memory = self.memory.as_if_died().unwrap();
        let (dying, _) = DyingMedium::over(&medium, &memory);
        let opened = open_kept(dying, &self.params, &memory, 3);
        let ended = opened.is_ok() && !medium.is_cut();
        medium.cut_now();
        (medium, ended)
    }

    /// Compares the blocks of the image that a power cut left.
    fn assert_intact(&self, image: MediumImage, model: &DiskModel, when: &str) {
        let medium = Arc::new(CrashMedium::from_image(image));
        let disk = open_with(medium, &self.params, options(4))
            .unwrap_or_else(|e| panic!("{}, {when}: does not open: {e}", self.what));
        let checked = model.check_allowed(&disk, 0..COVERED + 4);
        checked.unwrap_or_else(|e| panic!("{when}: {e}"));
    }

    /// The model after the opening: no block has its flushed version any more.
    fn after_opening(&self) -> DiskModel {
        let mut model = DiskModel::new(self.what.as_str(), self.params.blocks);
        model.add_version(0, COVERED, ACKNOWLEDGED);
        model.record_flush();
        let interrupted = self.model.latest(TORN.start);
        model.add_version(TORN.start, TORN.end - TORN.start, interrupted);
        model
    }

    /// Cuts the power at each step of the next opening, and after it.
    fn cut_everywhere(&self) {
        // The medium is as the death left it: nothing of the stream is durable.
        for loss in [LossPolicy::DropAll, LossPolicy::KeepAll, LossPolicy::Sectors] {
            let image = self.left().after_cut_with(loss, &mut Rng::new(1));
            self.assert_intact(image, &self.model, &format!("{loss:?} before the opening"));
        }
        for ops in 0.. {
            let (medium, ended) = self.open_until(ops);
            let opened = self.after_opening();
            let model = if ended { &opened } else { &self.model };
            for loss in [LossPolicy::DropAll, LossPolicy::TearInFlight] {
                let image = medium.after_cut_with(loss, &mut Rng::new(ops));
                self.assert_intact(image, model, &format!("{loss:?} after {ops} operations"));
            }
            if ended {
                assert!(ops > 1, "{}: the opening wrote nothing", self.what);
                return;
            }
        }
    }
}

/// The memory has the interrupted version of each torn block, since the stream covers them.
#[test]
fn the_memory_has_every_torn_block() {
    let torn = TornDisk::new(Cipher::XtsRandom, false, Interrupted::Write);
    // The first pool is that of the blocks in the cache.
    let records = torn.memory.pool(0).take_adopted();
    let mut kept: Vec<u64> = records.iter().map(|record| record.words()[0].load(Ordering::Relaxed)).collect();
    kept.sort_unstable();
    assert_eq!(kept, TORN.collect::<Vec<u64>>());
}

#[test]
fn a_torn_block_of_a_new_segment_is_never_a_mixture() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        TornDisk::new(cipher, false, Interrupted::Write).cut_everywhere();
    }
}

#[test]
fn a_torn_block_of_a_segment_with_a_slot_is_never_a_mixture() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        TornDisk::new(cipher, true, Interrupted::Write).cut_everywhere();
    }
}

/// With metadata a discard of covered blocks changes only memory.
#[test]
fn a_torn_discard_is_never_a_mixture() {
    for mapped in [false, true] {
        TornDisk::new(Cipher::Xts, mapped, Interrupted::Discard).cut_everywhere();
    }
}
