//! The backings of disks: finding, holding and examining them, and the place of the header on them.

pub(crate) mod file;
pub(crate) mod flash;
pub(crate) mod flash_header;
pub(crate) mod held;
pub(crate) mod rados;
pub(crate) mod site;

pub use file::FilePlace;
pub use flash::{ChipShape, FlashPlace, NewChip, check_forgets};
pub use flash_header::HeaderMedium;
pub use held::{Backing, BackingKind};
pub use rados::{Connection, Target, other_conf, refuse_snapshot};
pub use site::{DiskRef, PoolAccess, Site};
