//! The event loop of a mount's server: events, the idle timeout after which the disk or vault is
//! closed, and retries of a close that was refused.

use crate::server::ClosingClient;
use lacuna_contracts::{Error, Kind};
use lacuna_mount::Watch;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// An event for the server of a mount.
pub enum Event {
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

/// Waits for the next event, and produces [`Event::Idle`] itself. Requests that the kernel answers
/// from its cache are not seen; an open file keeps the file system from being unmounted.
pub struct WakeUps {
    limit: Option<Duration>,
    ending: bool,
    seen: u64,
    since: Instant,
}

impl WakeUps {
    /// With the idle timeout; `None` for no timeout.
    pub fn new(limit: Option<Duration>) -> Self {
        WakeUps { limit, ending: false, seen: 0, since: Instant::now() }
    }

    /// Records that the server was told to end but could not: after this, [`WakeUps::next`]
    /// produces retries. False if that was recorded before.
    pub fn try_again(&mut self) -> bool {
        !std::mem::replace(&mut self.ending, true)
    }

    /// The next event, or [`Event::Idle`]; for a server that tries to end, [`Event::Stop`] again.
    /// `None` if no event can come any more.
    pub fn next(&mut self, events: &Receiver<Event>, watch: &Watch) -> Option<Event> {
        if self.ending {
            return match events.recv_timeout(TRY_AGAIN) {
                Err(RecvTimeoutError::Timeout) => Some(Event::Stop),
                other => other.ok(),
            };
        }
        let Some(limit) = self.limit else { return events.recv().ok() };
        loop {
            match events.recv_timeout((limit / LOOKS).min(LONGEST)) {
                Ok(event) => return Some(event),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let requests = watch.requests();
            if requests != self.seen {
                (self.seen, self.since) = (requests, Instant::now());
            } else if self.since.elapsed() >= limit {
                // If the disk is in use nevertheless, the next event comes after another timeout.
                self.since = Instant::now();
                return Some(Event::Idle);
            }
        }
    }
}

/// Adds to the error of a close that the server tries again ([`WakeUps::try_again`]).
pub fn ends_later(e: Error) -> Error {
    if e.kind() == Kind::Busy { e.remedy("it ends as soon as nobody uses it any more") } else { e }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn events_come_at_once_and_idleness_after_a_while() {
        let (wake, events) = channel();
        let watch = Watch::default();
        watch.asked();
        let mut wake_ups = WakeUps::new(Some(Duration::from_millis(8)));
        wake.send(Event::Stop).unwrap();
        assert!(matches!(wake_ups.next(&events, &watch), Some(Event::Stop)));
        assert!(matches!(wake_ups.next(&events, &watch), Some(Event::Idle)));
        assert!(wake_ups.try_again() && !wake_ups.try_again());
        assert!(matches!(wake_ups.next(&events, &watch), Some(Event::Stop)));
        drop(wake);
        assert!(wake_ups.next(&events, &watch).is_none());
    }
}
