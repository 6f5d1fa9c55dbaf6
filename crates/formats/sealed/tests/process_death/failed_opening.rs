//! A use of a disk after a death that ends with an error: the opening fails in one of its first
//! operations, or the disk is not closed, or cannot be. The memory keeps its writes for the opening
//! after it, since the keeper tries again.

use crate::dying_medium::open_kept;
use crate::fixture::{create, options, params, write};
use lacuna_contracts::{BlockAddr, Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::versions::DiskModel;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, OpKind, Rng};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A disk after the death of its process, and its acknowledged versions.
struct DiedDisk {
    params: Params,
    medium: Arc<CrashMedium>,
    memory: KeptMemory,
    model: DiskModel,
}

/// Writes and flushes, then writes, discards and streams without a flush.
fn died(cipher: Cipher) -> DiedDisk {
    let params = params(cipher, 3 * SEGMENT_BLOCKS);
    let medium = Arc::new(CrashMedium::new(params.geometry().end()));
    create(&*medium, &params);
    let layout = SealedDisk::kept_layout(&params, options(0).budget);
    let memory = KeptMemory::simulated(&layout).unwrap();
    let disk = open_kept(medium.clone(), &params, &memory, 1).unwrap();
    let mut model = DiskModel::new(cipher.name(), params.blocks);
    let mut put = |first, count, stamp| {
        write(&disk, first, count, stamp).unwrap();
        model.add_version(first, count, stamp);
    };
    put(5, 20, 1);
    put(SEGMENT_BLOCKS + 3, 5, 2);
    disk.flush().unwrap();
    put(7, 3, 3);
    put(2 * SEGMENT_BLOCKS, 64, 4);
    put(SEGMENT_BLOCKS + 200, 2, 5);
    disk.discard(BlockAddr(10), 4).unwrap();
    model.add_version(10, 4, 0);
    model.record_flush();
    medium.cut_now();
    let memory = memory.as_if_died().unwrap();
    DiedDisk { params, medium, memory, model }
}

impl DiedDisk {
    /// A medium as the death left it, which can fail, and the memory.
    fn left(&self) -> (Arc<FaultMedium>, KeptMemory) {
        let left = self.medium.after_process_death(&mut Rng::new(1));
        (Arc::new(FaultMedium::new(Arc::new(left))), self.memory.as_if_died().unwrap())
    }

    /// Opens the disk while the medium has a fault, ends that use without closing it, and opens the
    /// disk again. Returns whether the first opening failed.
    fn open_twice(&self, fault: &Fault) -> bool {
        let (medium, memory) = self.left();
        medium.add(fault.clone());
        let failed = open_kept(medium.clone(), &self.params, &memory, 2).is_err();
        medium.heal();
        assert_intact(&self.params, &self.model, medium, &memory, &format!("{fault:?}"));
        failed
    }
}

/// Opens a disk as the successor of the process that used this memory, and compares its blocks.
fn assert_intact(
    params: &Params,
    model: &DiskModel,
    medium: Arc<FaultMedium>,
    memory: &KeptMemory,
    what: &str,
) {
    let memory = memory.as_if_died().unwrap();
    let disk = open_kept(medium, params, &memory, 3).unwrap();
    for first in [0, SEGMENT_BLOCKS, 2 * SEGMENT_BLOCKS] {
        let checked = model.check_allowed(&disk, first..first + 256);
        checked.unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// The number of records in each pool that a successor would find.
fn published(memory: &KeptMemory) -> [usize; 4] {
    let left = memory.as_if_died().unwrap();
    [0, 1, 2, 3].map(|pool| left.pool(pool).take_adopted().len())
}

#[test]
fn a_failed_opening_leaves_the_writes_to_the_next_one() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        let disk = died(cipher);
        for op in [OpKind::Write, OpKind::Sync] {
            let fails = |nth: &u64| disk.open_twice(&Fault::FailNth { op, nth: *nth, error: Kind::Io });
            let failed = (1..13).filter(fails).count();
            assert!(failed > 0, "{}: no {op:?} failed an opening", cipher.name());
        }
    }
}

/// An opening on a full medium succeeds, and its disk is not closed.
#[test]
fn writes_that_a_full_medium_refused_are_left_to_the_next_opening() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        let disk = died(cipher);
        for nth in 1..13 {
            disk.open_twice(&Fault::FailFrom { op: OpKind::Write, nth, error: Kind::NoSpace });
        }
    }
}

#[test]
fn a_disk_that_cannot_be_closed_leaves_its_writes() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        let died = died(cipher);
        for op in [OpKind::Write, OpKind::Sync] {
            let (medium, memory) = died.left();
            let disk = open_kept(medium.clone(), &died.params, &memory, 2).unwrap();
            let mut model = died.model.clone();
            write(&disk, 30, 2, 9).unwrap();
            model.add_version(30, 2, 9);
            model.record_flush();
            medium.add(Fault::FailFrom { op, nth: 1, error: Kind::Io });
            assert!(disk.close().is_err(), "{}: {op:?}", cipher.name());
            drop(disk);
            medium.heal();
            let what = format!("{}, a {op:?} failed the closing", cipher.name());
            assert_intact(&died.params, &model, medium, &memory, &what);
        }
    }
}

#[test]
fn records_of_another_disk_are_refused_and_stay() {
    let died = died(Cipher::XtsRandom);
    for pool in 0..4 {
        let (medium, memory) = died.left();
        let record = memory.pool(pool).take().unwrap();
        record.words()[0].store(u64::MAX, Ordering::Relaxed);
        record.publish();
        let before = published(&memory);
        let left = memory.as_if_died().unwrap();
        let refused = open_kept(medium, &died.params, &left, 2).err().expect("refused");
        assert_eq!(refused.kind(), Kind::Corrupt, "pool {pool}");
        assert_eq!(published(&left), before, "pool {pool}");
    }
}
