//! A process that dies after it discarded a segment whose slot only its memory knows, and wrote a
//! block of it again. The next opening makes holes of the blocks that the journal has of the
//! segment, and dies at one of its changes of the memory. The process after it finds the
//! acknowledged state.

use crate::dying_medium::{LastState, die_before_change, open_kept};
use crate::fixture::{create, options, params, status, write};
use lacuna_contracts::{BlockAddr, Disk, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_kept_memory::KeptMemory;
use lacuna_sealed::{Params, SealedDisk};
use lacuna_sim::versions::DiskModel;
use lacuna_sim::{CrashMedium, Rng};
use std::ops::Range;
use std::sync::Arc;

/// Blocks that give the segment its slot: the journal has more of them than may wait for their
/// slot.
const DESTAGED: Range<u64> = 200..240;
/// Blocks of a stream, from the start of the segment. It is not worth a move, so that the journal
/// has blocks that were never in the cache.
const STREAMED: u64 = 128;
/// The block that is written after the discard.
const WRITTEN: u64 = STREAMED - 1;
/// The number of changes between two deaths that are tried.
const STEP: usize = 10;

/// A disk after the death of its process.
struct VoidedDisk {
    params: Params,
    medium: Arc<CrashMedium>,
    memory: KeptMemory,
    /// The content of the acknowledged writes.
    model: DiskModel,
}

impl VoidedDisk {
    fn new() -> VoidedDisk {
        let params = params(Cipher::XtsRandom, SEGMENT_BLOCKS);
        let medium = Arc::new(CrashMedium::new(params.geometry().end()));
        create(&*medium, &params);
        let layout = SealedDisk::kept_layout(&params, options(0).budget);
        let memory = KeptMemory::simulated(&layout).unwrap();
        let disk = open_kept(medium.clone(), &params, &memory, 1).unwrap();
        for first in DESTAGED.step_by(8) {
            write(&disk, first, 8, 1).unwrap();
        }
        disk.flush().unwrap();
        assert_eq!(status(&disk, "segments_mapped"), 1, "the segment has no slot");
        write(&disk, 0, STREAMED, 2).unwrap();
        assert_eq!(status(&disk, "copy_on_write_segments"), 1, "the write opened no stream");
        disk.flush().unwrap();
        disk.discard(BlockAddr(0), SEGMENT_BLOCKS).unwrap();
        assert_eq!(status(&disk, "copy_on_write_segments"), 1, "the discard is not pending");
        write(&disk, WRITTEN, 1, 3).unwrap();
        assert_eq!(status(&disk, "journal_retirements"), 0, "the medium knows the slot");
        let mut model = DiskModel::new("a voided segment", params.blocks);
        model.add_version(WRITTEN, 1, 3);
        model.record_flush();
        medium.cut_now();
        let memory = memory.as_if_died().unwrap();
        VoidedDisk { params, medium, memory, model }
    }

    /// Opens the disk in a process that dies before a change of the memory, after `changes` earlier
    /// ones, and opens it again. Returns whether the first process died in the opening.
    fn dies_after(&self, changes: u64) -> bool {
        let medium = Arc::new(self.medium.after_process_death(&mut Rng::new(1)));
        let memory = self.memory.as_if_died().unwrap();
        let last = Arc::<LastState>::default();
        die_before_change(&medium, &memory, &last, changes);
        let opened = open_kept(medium.clone(), &self.params, &memory, 2);
        // The observer of the changes holds the memory, which holds the observer.
        memory.observe_changes(|| ());
        let Some(left) = last.take() else {
            self.assert_intact(&opened.unwrap(), changes);
            return false;
        };
        let medium = Arc::new(medium.after_process_death(&mut Rng::new(2)));
        let disk = open_kept(medium, &self.params, &left, 3)
            .unwrap_or_else(|e| panic!("does not open after a death at change {changes}: {e}"));
        self.assert_intact(&disk, changes);
        true
    }

    fn assert_intact(&self, disk: &SealedDisk, changes: u64) {
        let checked = self.model.check_allowed(disk, 0..DESTAGED.end + 1);
        checked.unwrap_or_else(|e| panic!("a death at change {changes}: {e}"));
    }
}

#[test]
fn a_write_after_a_discard_outlives_a_death_while_it_is_adopted() {
    let disk = VoidedDisk::new();
    let survived =
        (0u64..).step_by(STEP).find(|changes| !disk.dies_after(*changes)).expect("an opening ends");
    // Among the changes are a hole for each other block that the journal has.
    let holes = STREAMED - 1 + DESTAGED.end - DESTAGED.start;
    assert!(survived > holes, "the opening made only {survived} changes");
}
