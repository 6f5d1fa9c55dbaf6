//! Counts the discreet reads of a medium, by which hidden levels are read. Each goes to the medium,
//! because such reads leave nothing in a cache.

use lacuna_contracts::Result;
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent, near_runs};
use parking_lot::Mutex;

/// Discreet reads of a medium.
#[derive(Default)]
pub struct DiscreetReads {
    /// The offset of each extent.
    pub offsets: Vec<u64>,
    /// The number of requests by which a file would serve them.
    pub requests: usize,
}

/// A medium in memory that counts discreet reads.
pub struct CountingMedium {
    memory: MemoryMedium,
    reads: Mutex<DiscreetReads>,
}

impl CountingMedium {
    /// A medium of this length, all zeros.
    pub fn new(len: u64) -> Self {
        CountingMedium { memory: MemoryMedium::new(len), reads: Mutex::default() }
    }

    /// The reads since the last call.
    pub fn take(&self) -> DiscreetReads {
        std::mem::take(&mut *self.reads.lock())
    }
}

impl Medium for CountingMedium {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.memory.read(batch)
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let mut reads = self.reads.lock();
        reads.offsets.extend(batch.iter().map(|extent| extent.offset));
        reads.requests += near_runs(batch).count();
        drop(reads);
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
