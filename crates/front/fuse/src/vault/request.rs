//! A request to mount a vault.

use lacuna_contracts::{Term, TermRenderer};
use lacuna_daemon::Identity;
use lacuna_mount::ServerLog;
use lacuna_vault::Vault;
use std::any::Any;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The vault, the mount point and the settings.
#[allow(clippy::struct_excessive_bools)]
pub struct VaultRequest {
    /// The vault. [`MountedVault`](crate::MountedVault) closes it at the end.
    pub vault: Arc<Vault>,
    /// The names of the vault for clients.
    pub identity: Identity,
    /// A directory on which nothing is mounted, except the mount of a dead server.
    pub mountpoint: PathBuf,
    /// Make the directory if it is missing. It has no permissions below the mount, and is removed
    /// with it.
    pub make_mountpoint: bool,
    /// The source of the mount in mount tables.
    pub source: OsString,
    /// Give other users the access that the permissions of files grant. For users other than root
    /// the system must allow it.
    pub allow_other: bool,
    /// Refuse changes even if the vault takes them.
    pub read_only: bool,
    /// Refuse to execute programs in the vault.
    pub no_exec: bool,
    /// Close it after this time without requests, if no process uses it.
    pub idle_timeout: Option<Duration>,
    /// Directory of the run directories, if not [`lacuna_daemon::default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Receives messages of the running server.
    pub log: ServerLog,
    /// How messages to clients that close it, or ask for its status, name settings.
    pub naming: TermRenderer,
    /// Another value that is held while the vault is open. It is dropped after the vault is closed,
    /// and before a client is told of that.
    pub held: Option<Box<dyn Any + Send>>,
}

impl VaultRequest {
    /// A request with everything else at its default; messages are discarded.
    pub fn new(vault: Arc<Vault>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        let (location, format): (String, String) = (location.into(), "vault".to_owned());
        VaultRequest {
            vault,
            source: location.clone().into(),
            identity: Identity { location, format, ..Identity::default() },
            mountpoint: mountpoint.into(),
            make_mountpoint: false,
            allow_other: false,
            read_only: false,
            no_exec: false,
            idle_timeout: None,
            run_base: None,
            log: Arc::new(|_| {}),
            naming: Term::quoted,
            held: None,
        }
    }
}
