//! A peer: an instance as another process sees it. That process asks for its status, gives it work,
//! and closes it. It is an instance of the same user, or root sees that of another user.

use crate::client::other_process::OtherProcess;
use crate::client::{CallOutcome, JobClient, call, call_over, connect_with_timeout, silence};
use crate::dead_server;
use crate::protocol::{AfterFailure, ControlOp, Job};
use crate::record::{MountRecord, Record};
use crate::run_dir::{RunPaths, lock_past_probes};
use crate::server_end::{CloseOutcome, GONE_WITHIN, PAUSE};
use crate::status::ServerStatus;
use crate::users::user_server::UserServer;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_mount::RELEASE_LIMIT;
use lacuna_mount::mount_table::MountEntry;
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long other processes that look at a dead server may hold its lock.
pub(crate) const PROBED_WITHIN: Duration = Duration::from_millis(50);

/// An instance that was found in the registry.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its record.
    pub record: Record,
    /// Whether its server was alive when it was found.
    pub alive: bool,
    pub(crate) reach: Reach,
}

/// How a peer is reached.
#[derive(Clone, Debug)]
pub(crate) enum Reach {
    /// Through the run directory of this user.
    Own(RunPaths),
    /// Through the control socket of another user.
    OtherUser(UserServer),
}

impl Peer {
    /// Its mount point, if it has one.
    pub fn mount(&self) -> Option<&MountRecord> {
        self.record.mount()
    }

    /// The number of its user, if it is another user than that of this process.
    pub fn user(&self) -> Option<u32> {
        match &self.reach {
            Reach::Own(_) => None,
            Reach::OtherUser(server) => Some(server.user()),
        }
    }

    /// Whether it is the mount of another user that this process does not see: it is in another
    /// mount namespace, as of a container, or the server did not tell the truth.
    pub fn is_elsewhere(&self) -> bool {
        match &self.reach {
            Reach::Own(_) => false,
            Reach::OtherUser(server) => self.mount().is_some() && !server.has_mount(),
        }
    }

    /// Whether a mount is the file system of its disk, which this user opened.
    pub(crate) fn shows_disk(&self, top: &MountEntry) -> Result<bool> {
        match &self.reach {
            Reach::Own(paths) => dead_server::is_file_system_of_disk(paths, top),
            Reach::OtherUser(_) => Ok(false),
        }
    }

    /// The status of the server; for a dead server, its record.
    ///
    /// Errors: [`Kind::NotFound`] if it has just ended or does not listen yet, [`Kind::TimedOut`]
    /// if it does not answer.
    pub fn status(&self) -> Result<ServerStatus> {
        if !self.alive {
            return Ok(ServerStatus::of_dead(self.record.clone()));
        }
        let paths = match &self.reach {
            Reach::Own(paths) => paths,
            Reach::OtherUser(server) => return server.status(),
        };
        let answer = match self.ask(&ControlOp::Status) {
            Err(e) if e.kind() == Kind::NotFound && self.has_died(paths)? => {
                return Ok(ServerStatus::of_dead(self.record.clone()));
            }
            answer => answer?,
        };
        serde_json::from_value(answer).map_err(|e| self.invalid_answer_error(&e.to_string()))
    }

    /// Whether the server of a mount, alive when it was found, has died since and left the mount.
    /// Errors: a failure to inspect it.
    fn has_died(&self, paths: &RunPaths) -> Result<bool> {
        if self.mount().is_none() {
            return Ok(false);
        }
        dead_server::wait_while_dying(paths, self.record.pid)?;
        Ok(dead_server::is_alive(paths)? == Some(false))
    }

    /// Sends a request and waits for the outcome, however long it takes.
    ///
    /// Errors: the refusal of the server, such as [`Kind::Usage`] for an operation that it does not
    /// support; those of [`Peer::status`].
    pub fn ask(&self, op: &ControlOp) -> Result<Value> {
        let failed = |e: io::Error| match e.kind() {
            // The server has just ended, or does not listen yet.
            ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe => self.no_answer(e.to_string()),
            _ => self.no_answer(e.to_string()).with_kind(Kind::Io),
        };
        match self.call(op).map_err(failed)? {
            CallOutcome::Done(value) => Ok(value),
            CallOutcome::Refused(e, _) => Err(e),
            CallOutcome::Ended => Err(self.no_answer("a server that ended")),
            CallOutcome::Silent(limit) => {
                let silent = self.no_answer(silence(limit)).with_kind(Kind::TimedOut);
                Err(with_resume_hint(Some(&self.record), silent))
            }
            CallOutcome::Malformed => Err(self.invalid_answer_error("an invalid answer")),
        }
    }

