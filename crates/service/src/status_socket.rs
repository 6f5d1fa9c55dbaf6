//! The socket on which a server without a mount point gives an account of itself: it answers every connection with one JSON
//! document, unless the client asks for something else: to purge the disk, or to close it.

use crate::attend::Attendance;
use crate::connect;
use crate::control::{self, CLOSE, WORD_LIMIT, Waiting};
use crate::outcome;
use crate::purge_answer::{self, PURGE};
use crate::run_base::{default_run_base, prepare_base, run_bases};
use crate::run_directory::fnv1a;
use lacuna_core::{ByteDisk, Error, Kind, Naming, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The directory of the sockets in a base of run directories.
const SOCKETS: &str = "serve";
/// Longest answer that is read.
const LIMIT: u64 = 1 << 20;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client has that says nothing, as those of older versions do, who want the account.
const SILENCE: Duration = Duration::from_millis(100);
/// How old a socket must be before it is taken for a dead server's.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// The socket that answers every connection with one JSON document. Its file goes when this is dropped, and so does
/// what it holds of the disk.
pub struct StatusSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    attendance: Attendance,
    closing: Arc<Closing>,
}

/// Those who asked for the end, and wait for it.
#[derive(Default)]
struct Closing(Mutex<Vec<Waiting>>);

impl StatusSocket {
    /// Listens under a name made from `identity`, which tells servers apart, and answers with what `account` gives. Who asks
    /// for a purge gets one of `disk`; `naming` gives names to the settings in advice. Who asks for longer work is left to
    /// `attendance`. `stop` is called when a client asks for the end; it waits until [`StatusSocket::end`] hands it out and it is
    /// answered.
    ///
    /// Errors: [`Kind::Busy`] if a server of this identity answers already, [`Kind::Permission`] if the directory of the
    /// sockets can be changed by others, and whatever the system says.
    pub fn start(
        identity: &str,
        (disk, naming): (ByteDisk, Naming),
        attendance: Attendance,
        account: impl Fn() -> Value + Send + 'static,
        stop: impl Fn() + Send + 'static,
    ) -> Result<Self> {
        let base = default_run_base()?;
        let dir = base.join(SOCKETS);
        let failed = |e: &io::Error| Error::io(format!("cannot listen in {}", dir.display()), e);
        prepare_base(&base)?;
        prepare_base(&dir)?;
        let path = socket_path(&dir, identity);
        // Two servers share a location only if both read; the first one keeps the name.
        if answering(identity)?.is_some() {
            return Err(Error::new(Kind::Busy, "another server of this location answers already"));
        }
        let _ = fs::remove_file(&path);
        let listener = Arc::new(UnixListener::bind(&path).map_err(|e| failed(&e))?);
        let accepting = Arc::clone(&listener);
        let thread = std::thread::Builder::new().name("lacuna-status".into());
        let attends = attendance.clone();
        let closing = Arc::new(Closing::default());
        let those = Arc::clone(&closing);
        let answer = move || {
            loop {
                match accepting.accept() {
                    // A client that misbehaves loses its connection and nothing else happens.
                    Ok((stream, _)) => {
                        _ = serve(stream, (&disk, naming), &attends, &account, (&*those, &stop));
                    }
                    // Shut down.
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
                    // A system that has, for example, no more file descriptors is left alone for a while.
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        };
        let thread = thread.spawn(answer).map_err(|e| failed(&e))?;
        Ok(StatusSocket { path, listener, thread: Some(thread), attendance, closing })
    }

    /// Ends the work for clients and refuses more; who asks for the account is answered. Returns when no such work uses the disk
    /// any more.
    pub fn end_work(&self) {
        self.attendance.end();
    }

    /// Stops listening, and gives those who wait to hear that the disk is closed.
    pub fn end(self) -> Vec<Waiting> {
        let closing = Arc::clone(&self.closing);
        drop(self);
        std::mem::take(&mut *closing.0.lock())
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Wakes the thread. One that cannot be woken ends with the process.
        if rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _panicked = thread.join();
        }
        self.attendance.end();
    }
}

fn serve(
    mut stream: UnixStream,
    (disk, naming): (&ByteDisk, Naming),
    attendance: &Attendance,
    account: &impl Fn() -> Value,
    (closing, stop): (&Closing, &impl Fn()),
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut word = String::new();
    let said = BufReader::new((&stream).take(WORD_LIMIT)).read_line(&mut word);
    let first = word.trim_end();
    if said.is_ok() && first == PURGE {
        return purge_answer::answer(stream, Arc::new(disk.clone()), naming);
    }
    if said.is_ok() && Attendance::is_request(first) {
        if !word.ends_with('\n') {
            // What was cut off might be the end of a number.
            return Err(io::ErrorKind::InvalidData.into());
        }
        return attendance.take(first, stream);
    }
    if said.is_ok() && word.trim_end() == CLOSE {
        // Closing may take long; that somebody heard of it does not.
        stream.write_all(outcome::HEARD)?;
        closing.0.lock().push(Waiting::of(stream, naming));
        stop();
        return Ok(());
    }
    stream.write_all(account().to_string().as_bytes())
}

/// The sockets of all servers that this user has.
pub fn sockets() -> Vec<PathBuf> {
    let entries = socket_dirs().unwrap_or_default().into_iter().flat_map(fs::read_dir).flatten();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    paths
}

/// The socket of the server with this identity, if it listens: it may be one that does not answer.
pub fn serving(identity: &str) -> Option<PathBuf> {
    answering(identity).ok().flatten()
}

/// What the server at one of [`sockets`] says, if it answers.
pub fn account(socket: &Path) -> Option<Value> {
    ask(socket).ok()
}

/// The sockets of all servers of this user that answer, with what they say.
pub fn answers() -> Vec<(PathBuf, Value)> {
    sockets().into_iter().filter_map(|path| ask(&path).ok().map(|account| (path, account))).collect()
}

/// What all servers answer that this user has. `silent` gets the sockets of those that do not answer; of one that listens all the
/// same, as one does that was stopped, there is an account with `silent` in it, and its process as `pid`.
pub fn accounts(mut silent: impl FnMut(&Path, &io::Error)) -> Vec<Value> {
    let answers = sockets().into_iter().filter_map(|path| match ask(&path) {
        Ok(answer) => Some(answer),
        Err(e) => {
            if e.kind() == io::ErrorKind::ConnectionRefused && is_old(&path) {
                // Nobody listens any more: its server died.
                let _ = fs::remove_file(&path);
            }
            silent(&path, &e);
            // What a read says that took too long.
            let waited = matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
            waited.then(|| json!({ "front": "nbd", "silent": true, "pid": connect::process_at(&path) }))
        }
    });
    answers.collect()
}

/// Ends the server that listens at one of [`sockets`], and waits until its disk is closed.
///
/// Errors: whatever failure the server had at its end; [`Kind::TimedOut`] if it does not answer, [`Kind::Other`] from a server of
/// an older version, which goes on.
pub fn close_served(socket: &Path) -> Result<()> {
    let gone = |e: &io::Error| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
    let location = match ask(socket) {
        Ok(account) => account["location"].as_str().unwrap_or("what is served").to_owned(),
        Err(e) if gone(&e) => return Ok(()),
        Err(e) => return Err(no_answer(socket, "what is served", &e)),
    };
    let failed = |found: &str| Error::new(Kind::Other, format!("cannot close {location}")).found(found);
    match control::ask(socket, CLOSE) {
        // It ended by itself at this moment.
        Ok(line) if line.is_empty() && !socket.exists() => Ok(()),
        Ok(line) if line.is_empty() => Err(failed("a server that ended without a word")
            .remedy("open the disk again, which repairs what a crash left")),
        Ok(line) => match outcome::decode(&line) {
            Some(closed) => closed.map_err(|e| e.context(format!("cannot close {location}"))),
            None => Err(failed("a server of an older version").remedy(match connect::process_at(socket) {
                Some(pid) => format!("`kill {pid}` ends it once everything is on the medium"),
                None => "end it by a signal TERM".to_owned(),
            })),
        },
        Err(e) if gone(&e) => Ok(()),
        Err(e) => Err(no_answer(socket, &location, &e)),
    }
}

fn no_answer(socket: &Path, location: &str, e: &io::Error) -> Error {
    let error = Error::new(Kind::TimedOut, format!("cannot close {location}"));
    if !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return error.with_kind(Kind::Other).found(e.to_string());
    }
    let (found, go_on) = match connect::process_at(socket) {
        Some(pid) => (format!(" (process {pid})"), format!("`kill -CONT {pid}` lets it go on")),
        None => (String::new(), "let it go on (`kill -CONT`)".to_owned()),
    };
    error
        .found(format!("a server that does not answer{found}"))
        .expected("an answer within 5 seconds")
        .remedy(format!("if the process was stopped, {go_on}; then try again"))
}

