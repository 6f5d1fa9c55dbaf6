//! Write counters as numbers of writes, stored as counter intervals (EINT, section 4.2 and Figure
//! 6): for the reference schemes and for counting intervals in traces. Files of vaults use another
//! kind of counter, since these repeat: `del_ctr` loses the count of a block, and an append starts
//! at 1 again.

use crate::node_hash::{NodeHash, hash};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_integrity::{PART_PAGE, Part, Untrusted};
use std::borrow::Cow;

/// The arrays IntStart and CtrVal: runs of consecutive blocks with the same number of writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterIntervals {
    starts: Vec<u32>,
    values: Vec<u32>,
    /// Blocks below this number have a counter.
    end: u32,
}

impl CounterIntervals {
    /// Bytes of one interval in both arrays.
    pub const BYTES: usize = 8;

    /// Number of intervals.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Whether no block has a counter.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// IntStart.size + CtrVal.size, in bytes.
    pub fn bytes(&self) -> usize {
        self.len() * Self::BYTES
    }

    /// Number of blocks that have a counter: blocks 0 to this number, exclusive.
    pub fn blocks(&self) -> u64 {
        u64::from(self.end)
    }

    /// get_ctr: the number of writes of the block; 0 if it has no counter.
    pub fn get(&self, block: u64) -> u32 {
        if block >= u64::from(self.end) {
            return 0;
        }
        self.values[self.interval(block as u32)]
    }

    /// update_ctr: counts one more write of a block, or the first write of the block after the last
    /// one.
    /// Errors: [`Kind::Usage`] for a later block, and if 32 bits do not suffice.
    pub fn update(&mut self, block: u64) -> Result<()> {
        let limit = || Error::new(Kind::Usage, "cannot count a write").found(format!("block {block}"));
        let block = u32::try_from(block).map_err(|_| limit())?;
        if block > self.end || self.end == u32::MAX {
            return Err(limit().expected(format!("a block up to {}", self.end)));
        }
        if block == self.end {
            self.end += 1;
            if self.values.last() != Some(&1) {
                self.starts.push(block);
                self.values.push(1);
            }
            return Ok(());
        }
        let at = self.interval(block);
        let value = self.values[at].checked_add(1).ok_or_else(limit)?;
        self.replace(at, block, value);
        Ok(())
    }

    /// del_ctr: removes the last block. Its counter is lost, so the next append counts from 1.
    pub fn delete_last(&mut self) {
        self.end = self.end.saturating_sub(1);
        if self.starts.last() == Some(&self.end) {
            self.starts.pop();
            self.values.pop();
        }
    }

    /// The interval that contains a block.
    fn interval(&self, block: u32) -> usize {
        self.starts.partition_point(|start| *start <= block) - 1
    }

    /// Changes the counter of one block of interval `at`: the interval splits into up to three, and
    /// the block joins an adjacent interval with the same counter.
    fn replace(&mut self, at: usize, block: u32, value: u32) {
        let (start, old) = (self.starts[at], self.values[at]);
        let end = self.starts.get(at + 1).copied().unwrap_or(self.end);
        let joins_before = block == start && at > 0 && self.values[at - 1] == value;
        let joins_behind = block + 1 == end && self.values.get(at + 1) == Some(&value);
        let mut parts: Vec<(u32, u32)> = Vec::with_capacity(3);
        if block > start {
            parts.push((start, old));
        }
        if !joins_before {
            parts.push((block, value));
        }
        if block + 1 < end {
            parts.push((block + 1, old));
        }
        let until = at + 1 + usize::from(joins_behind);
        self.starts.splice(at..until, parts.iter().map(|part| part.0));
        self.values.splice(at..until, parts.iter().map(|part| part.1));
    }
}

/// The part of the counters in TS, and their authentication.
pub(crate) struct ReferenceCounters {
    /// L_ctr: room for the arrays in TS, in bytes.
    room: usize,
    trusted: TrustedCounters,
}

enum TrustedCounters {
    /// ctr-untr = false: the arrays themselves.
    Arrays(CounterIntervals),
    /// ctr-untr = true: the hashes of both arrays, their length and the number of blocks.
    Hashes { starts: NodeHash, values: NodeHash, len: usize, end: u32 },
}

/// The arrays alternate in the pages of US: even pages are IntStart, odd ones CtrVal.
const ARRAYS: [u64; 2] = [0, 1];

impl ReferenceCounters {
    /// No counters, with `room` bytes for the arrays in TS.
    pub(crate) fn new(room: usize) -> Self {
        ReferenceCounters { room, trusted: TrustedCounters::Arrays(CounterIntervals::default()) }
    }

