//! Limits how many failed requests and refused clients a server writes to its log.

use lacuna_contracts::{Action, Error, Hint, Kind};
use lacuna_mount::ServerLog;

/// The number of failures that are logged individually.
const LOGGED: u64 = 32;

/// Logs a request that failed after `before` earlier failures. After the first 32, one line stands
/// for all further failures: the reader of the log, such as that of standard error, may have
/// stopped reading, and the server would block on it.
pub fn log_failure(e: &Error, before: u64, log: &ServerLog) {
    log_first(e, before, "more requests failed", log);
}

/// Logs a client that was refused after `before` earlier refusals, with the same limit: any machine
/// that reaches the server can cause refusals.
pub fn log_refused_client(e: &Error, before: u64, log: &ServerLog) {
    log_first(e, before, "more clients were refused", log);
}

/// Logs the first failures one by one, and then `rest` once.
fn log_first(e: &Error, before: u64, rest: &str, log: &ServerLog) {
    if before < LOGGED {
        log(e);
    } else if before == LOGGED {
        let last = Hint::from(Action("status")).text(" shows the last one");
        log(&Error::new(Kind::Io, rest).hint(last));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    #[test]
    fn later_failures_are_logged_as_one_line() {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let log: ServerLog = Arc::new(move |e: &Error| heard.lock().push(e.to_string()));
        let failed = Error::new(Kind::Corrupt, "a block does not verify");
        (0..100).for_each(|before| log_failure(&failed, before, &log));
        (0..100).for_each(|before| log_refused_client(&failed, before, &log));
        let said = said.lock();
        assert!(said.len() == 66 && said[31] == failed.to_string(), "{said:?}");
        assert_eq!(said[32], "more requests failed; `status` shows the last one");
        assert_eq!(said[65], "more clients were refused; `status` shows the last one");
    }
}
