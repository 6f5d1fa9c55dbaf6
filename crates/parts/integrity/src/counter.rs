//! Write counters (section 4): pairs (session, pass) that no block ever meets twice, not even after
//! a crash.
//!
//! A session is drawn at random by each opening for writing, and again where the machine may be a
//! copy that was resumed. Within a session a file counts passes, and within a pass each block is
//! written at most once. Nothing has to be remembered across a crash: the next opening draws
//! another session. The paper increments a counter for each block and forgets it when the block is
//! deleted (`del_ctr`), so a block that is deleted and appended again would use a counter twice;
//! here the blocks of a pass are remembered whether they still exist or not.

use lacuna_contracts::{Error, Kind, Result};

/// A number that an opening for writing draws at random. No two openings have the same, and none is
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// The write counter of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Counter {
    /// The opening that wrote the block.
    pub(crate) session: Session,
    /// Which pass of the file in that session.
    pub(crate) pass: u32,
}

impl Counter {
    /// Never written: a hole, which reads as zeros.
    pub(crate) const HOLE: Counter = Counter { session: Session(0), pass: 0 };
}

/// The most intervals of blocks that a pass remembers.
const PASS_INTERVALS: usize = 1024;

/// The pass of a file in the present session, and which blocks it has written.
#[derive(Debug)]
pub(crate) struct Pass {
    session: Session,
    number: u32,
    /// First blocks and ends of the intervals written, ascending, apart from each other.
    written: Vec<(u64, u64)>,
}

impl Pass {
    /// The passes of `session` after `last`, which is the last pass of the last session that wrote
    /// the file.
    pub(crate) fn after(last: Counter, session: Session) -> Self {
        let number = if last.session == session { last.pass } else { 0 };
        // The pass of `number` counts as over: the first write starts the next.
        Pass { session, number, written: vec![(0, u64::MAX)] }
    }

    /// Goes on in a session, from its first pass if it is another than before.
    pub(crate) fn enter(&mut self, session: Session) {
        if self.session != session {
            *self = Pass::after(Counter::HOLE, session);
        }
    }

    /// The last pass used, for TS.
    pub(crate) fn last(&self) -> Counter {
        Counter { session: self.session, pass: self.number }
    }

    /// The counter with which the `count` blocks from `first` on are to be written now.
    /// Errors: [`Kind::Other`] after 2^32 passes in one session.
    pub(crate) fn write(&mut self, first: u64, count: u64) -> Result<Counter> {
        let end = first + count;
        // The intervals that touch the new one or overlap it.
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
                .remedy("close and open it again")
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
    fn no_block_meets_a_counter_twice() {
        let session = Session(5);
        let mut used = HashSet::new();
        let mut rng = Rng::new(1);
        let mut pass = Pass::after(Counter::HOLE, session);
        for step in 0..20_000 {
            let (first, count) = (rng.below(5000), 1 + rng.below(4));
            let counter = pass.write(first, count).unwrap();
            assert!(counter != Counter::HOLE && pass.written.len() <= PASS_INTERVALS);
            for block in first..first + count {
                assert!(used.insert((block, counter)), "block {block} at step {step}");
            }
            if rng.chance(1, 500) {
                pass = Pass::after(pass.last(), session);
            }
        }
    }

    #[test]
    fn another_session_begins_with_its_first_pass() {
        let mut pass = Pass::after(Counter::HOLE, Session(5));
        assert_eq!((0..3).map(|_| pass.write(0, 4).unwrap().pass).max(), Some(3));
        pass.enter(Session(5));
        assert_eq!(pass.write(0, 4).unwrap(), Counter { session: Session(5), pass: 4 });
        pass.enter(Session(6));
        assert_eq!(pass.write(0, 4).unwrap(), Counter { session: Session(6), pass: 1 });
        assert_eq!(pass.write(0, 4).unwrap(), Counter { session: Session(6), pass: 2 });
    }

    #[test]
    fn a_sequential_pass_has_one_counter_and_another_session_starts_at_one() {
        let mut pass = Pass::after(Counter { session: Session(1), pass: 9 }, Session(2));
        let counters: HashSet<_> = (0..3000).map(|n| pass.write(n * 3, 2).unwrap()).collect();
        assert!(counters.len() > 1);
        let mut pass = Pass::after(Counter { session: Session(1), pass: 9 }, Session(2));
        let counters: HashSet<_> = (0..3000).map(|n| pass.write(n, 1).unwrap()).collect();
        assert_eq!(counters.into_iter().collect::<Vec<_>>(), [Counter { session: Session(2), pass: 1 }]);
        assert_eq!(pass.write(7, 1).unwrap().pass, 2);
        let mut last = Pass::after(Counter { session: Session(2), pass: u32::MAX }, Session(2));
        assert!(last.write(0, 1).is_err());
    }
}
