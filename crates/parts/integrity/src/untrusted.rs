//! The untrusted storage of one file: its encrypted blocks and the pages of its untrusted storage
//! for integrity (US).

use lacuna_contracts::Result;

/// The size limit of a page of a part, in bytes.
pub const PART_PAGE: usize = 2048;

/// The kinds of pages in the untrusted storage for integrity (US) of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A page of a tree of tags: levels below [`Part::RTREE`] belong to MT-EINT's tree, the rest to
    /// RTree.
    Tree(u8),
    /// Write counters, one for each block (MT-EINT with dispersed counters).
    Counters,
    /// The arrays IntStart and CtrVal (Figure 6), if they do not fit into TS.
    Intervals,
    /// RArr: leaf of RTree -> block.
    Order,
    /// The inverse of RArr, for SearchOffset: block -> leaf of RTree.
    Position,
}

impl Part {
    /// Added to the levels of RTree, so that a file can hold both trees while it is converted.
    pub const RTREE: u8 = 16;
}

/// Storage for one file's encrypted blocks and US pages. The adversary may alter it at will.
///
/// An implementation need not detect anything. It may buffer writes until its owner commits, as
/// long as a read returns the latest write.
///
/// Errors of reads are marked ([`lacuna_contracts::Error::of_read`]): a change that needs several
/// pages may be half done when one of them cannot be read, even if the host only refused the call.
pub trait Untrusted: Send + Sync {
    /// Reads whole encrypted blocks. Blocks after the last written one read as zeros.
    fn read_blocks(&self, first: u64, out: &mut [u8]) -> Result<()>;
    /// Writes whole encrypted blocks. An error that says so
    /// ([`lacuna_contracts::Error::changed_nothing`]), as a refusal does, has changed none of them.
    fn write_blocks(&self, first: u64, sealed: &[u8]) -> Result<()>;
    /// Reads a page, at most [`PART_PAGE`] bytes. `None` if it was never written or was removed.
    fn read_part(&self, part: Part, page: u64) -> Result<Option<Vec<u8>>>;
    /// Writes a page, or removes it (`None`). Removing never fails for lack of space.
    fn write_part(&self, part: Part, page: u64, bytes: Option<&[u8]>) -> Result<()>;
}
