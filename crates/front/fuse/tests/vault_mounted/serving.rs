//! The server of a test, in a process of its own.
//!
//! A process that maps files of a file system which it serves itself can wait for itself: the
//! kernel writes a mapping back while it holds the memory of the process locked, and the threads
//! that serve need that memory. So this program starts itself once more, as the one test that is
//! called [`SERVE`], which mounts and serves.

use crate::machine::wait_until;
use crate::place::Place;
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
/// Where, and how: the directory of the place, a space, and the name of a [`How`].
const TASK: &str = "LACUNA_VAULT_TASK";
/// The time without use of [`How::WhileUsed`]. Many times as long as a busy machine keeps a test
/// from its next request.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_secs(2);

/// How a vault is to be mounted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum How {
    /// A new one.
    Create,
    /// The one that is there.
    Open,
    /// The one that is there, changes refused.
    ReadOnly,
    /// The one that is there, in a directory that takes no changes.
    FromReadOnly,
    /// A new one, which is closed after [`IDLE_LIMIT`] without use.
    WhileUsed,
    /// A new one, by a user who is not root, for that user alone.
    AsUser(u32),
}

impl How {
    fn name(self) -> String {
        match self {
            How::AsUser(_) => "AsUser".to_owned(),
            how => format!("{how:?}"),
        }
    }

    fn of_name(name: &str) -> How {
        let fixed = [How::Create, How::Open, How::ReadOnly, How::FromReadOnly, How::WhileUsed];
        let mut all = fixed.into_iter().chain([How::AsUser(0)]);
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
    let how = How::of_name(how);
    let place = Place::at(Path::new(dir));
    let outcome = mounted(&place, how).and_then(|mounted| {
        fs::write(place.ready(), b"").unwrap();
        mounted.wait()
    });
    let words = outcome.err().map_or(String::new(), |e| e.to_string());
    // Last of all, and at once: who waits for the end reads it.
    fs::write(place.dir().join("new"), words).unwrap();
    fs::rename(place.dir().join("new"), place.ended()).unwrap();
}

fn mounted(place: &Place, how: How) -> Result<MountedVault, Error> {
    // A server that was killed a moment ago still holds the vault as well.
    await_dying(&place.mountpoint(), Some(&place.run_base()))?;
    let vault = match how {
        How::Create | How::WhileUsed | How::AsUser(_) => place.make(),
        How::Open | How::ReadOnly => place.open(),
        How::FromReadOnly => place.open_to_read(),
    };
    let mut request = VaultRequest::new(Arc::new(vault), "vault", place.mountpoint());
    request.run_base = Some(place.run_base());
    request.allow_other = !matches!(how, How::AsUser(_));
    request.read_only = matches!(how, How::ReadOnly | How::FromReadOnly);
    request.idle_timeout = (how == How::WhileUsed).then_some(IDLE_LIMIT);
    let log = place.log();
    request.log = Arc::new(move |e| log(&e.to_string()));
    MountedVault::start(request)
}

/// A server that runs. Declared after its [`Place`], it ends first.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Starts it and waits until the file system is there.
    pub(crate) fn start(place: &Place, how: How) -> Self {
        let _ = fs::remove_file(place.ready());
        let _ = fs::remove_file(place.ended());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([SERVE, "--exact", "--ignored", "--nocapture"]);
        command.env(TASK, format!("{} {}", place.dir().display(), how.name()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if let How::AsUser(user) = how {
            command.uid(user).gid(user);
        }
        let mut server = Server { child: command.spawn().unwrap() };
        wait_until("the mount", || {
            assert!(server.runs(), "the server did not mount: {}", place.last_words());
            place.ready().exists()
        });
        server
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until it has ended; panics if its vault did not close well.
    pub(crate) fn wait(self, place: &Place) {
        assert_eq!(self.last_words(place), "", "what the server said at its end");
    }

    /// Waits until it has ended; gives the failure of its vault.
    pub(crate) fn last_words(mut self, place: &Place) -> String {
        wait_until("the end of the server", || !self.runs());
        place.last_words()
    }

    /// Kills it, and starts the next before it is gone.
    pub(crate) fn replace(mut self, place: &Place) -> Server {
        self.child.kill().unwrap();
        let next = Server::start(place, How::Open);
        self.child.wait().unwrap();
        next
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
