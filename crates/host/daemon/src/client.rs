//! The client side: connects to the control socket of a server that may not answer, sends a
//! request, and reads the outcome.

pub(crate) mod disk_query;
pub(crate) mod other_process;
pub(crate) mod peer;
pub(crate) mod purge;
pub(crate) mod takeover;

use crate::protocol::{AfterFailure, ControlOp, Job, KEEPALIVE, ServerAnswer, read_line};
use lacuna_contracts::{Action, Error, Hint, Kind, Result, SocketPeer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::Value;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to retry while the server's accept backlog is full.
const UNACCEPTED: Duration = Duration::from_secs(1);
/// The time between two connection attempts.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a client waits for the first line of the server.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client waits for the next keepalive of a working server, which sends one every
/// second.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects without blocking. Errors: [`ErrorKind::TimedOut`] if the accept backlog stays full. The
/// backlog of a stopped server never drains, and a blocking connect would wait for ever.
pub(crate) fn connect_with_timeout(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let begun = Instant::now();
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if begun.elapsed() < UNACCEPTED => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The number of the process that listens at the other end, if the system reports it.
fn peer_pid(stream: &UnixStream) -> Option<u32> {
    SocketPeer::of(stream).ok()?.process
}

/// The outcome of a request.
pub(crate) enum CallOutcome {
    /// The server did it.
    Done(Value),
    /// The server refused or failed; [`AfterFailure`] says whether it ends.
    Refused(Error, AfterFailure),
    /// The server ended without an answer.
    Ended,
    /// The server sent nothing for this long: it was stopped, or accepts no client.
    Silent(Duration),
    /// The server sent a line that is not a valid answer.
    Malformed,
}

/// The duration of a silence as text for errors.
pub(crate) fn silence(limit: Duration) -> String {
    match limit.as_secs() {
        1 => "silence for 1 second".to_owned(),
        seconds => format!("silence for {seconds} seconds"),
    }
}

/// Whether a read or a connect timed out.
pub(crate) fn is_over_time(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Sends a request to the server at the socket `path` and waits for the outcome. There is no time
/// limit while the server sends keepalives.
///
/// Errors: the server cannot be reached.
pub(crate) fn call(path: &Path, op: &ControlOp) -> io::Result<CallOutcome> {
    call_over(connect_with_timeout(path), op)
}

/// [`call`] over this connection.
pub(crate) fn call_over(stream: io::Result<UnixStream>, op: &ControlOp) -> io::Result<CallOutcome> {
    match stream {
        Err(e) if is_over_time(&e) => Ok(CallOutcome::Silent(UNACCEPTED)),
        stream => ask(&stream?, op, None),
    }
}

/// Sends a request and waits for the outcome. `until` ends the wait even if the server sends
/// keepalives; without it there is no time limit while the server sends them.
///
/// Errors: those of the connection.
pub(crate) fn ask(
    mut stream: &UnixStream,
    op: &ControlOp,
    until: Option<Instant>,
) -> io::Result<CallOutcome> {
    let line = op.line().map_err(io::Error::other)?;
    let mut limit = FIRST_REPLY_TIMEOUT;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(line.as_bytes())?;
    let mut reader = BufReader::new(AnswerReader { stream, until });
    loop {
        let line = match read_line(&mut reader) {
            // The line was cut short.
            Err(e) if e.kind() == ErrorKind::InvalidData => return Ok(CallOutcome::Ended),
            Err(e) if is_over_time(&e) => return Ok(CallOutcome::Silent(limit)),
            line => line?,
        };
        if line == KEEPALIVE {
            limit = KEEPALIVE_TIMEOUT;
            stream.set_read_timeout(Some(limit))?;
            continue;
        }
        return Ok(match ServerAnswer::parse(&line) {
            Some(ServerAnswer::Ok(value)) => CallOutcome::Done(value),
            Some(ServerAnswer::Error { refusal, server }) => CallOutcome::Refused(refusal.error(), server),
            None if line.is_empty() => CallOutcome::Ended,
            Some(ServerAnswer::Message(_)) | None => CallOutcome::Malformed,
        });
    }
}

/// Reads the answers of a server. After the moment `until` every read has timed out, however slowly
/// the server sends.
struct AnswerReader<'s> {
    stream: &'s UnixStream,
    until: Option<Instant>,
}

impl Read for AnswerReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
        }
        let mut stream = self.stream;
        stream.read(into)
    }
}

