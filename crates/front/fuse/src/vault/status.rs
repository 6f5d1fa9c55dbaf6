//! The replies of a mounted vault's server on its control socket: the vault's counters, and how a
//! file of it is protected.

use crate::vault::ops::to_error;
use lacuna_contracts::{Error, Kind, Result, Status, Traffic};
use lacuna_daemon::StatusSource;
use lacuna_vault::{FsError, Vault};
use serde_json::{Value, json};
use std::sync::Arc;

/// The vault's status for clients.
pub(crate) struct VaultStatus {
    pub vault: Arc<Vault>,
    /// Counters of requests.
    pub traffic: Traffic,
}

impl StatusSource for VaultStatus {
    fn status(&self) -> Status {
        let mut status = self.vault.status();
        status.items.extend(self.traffic.items());
        status
    }

    fn stat(&self, ino: u64) -> Option<Result<Value>> {
        Some(self.protection(ino))
    }
}

impl VaultStatus {
    /// How a file is protected, in the fields of `lacuna vault stat --json`.
    fn protection(&self, ino: u64) -> Result<Value> {
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
        FsError::Errno(libc::EISDIR | libc::EINVAL) => Error::new(Kind::Usage, what)
            .found("something that has no content of its own")
            .expected("a regular file"),
        error => to_error(what, error),
    }
}
