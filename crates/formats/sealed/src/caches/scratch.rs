//! Buffers that each thread reuses, so that requests allocate none. They never hold plaintext.

use std::cell::RefCell;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Lends a buffer of `len` bytes with arbitrary content. Calls may be nested.
pub(crate) fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    let result = f(&mut buffer[..len]);
    BUFFERS.with_borrow_mut(|buffers| buffers.push(buffer));
    result
}
