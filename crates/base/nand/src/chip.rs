//! The `Chip` trait: the operations and faults of a NAND chip.

use lacuna_contracts::Error;

/// The number of a physical erase block of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peb(pub u32);

/// The geometry of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipGeometry {
    /// Bytes of a page, the unit of programming.
    pub page: u32,
    /// Pages of an erase block, the unit of erasure.
    pub pages: u32,
    /// Number of erase blocks.
    pub blocks: u32,
}

impl ChipGeometry {
    /// Bytes of an erase block.
    pub fn block_len(&self) -> u64 {
        u64::from(self.page) * u64::from(self.pages)
    }

    /// Bytes of the whole chip.
    pub fn len(&self) -> u64 {
        self.block_len() * u64::from(self.blocks)
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The reason why an operation on a chip failed.
#[derive(Debug)]
pub enum ChipFault {
    /// The chip reports that pages could not be programmed: the block must be given up.
    Program,
    /// The chip reports that the block could not be erased: it may keep its content forever.
    Erase,
    /// The operation breaks a rule of NAND, or the layer below the chip failed.
    Other(Error),
}

impl From<Error> for ChipFault {
    fn from(e: Error) -> ChipFault {
        ChipFault::Other(e)
    }
}

/// A NAND chip. Programming and erasures that have returned survive a power cut.
pub trait Chip: Send + Sync {
    /// The geometry.
    fn geometry(&self) -> ChipGeometry;
    /// Reads bytes of a block, starting at byte `offset`. Erased pages read as `0xff`.
    fn read(&self, block: Peb, offset: u32, buf: &mut [u8]) -> Result<(), ChipFault>;
    /// Tells the chip that the first bytes of a block are read soon. It may start to fetch them.
    fn will_read(&self, _block: Peb, _len: u32) {}
    /// Programs whole pages of a block, starting at page `first`, behind all pages programmed since
    /// the block was erased. Pages may be skipped.
    fn program(&self, block: Peb, first: u32, data: &[u8]) -> Result<(), ChipFault>;
    /// Erases a block.
    fn erase(&self, block: Peb) -> Result<(), ChipFault>;
    /// Whether a block is marked as bad, from the factory or later.
    fn is_bad(&self, block: Peb) -> Result<bool, ChipFault>;
    /// Marks a block as bad, permanently.
    fn mark_bad(&self, block: Peb) -> Result<(), ChipFault>;
    /// Returns when completed calls survive a crash of the host of a simulated chip.
    fn sync(&self) -> Result<(), ChipFault> {
        Ok(())
    }
}
