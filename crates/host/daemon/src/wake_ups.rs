//! What wakes a server: events, a time without use after which the disk or vault is to be closed,
//! and the end that was refused before.

use crate::server::ClosingClient;
use lacuna_contracts::{Error, Kind};
use lacuna_mount::Watch;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What wakes the server of a mount.
pub enum Event {
    /// A signal or the program's own wish.
    Stop,
    /// A client asked, and waits.
    Close(ClosingClient),
    /// Nothing was asked of it for as long as it is to stay open then.
    Idle,
    /// Nothing has the FUSE file `disk` open any more.
    DiskReleased,
    /// The FUSE connection is over.
    SessionEnded,
}

/// How many looks are spread over the limit.
const LOOKS: u32 = 8;
/// The longest time between two looks.
const LONGEST: Duration = Duration::from_secs(5);
/// How long after an end that was refused it is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Waits for what wakes a server, and wakes it itself when nothing was asked of it for a while.
/// What is asked for and comes from the kernel's cache is not seen; who has a file open keeps the
/// file system from being unmounted.
pub struct WakeUps {
    limit: Option<Duration>,
    ending: bool,
    seen: u64,
    since: Instant,
}

impl WakeUps {
    /// With the time after which it wakes the server, if it is to.
    pub fn new(limit: Option<Duration>) -> Self {
        WakeUps { limit, ending: false, seen: 0, since: Instant::now() }
    }

    /// Notes that the server was told to end, and could not: from now on it is woken to try again.
    /// False if that was known.
    pub fn try_again(&mut self) -> bool {
        !std::mem::replace(&mut self.ending, true)
    }

    /// What happens next, or [`Event::Idle`]; of a server that tries to end, [`Event::Stop`] again.
    /// None if nothing can happen any more.
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
                // If it is in use all the same, it is asked again after as long.
                self.since = Instant::now();
                return Some(Event::Idle);
            }
        }
    }
}

/// Why a server did not end that was told to, and tries again ([`WakeUps::try_again`]).
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
