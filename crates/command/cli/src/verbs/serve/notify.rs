//! Messages to a service manager over sd_notify(3), if it asked for them: that the server is ready,
//! its status, that it is alive, and while it ends, that it needs more time and makes progress.
//!
//! Invariants kept here:
//! - More time is requested only while the server makes visible progress, not while it waits for a
//!   program to leave. No more time is requested for a hanging medium either, so the limit of the
//!   unit (`TimeoutStopSec=`) ends the server.
//! - Deniability contract: for a disk with levels the status does not depend on pending data.

use crate::terminal::progress::Poller;
use lacuna_daemon::{KeeperLink, bytes_sent_to_devices};
use sd_notify::NotifyState;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The extension per request. It is requested every second, so that it does not run out while there
/// is progress.
const EXTENSION: Duration = Duration::from_secs(30);
/// How long the remaining amount may stay the same while the process still writes.
const WRITES_WITHIN: Duration = Duration::from_secs(1800);

/// Whether the process was told to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// The keeper of this server. The service manager takes messages from its main process only, which
/// is the keeper.
static KEEPER: OnceLock<Arc<KeeperLink>> = OnceLock::new();

/// Sends all later messages of this process through its keeper.
pub(crate) fn use_keeper(keeper: &Arc<KeeperLink>) {
    KEEPER.get_or_init(|| Arc::clone(keeper));
}

/// Sends a state that a server gave to this process, its keeper.
pub(crate) fn relay(state: &str) {
    send(&[NotifyState::Custom(state)]);
}

/// Reports that clients can connect.
pub(crate) fn ready() {
    send(&[NotifyState::Ready, NotifyState::Status("open")]);
}

/// Reports that the process was told to end, and is ending.
pub(crate) fn stopping() {
    if !STOPPING.swap(true, Ordering::SeqCst) {
        send(&[NotifyState::Stopping, NotifyState::Status("closing")]);
    }
}

/// Until this is dropped, tells the service manager that the process is alive, and while it ends,
/// its progress. `left`: the bytes that still have to be written to the medium, if known and not
/// secret. `closing`: whether the server is closing, and not waiting for programs to leave.
pub(crate) fn start_reports(
    mut left: impl FnMut() -> Option<u64> + Send + 'static,
    closing: impl Fn() -> bool + Send + 'static,
) -> Option<Poller> {
    std::env::var_os("NOTIFY_SOCKET")?;
    let watched = sd_notify::watchdog_enabled().is_some();
    let mut ending: Option<ShutdownProgress> = None;
    Some(Poller::start(move || {
        if watched {
            send(&[NotifyState::Watchdog]);
        }
        if STOPPING.load(Ordering::SeqCst) {
            let now = Instant::now();
            let left = left();
            let gets_on = ending.get_or_insert_with(|| ShutdownProgress::new(now)).makes_progress(
                now,
                left,
                bytes_sent_to_devices(),
            );
            let words = left.map(|left| format!("closing, {} left", lacuna_storage::human_size(left)));
            let mut states = vec![NotifyState::Status(words.as_deref().unwrap_or("closing"))];
            if gets_on && closing() {
                states.push(NotifyState::ExtendTimeoutUsec(EXTENSION.as_micros() as u32));
            }
            send(&states);
        }
    }))
}

/// Progress while the process ends.
struct ShutdownProgress {
    /// The minimum remaining amount, and when it was reached.
    least: (Instant, u64),
    /// The maximum of bytes written, and when it was reached.
    most: (Instant, u64),
}

impl ShutdownProgress {
    fn new(now: Instant) -> Self {
        ShutdownProgress { least: (now, u64::MAX), most: (now, 0) }
    }

    /// Whether there was progress recently.
    fn makes_progress(&mut self, now: Instant, left: Option<u64>, written: u64) -> bool {
        if let Some(left) = left.filter(|left| *left < self.least.1) {
            self.least = (now, left);
        }
        if written > self.most.1 {
            self.most = (now, written);
        }
        let since = |at: Instant| now.saturating_duration_since(at);
        since(self.least.0) < EXTENSION
            || (since(self.most.0) < EXTENSION && since(self.least.0) < WRITES_WITHIN)
    }
}

fn send(states: &[NotifyState<'_>]) {
    let Some(keeper) = KEEPER.get() else {
        // A service manager that is gone needs no messages.
        let _ = sd_notify::notify(states);
        return;
    };
    let lines: Vec<String> = states.iter().map(ToString::to_string).collect();
    // The next message comes a second later.
    let _ = keeper.notify(lines.join("\n").trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_time_is_requested_while_there_is_progress() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ending = ShutdownProgress::new(start);
        assert!(ending.makes_progress(at(1), Some(100), 0) && ending.makes_progress(at(29), Some(100), 0));
        // No progress.
        assert!(!ending.makes_progress(at(40), Some(100), 0));
        // Progress again; then the process only writes, as when it makes cover.
        assert!(ending.makes_progress(at(50), Some(90), 5));
        let limit = WRITES_WITHIN.as_secs();
        assert!(
            ending.makes_progress(at(50 + limit - 1), Some(90), 6)
                && !ending.makes_progress(at(50 + limit), Some(90), 7)
        );
        assert!(ending.makes_progress(at(60 + limit), Some(80), 7));
    }
}
