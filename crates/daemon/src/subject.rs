//! What a server serves, as its sockets see it: something that has counters, and may be able to forget.

use lacuna_core::{ByteDisk, Error, Kind, Result, Status};
use serde_json::Value;

/// What is asked for its counters while it is served.
pub trait Subject: Send + Sync + 'static {
    /// The counters now.
    fn status(&self) -> Status;

    /// Makes what was deleted unrecoverable, and gives what was done.
    ///
    /// Errors: [`Kind::Usage`] from what cannot forget.
    fn purge(&self) -> Result<Status> {
        Err(Error::new(Kind::Usage, "it cannot be purged")
            .found("something that does not forget what was deleted")
            .expected("a disk of the format flash"))
    }

    /// The answer to a question of its own, of at most 60 bytes; none to what it does not understand.
    fn answer(&self, _question: &str) -> Option<Result<Value>> {
        None
    }
}

impl Subject for ByteDisk {
    fn status(&self) -> Status {
        ByteDisk::status(self)
    }

    fn purge(&self) -> Result<Status> {
        ByteDisk::purge(self)
    }
}
