//! A medium that counts what is read of it, and how much of that lay together.

use lacuna_core::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    /// Extents, which is what a medium is asked for.
    pub extents: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Runs: extents that do not begin where the one before them ended.
    pub runs: u64,
}

impl Reads {
    /// What came after `earlier`.
    pub(crate) fn since(self, earlier: Reads) -> Reads {
        Reads {
            extents: self.extents - earlier.extents,
            bytes: self.bytes - earlier.bytes,
            runs: self.runs - earlier.runs,
        }
    }
}

/// Passes everything on, and counts reads.
pub(crate) struct ReadCounter {
    inner: Arc<dyn Medium>,
    /// The counts, and where the last read ended.
    counted: Mutex<(Reads, u64)>,
}

impl ReadCounter {
    /// Nothing is counted yet.
    pub(crate) fn new(inner: Arc<dyn Medium>) -> Self {
        ReadCounter { inner, counted: Mutex::default() }
    }

    /// The counts so far.
    pub(crate) fn so_far(&self) -> Reads {
        self.counted().0
    }

    fn counted(&self) -> MutexGuard<'_, (Reads, u64)> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Medium for ReadCounter {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    /// The extents of a batch are counted in the order of their places, in which a disk serves them.
    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        let mut places: Vec<(u64, u64)> = batch.iter().map(|e| (e.offset, e.buf.len() as u64)).collect();
        places.sort_unstable();
        let mut counted = self.counted();
        let (reads, end) = &mut *counted;
        for (offset, len) in places {
            reads.extents += 1;
            reads.bytes += len;
            reads.runs += u64::from(offset != *end);
            *end = offset + len;
        }
        drop(counted);
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.inner.write(batch)
    }

    fn write_durable(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.inner.write_durable(batch)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn forget_cached(&self) -> Result<()> {
        self.inner.forget_cached()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.inner.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_core::BLOCK_SIZE;
    use lacuna_medium::MemoryMedium;

    #[test]
    fn reads_that_follow_one_another_are_one_run() {
        let medium = ReadCounter::new(Arc::new(MemoryMedium::new(1 << 20)));
        let mut buf = [0; 2 * BLOCK_SIZE];
        for block in [4, 6, 8, 7] {
            medium.read_at(block * BLOCK_SIZE as u64, &mut buf).unwrap();
        }
        assert_eq!(medium.so_far(), Reads { extents: 4, bytes: 32 << 10, runs: 2 });
        let first = medium.so_far();
        let (one, two) = buf.split_at_mut(BLOCK_SIZE);
        let offset = 20 * BLOCK_SIZE as u64;
        let second = ReadExtent { offset: offset + BLOCK_SIZE as u64, buf: two };
        medium.read(&mut [second, ReadExtent { offset, buf: one }]).unwrap();
        assert_eq!(medium.so_far().since(first), Reads { extents: 2, bytes: 8 << 10, runs: 1 });
    }
}
