//! A living server of another user, as root sees it.
//!
//! Its user may be hostile. The system names the user and the process, and the mount table the
//! mount. Everything else is the word of the server: it can mislead about the user's own disks
//! alone. Root uses no file of the user except the control socket, and cleans up nothing for the
//! user.

use crate::client::other_process::OtherProcess;
use crate::client::{CallOutcome, ask, is_over_time};
use crate::protocol::{AfterFailure, ControlOp};
use crate::server_end::{CloseOutcome, GONE_WITHIN, PAUSE};
use crate::status::{Condition, ServerStatus};
use crate::users::user_base::UserSocket;
use lacuna_contracts::{Error, Kind, Result, Term, shell_word};
use lacuna_mount::{RELEASE_LIMIT, mount_table};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a server of another user may take for its status.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The most letters of an error of such a server that are shown.
const MOST_LETTERS: usize = 500;

/// A living server of another user.
#[derive(Clone, Debug)]
pub(crate) struct UserServer {
    socket: UserSocket,
    /// The device number of its mount; `None` if the mount table of this process does not have it
    /// as a mount of this user.
    mount: Option<String>,
}

impl UserServer {
    /// Asks the server at a socket for its status, until this moment. `None` if no server listens
    /// there: a server that died is a matter of its user.
    ///
    /// Errors: [`Kind::TimedOut`] if it does not answer in time, and the errors of a socket that is
    /// none of its user.
    pub(crate) fn find(socket: UserSocket, until: Instant) -> Result<Option<(UserServer, ServerStatus)>> {
        let Some(status) = status(&socket, until)? else { return Ok(None) };
        let mount = match status.record.mount() {
            Some(mount) => device_of(&mount.mountpoint, socket.user())?,
            None => None,
        };
        Ok(Some((UserServer { socket, mount }, status)))
    }

    pub(crate) fn user(&self) -> u32 {
        self.socket.user()
    }

    /// Whether its mount was found in the mount table.
    pub(crate) fn has_mount(&self) -> bool {
        self.mount.is_some()
    }

    /// Its status. Errors: [`Kind::NotFound`] if it has ended, and those of [`UserServer::find`].
    pub(crate) fn status(&self) -> Result<ServerStatus> {
        let status = status(&self.socket, Instant::now() + ANSWERS_WITHIN)?;
        status.ok_or_else(|| no_answer(self.user()).found("a server that has ended"))
    }

    /// Connects to it. Errors: those of [`UserSocket::connect`].
    pub(crate) fn connect(&self) -> io::Result<UnixStream> {
        self.socket.connect().map(|(stream, _)| stream)
    }

    /// Has it close with this request, and waits for the end of its process and its mount. `shown`
    /// names its disk in errors; `mountpoint` is its mount point, if it has one.
    ///
    /// Errors: its refusal; [`Kind::TimedOut`] if it does not answer, or does not end.
    pub(crate) fn close(
        &self,
        op: &ControlOp,
        shown: &str,
        mountpoint: Option<&Path>,
    ) -> Result<CloseOutcome> {
        let what = &*format!("cannot close {shown} of user {}", self.user());
        let failed = |e: &io::Error| Error::io(what, e);
        let Some((stream, process)) = self.reach(what)? else { return Ok(CloseOutcome::Cleanly) };
        let running = OtherProcess::of(process).map_err(|e| failed(&e))?;
        let ends = || {
            let ended = running.as_ref().map_or(Ok(true), |running| running.has_ended_within(GONE_WITHIN));
            ended.map_err(|e| failed(&e))
        };
        match ask(&stream, op, None) {
            Ok(CallOutcome::Done(_)) if ends()? => self.without_mount(what, mountpoint),
            Ok(CallOutcome::Done(_)) => Err(Error::new(Kind::TimedOut, what)
                .found(format!("its process {process} running on after it said that it has closed"))
                .expected("the end of its process")),
            Ok(CallOutcome::Refused(e, afterwards)) => {
                if afterwards == AfterFailure::Ends {
                    // The lost data matters more than whether the process exits.
                    let _stays = ends();
                }
                Err(in_words(Error::new(e.kind(), what), &e))
            }
            Ok(CallOutcome::Silent(_)) => Err(let_go_on(Error::new(Kind::TimedOut, what), process)),
            Ok(CallOutcome::Ended | CallOutcome::Malformed) => self.ended(what, ends()?),
            Err(e) if is_gone(&e) => self.ended(what, ends()?),
            Err(e) => Err(failed(&e)),
        }
    }

    /// Connects to it; `None` if it has ended. A server that does not listen any more is about to
    /// end.
    fn reach(&self, what: &str) -> Result<Option<(UnixStream, u32)>> {
        let begun = Instant::now();
        loop {
            match self.socket.connect() {
                Ok(connected) => return Ok(Some(connected)),
                Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
                Err(e) if is_gone(&e) && begun.elapsed() < RELEASE_LIMIT => std::thread::sleep(PAUSE),
                Err(e) if is_gone(&e) => {
                    return Err(Error::new(Kind::Busy, what)
                        .found("a server that takes no clients: it died, or is about to end")
                        .hint("try again; if it died, its user clears away its remains"));
                }
                Err(e) if is_over_time(&e) => {
                    return Err(Error::new(Kind::TimedOut, what).found("a server that accepts no client"));
                }
                Err(e) => return Err(Error::io(what, &e)),
            }
        }
    }

