//! A model of a disk in one history of deaths of its process and of power cuts.

use crate::versions::DiskModel;
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Disk};

/// The end of a use of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The process dies. Its memory for acknowledged writes is left to a successor.
    ProcessDeath,
    /// The power is cut, and all memory is lost.
    PowerCut,
}

/// The versions that each block of a disk may have, where all acknowledged writes survive the death
/// of the process, and flushed ones a power cut.
pub struct EndsModel {
    now: DiskModel,
    /// The versions after a power cut now.
    after_cut: DiskModel,
    /// Whether the power was cut since the last comparison.
    was_cut: bool,
}

impl EndsModel {
    /// A model of a disk with `blocks` blocks of zeros; `name` is its name in messages.
    pub fn new(name: &str, blocks: u64) -> EndsModel {
        let (now, after_cut) = (DiskModel::new(name, blocks), DiskModel::new(name, blocks));
        EndsModel { now, after_cut, was_cut: false }
    }

    /// The model for the next operation, which adds its versions there.
    pub fn for_operation(&mut self) -> &mut DiskModel {
        &mut self.now
    }

    /// Notes the versions that an operation added. `is_acknowledged`: it returned without an error
    /// before the end, so each block has its latest version.
    pub fn note_operation(&mut self, is_acknowledged: bool) {
        for block in 0..self.now.blocks() {
            let known = self.after_cut.latest(block);
            let versions = self.now.versions(block);
            let new = versions.iter().rposition(|version| *version == known).map_or(0, |at| at + 1);
            versions[new..].iter().for_each(|version| self.after_cut.add_version(block, 1, *version));
            if is_acknowledged {
                self.now.record_block_flush(block);
            }
        }
    }

    /// Notes that everything acknowledged is durable.
    pub fn note_flush(&mut self) {
        self.after_cut.record_flush();
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
        let mut data = vec![0; self.now.blocks() as usize * BLOCK_SIZE];
        disk.read(BlockAddr(0), &mut data).map_err(|e| format!("a read fails: {e}"))?;
        self.now.adopt(0, &data)?;
        if std::mem::take(&mut self.was_cut) {
            return self.after_cut.adopt(0, &data);
        }
        for block in 0..self.now.blocks() {
            let version = self.now.latest(block);
            if self.after_cut.latest(block) != version {
                self.after_cut.add_version(block, 1, version);
            }
        }
        Ok(())
    }
}
