//! The socket on which a server without a mount point gives an account of itself: it answers every connection with one JSON
//! document, unless the client asks for something else.

use crate::attend::Attendance;
use crate::purge_answer::{self, PURGE};
use crate::run_directory::{default_run_base, fnv1a};
use lacuna_core::{ByteDisk, Error, Kind, Naming, Result};
use serde_json::Value;
use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest answer that is read.
const LIMIT: u64 = 1 << 20;
/// How long one side waits for the other.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client has that says nothing, as those of older versions do, who want the account.
const SILENCE: Duration = Duration::from_millis(100);
/// Longest word that is read.
const WORD_LIMIT: u64 = 64;
/// How old a socket must be before it is taken for a dead server's.
const STALE_AFTER: Duration = Duration::from_secs(10);

/// The socket that answers every connection with one JSON document. Its file goes when this is dropped, and so does
/// what it holds of the disk.
pub struct StatusSocket {
    path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    attendance: Attendance,
}

impl StatusSocket {
    /// Listens under a name made from `identity`, which tells servers apart, and answers with what `account` gives. Who asks
    /// for a purge gets one of `disk`; `naming` gives names to the settings in advice. Who asks for longer work is left to
    /// `attendance`.
    ///
    /// Errors: [`Kind::Busy`] if a server of this identity answers already, [`Kind::Permission`] if the directory of the
    /// sockets is another user's, and whatever the system says.
    pub fn start(
        identity: &str,
        (disk, naming): (ByteDisk, Naming),
        attendance: Attendance,
        account: impl Fn() -> Value + Send + 'static,
    ) -> Result<Self> {
        let dir = socket_dir()?;
        let failed = |e: &io::Error| Error::io(format!("cannot listen in {}", dir.display()), e);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| failed(&e))?;
        let owner = fs::metadata(&dir).map_err(|e| failed(&e))?.uid();
        if owner != rustix::process::geteuid().as_raw() {
            return Err(Error::new(Kind::Permission, format!("cannot use {}", dir.display()))
                .found(format!("a directory of user {owner}")));
        }
        let path = socket_path(&dir, identity);
        // Two servers share a location only if both read; the first one keeps the name.
        if UnixStream::connect(&path).is_ok() {
            return Err(Error::new(Kind::Busy, "another server of this location answers already"));
        }
        let _ = fs::remove_file(&path);
        let listener = Arc::new(UnixListener::bind(&path).map_err(|e| failed(&e))?);
        let accepting = Arc::clone(&listener);
        let thread = std::thread::Builder::new().name("lacuna-status".into());
        let attends = attendance.clone();
        let answer = move || {
            loop {
                match accepting.accept() {
                    // A client that misbehaves loses its connection and nothing else happens.
                    Ok((stream, _)) => _ = serve(stream, (&disk, naming), &attends, &account),
                    // Shut down.
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
                    // A system that has, for example, no more file descriptors is left alone for a while.
                    Err(_) => std::thread::sleep(PAUSE),
                }
            }
        };
        let thread = thread.spawn(answer).map_err(|e| failed(&e))?;
        Ok(StatusSocket { path, listener, thread: Some(thread), attendance })
    }

    /// Ends the work for clients and refuses more; who asks for the account is answered. Returns when no such work uses the disk
    /// any more.
    pub fn end_work(&self) {
        self.attendance.end();
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
        return attendance.take(first, stream);
    }
    stream.write_all(account().to_string().as_bytes())
}

/// What all servers answer that this user has and that answer. `silent` gets the sockets of those that do not.
pub fn accounts(mut silent: impl FnMut(&Path, &io::Error)) -> Vec<Value> {
    let Ok(dir) = socket_dir() else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.sort();
    let answers = paths.into_iter().filter_map(|path| match ask(&path) {
        Ok(answer) => Some(answer),
        Err(e) => {
            if e.kind() == io::ErrorKind::ConnectionRefused && is_old(&path) {
                // Nobody listens any more: its server died.
                let _ = fs::remove_file(&path);
            }
            silent(&path, &e);
            None
        }
    });
    answers.collect()
}

fn socket_dir() -> Result<PathBuf> {
    default_run_base().map(|base| base.join("serve"))
}

/// The socket of the server with this identity.
pub(crate) fn path_of(identity: &str) -> Result<PathBuf> {
    socket_dir().map(|dir| socket_path(&dir, identity))
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
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // So the server need not wait for a word.
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.take(LIMIT).read_to_string(&mut answer)?;
    Ok(serde_json::from_str(&answer)?)
}
