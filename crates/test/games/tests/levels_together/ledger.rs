//! What a level may hold: a plain model, whatever clients do to it at once.

use lacuna_contracts::BLOCK_SIZE;
use lacuna_sim::versions::Model;
use std::collections::BTreeSet;
use std::ops::Range;

/// What is right; otherwise what is wrong.
pub(crate) type Judged<T> = std::result::Result<T, String>;

/// What one level may hold.
#[derive(Clone)]
pub(crate) struct Ledger {
    /// Of each block the last version that was flushed, and those that it was given since.
    now: Model,
    /// All versions that it ever had.
    ever: Model,
    /// Blocks that a request is to change which has not been acknowledged: it may have happened, or
    /// happen later.
    unsure: BTreeSet<u64>,
    /// Blocks to which several clients write at once: which of them comes last is not known.
    contended: Range<u64>,
}

impl Ledger {
    /// Of a level that is as `model` says.
    pub(crate) fn new(model: Model, contended: Range<u64>) -> Ledger {
        Ledger { ever: model.clone(), now: model, unsure: BTreeSet::new(), contended }
    }

    /// Blocks of the level.
    pub(crate) fn blocks(&self) -> u64 {
        self.now.blocks()
    }

    /// A request begins that gives blocks a version.
    pub(crate) fn begin(&mut self, blocks: Range<u64>, stamp: u64) {
        for model in [&mut self.now, &mut self.ever] {
            model.set(blocks.start, blocks.end - blocks.start, stamp);
        }
        self.unsure.extend(blocks);
    }

    /// A request that changes these blocks was acknowledged.
    pub(crate) fn acknowledge(&mut self, blocks: &Range<u64>) {
        self.unsure.retain(|block| !blocks.contains(block));
    }

    /// Whether a block has its latest version, and no other.
    fn is_sure(&self, block: u64) -> bool {
        !self.unsure.contains(&block) && !self.contended.contains(&block)
    }

    /// The level was flushed when these blocks had been changed for the last time.
    pub(crate) fn flushed(&mut self, blocks: Range<u64>) {
        for block in blocks {
            if self.is_sure(block) {
                self.now.block_flushed(block);
            }
        }
    }

    /// What is wrong with blocks that a client read in a session, the first of them `first`, if
    /// anything.
    pub(crate) fn check(&self, first: u64, data: &[u8]) -> Judged<()> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            let (stamp, latest) = (self.now.version_of(block, data)?, self.now.latest(block));
            if stamp != latest && self.is_sure(block) {
                return Err(format!("block {block} reads {stamp} though {latest} was acknowledged"));
            }
        }
        Ok(())
    }

    /// The same where the medium lies: a block may have any version that it ever had.
    pub(crate) fn check_own(&self, first: u64, data: &[u8]) -> Judged<()> {
        for (block, data) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
            self.ever.version_of(block, data).map_err(|wrong| format!("the medium lies: {wrong}"))?;
        }
        Ok(())
    }

    /// What is wrong with blocks that were read after an opening, the first of them `first`, if
    /// anything. What they read is what they will keep.
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
