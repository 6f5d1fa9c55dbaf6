//! What the threads that serve requests report to the server.

use lacuna_contracts::{Error, Kind};
use lacuna_daemon::Event;
use lacuna_mount::{Log, Watch};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// Failed requests of one mount that are logged one by one.
const LOGGED_FAILURES: u64 = 32;

/// The way from a file system to the server that has it mounted.
#[derive(Clone)]
pub(crate) struct Reports {
    pub watch: Arc<Watch>,
    pub events: Sender<Event>,
    pub log: Log,
}

impl Reports {
    /// Somebody asked something of what is mounted.
    pub(crate) fn asked(&self) {
        self.watch.asked();
    }

    /// A request failed. The words go to the log, since the kernel has no room for them.
    pub(crate) fn failed(&self, error: &Error) {
        let before = self.watch.fail(error);
        if before < LOGGED_FAILURES {
            (self.log)(error);
        } else if before == LOGGED_FAILURES {
            (self.log)(&Error::new(Kind::Io, "more requests failed and are only counted (see `status`)"));
        }
    }

    /// The FUSE connection is over.
    pub(crate) fn ended(&self) {
        self.watch.end();
        self.wake(Event::SessionEnded);
    }

    /// Wakes the server. One that has ended needs no event.
    pub(crate) fn wake(&self, event: Event) {
        let _ = self.events.send(event);
    }
}
