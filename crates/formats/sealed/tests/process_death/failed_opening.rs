//! An opening that fails after a death, in one of its first operations: the memory keeps its writes
//! for the opening after it, since the keeper tries again.

use crate::dying_medium::open_kept;
use crate::fixture::{create, options, params, write};
use lacuna_contracts::{BlockAddr, Disk, Kind, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::versions::DiskModel;
use lacuna_sim::{CrashMedium, Fault, FaultMedium, OpKind, Rng};
use std::sync::Arc;

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
    let memory = KeptMemory::anonymous(&layout).unwrap();
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
    /// Lets the `nth` operation of this kind fail while the disk is opened, and opens it again.
    /// Returns whether the first opening failed.
    fn open_twice(&self, op: OpKind, nth: u64) -> bool {
        let left = self.medium.after_process_death(&mut Rng::new(1));
        let medium = Arc::new(FaultMedium::new(Arc::new(left)));
        medium.add(Fault::FailNth { op, nth, error: Kind::Io });
        let memory = self.memory.as_if_died().unwrap();
        let failed = open_kept(medium.clone(), &self.params, &memory, 2).is_err();
        medium.heal();
        if failed {
            let memory = memory.as_if_died().unwrap();
            let disk = open_kept(medium, &self.params, &memory, 3).unwrap();
            for first in [0, SEGMENT_BLOCKS, 2 * SEGMENT_BLOCKS] {
                let checked = self.model.check_allowed(&disk, first..first + 256);
                checked.unwrap_or_else(|e| panic!("{op:?} {nth} failed: {e}"));
            }
        }
        failed
    }
}

#[test]
fn a_failed_opening_leaves_the_writes_to_the_next_one() {
    for cipher in [Cipher::Xts, Cipher::XtsRandom, Cipher::Gcm] {
        let disk = died(cipher);
        for op in [OpKind::Write, OpKind::Sync] {
            let failed = (1..13).filter(|nth| disk.open_twice(op, *nth)).count();
            assert!(failed > 0, "{}: no {op:?} failed an opening", cipher.name());
        }
    }
}
