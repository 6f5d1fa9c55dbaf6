//! Waits for an event that a test requires.

use std::time::Duration;

/// Waits until a required event has happened, for at least a minute. Panics with its name, `what`,
/// if it does not happen.
#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never happened: {what}");
}
