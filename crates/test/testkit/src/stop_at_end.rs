//! Ending what runs beside a test, whether the test passes or not.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when it goes out of scope. Something that loops until the flag is set then ends even
/// if the test beside it panics: a scope of threads waits for all of them either way.
pub struct StopAtEnd<'a>(pub &'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
