//! Media that answer some reads with earlier contents, and the decoding of such lies from an input.

use crate::bytes::Bytes;
use crate::sparse::SparseMedium;
use lacuna_contracts::Result;
use lacuna_medium::{Medium, MemoryMedium, ReadExtent, WriteExtent};
use lacuna_sim::{CrashMedium, Rng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of lying reads.
const LIES: usize = 48;
/// Reads with this number or a higher one do not lie.
const LAST: u64 = 4096;

/// The lies of a simulated medium, folder or store that follow from a seed: their rate, whether
/// some are forged, and their choices.
pub fn of_seed(seed: u32) -> lacuna_sim::Lies {
    let of_a_thousand = [20, 100, 400][(seed % 3) as usize];
    lacuna_sim::Lies { of_a_thousand, rng: Rng::new(seed.into()), forges: seed >> 16 & 1 == 1 }
}

/// Such lies, if a byte of the input asks for them, with the next four bytes as seed.
pub fn asked(input: &mut Bytes<'_>) -> Option<lacuna_sim::Lies> {
    let [ask, seed @ ..]: [u8; 5] = input.array();
    (ask >= 0x80).then(|| of_seed(u32::from_le_bytes(seed)))
}

/// A medium in memory that a forger fills. If it is to lie, later reads return any contents that it
/// had while it was filled.
pub struct FilledMedium {
    medium: Arc<dyn Medium>,
    lying: Option<(Arc<CrashMedium>, lacuna_sim::Lies)>,
}

impl FilledMedium {
    /// An empty medium of `len` bytes.
    pub fn new(len: u64, lies: Option<lacuna_sim::Lies>) -> Self {
        match lies {
            None => FilledMedium { medium: Arc::new(MemoryMedium::new(len)), lying: None },
            Some(lies) => {
                let medium = Arc::new(CrashMedium::new(len));
                medium.keep_past();
                FilledMedium { medium: medium.clone(), lying: Some((medium, lies)) }
            }
        }
    }

    /// The medium itself.
    pub fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }

    /// Whether the medium is to lie.
    pub fn is_to_lie(&self) -> bool {
        self.lying.is_some()
    }

    /// Starts lying, when the medium is filled.
    pub fn lie(&self) {
        if let Some((medium, lies)) = &self.lying {
            medium.lie(Some(lies.clone()));
        }
    }

    /// Answers truthfully again.
    pub fn be_honest(&self) {
        if let Some((medium, _)) = &self.lying {
            medium.lie(None);
        }
    }
}

/// The numbers of lying reads, each with the index of the earlier state that it returns.
pub type Lies = BTreeMap<u64, u8>;

/// The lies that `input` asks for.
pub fn lies(input: &mut Bytes<'_>) -> Lies {
    let count = usize::from(input.byte()) % LIES;
    (0..count).map(|_| (u64::from(input.u16()) % LAST, input.byte())).collect()
}

/// The medium `now`, with reads that return states of the past as `lies` tells.
pub struct LyingMedium {
    now: Arc<SparseMedium>,
    past: &'static [SparseMedium],
    lies: Lies,
    reads: AtomicU64,
}

impl LyingMedium {
    /// A view of `now`; the reads in `lies` return contents of `past`.
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
