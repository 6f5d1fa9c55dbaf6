//! Authentic write counters (section 4.2 and Figure 6): in TS while they fit, otherwise both arrays
//! in US and their keyed hashes in TS.

use crate::ablation::{SchemeCheck, is_enforced};
use crate::counters::counter::Counter;
use crate::counters::intervals::Intervals;
use crate::keys::{ARRAYS, FileKeys, Tag};
use crate::tampered::tampered;
use crate::untrusted::{PART_PAGE, Part, Untrusted};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::constant_time_eq;
use std::sync::{Arc, OnceLock};

/// Bytes of TS for counters (L_ctr).
pub(crate) const ROOM: usize = 100;
/// The most intervals that are accepted from TS; this bounds memory.
pub(crate) const MOST_INTERVALS: usize = 1 << 17;

/// The state of the counters in TS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CounterState {
    /// The encoded intervals themselves (`ctr-untr` is false).
    Inline(Vec<u8>),
    /// The number of intervals in US, and the hashes of IntStart and CtrVal (`ctr-untr` is true).
    Hashed(u32, [Tag; 2]),
}

pub(crate) struct AuthCounters {
    keys: Arc<FileKeys>,
    blocks: u64,
    /// The state in TS at the last commit or opening.
    state: CounterState,
    intervals: OnceLock<Intervals>,
    changed: bool,
    /// The content of both arrays in US, so that only changed pages are written. Empty if unknown.
    written: [Vec<u8>; 2],
    /// The number of pages of each array in US.
    stored: [u64; 2],
}

impl AuthCounters {
    pub(crate) fn new(keys: Arc<FileKeys>) -> Self {
        let state = CounterState::Inline(vec![0, 0]);
        let intervals = OnceLock::from(Intervals::default());
        let (written, stored) = (Default::default(), [0; 2]);
        AuthCounters { keys, blocks: 0, state, intervals, changed: false, written, stored }
    }

    /// The counters that TS describes. Errors: [`Kind::Corrupt`].
    pub(crate) fn open(keys: Arc<FileKeys>, blocks: u64, state: CounterState) -> Result<Self> {
        let mut counters = AuthCounters { blocks, intervals: OnceLock::new(), ..AuthCounters::new(keys) };
        match &state {
            CounterState::Inline(bytes) => {
                let intervals = Intervals::decode(bytes, blocks).ok_or_else(|| {
                    Error::new(Kind::Corrupt, "cannot open a file")
                        .found("counter intervals that no version wrote")
                })?;
                counters.intervals = OnceLock::from(intervals);
            }
            CounterState::Hashed(count, _) => counters.stored = array_lengths(*count).map(pages),
        }
        counters.state = state;
        Ok(counters)
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The number of intervals.
    pub(crate) fn len(&self) -> usize {
        match (self.intervals.get(), &self.state) {
            (Some(intervals), _) => intervals.len(),
            (None, CounterState::Hashed(count, _)) => *count as usize,
            (None, CounterState::Inline(_)) => 0,
        }
    }

    /// `get_ctr` for all blocks, after `check_ctr` if they come from US.
    pub(crate) fn get(&self, us: &dyn Untrusted) -> Result<&Intervals> {
        if let Some(intervals) = self.intervals.get() {
            return Ok(intervals);
        }
        let loaded = self.load(us)?;
        Ok(self.intervals.get_or_init(|| loaded))
    }

    /// `update_ctr`. Blocks between the end and `first` become holes.
    pub(crate) fn set(&mut self, us: &dyn Untrusted, first: u64, count: u64, counter: Counter) -> Result<()> {
        self.change(us)?.set(first, count, counter, Counter::HOLE);
        self.blocks = self.blocks.max(first + count);
        Ok(())
    }

    /// `del_ctr` for all blocks past the new end, or holes up to it.
    pub(crate) fn resize(&mut self, us: &dyn Untrusted, blocks: u64) -> Result<()> {
        if blocks == 0 {
            // The old arrays in US no longer matter.
            self.intervals = OnceLock::from(Intervals::default());
            self.write_array(us, 0, &[])?;
            self.write_array(us, 1, &[])?;
        }
        self.change(us)?.resize(blocks, Counter::HOLE);
        self.blocks = blocks;
        Ok(())
    }

    fn change(&mut self, us: &dyn Untrusted) -> Result<&mut Intervals> {
        self.get(us)?;
        self.changed = true;
        Ok(self.intervals.get_mut().expect("they were loaded just now"))
    }

    /// `auth_ctr`: the state for TS, in at most `room` bytes or as hashes.
    pub(crate) fn seal(&mut self, us: &dyn Untrusted, room: usize) -> Result<CounterState> {
        let fits = |state: &CounterState| match state {
            CounterState::Inline(bytes) => bytes.len() <= room,
            CounterState::Hashed(..) => true,
        };
        if !self.changed && fits(&self.state) {
            return Ok(self.state.clone());
        }
        let intervals = self.get(us)?;
        if intervals.len() > MOST_INTERVALS {
            return Err(Error::new(Kind::Other, "cannot commit a file")
                .found(format!("{} counter intervals", intervals.len()))
                .expected(format!("at most {MOST_INTERVALS}"))
                .hint("rewrite the file from its first block, so that it has fewer"));
        }
        let (short, count) = (intervals.encode(room), intervals.len() as u32);
        let arrays = if short.is_some() { Default::default() } else { intervals.arrays() };
        self.write_array(us, 0, &arrays.0)?;
        self.write_array(us, 1, &arrays.1)?;
        let hash = |array, bytes: &[u8]| self.keys.array_hash(array, bytes);
        self.state = match short {
            Some(bytes) => CounterState::Inline(bytes),
            None => CounterState::Hashed(count, [hash(ARRAYS, &arrays.0), hash(ARRAYS + 1, &arrays.1)]),
        };
        self.changed = false;
        Ok(self.state.clone())
    }

    /// Bytes of the arrays in US.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.stored.iter().sum::<u64>() * PART_PAGE as u64
    }

