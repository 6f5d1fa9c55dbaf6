//! The options for opening a disk.

use lacuna_contracts::{Budget, Error, Kind};
use lacuna_flash::PurgePolicy;
use lacuna_header::DiskId;
use std::time::Duration;

/// The error for write-through on a disk with levels; its text does not depend on the levels that
/// exist.
///
/// Deniability contract: hidden data waits for a write to the medium that happens anyway, and must
/// cause none.
pub fn write_through_refused() -> Error {
    Error::new(Kind::Usage, "cannot use write-through on this disk")
        .found("a disk with levels: its hidden writes wait for public ones and must cause none")
        .expected("a disk without levels")
        .hint("leave it out, and flush (sync) after writes that must not be lost")
}

/// The options for opening a disk.
#[derive(Clone, Copy)]
pub struct OpenDiskOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Memory for all caches.
    pub budget: Budget,
    /// Acknowledge writes only when they are durable. Not for disks with levels.
    pub write_through: bool,
    /// How long pending hidden data waits for public writes on a disk without cover traffic of its
    /// own.
    pub cover_timeout: Duration,
    /// When a disk on flash is purged automatically. Without a policy it is purged only on request
    /// and before it is closed. An interrupted purge is finished at the opening in any case.
    pub purge_policy: Option<PurgePolicy>,
    /// The expected disk; any disk if not given.
    pub expect: Option<DiskId>,
}

impl Default for OpenDiskOptions {
    /// For reading and writing, with the default memory and a cover timeout of one minute.
    fn default() -> Self {
        OpenDiskOptions {
            read_only: false,
            budget: Budget::default(),
            write_through: false,
            cover_timeout: Duration::from_secs(60),
            purge_policy: Some(PurgePolicy::default()),
            expect: None,
        }
    }
}
