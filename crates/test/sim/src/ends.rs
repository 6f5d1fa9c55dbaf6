//! A model of a disk in one history of deaths of its process and of power cuts.

use crate::versions::DiskModel;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};
use std::ops::Range;

/// The end of a use of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process dies. Its memory for acknowledged writes is left to a successor.
    ProcessDeath,
    /// The power is cut, or the machine is lost, with all memory.
    PowerCut,
}

/// The versions that each block of a disk may have, where all acknowledged writes survive the death
/// of the process, and flushed ones a power cut.
pub struct EndsModel {
    /// The versions now, and after the death of the process.
    now: DiskModel,
    /// The versions after a power cut now.
    after_cut: DiskModel,
    /// The versions that each block ever had, if they are kept.
    ever: Option<DiskModel>,
    /// Whether the power was cut since the last comparison.
    was_cut: bool,
}

impl EndsModel {
    /// A model of a disk with `blocks` blocks of zeros; `name` is its name in messages.
    pub fn new(name: &str, blocks: u64) -> EndsModel {
        let (now, after_cut) = (DiskModel::new(name, blocks), DiskModel::new(name, blocks));
        EndsModel { now, after_cut, ever: None, was_cut: false }
    }

    /// The same model, which also keeps the versions that each block ever had.
    pub fn keeping_all(self) -> EndsModel {
        EndsModel { ever: Some(self.now.clone()), ..self }
    }

    /// The versions now, and after the death of the process.
    pub fn now(&self) -> &DiskModel {
        &self.now
    }

    /// The versions that each block ever had, if they are kept.
    pub fn ever(&self) -> Option<&DiskModel> {
        self.ever.as_ref()
    }

    /// The model for the next operation, which adds its versions there.
    /// [`EndsModel::note_operation`] notes them.
    pub fn for_operation(&mut self) -> &mut DiskModel {
        &mut self.now
    }

    /// Notes the versions that an operation added. `is_acknowledged`: it returned without an error
    /// before the end, so each block has its latest version.
    pub fn note_operation(&mut self, is_acknowledged: bool) {
        for block in 0..self.now.blocks() {
            let versions = self.now.versions(block);
            for model in [Some(&mut self.after_cut), self.ever.as_mut()].into_iter().flatten() {
                let known = model.latest(block);
                let new = versions.iter().rposition(|version| *version == known).map_or(0, |at| at + 1);
                versions[new..].iter().for_each(|version| model.add_version(block, 1, *version));
            }
            if is_acknowledged {
                self.now.record_block_flush(block);
            }
        }
    }

    /// Adds the version that a request is about to write to blocks. In place of
    /// [`EndsModel::for_operation`], if the caller knows the blocks.
    pub fn begin(&mut self, first: u64, count: u64, stamp: u64) {
        for model in
            [Some(&mut self.now), Some(&mut self.after_cut), self.ever.as_mut()].into_iter().flatten()
        {
            model.add_version(first, count, stamp);
        }
    }

    /// Notes that a request was acknowledged before the end: each of its blocks has its latest
    /// version.
    pub fn acknowledge(&mut self, first: u64, count: u64) {
        (first..first + count).for_each(|block| self.now.record_block_flush(block));
    }

    /// Notes that everything acknowledged is durable.
    pub fn note_flush(&mut self) {
        self.after_cut.record_flush();
    }

    /// Notes that everything acknowledged of one block is durable.
    pub fn note_block_flush(&mut self, block: u64) {
        self.after_cut.record_block_flush(block);
    }

    /// Notes the end of a use.
    pub fn note_end(&mut self, end: End) {
        if end == End::PowerCut {
            self.now.clone_from(&self.after_cut);
            self.was_cut = true;
        }
    }

    /// Compares every block of a disk that was opened after an end. The model then expects the
    /// versions that were read. Errors: a description of a block that it may not have.
    pub fn check(&mut self, disk: &dyn Disk) -> Result<(), String> {
        let data = read(disk, 0..self.now.blocks())?;
        self.now.adopt(0, &data)?;
        if std::mem::take(&mut self.was_cut) {
            self.after_cut.adopt(0, &data)?;
        }
        (0..self.now.blocks()).for_each(|block| self.note_present(block));
        Ok(())
    }

    /// Reads the blocks of a failed operation: each has the version that it reads as from now on.
    /// Errors: as for [`EndsModel::check`].
    pub fn settle(&mut self, disk: &dyn Disk) -> Result<(), String> {
        for block in 0..self.now.blocks() {
            if self.now.versions(block).len() > 1 {
                self.now.adopt(block, &read(disk, block..block + 1)?)?;
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
}

/// The data of blocks. Errors: a description of the failure.
fn read(disk: &dyn Disk, blocks: Range<u64>) -> Result<Vec<u8>, String> {
    let mut data = vec![0; (blocks.end - blocks.start) as usize * BLOCK_SIZE];
    disk.read(BlockAddr(blocks.start), &mut data).map_err(|e| format!("a read fails: {e}"))?;
    Ok(data)
}
