//! The reads of an opening.

mod fixture;

use fixture::{WrittenDisk, counter, open, open_with, options, written};
use lacuna_contracts::{BLOCK_SIZE, Kind, Result};
use lacuna_deniable::{OpenOptions, Params};
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// The first byte of the log.
const LOG_START: u64 = (1 << 20) + (256 << 10);

/// The summaries that a medium was asked for.
#[derive(Default)]
struct Summaries {
    /// The offsets of those that it was to fetch, in order.
    fetched: Vec<u64>,
    /// The offsets of those that were read without that.
    missed: Vec<u64>,
}

/// A medium in memory that notes which summaries it is to fetch.
struct FetchingMedium {
    memory: MemoryMedium,
    stripe_len: u64,
    summaries: Mutex<Summaries>,
}

impl FetchingMedium {
    fn of(written: &WrittenDisk) -> FetchingMedium {
        FetchingMedium {
            memory: MemoryMedium::from_bytes(written.bytes.clone()),
            stripe_len: written.params.geometry.blocks() * BLOCK_SIZE as u64,
            summaries: Mutex::default(),
        }
    }

    fn is_summary(&self, offset: u64, len: u64) -> bool {
        len == BLOCK_SIZE as u64
            && offset >= LOG_START
            && (offset - LOG_START).is_multiple_of(self.stripe_len)
    }
}

impl Medium for FetchingMedium {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn will_read(&self, offset: u64, len: u64) {
        assert!(self.is_summary(offset, len), "{len} bytes at {offset}");
        self.summaries.lock().unwrap().fetched.push(offset);
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let mut summaries = self.summaries.lock().unwrap();
        for extent in batch.iter().filter(|extent| self.is_summary(extent.offset, extent.buf.len() as u64)) {
            if !summaries.fetched.contains(&extent.offset) {
                summaries.missed.push(extent.offset);
            }
        }
        drop(summaries);
        self.memory.read(batch)
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.memory.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.memory.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.memory.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.memory.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.memory.set_len(len)
    }
}

/// A medium fetches the summaries of an opening before they are read one by one, all but the
/// checkpoint's. It fetches the same ones whatever levels are opened.
#[test]
fn summaries_are_fetched_ahead_whatever_levels_are_opened() {
    for closed in [false, true] {
        let written = written(3, closed);
        let fetched = [1, 3].map(|levels| {
            let medium = Arc::new(FetchingMedium::of(&written));
            let below: Arc<dyn Medium> = medium.clone();
            drop(open(&below, &written.params, levels, 9).unwrap());
            let Summaries { fetched, missed } = std::mem::take(&mut *medium.summaries.lock().unwrap());
            assert!(fetched.len() >= 30 && missed.len() <= 3, "{} {missed:?}", fetched.len());
            fetched
        });
        assert!(fetched[0] == fetched[1], "{closed}");
    }
}

/// The last stripe of the log of these bytes, as an opening finds it.
fn end_of(params: &Params, bytes: &[u8], background: bool) -> std::result::Result<u64, Kind> {
    let medium: Arc<dyn Medium> = Arc::new(MemoryMedium::from_bytes(bytes.to_vec()));
    let options = OpenOptions { background, ..options(9, 10) };
    let disk = open_with(&medium, params, 3, options).map_err(|e| e.kind())?;
    Ok(counter(&disk.levels()[0], "head"))
}

/// A disk with threads, which verifies several stripes at once, finds the same end as one without,
/// wherever a stripe was torn.
#[test]
fn an_opening_with_threads_finds_the_same_end_of_the_log() {
    let WrittenDisk { params, mut bytes, head, .. } = written(5, false);
    let params = Params { cover_millis: 0, ..params };
    let stripe_len = params.geometry.blocks() * BLOCK_SIZE as u64;
    let mut ends = BTreeSet::new();
    for back in [0, 1, 2, 3, 5, 20] {
        let stripe = LOG_START + (head - back) % params.stripes * stripe_len;
        let torn = stripe as usize + BLOCK_SIZE + 600;
        bytes[torn] ^= 1;
        let end = end_of(&params, &bytes, true);
        assert!(end == end_of(&params, &bytes, false), "{back}: {end:?}");
        bytes[torn] ^= 1;
        ends.extend(end);
    }
    assert!(ends.len() > 1, "{ends:?}");
}
