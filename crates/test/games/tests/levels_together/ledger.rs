//! A model of a level under concurrent clients: the versions that its blocks may have.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_sim::versions::Model;
use std::collections::BTreeSet;
use std::ops::Range;

/// A result, or a description of the violation.
pub(crate) type Judged<T> = std::result::Result<T, String>;

/// The permitted versions of the blocks of one level.
#[derive(Clone)]
pub(crate) struct Ledger {
    /// For each block the last flushed version, and later ones.
    now: Model,
    /// All versions that each block ever had.
    ever: Model,
    /// Blocks of unacknowledged requests, which may have happened or may happen later.
    unsure: BTreeSet<u64>,
    /// Blocks that several clients write concurrently, so that the last writer is unknown.
    contended: Range<u64>,
}

impl Ledger {
    /// The ledger of a level in the state of `model`.
    pub(crate) fn new(model: Model, contended: Range<u64>) -> Ledger {
        Ledger { ever: model.clone(), now: model, unsure: BTreeSet::new(), contended }
    }

    /// The number of blocks of the level.
    pub(crate) fn blocks(&self) -> u64 {
        self.now.blocks()
    }

    /// Records the begin of a request that changes blocks.
    pub(crate) fn begin(&mut self, blocks: Range<u64>, stamp: u64) {
        for model in [&mut self.now, &mut self.ever] {
            model.set(blocks.start, blocks.end - blocks.start, stamp);
        }
        self.unsure.extend(blocks);
    }

    /// Records that a request was acknowledged.
    pub(crate) fn acknowledge(&mut self, blocks: &Range<u64>) {
        self.unsure.retain(|block| !blocks.contains(block));
    }

    /// Whether a block must have its latest version.
    fn is_sure(&self, block: u64) -> bool {
        !self.unsure.contains(&block) && !self.contended.contains(&block)
    }

    /// Records a flush after the last changes of these blocks.
    pub(crate) fn flushed(&mut self, blocks: Range<u64>) {
        for block in blocks {
            if self.is_sure(block) {
                self.now.block_flushed(block);
            }
        }
    }

    /// Checks blocks that a client read in a session, starting with `first`.
    pub(crate) fn check(&self, first: u64, data: &[u8]) -> Judged<()> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let (stamp, latest) = (self.now.version_of(block, data)?, self.now.latest(block));
            if stamp != latest && self.is_sure(block) {
                return Err(format!("block {block} reads {stamp} though {latest} was acknowledged"));
            }
        }
        Ok(())
    }

    /// Like [`Ledger::check`] on a lying medium: a block may have any version that it ever had.
    pub(crate) fn check_own(&self, first: u64, data: &[u8]) -> Judged<()> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.ever.version_of(block, data).map_err(|wrong| format!("the medium lies: {wrong}"))?;
        }
        Ok(())
    }

    /// Checks blocks that were read after an opening, starting with `first`. The ledger then
    /// expects these versions.
    pub(crate) fn keep(&mut self, first: u64, data: &[u8]) -> Judged<()> {
        self.now.keep(first, data)?;
        let read = first..first + (data.len() / BLOCK_SIZE) as u64;
        self.acknowledge(&read);
        Ok(())
    }

    /// The latest version of a block.
    pub(crate) fn latest(&self, block: u64) -> u64 {
        self.now.latest(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::versions::content;

    #[test]
    fn a_block_is_what_its_requests_say() {
        let mut ledger = Ledger::new(Model::new("a level", 4), 3..4);
        ledger.begin(0..1, 5);
        assert!(ledger.check(0, &content(0, 0)).is_ok() && ledger.check(0, &content(0, 5)).is_ok());
        ledger.acknowledge(&(0..1));
        assert!(ledger.check(0, &content(0, 0)).is_err() && ledger.check(0, &content(0, 5)).is_ok());
        assert!(ledger.clone().keep(0, &content(0, 0)).is_ok(), "it was not flushed");
        ledger.flushed(0..4);
        assert!(ledger.clone().keep(0, &content(0, 0)).is_err());
        assert!(ledger.check_own(0, &content(0, 0)).is_ok() && ledger.check_own(0, &content(1, 5)).is_err());
    }

    #[test]
    fn a_request_that_failed_and_clients_that_race_leave_it_open() {
        let mut ledger = Ledger::new(Model::new("a level", 4), 3..4);
        ledger.begin(2..4, 5);
        ledger.begin(3..4, 6);
        ledger.acknowledge(&(3..4));
        ledger.flushed(0..4);
        for (block, stamps) in [(2, [0, 5]), (3, [5, 6])] {
            assert!(stamps.iter().all(|stamp| ledger.check(block, &content(block, *stamp)).is_ok()));
        }
        ledger.keep(2, &content(2, 0)).unwrap();
        assert_eq!(ledger.latest(2), 0);
        assert!(ledger.check(2, &content(2, 5)).is_err());
    }
}
