//! The way back to whole copies of a header. All commands take it from an examination of the medium
//! ([`Examination::copy_remedy`](crate::Examination::copy_remedy)), so that no message advises an
//! operation that another one refuses.

use lacuna_contracts::Hint;

/// The way back to whole copies of a header, where some are missing, damaged or old.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyRemedy {
    /// [`header::repair`](crate::header::repair) writes all copies.
    Repair,
    /// The block device has grown, and [`resize`](crate::resize()) takes the new space and writes
    /// all copies. A repair writes them, too, and leaves the size of the disk as it is.
    Resize,
    /// The medium was cut short: it must have its former length before a repair.
    Lengthen,
    /// Another program wrote over a copy, so that a repair is refused: the content, and the advice.
    WrittenOver(Hint),
}
