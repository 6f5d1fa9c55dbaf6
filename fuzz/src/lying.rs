//! Media that answer some reads with earlier contents, and the decoding of such lies from an input.

use crate::bytes::InputCursor;
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
const MAX_LYING_READ: u64 = 4096;

/// The lies of a simulated medium, folder or store that follow from a seed: their rate, whether
/// some are forged, and their choices.
pub fn sim_lies_of_seed(seed: u32) -> lacuna_sim::Lies {
    let per_mille = [20, 100, 400][(seed % 3) as usize];
    lacuna_sim::Lies { per_mille, rng: Rng::new(seed.into()), may_forge: seed >> 16 & 1 == 1 }
}

/// Such lies, if a byte of the input asks for them, with the next four bytes as seed.
pub fn requested_sim_lies(input: &mut InputCursor<'_>) -> Option<lacuna_sim::Lies> {
    let [ask, seed @ ..]: [u8; 5] = input.array();
    (ask >= 0x80).then(|| sim_lies_of_seed(u32::from_le_bytes(seed)))
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
                medium.keep_history();
                FilledMedium { medium: medium.clone(), lying: Some((medium, lies)) }
            }
        }
    }

    /// The medium itself.
    pub fn medium(&self) -> &Arc<dyn Medium> {
        &self.medium
    }

    /// Whether the medium is to lie.
    pub fn will_lie(&self) -> bool {
        self.lying.is_some()
    }

    /// Starts lying, when the medium is filled.
    pub fn start_lying(&self) {
        if let Some((medium, lies)) = &self.lying {
            medium.set_lies(Some(lies.clone()));
        }
    }

    /// Answers truthfully again.
    pub fn stop_lying(&self) {
        if let Some((medium, _)) = &self.lying {
            medium.set_lies(None);
        }
    }
}

/// The numbers of lying reads, each with the index of the earlier state that it returns.
pub type ReadLies = BTreeMap<u64, u8>;

/// The lies that `input` asks for.
pub fn decode_lies(input: &mut InputCursor<'_>) -> ReadLies {
    let count = usize::from(input.byte()) % LIES;
    (0..count).map(|_| (u64::from(input.u16()) % MAX_LYING_READ, input.byte())).collect()
}

/// The medium `now`, with reads that return states of the past as `lies` tells.
pub struct LyingMedium {
    present: Arc<SparseMedium>,
    past: &'static [SparseMedium],
    lies: ReadLies,
    reads: AtomicU64,
}

impl LyingMedium {
    /// A view of `now`; the reads in `lies` return contents of `past`.
    pub fn new(now: Arc<SparseMedium>, past: &'static [SparseMedium], lies: ReadLies) -> Self {
        LyingMedium { present: now, past, lies, reads: AtomicU64::new(0) }
    }
}

impl Medium for LyingMedium {
    fn len(&self) -> u64 {
        self.present.len()
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        for extent in batch {
            let number = self.reads.fetch_add(1, Ordering::Relaxed);
            let earlier =
                self.lies.get(&number).map(|which| &self.past[usize::from(*which) % self.past.len()]);
            earlier.unwrap_or(&self.present).read_at(extent.offset, extent.buf)?;
        }
        Ok(())
    }

    fn read_discreetly(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.read(batch)
    }

    fn write(&self, batch: &[WriteExtent<'_>]) -> Result<()> {
        self.present.write(batch)
    }

    fn sync(&self) -> Result<()> {
        self.present.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.present.discard(offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.present.set_len(len)
    }
}
