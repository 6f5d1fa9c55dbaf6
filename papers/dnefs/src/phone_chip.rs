//! A NAND chip that counts its operations, and flash on it that attributes them to the area that
//! caused them. The counts give the cost of a purge, a read or a mount with the times of a real
//! chip. No time is measured here.

use lacuna_contracts::Result;
use lacuna_nand::{
    Chip, ChipFault, ChipGeometry, Flash, FlashGeometry, Leb, Mapping, Peb, SimulatedChip, Unerased,
};
use std::ops::{Add, Range, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Microseconds to read a page into the chip's buffer, typical of SLC NAND with pages of 2 KiB.
pub(crate) const READ_US: u64 = 25;
/// Microseconds to program a page.
pub(crate) const PROGRAM_US: u64 = 250;
/// Microseconds to erase a block.
pub(crate) const ERASE_US: u64 = 2000;
/// Nanoseconds to move a byte between chip and processor.
pub(crate) const BYTE_NS: u64 = 25;

/// Operations on a chip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChipOps {
    /// Pages read into the chip's buffer.
    pub pages_read: u64,
    /// Pages programmed.
    pub pages_programmed: u64,
    /// Blocks erased.
    pub erased: u64,
    /// Bytes moved either way.
    pub bytes: u64,
}

impl ChipOps {
    /// Nanoseconds that the chip takes for the operations, one after another.
    pub(crate) fn nanos(self) -> u64 {
        let chip = READ_US * self.pages_read + PROGRAM_US * self.pages_programmed + ERASE_US * self.erased;
        1000 * chip + BYTE_NS * self.bytes
    }
}

impl Add for ChipOps {
    type Output = ChipOps;
    fn add(self, other: ChipOps) -> ChipOps {
        ChipOps {
            pages_read: self.pages_read + other.pages_read,
            pages_programmed: self.pages_programmed + other.pages_programmed,
            erased: self.erased + other.erased,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sub for ChipOps {
    type Output = ChipOps;
    fn sub(self, other: ChipOps) -> ChipOps {
        ChipOps {
            pages_read: self.pages_read - other.pages_read,
            pages_programmed: self.pages_programmed - other.pages_programmed,
            erased: self.erased - other.erased,
            bytes: self.bytes - other.bytes,
        }
    }
}

#[derive(Default)]
struct OpCounters([AtomicU64; 4]);

impl OpCounters {
    fn add(&self, asked: ChipOps) {
        let figures = [asked.pages_read, asked.pages_programmed, asked.erased, asked.bytes];
        for (count, figure) in self.0.iter().zip(figures) {
            count.fetch_add(figure, Ordering::Relaxed);
        }
    }

    fn get(&self) -> ChipOps {
        let [pages_read, pages_programmed, erased, bytes] =
            std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed));
        ChipOps { pages_read, pages_programmed, erased, bytes }
    }
}

/// A simulated chip that counts its operations.
pub(crate) struct CountingChip {
    chip: SimulatedChip,
    tally: OpCounters,
}

impl CountingChip {
    pub(crate) fn new(chip: SimulatedChip) -> CountingChip {
        CountingChip { chip, tally: OpCounters::default() }
    }

    /// All operations so far.
    pub(crate) fn ops(&self) -> ChipOps {
        self.tally.get()
    }

    /// How often each block was erased.
    pub(crate) fn erasures(&self) -> Vec<u64> {
        self.chip.erasures()
    }
}

impl Chip for CountingChip {
    fn geometry(&self) -> ChipGeometry {
        self.chip.geometry()
    }

    fn read(&self, block: Peb, offset: u32, buf: &mut [u8]) -> std::result::Result<(), ChipFault> {
        let page = u64::from(self.geometry().page);
        let (first, bytes) = (u64::from(offset), buf.len() as u64);
        let pages_read = (first + bytes).div_ceil(page) - first / page;
        self.tally.add(ChipOps { pages_read, bytes, ..ChipOps::default() });
        self.chip.read(block, offset, buf)
    }

    fn program(&self, block: Peb, first: u32, data: &[u8]) -> std::result::Result<(), ChipFault> {
        let bytes = data.len() as u64;
        let pages_programmed = bytes / u64::from(self.geometry().page);
        self.tally.add(ChipOps { pages_programmed, bytes, ..ChipOps::default() });
        self.chip.program(block, first, data)
    }

    fn erase(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        self.tally.add(ChipOps { erased: 1, ..ChipOps::default() });
        self.chip.erase(block)
    }

    fn is_bad(&self, block: Peb) -> std::result::Result<bool, ChipFault> {
        self.chip.is_bad(block)
    }

    fn mark_bad(&self, block: Peb) -> std::result::Result<(), ChipFault> {
        self.chip.mark_bad(block)
    }
}

/// Logical erase blocks on a counting chip, with the operations for the key storage area counted
/// apart.
pub(crate) struct CountingFlash {
    mapping: Mapping,
    chip: Arc<CountingChip>,
    /// The logical erase blocks of the key storage area.
    keys: Range<u32>,
    key_area_ops: OpCounters,
    key_updates: AtomicU64,
    checkpoints: AtomicU64,
}

impl CountingFlash {
    /// `keys` are the logical erase blocks of the key storage area.
    pub(crate) fn new(mapping: Mapping, chip: Arc<CountingChip>, keys: Range<u32>) -> CountingFlash {
        let counts = [(); 2].map(|()| AtomicU64::default());
        let [key_updates, checkpoints] = counts;
        CountingFlash { mapping, chip, keys, key_area_ops: OpCounters::default(), key_updates, checkpoints }
    }

    /// Operations on the chip by calls that touch the key storage area.
    pub(crate) fn key_area_ops(&self) -> ChipOps {
        self.key_area_ops.get()
    }

    /// Replaced key blocks.
    pub(crate) fn key_updates(&self) -> u64 {
        self.key_updates.load(Ordering::Relaxed)
    }

    /// Replaced checkpoint blocks.
    pub(crate) fn checkpoint_updates(&self) -> u64 {
        self.checkpoints.load(Ordering::Relaxed)
    }

    /// Blocks that wear levelling moved.
    pub(crate) fn moved_blocks(&self) -> u64 {
        self.mapping.wear().moved
    }

    fn attribute<R>(&self, block: Leb, f: impl FnOnce() -> R) -> R {
        if !self.keys.contains(&block.0) {
            return f();
        }
        // The difference is the cost of this call, because a simulation has one thread.
        let before = self.chip.ops();
        let done = f();
        self.key_area_ops.add(self.chip.ops() - before);
        done
    }
}

impl Flash for CountingFlash {
    fn geometry(&self) -> FlashGeometry {
        self.mapping.geometry()
    }

    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()> {
        self.attribute(block, || self.mapping.read(block, offset, buf))
    }

    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()> {
        self.mapping.program(block, offset, data)
    }

    fn change(&self, block: Leb, data: &[u8]) -> Result<()> {
        // Only key blocks and checkpoint blocks are replaced as a whole.
        let count = if self.keys.contains(&block.0) { &self.key_updates } else { &self.checkpoints };
        count.fetch_add(1, Ordering::Relaxed);
        self.attribute(block, || self.mapping.change(block, data))
    }

    fn unmap(&self, block: Leb) -> Result<()> {
        self.mapping.unmap(block)
    }

    fn is_mapped(&self, block: Leb) -> Result<bool> {
        self.mapping.is_mapped(block)
    }

    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>> {
        self.mapping.drain_of(wanted)
    }
}
