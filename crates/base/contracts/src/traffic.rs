//! Traffic counters for the user: bytes read, bytes written and requests in flight.

use crate::StatusItem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters that many threads share. Clones share them.
#[derive(Clone, Default)]
pub struct Traffic(Arc<TrafficCounts>);

#[derive(Default)]
struct TrafficCounts {
    read: AtomicU64,
    written: AtomicU64,
    in_flight: AtomicU64,
}

/// A request that is in flight until the guard is dropped.
pub struct InFlightGuard<'t>(&'t AtomicU64);

impl Traffic {
    /// Counts a request as in flight.
    pub fn begin(&self) -> InFlightGuard<'_> {
        self.0.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(&self.0.in_flight)
    }

    /// Counts bytes that were read.
    pub fn add_read(&self, bytes: usize) {
        self.0.read.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts bytes that were written.
    pub fn add_written(&self, bytes: usize) {
        self.0.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The counters since this was made.
    pub fn items(&self) -> [StatusItem; 3] {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            StatusItem::new("bytes_read", now(&self.0.read), "bytes"),
            StatusItem::new("bytes_written", now(&self.0.written), "bytes"),
            StatusItem::new("in_flight", now(&self.0.in_flight), "requests"),
        ]
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
