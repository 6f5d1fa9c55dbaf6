//! The sizes and durations of a run.

use std::time::Duration;

/// The sizes and durations of a run.
#[derive(Clone, Copy)]
pub struct Scale {
    /// Number of rounds: turns of every server at every job.
    pub rounds: u32,
    /// Whether the run only checks that everything works.
    pub quick: bool,
    /// Bytes of each disk.
    pub disk: u64,
    /// Number of requests to the disk of 1 TiB.
    pub requests: u64,
    /// Duration of a measurement of one cipher in memory.
    pub cipher_window: Duration,
    /// Bytes of each image on Ceph.
    pub image: u64,
}

impl Scale {
    /// The scale of a quick or a full run, with another number of rounds if `rounds` is set.
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
