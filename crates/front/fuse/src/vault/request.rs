//! What vault to mount, where, and how.

use lacuna_contracts::{Naming, Term};
use lacuna_daemon::Identity;
use lacuna_mount::ServerLog;
use lacuna_vault::Vault;
use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to mount, where, and how.
pub struct VaultRequest {
    /// The vault. [`MountedVault`](crate::MountedVault) closes it at the end.
    pub vault: Arc<Vault>,
    /// By what others know it.
    pub identity: Identity,
    /// An existing directory on which nothing is mounted but what a server left there that died.
    pub mountpoint: PathBuf,
    /// Let other users in, as the permissions of files say. For users other than root the system
    /// must allow it.
    pub allow_other: bool,
    /// Refuse changes even if the vault takes them.
    pub read_only: bool,
    /// Let no program in it be run.
    pub no_exec: bool,
    /// Close it when nothing was asked of it for so long and no process uses it.
    pub idle_timeout: Option<Duration>,
    /// Directory of the run directories, if not [`lacuna_daemon::default_run_base`].
    pub run_base: Option<PathBuf>,
    /// Where messages of the running server go.
    pub log: ServerLog,
    /// How clients that close it, or ask for its status, are told of settings.
    pub naming: Naming,
    /// What else is held as long as the vault is open. It is let go after the vault is closed, and
    /// before a client hears of that.
    pub held: Option<Box<dyn Any + Send>>,
}

impl VaultRequest {
    /// A request with everything else at its default; messages go nowhere.
    pub fn new(vault: Arc<Vault>, location: impl Into<String>, mountpoint: impl Into<PathBuf>) -> Self {
        let (location, format) = (location.into(), "vault".to_owned());
        VaultRequest {
            vault,
            identity: Identity { location, format, ..Identity::default() },
            mountpoint: mountpoint.into(),
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
