//! A peer: an instance of this user as another process sees it, which asks it for its account,
//! gives it work, and closes it.

use crate::client::{Conversation, Reply, call, silence};
use crate::dead;
use crate::protocol::{Afterwards, Job, Op};
use crate::record::{MountRecord, Record};
use crate::run_dir::{RunPaths, lock_past_probes};
use crate::status::ServerStatus;
use lacuna_contracts::{Error, Kind, Result};
use lacuna_mount::RELEASE_LIMIT;
use serde_json::Value;
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to wait before a lock is tried again.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);
/// How long a server that has closed its disk or vault, or has dropped its clients, may take to be
/// gone.
const GONE_WITHIN: Duration = Duration::from_secs(60);

/// How a close went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The server unmounted, flushed, and is gone.
    Cleanly,
    /// The server had died before; its mount is cleared away. Writes that had not been flushed when
    /// it died are lost.
    AfterCrash,
}

/// An instance that was found.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its record.
    pub record: Record,
    /// Whether its server lived when it was found.
    pub alive: bool,
    pub(crate) paths: RunPaths,
}

impl Peer {
    /// Where it is mounted, if it is.
    pub fn mount(&self) -> Option<&MountRecord> {
        self.record.mount()
    }

    /// The account of the server; of one that died, its record.
    ///
    /// Errors: [`Kind::NotFound`] if it has just ended or does not listen yet, [`Kind::TimedOut`]
    /// if it does not answer.
    pub fn status(&self) -> Result<ServerStatus> {
        if !self.alive {
            return Ok(ServerStatus::of_dead(self.record.clone()));
        }
        let answer = match self.ask(&Op::Status) {
            Err(e) if e.kind() == Kind::NotFound && self.has_died()? => {
                return Ok(ServerStatus::of_dead(self.record.clone()));
            }
            answer => answer?,
        };
        serde_json::from_value(answer).map_err(|e| self.nonsense(&e.to_string()))
    }

    /// Whether the server of a mount that was found alive has died since and left the mount.
    /// Errors: what keeps that from being seen.
    fn has_died(&self) -> Result<bool> {
        if self.mount().is_none() {
            return Ok(false);
        }
        dead::wait_while_dying(&self.paths, self.record.pid)?;
        Ok(dead::is_alive(&self.paths)? == Some(false))
    }

    /// Asks for something, and waits for the outcome, however long it takes.
    ///
    /// Errors: the refusal of the server, such as [`Kind::Usage`] for an operation that it does not
    /// do; as of [`Peer::status`].
    pub fn ask(&self, op: &Op) -> Result<Value> {
        let failed = |e: io::Error| match e.kind() {
            // It ended at this moment, or does not listen yet.
            ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe => self.no_answer(e.to_string()),
            _ => self.no_answer(e.to_string()).with_kind(Kind::Io),
        };
        match self.call(op).map_err(failed)? {
            Reply::Done(value) => Ok(value),
            Reply::Refused(e, _) => Err(e),
            Reply::Ended => Err(self.no_answer("a server that ended")),
            Reply::Silent(limit) => {
                let silent = self.no_answer(silence(limit)).with_kind(Kind::TimedOut);
                Err(let_go_on(Some(&self.record), silent))
            }
            Reply::Nonsense => Err(self.nonsense("none that makes sense")),
        }
    }

    /// Begins with longer work. Errors: [`Kind::TimedOut`] if the server does not answer, and its
    /// refusal.
    pub fn begin(&self, job: &Job) -> Result<Conversation> {
        Conversation::begin(&self.paths.control(), job, self.server())
    }

    /// Ends the server, and waits until it has closed its disk or vault and is gone; clears away
    /// the mount of a dead one.
    ///
    /// Errors: [`Kind::Busy`] (naming who) if it is in use, [`Kind::NoCover`] if it waited for
    /// cover in vain and stays open, [`Kind::TimedOut`] if it does not answer or stays though it
    /// has closed it, and whatever failure the server had at its end.
    pub fn close(&self) -> Result<Closed> {
        let mountpoint = self.mount().map(|mount| mount.mountpoint.as_path());
        let shown = mountpoint.map_or_else(|| self.record.location.clone(), |at| at.display().to_string());
        // A server that is gone by now has closed it.
        Ok(close(&self.paths, &shown, mountpoint)?.unwrap_or(Closed::Cleanly))
    }

