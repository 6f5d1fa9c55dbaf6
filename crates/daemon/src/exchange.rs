//! Messages between a server and a client that asked for longer work: lines of JSON, both ways.
//!
//! The client begins with the line `request/1 WHAT`. The server answers with empty lines for as long as it works, one a
//! second, so that a client can tell slow work from a server that was stopped; with a line for each message; and with one
//! last line, the outcome. A client says nothing before it has read the first empty line.
//!
//! Nothing from the other side is longer than [`LINE_LIMIT`], and nothing of it makes this side panic.

use crate::connect;
use crate::outcome::{self, HEARD};
use lacuna_core::{Action, Advice, Error, Kind, Result};
use lacuna_mount::Follow;
use parking_lot::Mutex;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What requests of any version begin with.
pub(crate) const REQUEST: &str = "request/";
/// The version of these messages.
pub(crate) const VERSION: &str = "1";
/// The longest line that is read: two copies of a header, written in hexadecimal digits, fit.
pub(crate) const LINE_LIMIT: u64 = 1 << 17;
/// How often a server says that it is still at work.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// How long a client waits for the first word of the server.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// How long it waits for a sign of life while the server works.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a server waits for a client that does not read.
const PATIENCE: Duration = Duration::from_secs(600);

/// The side of the server that others may use beside the one who answers.
pub(crate) struct Line {
    stream: Mutex<UnixStream>,
    ended: AtomicBool,
}

impl Line {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Arc<Line>> {
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Arc::new(Line { stream: Mutex::new(stream), ended: AtomicBool::new(false) }))
    }

    /// Sends bytes. A client that does not take them is gone from then on.
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

    /// Ends the exchange: who waits for the other side is woken.
    pub(crate) fn end(&self, way_out: &UnixStream) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = way_out.shutdown(Shutdown::Both);
    }
}

/// The messages that belong to one request, as a server has them.
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
    pub fn tell(&self, message: &Value) -> Result<()> {
        self.line.send(format!("{message}\n").as_bytes());
        self.go_on()
    }

    /// The next message of the client; none when it has left. Errors: [`Kind::TimedOut`] after `limit`, [`Kind::Usage`]
    /// for what is no message.
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

/// What a client hears.
pub enum Heard {
    /// A message; the work goes on.
    Message(Value),
    /// The work is done.
    Done(Value),
}

/// The messages that belong to one request, as a client has them. Dropping it ends the work.
pub struct Conversation {
    reader: BufReader<UnixStream>,
    server: String,
    /// How long the server may be silent.
    limit: Duration,
}

impl Conversation {
    /// Asks the server at the socket `path`, which errors call `server`, to begin with `request`: words, no longer than a line.
    pub(crate) fn begin(path: &Path, request: &str, server: String) -> Result<Self> {
        let failed = |e: &io::Error| match e.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                Error::new(Kind::TimedOut, format!("no answer from {server}"))
                    .found("a server that accepts nobody")
                    .remedy("if the process was stopped, let it go on (`kill -CONT`); then try again")
            }
            _ => Error::new(Kind::Busy, format!("cannot reach {server}"))
                .found(e.to_string())
                .remedy("try again"),
        };
        let mut stream = connect::to_server(path).map_err(|e| failed(&e))?;
        stream.set_read_timeout(Some(FIRST_WORD)).map_err(|e| failed(&e))?;
        stream.set_write_timeout(Some(SILENCE)).map_err(|e| failed(&e))?;
        stream.write_all(format!("{REQUEST}{VERSION} {request}\n").as_bytes()).map_err(|e| failed(&e))?;
        let mut conversation = Conversation { reader: BufReader::new(stream), server, limit: FIRST_WORD };
        match conversation.line()? {
            line if line == HEARD => {
                conversation.limit = SILENCE;
                let stream = conversation.reader.get_ref();
                stream.set_read_timeout(Some(SILENCE)).map_err(|e| conversation.failed(&e))?;
                Ok(conversation)
            }
            line => match outcome::decode(&String::from_utf8_lossy(&line)) {
                Some(Err(refused)) => Err(refused),
                _ => Err(conversation.nonsense("none that makes sense")),
            },
        }
    }

    /// Waits for the next message. Errors: what the server says went wrong; [`Kind::TimedOut`] if it says nothing, not even that
    /// it is at work.
    pub fn hear(&mut self) -> Result<Heard> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Err(Error::new(Kind::Other, format!("no answer from {}", self.server))
                    .found("a server that ended before it had done what it was asked")
                    .remedy(
                        Advice::from("see with ")
                            .action(Action("status"))
                            .text(" whether the disk is open, and try again"),
                    ));
            }
            if line == HEARD {
                continue;
            }
            let text = String::from_utf8_lossy(&line);
            if let Some(outcome) = outcome::decode_items(&text) {
                let answer = outcome?.into_iter().next();
                return answer.map(Heard::Done).ok_or_else(|| self.nonsense("an outcome without an answer"));
            }
            return serde_json::from_str(&text)
                .map(Heard::Message)
                .map_err(|e| self.nonsense(&format!("a line that is no JSON ({e})")));
        }
    }

    /// Sends a message.
    pub fn say(&mut self, message: &Value) -> Result<()> {
        let said = self.reader.get_mut().write_all(format!("{message}\n").as_bytes());
        said.map_err(|e| self.failed(&e))
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        read_line(&mut self.reader).map_err(|e| self.failed(&e))
    }

    fn failed(&self, e: &io::Error) -> Error {
        match e.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let process = connect::process_behind(self.reader.get_ref())
                    .map_or(String::new(), |number| format!(" {number}"));
                Error::new(Kind::TimedOut, format!("no answer from {}", self.server))
                    .found(format!("silence for {} seconds", self.limit.as_secs()))
                    .expected("a sign of life every second")
                    .remedy(format!(
                        "if the process was stopped, `kill -CONT{process}` lets it go on; then try again"
                    ))
            }
            _ => self.nonsense(&e.to_string()),
        }
    }

    fn nonsense(&self, found: &str) -> Error {
        Error::new(Kind::Other, format!("no answer from {}", self.server)).found(found)
    }
}

/// A line with its end; empty when the other side has left. Errors: [`ErrorKind::InvalidData`] for one that is too long or
/// was cut short.
fn read_line(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.take(LINE_LIMIT).read_until(b'\n', &mut line)?;
    if line.is_empty() || line.last() == Some(&b'\n') {
        return Ok(line);
    }
    Err(io::Error::new(ErrorKind::InvalidData, "a line that is too long or has no end"))
}
