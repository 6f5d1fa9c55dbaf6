//! The socket on which a server without a mount point answers: it gives an account of itself as one line of JSON, purges the
//! disk, or closes it. One word in, one line out, as on the control socket of a mounted disk ([`crate::control`]).

use crate::attend::{Attendance, unknown};
use crate::connect;
use crate::control::{self, CLOSE, STATUS, Waiting};
use crate::outcome;
use crate::purge_answer::{self, PurgeRequest};
use crate::run_base::{default_run_base, prepare_base, run_bases};
use crate::run_directory::fnv1a;
use crate::subject::Subject;
use crate::untold::Untold;
use lacuna_core::{ByteDisk, Error, Kind, Naming, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The directory of the sockets in a base of run directories.
const SOCKETS: &str = "serve";
/// How long the server waits for a client that does not read.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// How old a socket must be before it is taken for a dead server's.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// The socket that answers clients. Its file goes when this is dropped, and so does what it holds of the disk.
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
    /// Listens under a name made from `identity`, which tells servers apart. Who asks for the status gets what `account` gives, who
    /// asks for a purge one of `disk`; `naming` gives names to the settings in advice. Who asks for longer work is left to
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
        if serving(identity)?.is_some() {
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
            // Why clients could not be accepted, or what they were not there to hear: those who get through are told.
            let untold = Untold::default();
            loop {
                match accepting.accept() {
                    // A client that misbehaves loses its connection and nothing else happens.
                    Ok((stream, _)) => {
                        let account = || with_trouble(account(), untold.last().as_ref(), naming);
                        _ = serve(stream, (&disk, naming, &untold), &attends, &account, (&*those, &stop));
                    }
                    // Shut down.
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
                    // A system that has, for example, no more file descriptors is left alone for a while.
                    Err(e) => {
                        untold.not_accepted(control::not_accepted(&e));
                        std::thread::sleep(PAUSE);
                    }
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

/// The account of a server whose disk has not failed says what no client was told, if there is anything.
fn with_trouble(mut account: Value, trouble: Option<&Error>, naming: Naming) -> Value {
    if let Some((e, fields)) = trouble.zip(account.as_object_mut())
        && fields.get("last_error").is_none_or(Value::is_null)
    {
        fields.insert("last_error".to_owned(), json!(e.named(naming)));
    }
    account
}

fn serve(
    mut stream: UnixStream,
    (disk, naming, untold): (&ByteDisk, Naming, &Untold),
    attendance: &Attendance,
    account: &impl Fn() -> Value,
    (closing, stop): (&Closing, &impl Fn()),
) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = match control::first_line(&stream) {
        Ok(line) => line,
        Err(refused) => return stream.write_all(outcome::encode(&Err(refused), naming).as_bytes()),
    };
    if let Some(request) = PurgeRequest::parse(&line) {
        let disk = (Arc::new(disk.clone()) as Arc<dyn Subject>, attendance.uuid());
        return purge_answer::answer(stream, &request, disk, naming, untold);
    }
    match line.as_str() {
        CLOSE => {
            // Closing may take long; that somebody heard of it does not.
            stream.write_all(outcome::HEARD)?;
            closing.0.lock().push(Waiting::of(stream, naming));
            stop();
            Ok(())
        }
        STATUS => stream.write_all(format!("{}\n", account()).as_bytes()),
        request if Attendance::is_request(request) => attendance.take(request, stream),
        other => stream.write_all(outcome::encode(&Err(unknown(other)), naming).as_bytes()),
    }
}

/// The sockets of all servers that this user has. Errors: what keeps one of them from being seen.
pub fn sockets() -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for dir in socket_dirs()? {
        let failed = |e: &io::Error| Error::io(format!("cannot look into {}", dir.display()), e);
        let entries = match fs::read_dir(&dir) {
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            entries => entries.map_err(|e| failed(&e))?,
        };
        for entry in entries {
            paths.push(entry.map_err(|e| failed(&e))?.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The socket of the server with this identity, if it listens: it may be one that does not answer. Errors: it cannot be told whether
/// one listens.
pub fn serving(identity: &str) -> Result<Option<PathBuf>> {
    for dir in socket_dirs()? {
        let path = socket_path(&dir, identity);
        if is_listened_at(&path)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// What the server at one of [`sockets`] says. Errors: [`Kind::NotFound`] if it has ended, [`Kind::TimedOut`] if it does not answer.
pub fn account(socket: &Path) -> Result<Value> {
    let what = "cannot ask the server of a disk";
    ask(socket).map_err(|e| match has_ended(socket, &e) {
        Ok(true) => Error::new(Kind::NotFound, what).found(e.to_string()),
        Ok(false) | Err(_) => no_answer(socket, what, &e),
    })
}

/// The sockets of all servers of this user that answer, with what they say. Errors: what keeps one of them from being asked.
pub fn answers() -> Result<Vec<(PathBuf, Value)>> {
    let mut answers = Vec::new();
    for path in sockets()? {
        match account(&path) {
            Ok(account) => answers.push((path, account)),
            // It has ended; or it was stopped, and is known by its name alone.
            Err(e) if matches!(e.kind(), Kind::NotFound | Kind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(answers)
}

/// What all servers answer that this user has. `silent` gets the sockets of those that do not answer; of one that is there all the
/// same, as one is that was stopped, there is an account with `silent` in it, and its process as `pid`. Errors: what keeps one of
/// them from being seen.
pub fn accounts(mut silent: impl FnMut(&Path, &io::Error)) -> Result<Vec<Value>> {
    let mut accounts = Vec::new();
    for path in sockets()? {
        let e = match ask(&path) {
            Ok(account) => {
                accounts.push(account);
                continue;
            }
            Err(e) => e,
        };
        if e.kind() == io::ErrorKind::ConnectionRefused && is_old(&path) {
            // Nobody listens any more: its server died.
            let _ = fs::remove_file(&path);
        }
        silent(&path, &e);
        if !has_ended(&path, &e)? {
            accounts.push(json!({ "front": "nbd", "silent": true, "pid": connect::process_at(&path) }));
        }
    }
    Ok(accounts)
}

/// Whether a server that gave no answer is not there any more.
fn has_ended(path: &Path, e: &io::Error) -> Result<bool> {
    match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Ok(true),
        // It left in the middle of its answer, or it lives and fails to give one.
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected => Ok(!is_listened_at(path)?),
        _ => Ok(false),
    }
}

fn is_listened_at(path: &Path) -> Result<bool> {
    let what = || format!("cannot tell whether a server listens at {}", path.display());
    connect::is_listened_at(path).map_err(|e| Error::io(what(), &e))
}

/// Ends the server that listens at one of [`sockets`], and waits until its disk is closed.
///
/// Errors: whatever failure the server had at its end; [`Kind::TimedOut`] if it does not answer.
pub fn close_served(socket: &Path) -> Result<()> {
    let gone = |e: &io::Error| matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound);
    let location = match ask(socket) {
        Ok(account) => account["location"].as_str().unwrap_or("what is served").to_owned(),
        Err(e) if gone(&e) => return Ok(()),
        Err(e) => return Err(no_answer(socket, "cannot close what is served", &e)),
    };
    let what = format!("cannot close {location}");
    let failed = |found: &str| Error::new(Kind::Other, &what).found(found);
    match control::ask(socket, CLOSE) {
        // It ended by itself at this moment.
        Ok(line) if line.is_empty() && !socket.try_exists().unwrap_or(true) => Ok(()),
        Ok(line) if line.is_empty() => Err(failed("a server that ended without a word")
            .remedy("open the disk again, which repairs what a crash left")),
        Ok(line) => match outcome::decode(&line) {
            Some(closed) => closed.map_err(|e| e.context(&what)),
            None => Err(failed("an answer that makes no sense")),
        },
        Err(e) if gone(&e) => Ok(()),
        Err(e) => Err(no_answer(socket, &what, &e)),
    }
}

fn no_answer(socket: &Path, what: &str, e: &io::Error) -> Error {
    let error = Error::new(Kind::TimedOut, what);
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
    let answer = control::ask(path, STATUS)?;
    match outcome::refusal(&answer) {
        Some(refused) => Err(io::Error::other(refused)),
        None => Ok(serde_json::from_str(&answer)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_core::{Status, Term};
    use lacuna_testkit::Unasked;
    use std::io::{BufRead, BufReader};
    use std::net::Shutdown;

    fn stop() {
        panic!("no client asked for the end");
    }

    /// What the server answers to a client that says this, and then ends, or is silent.
    fn answer(said: &[u8], ends: bool) -> String {
        let disk = ByteDisk::new(Arc::new(Unasked(Status::default)));
        let attendance = Attendance::of(None, Arc::new(|| Ok(())), Term::quoted);
        let (untold, closing) = (Untold::default(), Closing::default());
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(said).unwrap();
        if ends {
            client.shutdown(Shutdown::Write).unwrap();
        }
        let account = || json!({ "location": "a.img" });
        serve(server, (&disk, Term::quoted, &untold), &attendance, &account, (&closing, &stop)).unwrap();
        let mut line = String::new();
        BufReader::new(client).read_line(&mut line).unwrap();
        line
    }

    #[test]
    fn only_a_client_that_asks_for_the_status_gets_it() {
        assert_eq!(answer(b"status\n", false), "{\"location\":\"a.img\"}\n");
        let refused = |said: &[u8], ends| {
            let line = answer(said, ends);
            outcome::refusal(&line).unwrap_or_else(|| panic!("{said:?}: {line}")).kind()
        };
        assert_eq!(refused(b"", false), Kind::TimedOut);
        let long = [b'7'; 1000];
        for said in [&b""[..], b"status", b"close", b"\n", b"state\n", b"{}\n", b"\xff\xfe\n", &long] {
            assert_eq!(refused(said, true), Kind::Usage, "{said:?}");
        }
    }
}
