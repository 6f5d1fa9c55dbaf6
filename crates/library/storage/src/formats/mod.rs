//! The formats of this build and their table. Each format has a file with its
//! [`Format`](crate::format::Format), its [`Params`](crate::format::Params) and its open disk; the
//! open disk of `sealed` is in `sealed_disk`, formats with levels share `levels`, and formats that
//! keep acknowledged writes share `opening::kept_memory`.

pub(crate) mod deniable;
pub(crate) mod flash;
pub(crate) mod levels;
pub(crate) mod oblivious;
pub(crate) mod sealed;
mod sealed_disk;
pub(crate) mod sealed_objects;
pub(crate) mod table;
pub(crate) mod vault;

pub use levels::OVERWRITTEN;
pub use table::{FORMATS, add_format, default_format};
