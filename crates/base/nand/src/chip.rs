//! What a NAND chip can do, and how it fails.

use lacuna_contracts::Error;

/// The number of a physical erase block of a chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peb(pub u32);

/// How a chip is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChipGeometry {
    /// Bytes of a page, the unit of programming.
    pub page: u32,
    /// Pages of an erase block, the unit of erasure.
    pub pages: u32,
    /// Erase blocks of the chip.
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

/// Why an operation on a chip did not succeed.
#[derive(Debug)]
pub enum Fault {
    /// The chip reports that the pages could not be programmed: the block has to be given up.
    Program,
    /// The chip reports that the block could not be erased: it may hold what it held, for ever.
    Erase,
    /// The operation breaks a rule of NAND, or what lies below the chip failed.
    Other(Error),
}

impl From<Error> for Fault {
    fn from(e: Error) -> Fault {
        Fault::Other(e)
    }
}

/// A NAND chip. What was programmed or erased when a call returns survives a power cut.
pub trait Chip: Send + Sync {
    /// How it is divided.
    fn geometry(&self) -> ChipGeometry;
    /// Reads bytes of a block from byte `offset` on. Pages that are erased read as `0xff`.
    fn read(&self, block: Peb, offset: u32, buf: &mut [u8]) -> Result<(), Fault>;
    /// The first bytes of a block are read soon: the chip may begin to fetch them while the caller
    /// does something else.
    fn will_read(&self, _block: Peb, _len: u32) {}
    /// Programs whole pages of a block from page `first` on: the next after those that were
    /// programmed since it was erased, or a later one.
    fn program(&self, block: Peb, first: u32, data: &[u8]) -> Result<(), Fault>;
    /// Erases a block.
    fn erase(&self, block: Peb) -> Result<(), Fault>;
    /// Whether a block is marked as bad, from the factory or later.
    fn is_bad(&self, block: Peb) -> Result<bool, Fault>;
    /// Marks a block as bad, for good.
    fn mark_bad(&self, block: Peb) -> Result<(), Fault>;
    /// Returns when everything survives the end of the machine that simulates the chip.
    fn sync(&self) -> Result<(), Fault> {
        Ok(())
    }
}
