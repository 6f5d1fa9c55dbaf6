//! The formats of disks, by their words.

use clap::ValueEnum;

/// The formats of this build.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One encrypted disk with unlinkable overwrites
    Sealed,
    /// A public level and hidden ones, which nobody can tell are there, however often the medium is imaged
    Deniable,
    /// The same, and nobody can tell which blocks are written: a write-only ORAM, much slower
    Oblivious,
    /// One encrypted disk on flash that forgets: what was deleted is gone for good after a purge
    Flash,
}
