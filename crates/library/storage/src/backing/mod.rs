//! The backings of disks: finding, holding and examining them, and the place of the header on them.

pub(crate) mod file;
pub(crate) mod flash;
pub(crate) mod flash_header;
pub(crate) mod held_disk;
pub(crate) mod rados;
pub(crate) mod resolved_location;

pub use file::FileLocation;
pub use flash::{ChipShape, FlashLocation, NewChip, check_can_purge};
pub use flash_header::HeaderMedium;
pub use held_disk::{Backing, BackingKind};
pub use rados::{PoolConnection, PoolLocation, non_default_conf, refuse_snapshot};
pub use resolved_location::{DiskRef, PoolAccess, ResolvedLocation};
