//! The end of a server that a peer closes: its outcome, and how long it may take.

use std::time::Duration;

/// The time between two attempts to see whether a server has ended.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// How long the process of a server may take to exit after it has closed its disk or vault, or has
/// dropped its clients.
pub(crate) const GONE_WITHIN: Duration = Duration::from_secs(60);

/// The outcome of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseOutcome {
    /// The server unmounted, flushed, and exited.
    Cleanly,
    /// The server was dead; its mount was cleaned up. Writes that were not flushed before it died
    /// are lost.
    AfterCrash,
}
