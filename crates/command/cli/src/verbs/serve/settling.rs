//! How long level 0 stays open in the closing of a disk with levels.
//!
//! Deniability contract: the time follows from the cover of the closing alone. Deeper levels are
//! unmounted in this time, regardless of their number. The process that closes the mounts waits
//! before it closes level 0. Where level 0 is not mounted, its server waits.

use parking_lot::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

/// Minimum time for which a level is being closed before it is given up. A level that is in use is
/// refused earlier, and is not given up.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// How long level 0 stays open after the cover is written, regardless of the number of mounted
/// deeper levels: all are given up at once, and are unmounted in this time. A level with another
/// mount inside is closed after that one; the time suffices for a chain of three.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);

/// The time until which a level 0 that is not mounted stays open; none before a closing.
#[derive(Default)]
pub(crate) struct Settling(Mutex<Option<Instant>>);

impl Settling {
    /// Begins a closing, before its cover is written. [`Settling::wait`] blocks until the result is
    /// dropped.
    pub(crate) fn begin(&self) -> CoverBegun<'_> {
        let mut until = self.0.lock();
        *until = None;
        CoverBegun(until)
    }

    /// Waits until level 0 may be closed. Returns at once if no closing has begun, or if its cover
    /// failed.
    pub(crate) fn wait(&self) {
        let until = *self.0.lock();
        let left = until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
        thread::sleep(left);
    }
}

/// A closing with cover that is being written. Dropping this means that the cover failed.
pub(crate) struct CoverBegun<'s>(MutexGuard<'s, Option<Instant>>);

impl CoverBegun<'_> {
    /// The cover is written, and level 0 stays open until this time.
    pub(crate) fn settles_at(mut self, until: Instant) {
        *self.0 = Some(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn level_0_stays_open_until_the_cover_is_written_and_has_settled() {
        let settling = Settling::default();
        settling.wait();
        let (closing, closed) = channel();
        thread::scope(|scope| {
            let covering = settling.begin();
            let settling = &settling;
            scope.spawn(move || {
                settling.wait();
                closing.send(Instant::now()).unwrap();
            });
            assert!(closed.try_recv().is_err());
            let until = Instant::now() + Duration::from_millis(50);
            covering.settles_at(until);
            assert!(closed.recv().unwrap() >= until);
        });
    }

    #[test]
    fn a_closing_without_cover_settles_at_once() {
        let settling = Settling::default();
        settling.begin().settles_at(Instant::now() + Duration::from_secs(3600));
        drop(settling.begin());
        settling.wait();
    }
}
