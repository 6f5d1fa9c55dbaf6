//! Counter intervals (section 4.2): the arrays IntStart and CtrVal, in memory as one list, and
//! their short encoding in TS.

use crate::counters::counter::{Counter, Session};

/// The write counters of the blocks of a file, as intervals of blocks that share a counter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intervals {
    /// Pairs of first block and counter; first blocks ascend from 0, neighbours have different
    /// counters.
    list: Vec<(u64, Counter)>,
    /// The end of the last interval.
    blocks: u64,
}

impl Intervals {
    /// Bytes of an element of IntStart.
    pub(crate) const START: usize = 8;
    /// Bytes of an element of CtrVal.
    pub(crate) const VALUE: usize = 12;

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// The number of intervals if all blocks except holes shared one counter.
    pub(crate) fn fewest(&self) -> usize {
        let kinds = self.list.chunk_by(|(_, a), (_, b)| (*a == Counter::HOLE) == (*b == Counter::HOLE));
        kinds.count()
    }

    /// The counter of a block and the end of its interval. Past the end: a hole without end.
    pub(crate) fn at(&self, block: u64) -> (Counter, u64) {
        if block >= self.blocks {
            return (Counter::HOLE, u64::MAX);
        }
        let next = self.list.partition_point(|(start, _)| *start <= block);
        (self.list[next - 1].1, self.list.get(next).map_or(self.blocks, |(start, _)| *start))
    }

    /// The counters of the blocks starting at `first`.
    pub(crate) fn fill(&self, first: u64, out: &mut [Counter]) {
        let mut done = 0;
        while done < out.len() {
            let (counter, end) = self.at(first + done as u64);
            let to = out.len().min((end - first) as usize);
            out[done..to].fill(counter);
            done = to;
        }
    }

    /// `update_ctr` for a run of blocks. Blocks between the end and `first` get the counter
    /// `between`.
    pub(crate) fn set(&mut self, first: u64, count: u64, counter: Counter, between: Counter) {
        if first > self.blocks {
            self.put(self.blocks, first, between);
        }
        self.put(first, first + count, counter);
    }

    fn put(&mut self, first: u64, end: u64, counter: Counter) {
        if first >= end {
            return;
        }
        let (after, _) = self.at(end);
        let from = self.list.partition_point(|(start, _)| *start < first);
        let to = self.list.partition_point(|(start, _)| *start <= end);
        let joins = from > 0 && self.list[from - 1].1 == counter;
        let new = (!joins).then_some((first, counter));
        let rest = (end < self.blocks && after != counter).then_some((end, after));
        self.list.splice(from..to, new.into_iter().chain(rest));
        self.blocks = self.blocks.max(end);
    }

    /// Shortens (`del_ctr`), or lengthens with the counter `between`.
    pub(crate) fn resize(&mut self, blocks: u64, between: Counter) {
        if blocks > self.blocks {
            return self.put(self.blocks, blocks, between);
        }
        self.list.truncate(self.list.partition_point(|(start, _)| *start < blocks));
        self.blocks = blocks;
    }

    /// The arrays IntStart and CtrVal in their US encoding.
    pub(crate) fn arrays(&self) -> (Vec<u8>, Vec<u8>) {
        let starts = self.list.iter().flat_map(|(start, _)| start.to_le_bytes()).collect();
        let mut values = Vec::with_capacity(self.list.len() * Self::VALUE);
        for (_, Counter { session: Session(session), pass }) in &self.list {
            values.extend(session.to_le_bytes());
            values.extend(pass.to_le_bytes());
        }
        (starts, values)
    }

    /// Parses the output of [`Intervals::arrays`] for a file of `blocks`. `None` if the arrays are
    /// malformed.
    pub(crate) fn from_arrays(starts: &[u8], values: &[u8], blocks: u64) -> Option<Self> {
        let (starts, values) = (starts.as_chunks::<8>().0, values.as_chunks::<12>().0);
        let list = starts
            .iter()
            .zip(values)
            .map(|(start, value)| (u64::from_le_bytes(*start), counter_from(*value)));
        Self::checked(list.collect(), blocks)
    }

