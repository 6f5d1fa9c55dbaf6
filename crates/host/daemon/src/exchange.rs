//! The messages of longer work, as the server has them.

use crate::protocol::{message, read_line};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_mount::Follow;
use parking_lot::Mutex;
use serde_json::Value;
use std::io::{self, BufReader, ErrorKind, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a server waits for a client that does not read.
const PATIENCE: Duration = Duration::from_secs(600);

/// The side of the server that others may use beside the thread that works.
pub(crate) struct Line {
    stream: Mutex<UnixStream>,
    ended: AtomicBool,
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Arc<Line>> {
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Arc::new(Line { stream: Mutex::new(stream), ended: AtomicBool::new(false) }))
    }

    /// Sends bytes. A client that does not take them has left, as far as this side knows.
    pub(crate) fn send(&self, bytes: &[u8]) {
        if self.stream.lock().write_all(bytes).is_err() {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Nothing more is said: the other side sees the end, though this one keeps the connection at hand to end the work.
    pub(crate) fn close(&self) {
        let _ = self.stream.lock().shutdown(Shutdown::Both);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends the exchange: a thread that waits for the other side is woken.
    pub(crate) fn end(&self, way_out: &UnixStream) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = way_out.shutdown(Shutdown::Both);
    }
}

/// The messages that belong to one request.
pub struct Exchange {
    reader: BufReader<UnixStream>,
    line: Arc<Line>,
    follow: Follow,
}

impl Exchange {
    pub(crate) fn new(stream: UnixStream, line: Arc<Line>, follow: Follow) -> Self {
        Exchange { reader: BufReader::new(stream), line, follow }
    }

    /// Sends a message. Errors: those of [`Exchange::go_on`].
    pub fn tell(&self, said: &Value) -> Result<()> {
        self.line.send(message(said).as_bytes());
        self.go_on()
    }

    /// The next message of the client; none when it has left. Errors: [`Kind::TimedOut`] after `limit`, [`Kind::Usage`]
    /// for a line that is no message.
    pub fn hear(&mut self, limit: Duration) -> Result<Option<Value>> {
        self.go_on()?;
        let failed = |e: &io::Error| Error::io("cannot read what the client says", e);
        self.reader.get_ref().set_read_timeout(Some(limit)).map_err(|e| failed(&e))?;
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
