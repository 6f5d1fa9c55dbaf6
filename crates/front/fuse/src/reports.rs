//! Reports from the threads that serve requests to the server.

use lacuna_contracts::Error;
use lacuna_daemon::{Event, log_failure};
use lacuna_mount::{ServerLog, Watch};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The channel from a file system to the server that has it mounted.
#[derive(Clone)]
pub(crate) struct Reports {
    pub watch: Arc<Watch>,
    pub events: Sender<Event>,
    pub log: ServerLog,
}

impl Reports {
    /// Records a failed request. Its text goes to the log, since the kernel takes a number only.
    pub(crate) fn failed(&self, error: &Error) {
        log_failure(error, self.watch.fail(error), &self.log);
    }

    /// Records the end of the FUSE connection.
    pub(crate) fn ended(&self) {
        self.watch.end();
        self.wake(Event::SessionEnded);
    }

    /// Wakes the server. A server that has ended needs no event.
    pub(crate) fn wake(&self, event: Event) {
        let _ = self.events.send(event);
    }
}
