//! The formats of this build, each in one file, and the table of them.

pub(crate) mod deniable;
pub(crate) mod flash;
mod growing;
pub(crate) mod levels;
pub(crate) mod oblivious;
pub(crate) mod sealed;
pub(crate) mod sealed_objects;
pub(crate) mod table;

pub use levels::OVERWRITTEN;
pub use table::{FORMATS, add_format, usual};
