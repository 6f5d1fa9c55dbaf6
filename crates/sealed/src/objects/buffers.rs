//! Buffers for ciphertext on its way, kept for reuse up to a bound. They never hold plaintext.

use std::sync::{Mutex, PoisonError};

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
    /// Keeps at most so many bytes.
    pub(crate) fn new(most: usize) -> Self {
        Buffers { idle: Mutex::default(), most }
    }

    /// A buffer of this length. Its content is whatever ciphertext was in it.
    pub(crate) fn take(&self, len: usize) -> Vec<u8> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let fitting = idle.buffers.iter().rposition(|buffer| buffer.capacity() >= len);
        let taken = fitting.map(|at| idle.buffers.swap_remove(at));
        idle.bytes -= taken.as_ref().map_or(0, Vec::capacity);
        drop(idle);
        let mut buffer = taken.unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.capacity() > 0 && idle.bytes + buffer.capacity() <= self.most {
            idle.bytes += buffer.capacity();
            idle.buffers.push(buffer);
        }
    }
}
