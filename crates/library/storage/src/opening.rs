//! How a disk is opened.

use lacuna_contracts::{Budget, Error, Kind};
use lacuna_flash::Policy as PurgePolicy;
use lacuna_header::DiskId;
use std::time::Duration;

/// Why a disk with levels acknowledges no write only when it is durable: in the same words whatever
/// levels there are.
///
/// Deniability contract: what is hidden waits for a write to the medium that comes anyway, and must
/// cause none.
pub fn no_write_through() -> Error {
    Error::new(Kind::Usage, "cannot write through here")
        .found("a disk with levels, whose hidden writes wait for writes that public ones cause, and must cause none")
        .expected("a disk without levels")
        .remedy("leave it out, and flush (sync) after what must not be lost")
}

/// How a disk is opened.
#[derive(Clone, Copy)]
pub struct Opening {
    /// Refuse writes.
    pub read_only: bool,
    /// Memory for all caches.
    pub budget: Budget,
    /// Acknowledge writes when they are durable. Not for disks with levels.
    pub write_through: bool,
    /// How long something hidden waits for public writes on a disk that does not refresh itself.
    pub cover_timeout: Duration,
    /// When a disk on flash is purged unasked. Without it on request and before it is closed, and
    /// not else. A purge that was cut is finished at the opening in any case.
    pub purging: Option<PurgePolicy>,
    /// The disk that it has to be; any if not given.
    pub expect: Option<DiskId>,
}

impl Default for Opening {
    /// For reading and writing, with the usual memory, and a minute of patience for cover.
    fn default() -> Self {
        Opening {
            read_only: false,
            budget: Budget::default(),
            write_through: false,
            cover_timeout: Duration::from_secs(60),
            purging: Some(PurgePolicy::default()),
            expect: None,
        }
    }
}