    pub(crate) fn call(&self, op: &Op) -> io::Result<Reply> {
        call(&self.paths.control(), op)
    }

    /// The server, in errors.
    pub(crate) fn server(&self) -> String {
        match self.mount() {
            Some(mount) => format!("the server of {}", mount.mountpoint.display()),
            None => "the server of the disk".to_owned(),
        }
    }

    fn no_answer(&self, found: impl Into<String>) -> Error {
        Error::new(Kind::NotFound, format!("no answer from {}", self.server())).found(found)
    }

    fn nonsense(&self, found: &str) -> Error {
        self.no_answer(found).with_kind(Kind::Other)
    }
}

/// Says what to do about a server that does not answer.
fn let_go_on(record: Option<&Record>, e: Error) -> Error {
    let go_on = match record {
        Some(Record { pid, .. }) => format!("`kill -CONT {pid}` lets it go on"),
        None => "let it go on (`kill -CONT`)".to_owned(),
    };
    e.remedy(format!("if the process was stopped, {go_on}; then try again"))
}

/// Asks the server of a run directory to end, and waits until it is gone; `shown` names its disk in
/// errors, and `mountpoint` is its mount point, if it has one. None if it is gone already.
pub(crate) fn close(paths: &RunPaths, shown: &str, mountpoint: Option<&Path>) -> Result<Option<Closed>> {
    close_within(paths, shown, mountpoint, GONE_WITHIN)
}

/// The same; a server that has let its client go may take as long as `limit` to be gone.
fn close_within(
    paths: &RunPaths,
    shown: &str,
    mountpoint: Option<&Path>,
    limit: Duration,
) -> Result<Option<Closed>> {
    let what = format!("cannot close {shown}");
    let Some(lock) = paths.lock_file()? else { return Ok(None) };
    match lock_past_probes(&lock) {
        Ok(()) => return clear_away(&lock, paths, mountpoint).map(Some),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(e)) => return Err(Error::io("cannot lock the run directory", &e)),
    }
    // The process is for the advice alone.
    let record = || paths.record().ok().flatten();
    let gone = || wait_gone(&lock, limit).map_err(|e| let_go_on(record().as_ref(), e.context(&what)));
    let closed = match call(&paths.control(), &Op::Close) {
        Ok(Reply::Done(_)) => gone().map(|()| Closed::Cleanly),
        Ok(Reply::Refused(e, Afterwards::Stays)) => Err(e),
        Ok(Reply::Refused(e, Afterwards::Ends)) => {
            // What was lost matters more than that the process stays, if it does.
            let _stays = gone();
            Err(if mountpoint.is_some() { e } else { e.context(what) })
        }
        Ok(Reply::Ended | Reply::Nonsense) => {
            gone()?;
            match clear_away(&lock, paths, mountpoint)? {
                Closed::AfterCrash if mountpoint.is_none() => Err(Error::new(Kind::Other, what)
                    .found("a server that ended without a word")
                    .remedy("open the disk again, which repairs what a crash left")),
                closed => Ok(closed),
            }
        }
        Ok(Reply::Silent(limit)) => {
            let record = record();
            let process = record.as_ref().map_or_else(String::new, |of| format!(" (process {})", of.pid));
            let silent = Error::new(Kind::TimedOut, what)
                .found(format!("a server that does not answer{process}: {}", silence(limit)))
                .expected("a sign of life every second");
            Err(let_go_on(record.as_ref(), silent))
        }
        // It has stopped listening, as it does when its mount is gone: a user unmounted by hand.
        // One that is still starting may have found the socket of another that died.
        Err(e)
            if (has_stopped_listening(&e) || is_removed(&lock)) && is_gone_within(&lock, RELEASE_LIMIT)? =>
        {
            clear_away(&lock, paths, mountpoint)
        }
        Err(e) => Err(Error::new(Kind::Busy, what)
            .found(format!("a server that does not answer yet ({e})"))
            .remedy("it is still starting, or about to end: try again in a moment")),
    };
    closed.map(Some)
}