    /// Bytes in TS.
    pub(crate) fn trusted_bytes(&self) -> usize {
        match &self.trusted {
            TrustedCounters::Arrays(arrays) => arrays.bytes(),
            TrustedCounters::Hashes { .. } => 2 * size_of::<NodeHash>() + 8,
        }
    }

    /// check_ctr. Returns the authentic counters. Errors: [`Kind::Corrupt`].
    pub(crate) fn check(&self, us: &dyn Untrusted) -> Result<Cow<'_, CounterIntervals>> {
        match &self.trusted {
            TrustedCounters::Arrays(arrays) => Ok(Cow::Borrowed(arrays)),
            TrustedCounters::Hashes { starts, values, len, end } => {
                let starts = read_array(us, ARRAYS[0], *len, starts)?;
                let values = read_array(us, ARRAYS[1], *len, values)?;
                Ok(Cow::Owned(CounterIntervals { starts, values, end: *end }))
            }
        }
    }

    /// auth_ctr: stores the arrays in TS if they fit; otherwise the arrays in US and their hashes
    /// in TS.
    pub(crate) fn authenticate(&mut self, us: &dyn Untrusted, counters: CounterIntervals) -> Result<()> {
        let before = match &self.trusted {
            TrustedCounters::Arrays(_) => 0,
            TrustedCounters::Hashes { len, .. } => pages(*len),
        };
        self.trusted = if counters.bytes() <= self.room {
            remove_pages(us, 0..before)?;
            TrustedCounters::Arrays(counters)
        } else {
            remove_pages(us, pages(counters.len())..before)?;
            let starts = write_array(us, ARRAYS[0], &counters.starts)?;
            let values = write_array(us, ARRAYS[1], &counters.values)?;
            TrustedCounters::Hashes { starts, values, len: counters.len(), end: counters.end }
        };
        Ok(())
    }
}

/// Pages of one array of `len` numbers.
fn pages(len: usize) -> u64 {
    (len * 4).div_ceil(PART_PAGE) as u64
}

fn remove_pages(us: &dyn Untrusted, pages: std::ops::Range<u64>) -> Result<()> {
    for page in pages {
        for array in ARRAYS {
            us.write_part(Part::Intervals, 2 * page + array, None)?;
        }
    }
    Ok(())
}

fn write_array(us: &dyn Untrusted, array: u64, numbers: &[u32]) -> Result<NodeHash> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    for (page, chunk) in (0_u64..).zip(bytes.chunks(PART_PAGE)) {
        us.write_part(Part::Intervals, 2 * page + array, Some(chunk))?;
    }
    Ok(hash(&[&bytes]))
}

fn read_array(us: &dyn Untrusted, array: u64, len: usize, expected: &NodeHash) -> Result<Vec<u32>> {
    let mut bytes = Vec::with_capacity(len * 4);
    for page in 0..pages(len) {
        bytes.extend(us.read_part(Part::Intervals, 2 * page + array)?.unwrap_or_default());
    }
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() || numbers.len() != len || hash(&[&bytes]) != *expected {
        return Err(Error::new(Kind::Corrupt, "the write counters of a file were altered")
            .found(format!("{} bytes that do not agree with their trusted hash", bytes.len()))
            .expected(format!("{} bytes that do", len * 4)));
    }
    Ok(numbers.iter().map(|number| u32::from_le_bytes(*number)).collect())
}

#[cfg(test)]
mod tests {
    use super::CounterIntervals;
    use lacuna_sim::Rng;

    #[test]
    fn intervals_agree_with_an_array_of_counters() {
        let mut rng = Rng::new(1);
        let (mut intervals, mut plain) = (CounterIntervals::default(), Vec::<u32>::new());
        for _ in 0..20_000 {
            if rng.chance(1, 8) && !plain.is_empty() {
                intervals.delete_last();
                plain.pop();
            } else {
                let block = rng.below((plain.len() as u64 + 1).min(40));
                intervals.update(block).unwrap();
                match plain.get_mut(block as usize) {
                    Some(count) => *count += 1,
                    None => plain.push(1),
                }
            }
            let changes = plain.windows(2).filter(|pair| pair[0] != pair[1]).count();
            assert_eq!(intervals.len(), if plain.is_empty() { 0 } else { changes + 1 });
            assert!((0..50).all(|b| intervals.get(b) == plain.get(b as usize).copied().unwrap_or(0)));
        }
        assert!(intervals.update(intervals.blocks() + 1).is_err());
    }
}
