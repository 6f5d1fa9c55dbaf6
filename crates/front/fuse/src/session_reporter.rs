//! Reports from the threads that serve requests to the server.

use lacuna_contracts::Error;
use lacuna_daemon::{MountEvent, log_failure};
use lacuna_mount::{ServerLog, SessionMonitor};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// The channel from a file system to the server that has it mounted.
#[derive(Clone)]
pub(crate) struct SessionReporter {
    pub session: Arc<SessionMonitor>,
    pub events: Sender<MountEvent>,
    pub log: ServerLog,
}

impl SessionReporter {
    /// Records a failed request. Its text goes to the log, since the kernel takes a number only.
    pub(crate) fn report_failure(&self, error: &Error) {
        log_failure(error, self.session.record_failure(error), &self.log);
    }

    /// Records the end of the FUSE connection.
    pub(crate) fn report_end(&self) {
        self.session.mark_ended();
        self.send_event(MountEvent::SessionEnded);
    }

    /// Wakes the server. A server that has ended needs no event.
    pub(crate) fn send_event(&self, event: MountEvent) {
        let _ = self.events.send(event);
    }
}
