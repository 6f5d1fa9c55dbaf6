//! The server of a test, in a process of its own.
//!
//! A process that maps files of a file system which it serves itself can wait for itself: the
//! kernel writes a mapping back while it holds the memory of the process locked, and the serving
//! threads need that memory. So this program starts itself again with the single test [`SERVE`],
//! which mounts and serves.

use crate::fixture::VaultFixture;
use crate::machine::wait_until;
use lacuna_contracts::Error;
use lacuna_daemon::await_dying;
use lacuna_fuse::{MountedVault, VaultRequest};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The test that serves.
const SERVE: &str = "serving::serve";
/// The task: the directory of the place, a space, and the name of a [`MountMode`].
const TASK: &str = "LACUNA_VAULT_TASK";
/// The idle timeout of [`MountMode::WhileUsed`], much longer than a busy machine delays a test's
/// next request.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(2);

/// How a vault is to be mounted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MountMode {
    /// Creates a vault.
    Create,
    /// Opens the existing vault.
    Open,
    /// Opens the existing vault and refuses changes.
    ReadOnly,
    /// Opens the existing vault in a directory that takes no changes.
    FromReadOnly,
    /// Creates a vault that is closed after [`IDLE_LIMIT`] without use.
    WhileUsed,
    /// Creates a vault as a user other than root, for that user alone.
    AsUser(u32),
}

impl MountMode {
    fn name(self) -> String {
        match self {
            MountMode::AsUser(_) => "AsUser".to_owned(),
            how => format!("{how:?}"),
        }
    }

    fn of_name(name: &str) -> MountMode {
        let fixed = [
            MountMode::Create,
            MountMode::Open,
            MountMode::ReadOnly,
            MountMode::FromReadOnly,
            MountMode::WhileUsed,
        ];
        let mut all = fixed.into_iter().chain([MountMode::AsUser(0)]);
        all.find(|how| how.name() == name).unwrap()
    }
}

/// Serves for another test; does nothing by itself.
#[test]
#[ignore = "serves for other tests, which start it"]
fn serve() {
    let Ok(task) = std::env::var(TASK) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let (dir, how) = task.rsplit_once(' ').unwrap();
    let how = MountMode::of_name(how);
    let place = VaultFixture::at(Path::new(dir));
    let outcome = mounted(&place, how).and_then(|mounted| {
        fs::write(place.ready(), b"").unwrap();
        mounted.wait()
    });
    let words = outcome.err().map_or(String::new(), |e| e.to_string());
    // The last action, and atomic: a waiting process reads the file as soon as it exists.
    fs::write(place.dir().join("new"), words).unwrap();
    fs::rename(place.dir().join("new"), place.ended()).unwrap();
}

fn mounted(place: &VaultFixture, how: MountMode) -> Result<MountedVault, Error> {
    // A server that was just killed still holds the vault as well.
    await_dying(&place.mountpoint(), Some(&place.run_base()))?;
    let vault = match how {
        MountMode::Create | MountMode::WhileUsed | MountMode::AsUser(_) => place.create_vault(),
        MountMode::Open | MountMode::ReadOnly => place.open(),
        MountMode::FromReadOnly => place.open_to_read(),
    };
    let mut request = VaultRequest::new(Arc::new(vault), "vault", place.mountpoint());
    request.run_base = Some(place.run_base());
    request.source = place.backing().into();
    request.allow_other = !matches!(how, MountMode::AsUser(_));
    request.read_only = matches!(how, MountMode::ReadOnly | MountMode::FromReadOnly);
    request.idle_timeout = (how == MountMode::WhileUsed).then_some(IDLE_LIMIT);
    let log = place.log();
    request.log = Arc::new(move |e| log(&e.to_string()));
    MountedVault::start(request)
}

/// A running server. Declared after its [`VaultFixture`], it is dropped first.
pub(crate) struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    /// Starts it and waits until it has mounted.
    pub(crate) fn start(place: &VaultFixture, how: MountMode) -> Self {
        let _ = fs::remove_file(place.ready());
        let _ = fs::remove_file(place.ended());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([SERVE, "--exact", "--ignored", "--nocapture"]);
        command.env(TASK, format!("{} {}", place.dir().display(), how.name()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let MountMode::AsUser(user) = how {
            command.uid(user).gid(user);
        }
        let mut server = ServerProcess { child: command.spawn().unwrap() };
        wait_until("the mount", || {
            assert!(server.is_running(), "the server did not mount: {}", place.end_error());
            place.ready().exists()
        });
        server
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it has ended; panics if its vault did not close without error.
    pub(crate) fn wait(self, place: &VaultFixture) {
        assert_eq!(self.end_error(place), "", "the last words of the server");
    }

    /// Waits until it has ended; returns the error of its vault, or an empty string.
    pub(crate) fn end_error(mut self, place: &VaultFixture) -> String {
        wait_until("the end of the server", || !self.is_running());
        place.end_error()
    }

    /// Kills it, and starts the next server before it is gone.
    pub(crate) fn replace(mut self, place: &VaultFixture) -> ServerProcess {
        self.child.kill().unwrap();
        let next = ServerProcess::start(place, MountMode::Open);
        self.child.wait().unwrap();
        next
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
