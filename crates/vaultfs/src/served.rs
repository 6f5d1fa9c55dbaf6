//! What the server of a mounted vault tells clients on its control socket: the vault's counters, and how a file of it is
//! protected.

use lacuna_core::{Error, Kind, Result, Status, Traffic};
use lacuna_daemon::Subject;
use lacuna_vault::{FsError, Vault};
use serde_json::{Value, json};
use std::sync::Arc;

/// The question how a file is protected, followed by the file's number.
const STAT: &str = "stat ";

/// The vault as clients see it.
pub(crate) struct Served {
    pub vault: Arc<Vault>,
    /// What was asked of it.
    pub traffic: Traffic,
}

impl Subject for Served {
    fn status(&self) -> Status {
        let mut status = self.vault.status();
        status.items.extend(self.traffic.items());
        status
    }

    fn answer(&self, question: &str) -> Option<Result<Value>> {
        let ino = question.strip_prefix(STAT)?.trim().parse().ok()?;
        Some(self.stat(ino))
    }
}

impl Served {
    /// How a file is protected, in the fields that `lacuna vault stat --json` shows.
    fn stat(&self, ino: u64) -> Result<Value> {
        let stat = self.vault.file_stat(ino).map_err(|e| unprotected(&self.vault.path_of(ino), e))?;
        Ok(json!({
            "scheme": stat.scheme.name(),
            "integrity": stat.choice.name(),
            "blocks": stat.blocks,
            "random_looking": stat.random_looking,
            "trusted_bytes": stat.trusted_bytes,
            "untrusted_bytes": stat.untrusted_bytes,
            "intervals": stat.intervals,
            "backing": stat.backing,
        }))
    }
}

fn unprotected(path: &str, error: FsError) -> Error {
    let what = format!("cannot tell how {path} is protected");
    match error {
        FsError::Storage(error) => error.context(what),
        FsError::Errno(libc::EISDIR | libc::EINVAL) => Error::new(Kind::Usage, what)
            .found("something that has no content of its own")
            .expected("a regular file"),
        FsError::Errno(number) => Error::io(what, &std::io::Error::from_raw_os_error(number)),
    }
}
