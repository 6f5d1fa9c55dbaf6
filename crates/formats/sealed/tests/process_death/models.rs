//! Models of a disk that loses nothing when the process dies, and only writes that were not flushed
//! when the power is cut.

use crate::fixture::random_work::{BLOCKS, RandomWork};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk, Result};
use lacuna_sealed::SealedDisk;
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{CrashMedium, Rng};

/// The versions that a block may have.
pub(crate) struct Models {
    /// The versions that it may have now, and after the death of the process.
    pub(crate) now: DiskModel,
    /// The versions that it may have after a power cut.
    pub(crate) after_cut: DiskModel,
    /// The versions that it ever had, if they are kept.
    pub(crate) ever: Option<DiskModel>,
}

impl Models {
    /// Models of a disk of zeros.
    pub(crate) fn new(keeps_all: bool) -> Self {
        let model = || DiskModel::new("the disk", BLOCKS);
        Models { now: model(), after_cut: model(), ever: keeps_all.then(model) }
    }

    /// Compares a disk that was opened after an end. `was_cut`: whether power was cut since the
    /// last comparison.
    pub(crate) fn check(&mut self, disk: &dyn Disk, was_cut: bool) -> std::result::Result<(), String> {
        let mut data = vec![0; BLOCKS as usize * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut data).map_err(|e| format!("a read fails: {e}"))?;
        self.now.adopt(0, &data)?;
        if was_cut {
            self.after_cut.adopt(0, &data)?;
        }
        (0..BLOCKS).for_each(|block| self.note_present(block));
        Ok(())
    }

    /// Reads the blocks of a failed operation: each has the version that it reads as from now on.
    pub(crate) fn settle(&mut self, disk: &dyn Disk) -> std::result::Result<(), String> {
        let mut data = vec![0; BLOCK_SIZE];
        for block in 0..BLOCKS {
            if self.now.versions(block).len() > 1 {
                disk.read(BlockAddr(block), &mut data).map_err(|e| format!("a read fails: {e}"))?;
                self.now.adopt(block, &data)?;
                self.note_present(block);
            }
        }
        Ok(())
    }

    /// Makes the present version of a block the latest one of the other models.
    fn note_present(&mut self, block: u64) {
        let version = self.now.latest(block);
        for model in [Some(&mut self.after_cut), self.ever.as_mut()].into_iter().flatten() {
            if model.latest(block) != version {
                model.add_version(block, 1, version);
            }
        }
    }

    /// Runs one operation. All models note the writes that were acknowledged before the end.
    pub(crate) fn step(
        &mut self,
        disk: &SealedDisk,
        rng: &mut Rng,
        next_stamp: &mut u64,
        medium: &CrashMedium,
    ) -> Result<()> {
        let done = {
            let mut work = RandomWork(DiskWorkload { disk, model: &mut self.now, rng, next_stamp });
            work.step()
        };
        for block in 0..BLOCKS {
            self.note_new_versions(block);
            if done.is_ok() && !medium.is_cut() {
                self.now.record_block_flush(block);
            }
        }
        if done? && !medium.is_cut() {
            self.after_cut.record_flush();
        }
        Ok(())
    }

    /// Adds the versions of a block that only the first model has.
    fn note_new_versions(&mut self, block: u64) {
        let versions = self.now.versions(block);
        for model in [Some(&mut self.after_cut), self.ever.as_mut()].into_iter().flatten() {
            let known = model.latest(block);
            let new = versions.iter().rposition(|version| *version == known).map_or(0, |at| at + 1);
            versions[new..].iter().for_each(|version| model.add_version(block, 1, *version));
        }
    }
}
