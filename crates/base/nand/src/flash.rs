//! The `Flash` contract: logical erase blocks that never go bad.

use lacuna_contracts::Result;

/// The number of a logical erase block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Leb(pub u32);

/// How flash is divided, as a format sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashGeometry {
    /// Bytes of a page: what is programmed begins and ends on a page.
    pub page: u32,
    /// Bytes of a logical erase block, whole pages.
    pub leb_len: u32,
    /// Logical erase blocks.
    pub lebs: u32,
}

/// A superseded copy that could not be erased: its block went bad with its contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unerased {
    /// What it was a copy of, if that is known.
    pub leb: Option<Leb>,
    /// What can still be read there.
    pub content: Vec<u8>,
}

impl Unerased {
    /// The same; a number that none of so many blocks has says nothing of what it is a copy of.
    pub(crate) fn among(self, lebs: u32) -> Unerased {
        Unerased { leb: self.leb.filter(|leb| leb.0 < lebs), ..self }
    }
}

/// Logical erase blocks. Called from many threads at once; two calls that change the same block
/// come one after the other.
///
/// What a call has done when it returns survives a power cut. A cut during [`Flash::program`] may
/// leave any of the pages programmed, one of them with anything in it.
pub trait Flash: Send + Sync {
    /// How it is divided.
    fn geometry(&self) -> FlashGeometry;
    /// Reads bytes of a block. What was not programmed reads as `0xff`.
    fn read(&self, block: Leb, offset: u32, buf: &mut [u8]) -> Result<()>;
    /// Programs whole pages from byte `offset` on: behind all that were programmed since the block
    /// was erased or unmapped.
    fn program(&self, block: Leb, offset: u32, data: &[u8]) -> Result<()>;
    /// Replaces the content of a block by `data`, whole pages: after a power cut it has all of the
    /// old content or all of the new. The old one is superseded.
    fn change(&self, block: Leb, data: &[u8]) -> Result<()>;
    /// Makes a block read as `0xff` throughout; its content is superseded. After a power cut the
    /// block may have it again, unless it was drained or something else was programmed.
    fn unmap(&self, block: Leb) -> Result<()>;
    /// Whether anything was programmed into a block since it was unmapped.
    fn is_mapped(&self, block: Leb) -> Result<bool>;
    /// Returns when no superseded copy of anything can be read from the chip any more. What this
    /// could not be done for is in the list, also if it was so when the flash was opened, as far as
    /// `wanted` says so; the next call gives the rest. Everything else is erased.
    fn drain_of(&self, wanted: &dyn Fn(&Unerased) -> bool) -> Result<Vec<Unerased>>;
    /// [`Flash::drain_of`], with everything in the list.
    fn drain(&self) -> Result<Vec<Unerased>> {
        self.drain_of(&|_| true)
    }
    /// [`Flash::unmap`], and every superseded copy of everything is erased, as [`Flash::drain`]
    /// does it.
    fn erase(&self, block: Leb) -> Result<Vec<Unerased>> {
        self.unmap(block)?;
        self.drain()
    }
    /// Returns when what was done survives the end of the machine that simulates a chip. On a chip
    /// that is one, everything does as soon as it is done.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
