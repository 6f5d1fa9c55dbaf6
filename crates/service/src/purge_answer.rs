//! How a server answers one who asks for a purge.

use crate::outcome;
use crate::subject::Subject;
use lacuna_core::Naming;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Asks for a purge.
pub(crate) const PURGE: &str = "purge";

/// Purges for a client that asked, in a thread of its own: others are answered meanwhile.
pub(crate) fn answer(mut stream: UnixStream, disk: Arc<dyn Subject>, naming: Naming) -> std::io::Result<()> {
    // A purge may take long; that somebody heard of it does not.
    stream.write_all(outcome::HEARD)?;
    let purge = move || {
        let purged = disk.purge();
        drop(disk);
        let _ = stream.write_all(outcome::encode_items(&purged, naming).as_bytes());
    };
    std::thread::Builder::new().name("lacuna-purged".into()).spawn(purge).map(drop)
}
