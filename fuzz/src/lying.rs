//! A medium some of whose reads are answered with what lay there at another time.

use crate::bytes::Bytes;
use crate::sparse::SparseMedium;
use lacuna_contracts::Result;
use lacuna_medium::{Medium, ReadExtent, WriteExtent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reads that lie at most.
const LIES: usize = 48;
/// No later read lies.
const LAST: u64 = 4096;

/// Which reads lie, by their number: each tells what one of the earlier states held.
pub type Lies = BTreeMap<u64, u8>;

/// The lies that `input` asks for.
pub fn lies(input: &mut Bytes<'_>) -> Lies {
    let count = usize::from(input.byte()) % LIES;
    (0..count).map(|_| (u64::from(input.u16()) % LAST, input.byte())).collect()
}

/// `now`, whose reads lie as `lies` says.
pub struct LyingMedium {
    now: Arc<SparseMedium>,
    past: &'static [SparseMedium],
    lies: Lies,
    reads: AtomicU64,
}

impl LyingMedium {
    /// Over a medium that was once as in one of `past`.
    pub fn over(now: Arc<SparseMedium>, past: &'static [SparseMedium], lies: Lies) -> Self {
        LyingMedium { now, past, lies, reads: AtomicU64::new(0) }
    }
}

impl Medium for LyingMedium {
    fn len(&self) -> u64 {
        self.now.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for extent in batch {
            let number = self.reads.fetch_add(1, Ordering::Relaxed);
            let told = self.lies.get(&number).map(|which| &self.past[usize::from(*which) % self.past.len()]);
            told.unwrap_or(&self.now).read_at(extent.offset, extent.buf)?;
        }
        Ok(())
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.now.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.now.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.now.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.now.set_len(len)
    }
}