    /// Starts a job. Errors: [`Kind::TimedOut`] if the server does not answer, and its refusal.
    pub fn begin(&self, job: &Job) -> Result<JobClient> {
        JobClient::begin(self.connect(), job, self.server())
    }

    /// Closes the server: waits until it has closed its disk or vault and has exited. Cleans up the
    /// mount of a dead server.
    ///
    /// Errors: [`Kind::Busy`] (naming the users or clients) if it is in use, [`Kind::NoCover`] if
    /// it waited for cover in vain and stays open, [`Kind::TimedOut`] if it does not answer, or
    /// does not exit after it has closed, and any failure of the server while it closed.
    pub fn close(&self) -> Result<CloseOutcome> {
        self.close_with(&ControlOp::Close { force: false })
    }

    /// Clears away what a dead server of this user left. False if nothing is left, or if a living
    /// server has the mount point by now: that one stays.
    ///
    /// Errors: [`Kind::Busy`], naming the users, if it is in use; a failure to inspect it.
    pub fn clear_dead(&self) -> Result<bool> {
        let mountpoint = self.mount().map(|mount| mount.mountpoint.as_path());
        let cleared = match &self.reach {
            Reach::Own(paths) => clear_dead(paths, mountpoint, PROBED_WITHIN),
            Reach::OtherUser(_) => Ok(false),
        };
        cleared.map_err(|e| self.record.mark_confidential(e))
    }

    pub(crate) fn close_with(&self, op: &ControlOp) -> Result<CloseOutcome> {
        let mountpoint = self.mount().map(|mount| mount.mountpoint.as_path());
        let shown = mountpoint.map_or_else(|| self.record.location.clone(), |at| at.display().to_string());
        let closed = match &self.reach {
            // `None` means that the server has exited by now, and so has closed.
            Reach::Own(paths) => close_within(paths, &shown, mountpoint, op, GONE_WITHIN)
                .map(|closed| closed.unwrap_or(CloseOutcome::Cleanly)),
            Reach::OtherUser(server) => server.close(op, &shown, mountpoint),
        };
        closed.map_err(|e| self.record.mark_confidential(e))
    }

    pub(crate) fn call(&self, op: &ControlOp) -> io::Result<CallOutcome> {
        call_over(self.connect(), op)
    }

    fn connect(&self) -> io::Result<UnixStream> {
        match &self.reach {
            Reach::Own(paths) => connect_with_timeout(&paths.control()),
            Reach::OtherUser(server) => server.connect(),
        }
    }

    /// The name of the server in errors.
    ///
    /// Deniability contract: the mount point could be that of a hidden level, and a log gets the
    /// error.
    pub(crate) fn server(&self) -> String {
        let server = match self.mount().filter(|_| !self.record.private) {
            Some(mount) => format!("the server of {}", mount.mountpoint.display()),
            None => "the server of the disk".to_owned(),
        };
        match self.user() {
            Some(user) => format!("{server} of user {user}"),
            None => server,
        }
    }

    fn no_answer(&self, found: impl Into<String>) -> Error {
        Error::new(Kind::NotFound, format!("no answer from {}", self.server())).found(found)
    }

    fn invalid_answer_error(&self, found: &str) -> Error {
        self.no_answer(found).with_kind(Kind::Other)
    }
}

/// The error for a server that did not answer its request, which `what` names, in this time.
pub(crate) fn silent_error(what: String, record: Option<&Record>, limit: Duration) -> Error {
    let process = record.map_or_else(String::new, |of| format!(" (process {})", of.pid));
    let silent = Error::new(Kind::TimedOut, what)
        .found(format!("a server that does not answer{process}: {}", silence(limit)))
        .expected("a keepalive every second");
    with_resume_hint(record, silent)
}

