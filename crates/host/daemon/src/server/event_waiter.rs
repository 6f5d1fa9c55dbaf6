//! The event loop of a mount's server: events, the idle timeout after which the disk or vault is
//! closed, and retries of a close that was refused.

use crate::server::ClosingClient;
use lacuna_contracts::{Error, Kind};
use lacuna_mount::SessionMonitor;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// An event for the server of a mount.
pub enum MountEvent {
    /// A signal, or the program itself, asks it to end.
    Stop,
    /// A client asked for the close, and waits for it.
    Close(ClosingClient),
    /// There was no request for the length of the idle timeout.
    Idle,
    /// The FUSE file `disk` is not open any more.
    DiskReleased,
    /// The FUSE connection ended.
    SessionEnded,
}

/// The number of polls within the idle timeout.
const LOOKS: u32 = 8;
/// The longest time between two polls.
const LONGEST: Duration = Duration::from_secs(5);
/// How long after a refused close the next attempt is made.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Waits for the next event, and produces [`MountEvent::Idle`] itself. Requests that the kernel
/// answers from its cache are not seen; an open file keeps the file system from being unmounted.
pub struct EventWaiter {
    idle_timeout: Option<Duration>,
    is_retrying: bool,
    last_requests: u64,
    idle_since: Instant,
}

impl EventWaiter {
    /// With the idle timeout; `None` for no timeout.
    pub fn new(limit: Option<Duration>) -> Self {
        EventWaiter { idle_timeout: limit, is_retrying: false, last_requests: 0, idle_since: Instant::now() }
    }

    /// Records that the server was told to end but could not: after this, [`EventWaiter::next`]
    /// produces retries. False if that was recorded before.
    pub fn start_retrying(&mut self) -> bool {
        !std::mem::replace(&mut self.is_retrying, true)
    }

    /// The next event, or [`MountEvent::Idle`]; for a server that tries to end,
    /// [`MountEvent::Stop`] again. `None` if no event can come any more.
    pub fn next(&mut self, events: &Receiver<MountEvent>, watch: &SessionMonitor) -> Option<MountEvent> {
        if self.is_retrying {
            return match events.recv_timeout(TRY_AGAIN) {
                Err(RecvTimeoutError::Timeout) => Some(MountEvent::Stop),
                other => other.ok(),
            };
        }
        let Some(limit) = self.idle_timeout else { return events.recv().ok() };
        loop {
            match events.recv_timeout((limit / LOOKS).min(LONGEST)) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let requests = watch.requests();
            if requests != self.last_requests {
                (self.last_requests, self.idle_since) = (requests, Instant::now());
            } else if self.idle_since.elapsed() >= limit {
                // If the disk is in use nevertheless, the next event comes after another timeout.
                self.idle_since = Instant::now();
                return Some(MountEvent::Idle);
            }
        }
    }
}

/// Adds to the error of a close that the server tries again ([`EventWaiter::start_retrying`]).
pub fn with_retry_hint(e: Error) -> Error {
    if e.kind() == Kind::Busy { e.hint("it ends when it is no longer in use") } else { e }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn events_are_returned_at_once_and_idleness_after_the_timeout() {
        let (wake, events) = channel();
        let watch = SessionMonitor::default();
        watch.count_request();
        let mut wake_ups = EventWaiter::new(Some(Duration::from_millis(8)));
        wake.send(MountEvent::Stop).unwrap();
        assert!(matches!(wake_ups.next(&events, &watch), Some(MountEvent::Stop)));
        assert!(matches!(wake_ups.next(&events, &watch), Some(MountEvent::Idle)));
        assert!(wake_ups.start_retrying() && !wake_ups.start_retrying());
        assert!(matches!(wake_ups.next(&events, &watch), Some(MountEvent::Stop)));
        drop(wake);
        assert!(wake_ups.next(&events, &watch).is_none());
    }
}
