//! The `Flash` trait: logical erase blocks that never go bad.

use lacuna_contracts::Result;

/// The number of a logical erase block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leb(pub u32);

/// The geometry of flash, as a format sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashGeometry {
    /// Bytes of a page, the unit of programming.
    pub page: u32,
    /// Bytes of a logical erase block, a multiple of the page.
    pub leb_len: u32,
    /// Number of logical erase blocks.
    pub lebs: u32,
}

/// A superseded copy that could not be erased: its block went bad with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unerased {
    /// The logical erase block of the copy, if known.
    pub leb: Option<Leb>,
    /// The content that can still be read.
    pub content: Vec<u8>,
}

impl Unerased {
    /// The same, without a LEB number that is outside of `lebs` blocks.
    pub(crate) fn with_valid_leb(self, lebs: u32) -> Unerased {
        Unerased { leb: self.leb.filter(|leb| leb.0 < lebs), ..self }
    }
}

/// Logical erase blocks. Called from many threads at once; calls that change the same block are
/// serialized.
///
/// The effect of a call that has returned survives a power cut. A cut during [`Flash::program`] may
/// leave any of the pages programmed, one of them with arbitrary content.
pub trait Flash: Send + Sync {
    /// The geometry.
    fn geometry(&self) -> FlashGeometry;
    /// Reads bytes of a block. Bytes that were not programmed read as `0xff`.
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()>;
    /// Programs whole pages starting at byte `offset`, behind all pages programmed since the block
    /// was erased or unmapped.
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()>;
    /// Replaces the content of a block by `data`, whole pages: after a power cut it has all of the
    /// old content or all of the new. The old content is superseded.
    fn change(&self, block: Leb, data: &[u8]) -> Result<()>;
    /// Makes a block read as `0xff` throughout; its content is superseded. A power cut may bring
    /// the content back, until the block is drained or programmed again.
    fn unmap(&self, block: Leb) -> Result<()>;
    /// Whether the block was programmed since it was unmapped.
    fn is_mapped(&self, block: Leb) -> Result<bool>;
    /// Erases every superseded copy on the chip. Returns the copies that could not be erased, also
    /// those from before the flash was opened, if `wanted` accepts them; the next call returns the
    /// rest.
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>>;
    /// [`Flash::drain_of`], with all copies in the list.
    fn drain(&self) -> Result<Vec<Unerased>> {
        self.drain_of(&|_| true)
    }
    /// [`Flash::unmap`] and [`Flash::drain`]: erases every superseded copy on the chip.
    fn erase(&self, block: Leb) -> Result<Vec<Unerased>> {
        self.unmap(block)?;
        self.drain()
    }
    /// Returns when completed calls survive a crash of the host of a simulated chip. On a real chip
    /// they do when they return.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