/// Adds the advice for a server that does not answer.
fn with_resume_hint(record: Option<&Record>, e: Error) -> Error {
    let go_on = match record {
        Some(Record { pid, .. }) => format!("`kill -CONT {pid}` resumes it"),
        None => "resume it (`kill -CONT`)".to_owned(),
    };
    e.hint(format!("if the process was stopped, {go_on}; then try again"))
}

/// Asks the server of a run directory to close, and waits until it has exited. `shown` names its
/// disk in errors; `mountpoint` is its mount point, if it has one. `None` if it is gone already.
pub(crate) fn close(
    paths: &RunPaths,
    shown: &str,
    mountpoint: Option<&Path>,
) -> Result<Option<CloseOutcome>> {
    close_within(paths, shown, mountpoint, &ControlOp::Close { force: false }, GONE_WITHIN)
}

/// [`close`] with this request, and with a limit on how long a server that has dropped its client
/// may take to exit.
fn close_within(
    paths: &RunPaths,
    shown: &str,
    mountpoint: Option<&Path>,
    op: &ControlOp,
    limit: Duration,
) -> Result<Option<CloseOutcome>> {
    let what = format!("cannot close {shown}");
    let Some(lock) = paths.lock_file()? else { return Ok(None) };
    match lock_past_probes(&lock) {
        Ok(()) => return clean_up_mount(&lock, paths, mountpoint).map(Some),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock the run directory", &e)),
    }
    // Without the record errors have no advice, and the process is not waited for.
    let record = || paths.record().ok().flatten();
    // A server whose keeper died has the claim on the disk until its process has ended.
    let server = record().filter(|of| of.keeper.is_some()).map(|of| OtherProcess::of_server(&of));
    let failed = |e: io::Error| Error::io(what.as_str(), &e);
    let server = server.transpose().map_err(failed)?.flatten();
    let gone = || {
        wait_for_exit(&lock, limit).map_err(|e| with_resume_hint(record().as_ref(), e.context(&what)))?;
        let ended = server.as_ref().map(|server| server.has_ended_within(limit));
        ended.transpose().map(drop).map_err(failed)
    };
    let closed = match call(&paths.control(), op) {
        Ok(CallOutcome::Done(_)) => gone().map(|()| CloseOutcome::Cleanly),
        Ok(CallOutcome::Refused(e, AfterFailure::Stays)) => Err(e),
        Ok(CallOutcome::Refused(e, AfterFailure::Ends)) => {
            // The lost data matters more than whether the process exits.
            let _stays = gone();
            Err(if mountpoint.is_some() { e } else { e.context(what) })
        }
        Ok(CallOutcome::Ended | CallOutcome::Malformed) => {
            gone()?;
            match clean_up_mount(&lock, paths, mountpoint)? {
                CloseOutcome::AfterCrash if mountpoint.is_none() => Err(Error::new(Kind::Other, what)
                    .found("a server that ended without an answer")
                    .hint("open the disk again: it recovers from a crash")),
                closed => Ok(closed),
            }
        }
        Ok(CallOutcome::Silent(limit)) => Err(silent_error(what, record().as_ref(), limit)),
        // The server has stopped listening, as it does when a user unmounted by hand. A server that
        // is still starting may have found the stale socket of a dead server.
        Err(e)
            if (has_stopped_listening(&e) || is_removed(&lock)) && is_gone_within(&lock, RELEASE_LIMIT)? =>
        {
            clean_up_mount(&lock, paths, mountpoint)
        }
        Err(e) => Err(Error::new(Kind::Busy, what)
            .found(format!("a server that does not answer yet ({e})"))
            .hint("it is still starting, or about to end: try again in a moment")),
    };
    closed.map(Some)
}

/// Cleans up the mount of a dead server while this process holds its lock, which proves its death.
/// Waits up to `limit` for the lock. False if another process holds it, or if nothing is left.
pub(crate) fn clear_dead(paths: &RunPaths, mountpoint: Option<&Path>, limit: Duration) -> Result<bool> {
    let Some(lock) = paths.lock_file()? else { return Ok(false) };
    Ok(is_gone_within(&lock, limit)? && clean_up_mount(&lock, paths, mountpoint)? == CloseOutcome::AfterCrash)
}