    /// The result of a server that said that it has closed: its mount must be gone.
    fn without_mount(&self, what: &str, mountpoint: Option<&Path>) -> Result<CloseOutcome> {
        let device = mountpoint.map(|at| device_of(at, self.user())).transpose()?.flatten();
        match mountpoint.filter(|_| device.is_some() && device == self.mount) {
            None => Ok(CloseOutcome::Cleanly),
            Some(at) => Err(Error::new(Kind::Other, what)
                .found("its mount still there, though its server said that it has closed")
                .hint(format!("unmount it with `umount {}`", shell_word(at)))),
        }
    }

    /// The result of a server that gave no answer. `has_ended` says whether its process is gone.
    fn ended(&self, what: &str, has_ended: bool) -> Result<CloseOutcome> {
        // A server that closes at the wish of another client removes its run directory.
        if has_ended && self.socket.connect().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            return Ok(CloseOutcome::Cleanly);
        }
        Err(Error::new(Kind::Other, what)
            .found("a server that gave no answer that makes sense")
            .hint("if it died, the disk or vault recovers when it is opened again"))
    }
}

fn status(socket: &UserSocket, until: Instant) -> Result<Option<ServerStatus>> {
    let user = socket.user();
    let nonsense = |found: String| no_answer(user).with_kind(Kind::Other).found(found);
    let (stream, process) = match socket.connect() {
        Err(e) if is_gone(&e) => return Ok(None),
        Err(e) if is_over_time(&e) => {
            return Err(no_answer(user).with_kind(Kind::TimedOut).found("a server that accepts no client"));
        }
        connected => connected.map_err(|e| nonsense(e.to_string()))?,
    };
    let status = match ask(&stream, &ControlOp::Status, Some(until)) {
        Ok(CallOutcome::Done(status)) => status,
        Ok(CallOutcome::Ended) => return Ok(None),
        Err(e) if is_gone(&e) => return Ok(None),
        Ok(CallOutcome::Silent(_)) => {
            return Err(let_go_on(no_answer(user).with_kind(Kind::TimedOut), process));
        }
        Ok(CallOutcome::Refused(e, _)) => return Err(in_words(no_answer(user).with_kind(Kind::Other), &e)),
        Ok(CallOutcome::Malformed) => return Err(nonsense("an invalid answer".to_owned())),
        Err(e) => return Err(nonsense(e.to_string())),
    };
    let mut status: ServerStatus = serde_json::from_value(status).map_err(|e| nonsense(e.to_string()))?;
    if !matches!(status.condition, Condition::Serving | Condition::Closing) {
        return Err(nonsense(format!("a server that says it is {:?}", status.condition)));
    }
    status.record.pid = process;
    Ok(Some(status))
}

/// The device number of the topmost mount at this path, if it is a FUSE mount of this user.
fn device_of(mountpoint: &Path, user: u32) -> Result<Option<String>> {
    let top = mount_table::at(mountpoint)?;
    Ok(top.filter(|top| top.user == Some(user)).map(|top| top.device))
}

fn no_answer(user: u32) -> Error {
    Error::new(Kind::NotFound, format!("no answer from a server of user {user}"))
}

fn let_go_on(e: Error, process: u32) -> Error {
    e.found(format!("a server that does not answer (process {process})"))
        .hint(format!("if the process was stopped, `kill -CONT {process}` resumes it; then try again"))
}

/// Adds to an error the words of the server, which may not be true. A private error stays private.
fn in_words(error: Error, said: &Error) -> Error {
    let words: String = said.text(Term::quoted).line().chars().take(MOST_LETTERS).collect();
    let error = error.found(format!("its server says: {words}"));
    if said.is_confidential() { error.confidential() } else { error }
}

/// Whether no server listens any more.
fn is_gone(e: &io::Error) -> bool {
    let gone = [
        ErrorKind::NotFound,
        ErrorKind::ConnectionRefused,
        ErrorKind::ConnectionReset,
        ErrorKind::BrokenPipe,
    ];
    gone.contains(&e.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_server_are_shown_as_its_own() {
        let said = Error::new(Kind::Busy, "x".repeat(2 * MOST_LETTERS)).found("\u{1b}[2J").confidential();
        let named = in_words(Error::new(said.kind(), "cannot close /mnt of user 7"), &said);
        assert!(named.is_confidential() && named.kind() == Kind::Busy);
        let text = named.to_string();
        assert!(text.starts_with("cannot close /mnt of user 7; found: its server says: xxx"), "{text}");
        assert!(text.len() < 2 * MOST_LETTERS, "{text}");
        let short = in_words(no_answer(7), &Error::new(Kind::Usage, "a\u{1b}[2J\u{202e}b"));
        assert!(
            !short.is_confidential() && short.to_string().ends_with("says: a\\u{1b}[2J\\u{202e}b"),
            "{short}"
        );
    }
}
