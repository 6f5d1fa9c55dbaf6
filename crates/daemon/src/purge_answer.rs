//! The request for a purge, and how a server answers it.

use crate::outcome;
use crate::subject::Subject;
use crate::untold::Untold;
use lacuna_core::{Action, Advice, Error, Kind, Naming};
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
                    .remedy(
                        Advice::from(Action("status")).text(" shows what is open; close it, then try again"),
                    ))
            }
            _ => Ok(()),
        }
    }
}

/// Purges for a client that asked, in a thread of its own: others are answered meanwhile. The answer names the disk, whose UUID is
/// `own`. What went wrong is kept as `untold` if the client has left by then, until a purge succeeds.
pub(crate) fn answer(
    mut stream: UnixStream,
    request: &PurgeRequest,
    (disk, own): (Arc<dyn Subject>, Option<String>),
    naming: Naming,
    untold: &Untold,
) -> std::io::Result<()> {
    if let Err(e) = request.check(own.as_deref()) {
        return stream.write_all(outcome::encode_purged(&Err(e), own, naming).as_bytes());
    }
    // A purge may take long; that somebody heard of it does not.
    stream.write_all(outcome::HEARD)?;
    let untold = untold.clone();
    let purge = move || {
        let purged = disk.purge();
        drop(disk);
        let answered = stream.write_all(outcome::encode_purged(&purged, own, naming).as_bytes());
        match (purged, answered) {
            (Ok(_), _) => untold.purged(),
            (Err(e), Err(_)) => untold.not_purged(e.context("a purge whose client has left")),
            (Err(_), Ok(())) => {}
        }
    };
    std::thread::Builder::new().name("lacuna-purged".into()).spawn(purge).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_core::{Result, Status, Term};
    use parking_lot::Mutex;
    use std::time::Duration;

    /// Fails to forget as long as it has a client, who leaves meanwhile.
    struct Left(Mutex<Option<UnixStream>>);

    impl Subject for Left {
        fn status(&self) -> Status {
            Status::default()
        }

        fn purge(&self) -> Result<Status> {
            match self.0.lock().take() {
                Some(_left) => Err(Error::new(Kind::PurgeIncomplete, "the disk was not purged")),
                None => Ok(Status::default()),
            }
        }
    }

    #[test]
    fn a_purge_that_failed_is_told_though_its_client_has_left_until_one_succeeds() {
        let (client, server) = UnixStream::pair().unwrap();
        let disk: Arc<dyn Subject> = Arc::new(Left(Mutex::new(Some(client))));
        let untold = Untold::default();
        let purge = |server: UnixStream| {
            let disk = (Arc::clone(&disk), None);
            answer(server, &PurgeRequest { uuid: None }, disk, Term::quoted, &untold).unwrap();
        };
        let wait_for = |kind: Option<Kind>| {
            for _ in 0..3000 {
                if untold.last().map(|e| e.kind()) == kind {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("it never said {kind:?}");
        };
        purge(server);
        wait_for(Some(Kind::PurgeIncomplete));
        // Other trouble is no purge's to clear.
        untold.not_accepted(Error::new(Kind::Io, "no client could be accepted"));
        let (_client, server) = UnixStream::pair().unwrap();
        purge(server);
        wait_for(Some(Kind::Io));
    }

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