/// Cleans up the mount of a server after this process took its lock. The server exited by itself at
/// this moment, or had crashed before.
fn clean_up_mount(lock: &File, paths: &RunPaths, mountpoint: Option<&Path>) -> Result<CloseOutcome> {
    let about = lock.metadata().map_err(|e| Error::io("cannot look at the lock of the server", &e))?;
    let result = if about.nlink() == 0 {
        Ok(CloseOutcome::Cleanly)
    } else {
        let cleared = mountpoint.map_or(Ok(()), |at| dead_server::clean_up(paths, Some(at)));
        cleared.and_then(|()| paths.remove()).map(|()| CloseOutcome::AfterCrash)
    };
    let _ = lock.unlock();
    result
}

/// Whether a server takes no clients any more. It dropped clients that it had not accepted.
fn has_stopped_listening(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Whether the server that holds the lock has removed its run directory.
fn is_removed(lock: &File) -> bool {
    lock.metadata().is_ok_and(|about| about.nlink() == 0)
}

/// Waits up to `limit` for the server's lock. If true, this process holds the lock. Errors: those
/// of the system.
fn is_gone_within(lock: &File, limit: Duration) -> Result<bool> {
    let start = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) if start.elapsed() < limit => std::thread::sleep(PAUSE),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(e)) => {
                return Err(Error::io("cannot wait for the end of the server", &e));
            }
        }
    }
}

/// Waits for the server's lock, which it holds as long as it lives. Errors: [`Kind::TimedOut`] if
/// the server is still alive.
fn wait_for_exit(lock: &File, limit: Duration) -> Result<()> {
    if is_gone_within(lock, limit)? {
        return Ok(());
    }
    Err(Error::new(Kind::TimedOut, "the server did not end")
        .found(format!("its lock still held {} seconds after it dropped its client", limit.as_secs()))
        .expected("the end of its process"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;
    use crate::protocol::ServerAnswer;
    use lacuna_contracts::Term;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_close_that_is_refused_does_not_wait() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let instance = Instance::of_mount(base.path(), at).unwrap();
        let listener = UnixListener::bind(instance.control()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 64]).unwrap() > 0);
            let refused = Error::new(Kind::Usage, "another version of the messages");
            let answer = ServerAnswer::of(Err(refused), AfterFailure::Stays, Term::quoted);
            stream.write_all(answer.line().as_bytes()).unwrap();
        });
        let paths = RunPaths::of_mount(base.path(), at);
        assert_eq!(close(&paths, "/mnt/x", Some(at)).unwrap_err().kind(), Kind::Usage);
        server.join().unwrap();
        // The wait also ends for a server that said that it ends and yet stays.
        let lock = paths.lock_file().unwrap().unwrap();
        let limit = Duration::from_millis(50);
        assert_eq!(wait_for_exit(&lock, limit).unwrap_err().kind(), Kind::TimedOut);
        instance.end().unwrap();
        wait_for_exit(&lock, limit).unwrap();
    }

    #[test]
    fn a_failure_of_the_close_is_reported_even_if_the_server_stays() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let instance = Instance::of_mount(base.path(), at).unwrap();
        let listener = UnixListener::bind(instance.control()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 64]).unwrap() > 0);
            let lost = Error::new(Kind::Io, "the last writes are lost");
            let answer = ServerAnswer::of(Err(lost), AfterFailure::Ends, Term::quoted);
            stream.write_all(answer.line().as_bytes()).unwrap();
        });
        let paths = RunPaths::of_mount(base.path(), at);
        let (op, limit) = (ControlOp::Close { force: false }, Duration::from_millis(50));
        let failed = close_within(&paths, "/mnt/x", Some(at), &op, limit).unwrap_err();
        assert_eq!(failed.kind(), Kind::Io, "{failed}");
        server.join().unwrap();
        drop(instance);
    }

    #[test]
    fn a_server_that_ends_before_it_accepts_the_client_counts_as_closed() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let instance = Instance::of_mount(base.path(), at).unwrap();
        let listener = UnixListener::bind(instance.control()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The unread bytes reset the connection, as closing a listener does to clients in its
            // backlog.
            stream.read_exact(&mut [0]).unwrap();
            drop((stream, listener));
            instance.end().unwrap();
        });
        let paths = RunPaths::of_mount(base.path(), at);
        assert_eq!(close(&paths, "/mnt/x", Some(at)).unwrap(), Some(CloseOutcome::Cleanly));
        server.join().unwrap();
    }
}