    fn checked(list: Vec<(u64, Counter)>, blocks: u64) -> Option<Self> {
        let begins =
            if blocks == 0 { list.is_empty() } else { list.first().is_some_and(|first| first.0 == 0) };
        let ends = list.last().is_none_or(|last| last.0 < blocks);
        let ascends = list.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1);
        (begins && ends && ascends).then_some(Intervals { list, blocks })
    }

    /// The encoding in TS if it takes at most `room` bytes: the number of sessions (u8) and each
    /// session (u64); the number of intervals (u8); and for each interval the position of its
    /// session in the list, counted from 1 (u8; 0 for session 0), its pass, and its distance from
    /// the start of the interval before (both LEB128).
    pub(crate) fn encode(&self, room: usize) -> Option<Vec<u8>> {
        // Each interval takes at least three bytes.
        if self.list.len() * 3 > room {
            return None;
        }
        let mut sessions: Vec<u64> = self.list.iter().map(|(_, counter)| counter.session.0).collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions.retain(|session| *session != 0);
        let mut bytes = vec![sessions.len() as u8];
        sessions.iter().for_each(|session| bytes.extend(session.to_le_bytes()));
        bytes.push(self.list.len() as u8);
        let mut before = 0;
        for (start, counter) in &self.list {
            bytes.push(sessions.binary_search(&counter.session.0).map_or(0, |at| at as u8 + 1));
            push_varint(&mut bytes, counter.pass.into());
            push_varint(&mut bytes, start - before);
            before = *start;
            if bytes.len() > room {
                return None;
            }
        }
        Some(bytes)
    }

    /// Parses the output of [`Intervals::encode`] for a file of `blocks`. `None` if the bytes are
    /// malformed.
    pub(crate) fn decode(bytes: &[u8], blocks: u64) -> Option<Self> {
        let (count, rest) = bytes.split_first()?;
        let (sessions, rest) = rest.split_at_checked(usize::from(*count) * 8)?;
        let sessions = sessions.as_chunks::<8>().0;
        let (count, mut rest) = rest.split_first()?;
        let mut list = Vec::with_capacity(usize::from(*count));
        let mut before = 0u64;
        for _ in 0..*count {
            let (session, after) = rest.split_first()?;
            rest = after;
            let session = match usize::from(*session).checked_sub(1) {
                Some(at) => u64::from_le_bytes(*sessions.get(at)?),
                None => 0,
            };
            let pass = u32::try_from(take_varint(&mut rest)?).ok()?;
            before = before.checked_add(take_varint(&mut rest)?)?;
            list.push((before, Counter { session: Session(session), pass }));
        }
        if !rest.is_empty() {
            return None;
        }
        Self::checked(list, blocks)
    }
}

/// The encoding of a counter in CtrVal and in pages of counters.
pub(crate) fn counter_bytes(counter: Counter) -> [u8; Intervals::VALUE] {
    let mut bytes = [0; Intervals::VALUE];
    bytes[..8].copy_from_slice(&counter.session.0.to_le_bytes());
    bytes[8..].copy_from_slice(&counter.pass.to_le_bytes());
    bytes
}

/// Parses the output of [`counter_bytes`].
pub(crate) fn counter_from(bytes: [u8; Intervals::VALUE]) -> Counter {
    let record = lacuna_contracts::LeReader(&bytes);
    Counter { session: Session(record.u64(0)), pass: record.u32(8) }
}

fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_sim::Rng;

    fn counter(pass: u64) -> Counter {
        if pass == 0 { Counter::HOLE } else { Counter { session: Session(7 + pass % 3), pass: pass as u32 } }
    }

    #[test]
    fn intervals_agree_with_a_counter_for_each_block() {
        let mut rng = Rng::new(3);
        for round in 0..300 {
            let (mut intervals, mut model) = (Intervals::default(), Vec::<Counter>::new());
            for _ in 0..100 {
                if rng.chance(1, 8) {
                    let blocks = rng.below(60);
                    intervals.resize(blocks, Counter::HOLE);
                    model.resize(blocks as usize, Counter::HOLE);
                } else {
                    let (first, count) = (rng.below(50), rng.below(12));
                    let new = counter(rng.below(4));
                    intervals.set(first, count, new, Counter::HOLE);
                    let end = (first + count) as usize;
                    if count > 0 || first as usize > model.len() {
                        model.resize(model.len().max(end), Counter::HOLE);
                    }
                    model[first as usize..end.max(first as usize)].fill(new);
                }
                let mut filled = vec![counter(9); model.len() + 3];
                intervals.fill(0, &mut filled);
                assert_eq!(filled[..model.len()], model[..], "round {round}");
                assert!(filled[model.len()..].iter().all(|c| *c == Counter::HOLE));
                assert_eq!(intervals.blocks(), model.len() as u64);
                let (starts, values) = intervals.arrays();
                assert_eq!(
                    Intervals::from_arrays(&starts, &values, intervals.blocks()).as_ref(),
                    Some(&intervals)
                );
                if let Some(bytes) = intervals.encode(90) {
                    assert!(bytes.len() <= 90);
                    assert_eq!(Intervals::decode(&bytes, intervals.blocks()), Some(intervals.clone()));
                }
            }
        }
    }

    #[test]
    fn hostile_bytes_are_refused_or_are_intervals() {
        let mut rng = Rng::new(4);
        let mut intervals = Intervals::default();
        (0..10).for_each(|n| intervals.set(n * 3, 2, counter(n + 1), Counter::HOLE));
        let good = intervals.encode(200).unwrap();
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            bytes.truncate(rng.below(good.len() as u64 + 1) as usize);
            if let Some(found) = Intervals::decode(&bytes, 29) {
                found.fill(0, &mut [Counter::HOLE; 40]);
            }
        }
    }
}