/// A message or the outcome of a job.
pub enum JobReply {
    /// A message; the job goes on.
    Message(Value),
    /// The job is done.
    Done(Value),
}

/// The client's end of a job. Dropping it ends the job.
pub struct JobClient {
    reader: BufReader<UnixStream>,
    server: String,
    /// How long the server may be silent.
    limit: Duration,
}

impl JobClient {
    /// Sends the request over this connection to a server; errors call it `server`.
    pub(crate) fn begin(stream: io::Result<UnixStream>, job: &Job, server: String) -> Result<Self> {
        let failed = |e: &io::Error| {
            if is_over_time(e) {
                return Error::new(Kind::TimedOut, format!("no answer from {server}"))
                    .found("a server that accepts no client")
                    .hint("if the process was stopped, resume it (`kill -CONT`); then try again");
            }
            Error::new(Kind::Busy, format!("cannot reach {server}")).found(e.to_string()).hint("try again")
        };
        let line = ControlOp::Job(job.clone()).line()?;
        let mut stream = stream.map_err(|e| failed(&e))?;
        stream.set_read_timeout(Some(FIRST_REPLY_TIMEOUT)).map_err(|e| failed(&e))?;
        stream.set_write_timeout(Some(KEEPALIVE_TIMEOUT)).map_err(|e| failed(&e))?;
        stream.write_all(line.as_bytes()).map_err(|e| failed(&e))?;
        let mut client = JobClient { reader: BufReader::new(stream), server, limit: FIRST_REPLY_TIMEOUT };
        let line = client.line()?;
        if line == KEEPALIVE {
            client.limit = KEEPALIVE_TIMEOUT;
            let stream = client.reader.get_ref();
            stream.set_read_timeout(Some(KEEPALIVE_TIMEOUT)).map_err(|e| client.failed(&e))?;
            return Ok(client);
        }
        match ServerAnswer::parse(&line) {
            Some(ServerAnswer::Error { refusal, .. }) => Err(refusal.error()),
            _ => Err(client.invalid_answer("an invalid answer")),
        }
    }