/// Where the sockets of this user's servers may be.
fn socket_dirs() -> Result<Vec<PathBuf>> {
    Ok(run_bases()?.into_iter().map(|base| base.join(SOCKETS)).collect())
}

/// The socket of a server with this identity that listens.
fn answering(identity: &str) -> Result<Option<PathBuf>> {
    let mut paths = socket_dirs()?.into_iter().map(|dir| socket_path(&dir, identity));
    Ok(paths.find(|path| connect::is_listened_at(path)))
}

/// The socket of the server with this identity; where it would be, if none listens.
pub(crate) fn path_of(identity: &str) -> Result<PathBuf> {
    let usual = || default_run_base().map(|base| socket_path(&base.join(SOCKETS), identity));
    answering(identity)?.map_or_else(usual, Ok)
}

/// A short name for an identity: the path of a socket has room for 107 bytes.
fn socket_path(dir: &Path, identity: &str) -> PathBuf {
    dir.join(format!("{:016x}.sock", fnv1a(identity.as_bytes())))
}

/// Whether it is a socket, and older than the moment that a server needs between making it and listening on it.
fn is_old(path: &Path) -> bool {
    let meta = fs::symlink_metadata(path).ok().filter(|meta| meta.file_type().is_socket());
    let made = meta.and_then(|meta| meta.modified().ok());
    made.and_then(|made| made.elapsed().ok()).is_some_and(|age| age > STALE_AFTER)
}

fn ask(path: &Path) -> io::Result<Value> {
    let stream = connect::to_server(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // So the server need not wait for a word.
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(LIMIT).read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
