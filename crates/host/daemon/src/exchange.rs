//! The side of the server: the line on which it answers one client, and the messages of a job.

use crate::protocol::{ALIVE, Answer, message, read_line};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_mount::Follow;
use parking_lot::Mutex;
use serde_json::Value;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a server waits for a client that does not read its answer.
const ANSWER_READ_WITHIN: Duration = Duration::from_secs(5);
/// How long it waits for one that does not read the messages of a job.
const MESSAGE_READ_WITHIN: Duration = Duration::from_secs(600);
/// How often a server says that it is still at work.
const BEAT: Duration = Duration::from_secs(1);

/// The connection to one client, which several threads may use at once.
pub(crate) struct Line {
    stream: UnixStream,
    /// Held while bytes are sent.
    sending: Mutex<()>,
    ended: AtomicBool,
}

impl Line {
    /// Errors: whatever the system says.
    pub(crate) fn new(stream: UnixStream) -> io::Result<Arc<Line>> {
        stream.set_write_timeout(Some(ANSWER_READ_WITHIN))?;
        Ok(Arc::new(Line { stream, sending: Mutex::new(()), ended: AtomicBool::new(false) }))
    }

    /// Gives the client the time to read that a job needs. Errors: whatever the system says.
    pub(crate) fn set_for_job(&self) -> Result<()> {
        let set = self.stream.set_write_timeout(Some(MESSAGE_READ_WITHIN));
        set.map_err(|e| Error::io("cannot send messages to the client", &e))
    }

    /// Sends bytes. A client that does not take them has left, as far as this side knows.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let _sending = self.sending.lock();
        if (&self.stream).write_all(bytes).is_err() {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Sends an answer.
    pub(crate) fn answer(&self, answer: &Answer) {
        self.send(answer.line().as_bytes());
    }

    /// Whether the client has left, or the server has ended the exchange.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends the exchange: a thread that waits for the client is woken.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Lets the client see the end, though others keep the connection at hand.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Lets a client know every second that the server is at work for it, until this is dropped.
pub(crate) struct Beats {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Beats {
    /// Begins. Where no thread can be started, a client may lose patience with slow work, and no more.
    pub(crate) fn start(line: &Arc<Line>) -> Beats {
        let (done, working) = channel::<()>();
        let line = Arc::clone(line);
        let beat = move || {
            while !line.has_ended() && working.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                line.send(ALIVE);
            }
        };
        let thread = std::thread::Builder::new().name("lacuna-beat".into()).spawn(beat).ok();
        Beats { done: Some(done), thread }
    }
}

impl Drop for Beats {
    fn drop(&mut self) {
        drop(self.done.take());
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// Reads what the client of a line sends.
struct Words(Arc<Line>);

impl Read for Words {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        (&self.0.stream).read(bytes)
    }
}

/// The messages that belong to one request.
pub struct Exchange {
    reader: BufReader<Words>,
    line: Arc<Line>,
    follow: Follow,
}

impl Exchange {
    pub(crate) fn new(line: Arc<Line>, follow: Follow) -> Self {
        Exchange { reader: BufReader::new(Words(Arc::clone(&line))), line, follow }
    }

    /// Sends a message. Errors: those of [`Exchange::go_on`].
    pub fn tell(&self, said: &Value) -> Result<()> {
        self.line.send(message(said).as_bytes());
        self.go_on()
    }

    /// The next message of the client; none when it has left, or when the server ends the work, which wakes this. Errors:
    /// [`Kind::TimedOut`] after `limit`, [`Kind::Usage`] for a line that is no message.
    pub fn hear(&mut self, limit: Duration) -> Result<Option<Value>> {
        self.go_on()?;
        let failed = |e: &io::Error| Error::io("cannot read what the client says", e);
        self.line.stream.set_read_timeout(Some(limit)).map_err(|e| failed(&e))?;
        match read_line(&mut self.reader) {
            Ok(line) if line.is_empty() => Ok(None),
            Ok(line) => serde_json::from_slice(&line).map(Some).map_err(|e| {
                Error::new(Kind::Usage, "cannot do what the client says")
                    .found(format!("a line that is no JSON ({e})"))
            }),
            Err(e) => Err(match e.kind() {
                ErrorKind::WouldBlock => Error::new(Kind::TimedOut, "the client waited too long")
                    .found(format!("silence for {} seconds", limit.as_secs()))
                    .remedy("give the command again"),
                _ => failed(&e),
            }),
        }
    }

    /// Errors: the client has left, or the server is about to close the disk.
    pub fn go_on(&self) -> Result<()> {
        if !self.line.has_ended() {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, "the work was given up")
            .found("a disk that is being closed, or a client that has left"))
    }

    /// Tells the front end that the disk may have another length.
    pub fn follow(&self) -> Result<()> {
        (self.follow)()
    }
}