    /// Waits for the next message. Errors: the failure that the server reports; [`Kind::TimedOut`]
    /// if the server sends neither an answer nor a keepalive.
    pub fn recv(&mut self) -> Result<JobReply> {
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Err(Error::new(Kind::Other, format!("no answer from {}", self.server))
                    .found("a server that ended before the job was done")
                    .hint(
                        Hint::from("see with ")
                            .action(Action("status"))
                            .text(" whether the disk is open, and try again"),
                    ));
            }
            if line == KEEPALIVE {
                continue;
            }
            return match ServerAnswer::parse(&line) {
                Some(ServerAnswer::Message(message)) => Ok(JobReply::Message(message)),
                Some(ServerAnswer::Ok(value)) => Ok(JobReply::Done(value)),
                Some(ServerAnswer::Error { refusal, .. }) => Err(refusal.error()),
                None => Err(self.invalid_answer("a line that is not an answer")),
            };
        }
    }

    /// Sends a message.
    pub fn send(&mut self, message: &Value) -> Result<()> {
        let said = self.reader.get_mut().write_all(format!("{message}\n").as_bytes());
        said.map_err(|e| self.failed(&e))
    }

    fn line(&mut self) -> Result<Vec<u8>> {
        read_line(&mut self.reader).map_err(|e| self.failed(&e))
    }

    fn failed(&self, e: &io::Error) -> Error {
        if !is_over_time(e) {
            return self.invalid_answer(&e.to_string());
        }
        let process = peer_pid(self.reader.get_ref());
        let process = process.map_or(String::new(), |number| format!(" {number}"));
        Error::new(Kind::TimedOut, format!("no answer from {}", self.server))
            .found(silence(self.limit))
            .expected("a keepalive every second")
            .hint(format!("if the process was stopped, `kill -CONT{process}` resumes it; then try again"))
    }

    fn invalid_answer(&self, found: &str) -> Error {
        Error::new(Kind::Other, format!("no answer from {}", self.server)).found(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen, socket};
    use std::os::unix::net::UnixListener;

    #[test]
    fn connecting_to_a_server_that_accepts_no_client_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert_eq!(connect_with_timeout(&path).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(connect_with_timeout(&dir.path().join("x".repeat(200))).is_err());
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert_eq!(
            connect_with_timeout(&dir.path().join("file")).unwrap_err().kind(),
            ErrorKind::ConnectionRefused
        );
        let server = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&server, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(connect_with_timeout(&path).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        listen(&server, 1).unwrap();
        let waiting: Vec<UnixStream> = (0..2).map(|_| connect_with_timeout(&path).unwrap()).collect();
        assert_eq!(connect_with_timeout(&path).unwrap_err().kind(), ErrorKind::TimedOut);
        drop((waiting, server));
    }

    /// A server that sends `said` to one client, whatever the request is.
    fn with_fake_server(said: &'static str, ask: impl FnOnce(&Path)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let talker = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 64]);
            let _ = stream.write_all(said.as_bytes());
        });
        ask(&path);
        talker.join().unwrap();
    }

    #[test]
    fn invalid_answers_are_errors() {
        for nonsense in [
            "",
            "{\"items\":[]}\n",
            "{\"ok\":null}\n",
            "\n",
            "\nno json\n",
            "\n{\"ok\":fal",
            "\n{\"ok\":1,\"error\":2}\n",
            "{\"error\":{\"kind\":\"busy\",\"message\":\"x\",\"private\":false,\"server\":\"stays\"}}\n",
        ] {
            with_fake_server(nonsense, |path| {
                let talk = JobClient::begin(connect_with_timeout(path), &Job::Flush, "the liar".into());
                assert!(talk.and_then(|mut talk| talk.recv()).is_err(), "{nonsense:?}");
            });
        }
        for nonsense in ["no json\n", "{\"message\":1}\n", "\n[]\n"] {
            with_fake_server(nonsense, |path| {
                assert!(matches!(call(path, &ControlOp::Status), Ok(CallOutcome::Malformed)), "{nonsense:?}");
            });
        }
        for cut in ["", "\n", "{\"ok\":null}", "\n{\"ok\":nu"] {
            with_fake_server(cut, |path| {
                assert!(matches!(call(path, &ControlOp::Status), Ok(CallOutcome::Ended)), "{cut:?}");
            });
        }
        with_fake_server("\n\n{\"ok\":7}\n", |path| {
            assert!(matches!(call(path, &ControlOp::Status), Ok(CallOutcome::Done(value)) if value == 7));
        });
    }

    #[test]
    fn a_server_that_only_sends_keepalives_is_given_up_on_at_the_given_moment() {
        let (stream, mut server) = UnixStream::pair().unwrap();
        let beats = std::thread::spawn(move || {
            // Ends when the client has left.
            while server.write_all(KEEPALIVE).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let until = Instant::now() + Duration::from_millis(50);
        assert!(matches!(ask(&stream, &ControlOp::Status, Some(until)), Ok(CallOutcome::Silent(_))));
        drop(stream);
        beats.join().unwrap();
    }

    #[test]
    fn a_silent_server_times_out_before_and_during_work() {
        let given_up = |said: &'static [u8]| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| call(&path, &ControlOp::Purge { uuid: None }));
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(said).unwrap();
                match asked.join().unwrap() {
                    Ok(CallOutcome::Silent(limit)) => limit,
                    _ => panic!("it was not given up on"),
                }
            })
        };
        std::thread::scope(|scope| {
            let at_work = scope.spawn(|| given_up(b"\n"));
            assert_eq!(given_up(b""), FIRST_REPLY_TIMEOUT);
            assert_eq!(at_work.join().unwrap(), KEEPALIVE_TIMEOUT);
        });
        assert_eq!(silence(FIRST_REPLY_TIMEOUT), "silence for 5 seconds");
    }
}
