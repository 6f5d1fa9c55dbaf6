//! Write counters (section 4): pairs (session, pass). No block ever gets the same counter twice,
//! not even after a crash.
//!
//! Each opening for writing draws a session at random, and draws again if the machine may be a
//! resumed copy. Within a session a file counts passes, and within a pass each block is written at
//! most once. Nothing needs to be remembered across a crash: the next opening draws another
//! session. The paper increments a counter for each block and deletes it with the block
//! (`del_ctr`), so a block that is deleted and appended again would reuse a counter; here a pass
//! remembers its blocks whether they still exist or not.

use lacuna_contracts::{Error, Kind, Result};

/// A random number that an opening for writing draws. No two openings share one, and none is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// The write counter of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Counter {
    /// The opening that wrote the block.
    pub(crate) session: Session,
    /// The number of the file's pass in that session.
    pub(crate) pass: u32,
}

impl Counter {
    /// Never written: a hole, which reads as zeros.
    pub(crate) const HOLE: Counter = Counter { session: Session(0), pass: 0 };
}

/// The most intervals of blocks that a pass remembers.
const PASS_INTERVALS: usize = 1024;

/// The current pass of a file, and the blocks that it has written.
#[derive(Debug)]
pub(crate) struct WritePass {
    session: Session,
    number: u32,
    /// Intervals of written blocks (first block, end), ascending and not adjacent.
    written: Vec<(u64, u64)>,
}

impl WritePass {
    /// The passes of `session` after `last`, the last counter of the file so far.
    pub(crate) fn after(last: Counter, session: Session) -> Self {
        let number = if last.session == session { last.pass } else { 0 };
        // Treat the pass `number` as complete: the first write starts the next pass.
        WritePass { session, number, written: vec![(0, u64::MAX)] }
    }

    /// Switches to a session. If it is a new one, starts with its first pass.
    pub(crate) fn switch_session(&mut self, session: Session) {
        if self.session != session {
            *self = WritePass::after(Counter::HOLE, session);
        }
    }

    /// The last pass used, for TS.
    pub(crate) fn last(&self) -> Counter {
        Counter { session: self.session, pass: self.number }
    }

    /// The counter for a write now of `count` blocks starting at `first`. Errors: [`Kind::Other`]
    /// after 2^32 passes in one session.
    pub(crate) fn counter_for_write(&mut self, first: u64, count: u64) -> Result<Counter> {
        let end = first + count;
        // The intervals that touch or overlap the new one.
        let from = self.written.partition_point(|&(_, e)| e < first);
        let to = self.written.partition_point(|&(s, _)| s <= end);
        let overlaps = self.written[from..to].iter().any(|&(s, e)| s < end && first < e);
        if overlaps || (from == to && self.written.len() >= PASS_INTERVALS) {
            self.next()?;
            self.written.push((first, end));
            return Ok(self.last());
        }
        let merged = self.written[from..to].iter().fold((first, end), |(a, b), &(s, e)| (a.min(s), b.max(e)));
        self.written.splice(from..to, [merged]);
        Ok(self.last())
    }

    fn next(&mut self) -> Result<()> {
        self.number = self.number.checked_add(1).ok_or_else(|| {
            Error::new(Kind::Other, "cannot write to a file")
                .found("4294967295 passes of overwriting in one session")
                .hint("close and open it again")
        })?;
        self.written.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;
    use std::collections::HashSet;

    #[test]
    fn no_block_gets_a_counter_twice() {
        let session = Session(5);
        let mut used = HashSet::new();
        let mut rng = Rng::new(1);
        let mut pass = WritePass::after(Counter::HOLE, session);
        for step in 0..20_000 {
            let (first, count) = (rng.below(5000), 1 + rng.below(4));
            let counter = pass.counter_for_write(first, count).unwrap();
            assert!(counter != Counter::HOLE && pass.written.len() <= PASS_INTERVALS);
            for block in first..first + count {
                assert!(used.insert((block, counter)), "block {block} at step {step}");
            }
            if rng.chance(1, 500) {
                pass = WritePass::after(pass.last(), session);
            }
        }
    }

    #[test]
    fn another_session_begins_with_its_first_pass() {
        let mut pass = WritePass::after(Counter::HOLE, Session(5));
        assert_eq!((0..3).map(|_| pass.counter_for_write(0, 4).unwrap().pass).max(), Some(3));
        pass.switch_session(Session(5));
        assert_eq!(pass.counter_for_write(0, 4).unwrap(), Counter { session: Session(5), pass: 4 });
        pass.switch_session(Session(6));
        assert_eq!(pass.counter_for_write(0, 4).unwrap(), Counter { session: Session(6), pass: 1 });
        assert_eq!(pass.counter_for_write(0, 4).unwrap(), Counter { session: Session(6), pass: 2 });
    }

    #[test]
    fn a_sequential_pass_has_one_counter_and_another_session_starts_at_one() {
        let mut pass = WritePass::after(Counter { session: Session(1), pass: 9 }, Session(2));
        let counters: HashSet<_> = (0..3000).map(|n| pass.counter_for_write(n * 3, 2).unwrap()).collect();
        assert!(counters.len() > 1);
        let mut pass = WritePass::after(Counter { session: Session(1), pass: 9 }, Session(2));
        let counters: HashSet<_> = (0..3000).map(|n| pass.counter_for_write(n, 1).unwrap()).collect();
        assert_eq!(counters.into_iter().collect::<Vec<_>>(), [Counter { session: Session(2), pass: 1 }]);
        assert_eq!(pass.counter_for_write(7, 1).unwrap().pass, 2);
        let mut last = WritePass::after(Counter { session: Session(2), pass: u32::MAX }, Session(2));
        assert!(last.counter_for_write(0, 1).is_err());
    }
}
