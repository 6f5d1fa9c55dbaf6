//! The reads of an opening, for a chip of 64 GiB in a file with the default geometry of `create`.

use lacuna_contracts::Result;
use lacuna_medium::{FileMedium, Medium, MemoryMedium, ReadExtent};
use lacuna_nand::{Chip, ChipGeometry, Mapping, Peb, SimulatedChip, WearModel};
use lacuna_sim::{InterceptedMedium, MediumInterceptor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHIP: ChipGeometry = ChipGeometry { page: 4096, pages: 64, blocks: 1 << 18 };
/// One of this many blocks has a header. The rest are as on a chip without a mapping, which keeps
/// the file small.
const EVERY: usize = 64;

/// A file with counters of its reads.
struct CountingMedium {
    file: FileMedium,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl MediumInterceptor for CountingMedium {
    fn inner(&self) -> &dyn Medium {
        &self.file
    }

    fn read(&self, batch: &mut [ReadExtent<'_>]) -> Result<()> {
        self.reads.fetch_add(batch.len() as u64, Ordering::Relaxed);
        let bytes = batch.iter().map(|extent| extent.buf.len() as u64).sum();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.file.read(batch)
    }
}

/// The first page of a block of a chip with a mapping.
fn header() -> Vec<u8> {
    let small = ChipGeometry { blocks: 64, ..CHIP };
    let medium = Arc::new(MemoryMedium::new(SimulatedChip::medium_len(small)));
    SimulatedChip::create(&*medium, small, WearModel::default(), 1).unwrap();
    let chip = SimulatedChip::open(medium, 1).unwrap();
    Mapping::create(&chip, 7).unwrap();
    let mut page = vec![0; CHIP.page as usize];
    chip.read(Peb(0), 0, &mut page).unwrap();
    page
}

/// Shows that opening a chip in a file reads one page of each block with content, and no erased
/// blocks, which are holes in the file.
#[test]
fn an_opening_reads_one_page_of_each_used_block() {
    let dir = tempfile::tempdir().unwrap();
    let file = FileMedium::create(&dir.path().join("chip"), SimulatedChip::medium_len(CHIP)).unwrap();
    let counting = CountingMedium { file, reads: AtomicU64::new(0), bytes: AtomicU64::new(0) };
    let medium = Arc::new(InterceptedMedium(counting));
    SimulatedChip::create(&*medium, CHIP, WearModel::default(), 1).unwrap();
    let (chip, header) = (SimulatedChip::open(medium.clone(), 1).unwrap(), header());
    let divided = (0..CHIP.blocks).step_by(EVERY);
    let headers = divided.len() as u64;
    divided.for_each(|peb| chip.program(Peb(peb), 0, &header).unwrap());
    drop(chip);
    let count = |counted: &AtomicU64| counted.swap(0, Ordering::Relaxed);
    [&medium.0.reads, &medium.0.bytes].into_iter().for_each(|counted| counted.store(0, Ordering::Relaxed));
    let chip = Arc::new(SimulatedChip::open(medium.clone(), 2).unwrap());
    let (reads, bytes) = (count(&medium.0.reads), count(&medium.0.bytes));
    // The head of the chip, and 16 bytes per block, in pieces of one MiB.
    assert_eq!((reads, bytes), (5, 4096 + 16 * u64::from(CHIP.blocks)));
    Mapping::open(chip).unwrap();
    let (reads, bytes) = (count(&medium.0.reads), count(&medium.0.bytes));
    assert_eq!((reads, bytes), (headers, headers * u64::from(CHIP.page)));
}
