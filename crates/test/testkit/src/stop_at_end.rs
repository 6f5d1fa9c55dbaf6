//! Ends the background threads of a test, whether or not the test passes.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it goes out of scope. A thread that loops until the flag is set then ends even
/// if the test panics; otherwise the thread scope would wait for it for ever.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