/// Clears away the mount of a server whose lock is ours now: it ended by itself at this moment, or
/// crashed at any time before.
fn clear_away(lock: &File, paths: &RunPaths, mountpoint: Option<&Path>) -> Result<Closed> {
    let about = lock.metadata().map_err(|e| Error::io("cannot look at the lock of the server", &e))?;
    let result = if about.nlink() == 0 {
        Ok(Closed::Cleanly)
    } else {
        let cleared = mountpoint.map_or(Ok(()), |at| dead::clear(paths, Some(at)));
        cleared.and_then(|()| paths.remove()).map(|()| Closed::AfterCrash)
    };
    let _ = lock.unlock();
    result
}

/// Whether a server takes no clients any more. Those that it had not accepted before, it dropped.
fn has_stopped_listening(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

/// Whether the server that holds the lock has removed its run directory.
fn is_removed(lock: &File) -> bool {
    lock.metadata().is_ok_and(|about| about.nlink() == 0)
}

/// Whether the server that holds the lock goes within `limit`. The lock is then ours. Errors:
/// whatever the system says.
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
/// it lives on.
fn wait_gone(lock: &File, limit: Duration) -> Result<()> {
    if is_gone_within(lock, limit)? {
        return Ok(());
    }
    Err(Error::new(Kind::TimedOut, "the server is not gone")
        .found(format!("its lock held {} seconds after it let its client go", limit.as_secs()))
        .expected("the end of its process"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::Instance;
    use crate::protocol::Answer;
    use lacuna_contracts::Term;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_server_that_does_not_understand_a_close_is_not_waited_for() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let instance = Instance::of_mount(base.path(), at).unwrap();
        let listener = UnixListener::bind(instance.control()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 64]).unwrap() > 0);
            let refused = Error::new(Kind::Usage, "another version of the messages");
            let answer = Answer::of(Err(refused), Afterwards::Stays, Term::quoted);
            stream.write_all(answer.line().as_bytes()).unwrap();
        });
        let paths = RunPaths::of_mount(base.path(), at);
        assert_eq!(close(&paths, "/mnt/x", Some(at)).unwrap_err().kind(), Kind::Usage);
        server.join().unwrap();
        // Nor is one waited for without end that stays though it said that it ends.
        let lock = paths.lock_file().unwrap().unwrap();
        let limit = Duration::from_millis(50);
        assert_eq!(wait_gone(&lock, limit).unwrap_err().kind(), Kind::TimedOut);
        instance.end().unwrap();
        wait_gone(&lock, limit).unwrap();
    }

    #[test]
    fn a_failure_of_the_end_is_told_though_the_server_stays() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let instance = Instance::of_mount(base.path(), at).unwrap();
        let listener = UnixListener::bind(instance.control()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert!(stream.read(&mut [0; 64]).unwrap() > 0);
            let lost = Error::new(Kind::Io, "what was written last is lost");
            let answer = Answer::of(Err(lost), Afterwards::Ends, Term::quoted);
            stream.write_all(answer.line().as_bytes()).unwrap();
        });
        let paths = RunPaths::of_mount(base.path(), at);
        let failed = close_within(&paths, "/mnt/x", Some(at), Duration::from_millis(50)).unwrap_err();
        assert_eq!(failed.kind(), Kind::Io, "{failed}");
        server.join().unwrap();
        drop(instance);
    }

    #[test]
    fn a_server_that_ends_without_having_accepted_a_client_has_closed() {
        let base = tempfile::tempdir().unwrap();
        let at = Path::new("/mnt/x");
        let instance = Instance::of_mount(base.path(), at).unwrap();
        let listener = UnixListener::bind(instance.control()).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // What is left unread resets the connection, as the end of a listener does to the
            // clients that wait there.
            stream.read_exact(&mut [0]).unwrap();
            drop((stream, listener));
            instance.end().unwrap();
        });
        let paths = RunPaths::of_mount(base.path(), at);
        assert_eq!(close(&paths, "/mnt/x", Some(at)).unwrap(), Some(Closed::Cleanly));
        server.join().unwrap();
    }
}
