//! What the threads that serve requests report to the server.

use lacuna_contracts::Error;
use lacuna_daemon::{Event, log_failure};
use lacuna_mount::{ServerLog, Watch};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The way from a file system to the server that has it mounted.
#[derive(Clone)]
pub(crate) struct Reports {
    pub watch: Arc<Watch>,
    pub events: Sender<Event>,
    pub log: ServerLog,
}

impl Reports {
    /// A request failed. The words go to the log, since the kernel has no room for them.
    pub(crate) fn failed(&self, error: &Error) {
        log_failure(error, self.watch.fail(error), &self.log);
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