    /// Writes the pages that differ from US.
    fn write_array(&mut self, us: &dyn Untrusted, array: usize, bytes: &[u8]) -> Result<()> {
        let mut sealed = [0; PART_PAGE];
        let old = std::mem::take(&mut self.written[array]);
        for (page, plain) in bytes.chunks(PART_PAGE).enumerate() {
            let at = page * PART_PAGE;
            if old.get(at..at + plain.len()) == Some(plain)
                && (old.len() == bytes.len() || plain.len() == PART_PAGE)
            {
                continue;
            }
            let mut padded = [0; PART_PAGE];
            padded[..plain.len()].copy_from_slice(plain);
            let len = plain.len().next_multiple_of(16);
            let number = page_number(page as u64, array);
            self.keys.seal_page(Part::Intervals, number, &padded[..len], &mut sealed[..len]);
            us.write_part(Part::Intervals, number, Some(&sealed[..len]))?;
            self.stored[array] = self.stored[array].max(page as u64 + 1);
        }
        let now = pages(bytes.len());
        for page in now..self.stored[array] {
            us.write_part(Part::Intervals, page_number(page, array), None)?;
        }
        self.stored[array] = now;
        self.written[array] = bytes.to_vec();
        Ok(())
    }

    fn load(&self, us: &dyn Untrusted) -> Result<Intervals> {
        let CounterState::Hashed(count, hashes) = &self.state else {
            unreachable!("intervals in TS were decoded when the file was opened")
        };
        let lengths = array_lengths(*count);
        let arrays = [self.read_array(us, 0, lengths[0])?, self.read_array(us, 1, lengths[1])?];
        for (array, hash) in (ARRAYS..).zip(hashes) {
            let found = self.keys.array_hash(array, &arrays[usize::from(array - ARRAYS)]);
            if !constant_time_eq(&found, hash) && is_enforced(SchemeCheck::ArrayHash) {
                return Err(tampered(Part::Intervals, 0).found("counters that do not match their hash"));
            }
        }
        Intervals::from_arrays(&arrays[0], &arrays[1], self.blocks)
            .ok_or_else(|| tampered(Part::Intervals, 0).found("counters that no version wrote"))
    }

    fn read_array(&self, us: &dyn Untrusted, array: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len.next_multiple_of(PART_PAGE));
        for page in 0..pages(len) {
            let number = page_number(page, array);
            let mut part = us.read_part(Part::Intervals, number)?.unwrap_or_default();
            let expected = (len - bytes.len()).min(PART_PAGE);
            if part.len() != expected.next_multiple_of(16) {
                return Err(tampered(Part::Intervals, number).found(format!("{} bytes", part.len())));
            }
            self.keys.open_page(Part::Intervals, number, &mut part);
            bytes.extend(&part[..expected]);
        }
        Ok(bytes)
    }
}

/// The lengths of both arrays in bytes.
fn array_lengths(count: u32) -> [usize; 2] {
    [Intervals::START, Intervals::VALUE].map(|size| size * count as usize)
}

fn pages(len: usize) -> u64 {
    len.div_ceil(PART_PAGE) as u64
}

/// Pages of IntStart have even numbers, pages of CtrVal odd ones.
fn page_number(page: u64, array: usize) -> u64 {
    page * 2 + array as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::counter::Session;
    use lacuna_contracts::Secret;

    /// Storage that accepts every write and keeps nothing.
    struct Nowhere;

    impl Untrusted for Nowhere {
        fn read_blocks(&self, _: u64, out: &mut [u8]) -> Result<()> {
            out.fill(0);
            Ok(())
        }

        fn write_blocks(&self, _: u64, _: &[u8]) -> Result<()> {
            Ok(())
        }

        fn read_part(&self, _: Part, _: u64) -> Result<Option<Vec<u8>>> {
            Ok(None)
        }

        fn write_part(&self, _: Part, _: u64, _: Option<&[u8]>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn more_intervals_than_can_be_read_are_not_written() {
        let mut counters = AuthCounters::new(FileKeys::derive(&Secret::copy_from(&[1; 32]), 1));
        for block in 0..MOST_INTERVALS as u64 {
            let counter = Counter { session: Session(1), pass: 1 + (block % 2) as u32 };
            counters.set(&Nowhere, block, 1, counter).unwrap();
        }
        let CounterState::Hashed(count, _) = counters.seal(&Nowhere, ROOM).unwrap() else {
            panic!("this number of counters does not fit into TS")
        };
        assert_eq!(count as usize, MOST_INTERVALS);
        counters.set(&Nowhere, 1 << 20, 1, Counter { session: Session(1), pass: 3 }).unwrap();
        assert_eq!(counters.seal(&Nowhere, ROOM).unwrap_err().kind(), Kind::Other);
    }
}
