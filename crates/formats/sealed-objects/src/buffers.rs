//! A bounded pool of buffers for ciphertext in flight, and the bound on the bytes in flight. The
//! buffers never hold plaintext.

use parking_lot::{Condvar, Mutex};

/// Idle buffers.
pub(crate) struct Buffers {
    idle: Mutex<Idle>,
    most: usize,
}

#[derive(Default)]
struct Idle {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl Buffers {
    /// A pool of at most `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Buffers { idle: Mutex::default(), most }
    }

    /// A buffer of this length, with arbitrary old ciphertext in it.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let mut idle = self.idle.lock();
        let fitting = idle.buffers.iter().rposition(|buffer| buffer.capacity() >= len);
        let taken = fitting.map(|at| idle.buffers.swap_remove(at));
        idle.bytes -= taken.as_ref().map_or(0, Vec::capacity);
        drop(idle);
        let mut buffer = taken.unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// Returns a buffer to the pool.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock();
        if buffer.capacity() > 0 && idle.bytes + buffer.capacity() <= self.most {
            idle.bytes += buffer.capacity();
            idle.buffers.push(buffer);
        }
    }
}

/// Bounds the bytes in flight.
pub(crate) struct Transit {
    bytes: Mutex<usize>,
    left: Condvar,
    most: usize,
}

/// A reservation for bytes in flight, until it is dropped.
pub(crate) struct Passage<'t>(&'t Transit, usize);

impl Transit {
    /// At most `most` bytes, or a single larger passage.
    pub(crate) fn new(most: usize) -> Self {
        Transit { bytes: Mutex::new(0), left: Condvar::new(), most }
    }

    /// Waits until `len` bytes fit.
    pub(crate) fn enter(&self, len: usize) -> Passage<'_> {
        let mut bytes = self.bytes.lock();
        self.left.wait_while(&mut bytes, |bytes| *bytes > 0 && *bytes + len > self.most);
        *bytes += len;
        Passage(self, len)
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        *self.0.bytes.lock() -= self.1;
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_is_under_way_than_may_be_but_for_one_alone() {
        let transit = Transit::new(10);
        let under_way = AtomicUsize::new(0);
        drop(transit.enter(100));
        std::thread::scope(|scope| {
            for len in 1..9 {
                let (transit, under_way) = (&transit, &under_way);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let passage = transit.enter(len);
                        assert!(under_way.fetch_add(len, Ordering::SeqCst) + len <= 10);
                        under_way.fetch_sub(len, Ordering::SeqCst);
                        drop(passage);
                    }
                });
            }
        });
        assert_eq!(*transit.bytes.lock(), 0);
    }
}
