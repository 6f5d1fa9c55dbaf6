//! How large and how long everything in a run is.

use std::time::Duration;

/// How large and how long everything is.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Turns of every server.
    pub rounds: u32,
    /// Whether this run only tries everything out.
    pub quick: bool,
    /// Bytes of each disk.
    pub disk: u64,
    /// Requests to the disk of 1 TiB.
    pub requests: u64,
    /// Window for one cipher in memory.
    pub cipher_window: Duration,
    /// Bytes of each image on Ceph.
    pub image: u64,
}

impl Scale {
    /// Of a run that is quick or not, with a number of rounds other than the usual one.
    pub fn new(quick: bool, rounds: Option<u32>) -> Scale {
        Scale {
            rounds: rounds.unwrap_or(if quick { 1 } else { 9 }),
            quick,
            disk: if quick { 16 << 20 } else { 128 << 20 },
            requests: if quick { 500 } else { 60_000 },
            cipher_window: Duration::from_millis(if quick { 5 } else { 250 }),
            image: if quick { 64 << 20 } else { 256 << 20 },
        }
    }
}
