//! What a service manager is told over sd_notify(3), if it asked to be told: that the server is
//! ready, what it does, that it lives, and while it ends, that it needs more time and gets on.
//!
//! Invariants kept here:
//! - More time is asked for only while it is seen that the server gets on: not while it waits for a
//!   program to leave. A medium that hangs is not waited for, so that the limit of the unit
//!   (`TimeoutStopSec=`) ends it.
//! - Deniability contract: of a disk with levels the status says the same whatever waits.

use crate::terminal::working::Looking;
use lacuna_daemon::bytes_sent_to_devices;
use sd_notify::NotifyState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How much more time is asked for at once. It is asked for every second, so that it does not run
/// out while the server gets on.
const MORE: Duration = Duration::from_secs(30);
/// How long what is left may stay the same while the process still writes.
const WRITES_WITHIN: Duration = Duration::from_secs(1800);

/// Whether the process was told to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Clients can come.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("open")]);
}

/// The process was told to end, and begins to.
pub(crate) fn stopping() {
    if !STOPPING.swap(true, Ordering::SeqCst) {
        tell(&[NotifyState::Stopping, NotifyState::Status("closing")]);
    }
}

/// Tells the service manager from now on that the process lives, and while it ends, how it gets on,
/// until this is dropped. `left` gives how many bytes have still to go to the medium, if that is
/// known and may be told; `closing` whether the end is under way, and does not wait for somebody to
/// leave.
pub(crate) fn keep(
    mut left: impl FnMut() -> Option<u64> + Send + 'static,
    closing: impl Fn() -> bool + Send + 'static,
) -> Option<Looking> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let watched = sd_notify::watchdog_enabled().is_some();
    let mut ending: Option<Ending> = None;
    Some(Looking::start(move || {
        if watched {
            tell(&[NotifyState::Watchdog]);
        }
        if STOPPING.load(Ordering::SeqCst) {
            let now = Instant::now();
            let left = left();
            let gets_on =
                ending.get_or_insert_with(|| Ending::new(now)).gets_on(now, left, bytes_sent_to_devices());
            let words = left.map(|left| format!("closing, {} left", lacuna_storage::human(left)));
            let mut states = vec![NotifyState::Status(words.as_deref().unwrap_or("closing"))];
            if gets_on && closing() {
                states.push(NotifyState::ExtendTimeoutUsec(MORE.as_micros() as u32));
            }
            tell(&states);
        }
    }))
}

/// What was seen of the end.
struct Ending {
    /// The least that was left, and since when.
    least: (Instant, u64),
    /// The most that was written, and since when.
    most: (Instant, u64),
}

impl Ending {
    fn new(now: Instant) -> Self {
        Ending { least: (now, u64::MAX), most: (now, 0) }
    }

    /// Whether the process got on a moment ago.
    fn gets_on(&mut self, now: Instant, left: Option<u64>, written: u64) -> bool {
        if let Some(left) = left.filter(|left| *left < self.least.1) {
            self.least = (now, left);
        }
        if written > self.most.1 {
            self.most = (now, written);
        }
        let since = |at: Instant| now.saturating_duration_since(at);
        since(self.least.0) < MORE || (since(self.most.0) < MORE && since(self.least.0) < WRITES_WITHIN)
    }
}

fn tell(states: &[NotifyState<'_>]) {
    // A service manager that is gone needs to hear nothing.
    let _ = sd_notify::notify(states);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_asked_for_while_it_gets_on() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ending = Ending::new(start);
        assert!(ending.gets_on(at(1), Some(100), 0) && ending.gets_on(at(29), Some(100), 0));
        // Nothing moves.
        assert!(!ending.gets_on(at(40), Some(100), 0));
        // It does again, and then only the process writes, as one does that makes cover.
        assert!(ending.gets_on(at(50), Some(90), 5));
        let limit = WRITES_WITHIN.as_secs();
        assert!(
            ending.gets_on(at(50 + limit - 1), Some(90), 6) && !ending.gets_on(at(50 + limit), Some(90), 7)
        );
        assert!(ending.gets_on(at(60 + limit), Some(80), 7));
    }
}
