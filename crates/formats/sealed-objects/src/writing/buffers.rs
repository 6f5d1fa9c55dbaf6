//! A bounded pool of buffers for ciphertext in flight, and the bound on the bytes in flight. The
//! buffers never hold plaintext.

use parking_lot::{Condvar, Mutex};

/// Idle buffers.
pub(crate) struct CiphertextBuffers {
    idle: Mutex<IdleCiphertext>,
    max_bytes: usize,
}

#[derive(Default)]
struct IdleCiphertext {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

impl CiphertextBuffers {
    /// A pool of at most `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        CiphertextBuffers { idle: Mutex::default(), max_bytes: most }
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
    pub(crate) fn put_back(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock();
        if buffer.capacity() > 0 && idle.bytes + buffer.capacity() <= self.max_bytes {
            idle.bytes += buffer.capacity();
            idle.buffers.push(buffer);
        }
    }
}

/// Bounds the bytes in flight.
pub(crate) struct InFlightLimit {
    /// Held by the one thread that waits on `freed`; all others wait for their turn. So the end of
    /// a permit wakes one thread, and small permits do not keep a large one waiting for ever.
    turn: Mutex<()>,
    bytes: Mutex<usize>,
    freed: Condvar,
    max_bytes: usize,
}

/// A reservation for bytes in flight, until it is dropped.
pub(crate) struct InFlightPermit<'t>(&'t InFlightLimit, usize);

impl InFlightLimit {
    /// At most `most` bytes, or a single larger passage.
    pub(crate) fn new(most: usize) -> Self {
        InFlightLimit { turn: Mutex::new(()), bytes: Mutex::new(0), freed: Condvar::new(), max_bytes: most }
    }

    /// Waits until `len` bytes fit.
    pub(crate) fn acquire(&self, len: usize) -> InFlightPermit<'_> {
        let _turn = self.turn.lock();
        let mut bytes = self.bytes.lock();
        self.freed.wait_while(&mut bytes, |bytes| *bytes > 0 && *bytes + len > self.max_bytes);
        *bytes += len;
        InFlightPermit(self, len)
    }
}

impl Drop for InFlightPermit<'_> {
    fn drop(&mut self) {
        *self.0.bytes.lock() -= self.1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn bytes_in_flight_stay_within_the_limit_except_for_one_large_permit() {
        let transit = InFlightLimit::new(10);
        let under_way = AtomicUsize::new(0);
        drop(transit.acquire(100));
        std::thread::scope(|scope| {
            for len in 1..9 {
                let (transit, under_way) = (&transit, &under_way);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let passage = transit.acquire(len);
                        assert!(under_way.fetch_add(len, Ordering::SeqCst) + len <= 10);
                        under_way.fetch_sub(len, Ordering::SeqCst);
                        drop(passage);
                    }
                });
            }
        });
        assert_eq!(*transit.bytes.lock(), 0);
    }

    #[test]
    fn small_permits_do_not_overtake_a_large_one_that_waits() {
        let transit = InFlightLimit::new(10);
        let order = Mutex::new(vec![]);
        let (first, second) = (transit.acquire(5), transit.acquire(5));
        std::thread::scope(|scope| {
            let take = |len| {
                let permit = transit.acquire(len);
                order.lock().push(len);
                drop(permit);
            };
            scope.spawn(move || take(10));
            while !transit.turn.is_locked() {
                std::thread::yield_now();
            }
            let small = scope.spawn(move || take(1));
            drop(first);
            // The small permit would fit now.
            std::thread::yield_now();
            drop(second);
            small.join().unwrap();
        });
        assert_eq!(*order.lock(), [10, 1]);
    }
}
