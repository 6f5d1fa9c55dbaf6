//! A model of a level under concurrent clients: the versions that its blocks may have.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_sim::versions::DiskModel;
use std::collections::BTreeSet;
use std::ops::Range;

/// A result, or a description of the violation.
pub(crate) type CheckedResult<T> = std::result::Result<T, String>;

/// The permitted versions of the blocks of one level.
#[derive(Clone)]
pub(crate) struct LevelModel {
    /// For each block the last flushed version, and later ones.
    allowed: DiskModel,
    /// All versions that each block ever had.
    history: DiskModel,
    /// Blocks of unacknowledged requests, which may have happened or may happen later.
    uncertain: BTreeSet<u64>,
    /// Blocks that several clients write concurrently, so that the last writer is unknown.
    contended: Range<u64>,
}

impl LevelModel {
    /// The model of a level that begins in the state of `model`.
    pub(crate) fn new(model: DiskModel, contended: Range<u64>) -> LevelModel {
        LevelModel { history: model.clone(), allowed: model, uncertain: BTreeSet::new(), contended }
    }

    /// The number of blocks of the level.
    pub(crate) fn blocks(&self) -> u64 {
        self.allowed.blocks()
    }

    /// Records the begin of a request that changes blocks.
    pub(crate) fn begin(&mut self, blocks: Range<u64>, stamp: u64) {
        for model in [&mut self.allowed, &mut self.history] {
            model.add_version(blocks.start, blocks.end - blocks.start, stamp);
        }
        self.uncertain.extend(blocks);
    }

    /// Records that a request was acknowledged.
    pub(crate) fn acknowledge(&mut self, blocks: &Range<u64>) {
        self.uncertain.retain(|block| !blocks.contains(block));
    }

    /// Whether a block must have its latest version.
    fn is_sure(&self, block: u64) -> bool {
        !self.uncertain.contains(&block) && !self.contended.contains(&block)
    }

    /// Records a flush after the last changes of these blocks.
    pub(crate) fn record_flush(&mut self, blocks: Range<u64>) {
        for block in blocks {
            if self.is_sure(block) {
                self.allowed.record_block_flush(block);
            }
        }
    }

    /// Checks blocks that a client read in a session, starting with `first`.
    pub(crate) fn check(&self, first: u64, data: &[u8]) -> CheckedResult<()> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let (stamp, latest) = (self.allowed.version_of(block, data)?, self.allowed.latest(block));
            if stamp != latest && self.is_sure(block) {
                return Err(format!("block {block} reads {stamp} though {latest} was acknowledged"));
            }
        }
        Ok(())
    }

    /// Like [`LevelModel::check`] on a lying medium: a block may have any version that it ever had.
    pub(crate) fn check_own(&self, first: u64, data: &[u8]) -> CheckedResult<()> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.history.version_of(block, data).map_err(|wrong| format!("the medium lies: {wrong}"))?;
        }
        Ok(())
    }

    /// Checks blocks that were read after an opening, starting with `first`. The model then
    /// expects these versions.
    pub(crate) fn adopt(&mut self, first: u64, data: &[u8]) -> CheckedResult<()> {
        self.allowed.adopt(first, data)?;
        let read = first..first + (data.len() / BLOCK_SIZE) as u64;
        self.acknowledge(&read);
        Ok(())
    }

    /// The latest version of a block.
    pub(crate) fn latest(&self, block: u64) -> u64 {
        self.allowed.latest(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::versions::content;

    #[test]
    fn a_block_has_the_version_of_its_last_request() {
        let mut model = LevelModel::new(DiskModel::new("a level", 4), 3..4);
        model.begin(0..1, 5);
        assert!(model.check(0, &content(0, 0)).is_ok() && model.check(0, &content(0, 5)).is_ok());
        model.acknowledge(&(0..1));
        assert!(model.check(0, &content(0, 0)).is_err() && model.check(0, &content(0, 5)).is_ok());
        assert!(model.clone().adopt(0, &content(0, 0)).is_ok(), "it was not flushed");
        model.record_flush(0..4);
        assert!(model.clone().adopt(0, &content(0, 0)).is_err());
        assert!(model.check_own(0, &content(0, 0)).is_ok() && model.check_own(0, &content(1, 5)).is_err());
    }

    #[test]
    fn failed_requests_and_races_permit_several_versions() {
        let mut model = LevelModel::new(DiskModel::new("a level", 4), 3..4);
        model.begin(2..4, 5);
        model.begin(3..4, 6);
        model.acknowledge(&(3..4));
        model.record_flush(0..4);
        for (block, stamps) in [(2, [0, 5]), (3, [5, 6])] {
            assert!(stamps.iter().all(|stamp| model.check(block, &content(block, *stamp)).is_ok()));
        }
        model.adopt(2, &content(2, 0)).unwrap();
        assert_eq!(model.latest(2), 0);
        assert!(model.check(2, &content(2, 5)).is_err());
    }
}
