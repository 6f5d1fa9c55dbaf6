//! The request for a purge, and how a server answers it.

use crate::outcome;
use crate::subject::Subject;
use lacuna_core::{Error, Kind, Naming};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Asks for a purge; a space and the UUID of the disk that is meant may follow.
const PURGE: &str = "purge";

/// A request for a purge.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PurgeRequest {
    /// The disk that is meant; none: whatever is open.
    pub(crate) uuid: Option<String>,
}

impl PurgeRequest {
    /// The request in a line, if it is one.
    pub(crate) fn parse(line: &str) -> Option<PurgeRequest> {
        let rest = line.strip_prefix(PURGE)?;
        let uuid = rest.strip_prefix(' ').map(str::to_owned);
        (rest.is_empty() || uuid.is_some()).then_some(PurgeRequest { uuid })
    }

    /// The line without its end.
    pub(crate) fn line(&self) -> String {
        self.uuid.as_ref().map_or_else(|| PURGE.to_owned(), |uuid| format!("{PURGE} {uuid}"))
    }

    /// Refuses a request that means another disk than `own`.
    fn check(&self, own: Option<&str>) -> Result<(), Error> {
        match (self.uuid.as_deref(), own) {
            (Some(meant), own) if own != Some(meant) => {
                Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")
                    .found(format!("a server of the disk {}", own.unwrap_or("without a UUID")))
                    .expected(format!("one of the disk {meant}"))
                    .remedy("`lacuna status` shows what is open; close it, then try again"))
            }
            _ => Ok(()),
        }
    }
}

/// Purges for a client that asked, in a thread of its own: others are answered meanwhile. The answer names the disk, whose UUID is
/// `own`.
pub(crate) fn answer(
    mut stream: UnixStream,
    request: &PurgeRequest,
    (disk, own): (Arc<dyn Subject>, Option<String>),
    naming: Naming,
) -> std::io::Result<()> {
    if let Err(e) = request.check(own.as_deref()) {
        return stream.write_all(outcome::encode_purged(&Err(e), own, naming).as_bytes());
    }
    // A purge may take long; that somebody heard of it does not.
    stream.write_all(outcome::HEARD)?;
    let purge = move || {
        let purged = disk.purge();
        drop(disk);
        let _ = stream.write_all(outcome::encode_purged(&purged, own, naming).as_bytes());
    };
    std::thread::Builder::new().name("lacuna-purged".into()).spawn(purge).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_means_one_disk_or_any() {
        let parse = PurgeRequest::parse;
        let of = |uuid: Option<&str>| PurgeRequest { uuid: uuid.map(str::to_owned) };
        assert_eq!(parse("purge"), Some(of(None)));
        assert_eq!(parse("purge 7f"), Some(of(Some("7f"))));
        assert!(parse("purged").is_none() && parse("close").is_none());
        assert_eq!(parse(&of(Some("7f")).line()), Some(of(Some("7f"))));
        assert!(of(None).check(None).is_ok() && of(None).check(Some("7f")).is_ok());
        assert!(of(Some("7f")).check(Some("7f")).is_ok());
        for own in [None, Some("80")] {
            assert_eq!(of(Some("7f")).check(own).unwrap_err().kind(), Kind::PurgeIncomplete);
        }
    }
}
