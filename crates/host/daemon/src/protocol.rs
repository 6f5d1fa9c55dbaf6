//! The words between servers and their clients on the control socket: lines of JSON.
//!
//! A client begins with one line, `{"v":1,"op":"status"}` or another [`Op`]. The server answers
//! with an empty line at least every second for as long as it works, so that a client can tell slow
//! work from a server that was stopped; with a line `{"message":…}` for each message of a job; and
//! with one last line, `{"ok":…}` or `{"error":…}`. A client of a [`Job`] says nothing more before
//! it has read the first empty line; then it may send messages of its own, each a line of JSON.
//!
//! Nothing from the other side is longer than [`LINE_LIMIT`], the first line of a client no longer
//! than [`REQUEST_LIMIT`], and nothing of it makes this side panic. A server answers a request that
//! it does not understand with an error, and goes on.

use crate::file::FileIdentity;
use lacuna_contracts::{Error, Kind, Naming, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The version of these messages.
const VERSION: u64 = 1;
/// The longest first line of a client, in bytes.
const REQUEST_LIMIT: usize = 1024;
/// The longest line that is read: two copies of a header, written in hexadecimal digits, fit.
pub(crate) const LINE_LIMIT: u64 = 1 << 17;
/// How long a client has for its request. Others are not answered meanwhile, and wait longer.
const REQUEST_WITHIN: Duration = Duration::from_secs(2);

/// The sign of life of a server that works.
pub(crate) const ALIVE: &[u8] = b"\n";

/// The operation that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// The account of the server.
    Status,
    /// That the server closes its disk or vault, and ends.
    Close,
    /// That deleted data is made unrecoverable.
    Purge {
        /// The disk that is meant; none: whatever is open.
        uuid: Option<String>,
    },
    /// How a file of a vault is protected.
    Stat {
        /// Its number.
        ino: u64,
    },
    /// Longer work, with messages both ways.
    Job(Job),
}

/// The longer work that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub enum Job {
    /// That everything is read and verified.
    Check {
        /// The disk that is meant.
        disk: Meant,
    },
    /// Reads and writes of the header.
    Header {
        /// The disk that is meant.
        disk: Meant,
    },
    /// That the disk gets another length.
    Resize {
        /// The disk that is meant.
        disk: Meant,
        /// The length in bytes; none: all that the block device has.
        size: Option<u64>,
    },
    /// That level 0 is made durable.
    Flush,
    /// The cover of a closing, for a client that is about to close the disk.
    Cover,
}

/// The disk that a client means: the path by which it found the server may name another one by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meant {
    /// Its file.
    pub file: FileIdentity,
    /// The ID that it has to have, as text, if that matters.
    pub id: Option<String>,
}

#[derive(Serialize)]
struct Request<'o> {
    v: u64,
    #[serde(flatten)]
    op: &'o Op,
}

impl Op {
    /// The line of the request, with its end.
    pub(crate) fn line(&self) -> Result<String> {
        let text = serde_json::to_string(&Request { v: VERSION, op: self });
        text.map(|text| text + "\n")
            .map_err(|e| Error::new(Kind::Other, "cannot ask a server").found(e.to_string()))
    }

    /// The request in a line. Errors: [`Kind::Usage`] for a line that is none, another version, and
    /// an operation that is not known here.
    pub(crate) fn parse(line: &[u8]) -> Result<Op> {
        let shown = || format!("the request {:?}", String::from_utf8_lossy(line));
        let request: Value = serde_json::from_slice(line)
            .map_err(|e| refused(format!("{}, which is no JSON ({e})", shown())))?;
        let version = request.get("v").unwrap_or(&Value::Null);
        if *version != VERSION {
            return Err(refused(format!("version {version} of the messages"))
                .expected(format!("version {VERSION}"))
                .remedy("use the version of lacuna that the server is of, or start the server anew"));
        }
        serde_json::from_value(request).map_err(|e| not_done(format!("{} ({e})", shown())))
    }

    /// The error of a server that cannot do this with its disk or vault.
    pub(crate) fn unknown(&self) -> Error {
        not_done(format!("the request {self:?}"))
    }
}

fn refused(found: String) -> Error {
    Error::new(Kind::Usage, "the server does not do what it was asked for").found(found)
}

fn not_done(found: String) -> Error {
    refused(found).remedy("close it and give the command then")
}

/// The first line of a client, without its end. What comes with it is left out.
///
/// Errors: [`Kind::TimedOut`] if it is not there within 2 seconds, [`Kind::Usage`] if it is too
/// long or has no end.
pub(crate) fn first_line(mut stream: &UnixStream) -> Result<Vec<u8>> {
    let nothing = |kind, found: String| Error::new(kind, "the server was asked for nothing").found(found);
    let until = Instant::now() + REQUEST_WITHIN;
    let (mut line, mut part) = (Vec::new(), [0; 256]);
    while line.len() <= REQUEST_LIMIT {
        let left = until.saturating_duration_since(Instant::now());
        let read = if left.is_zero() {
            Err(ErrorKind::TimedOut.into())
        } else {
            stream.set_read_timeout(Some(left)).and_then(|()| stream.read(&mut part))
        };
        match read {
            Ok(0) => return Err(nothing(Kind::Usage, "a line that has no end".to_owned())),
            Ok(len) => line.extend_from_slice(&part[..len]),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let seconds = REQUEST_WITHIN.as_secs();
                return Err(nothing(Kind::TimedOut, format!("no line within {seconds} seconds")));
            }
            Err(e) => return Err(nothing(Kind::Usage, e.to_string())),
        }
        if let Some(end) = line.iter().position(|byte| *byte == b'\n').filter(|end| *end <= REQUEST_LIMIT) {
            line.truncate(end);
            return Ok(line);
        }
    }
    Err(nothing(Kind::Usage, format!("a line of more than {REQUEST_LIMIT} bytes")))
}

/// A line with its end; empty when the other side has left. Errors: [`ErrorKind::InvalidData`] for
/// one that is too long or was cut short.
pub(crate) fn read_line(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.take(LINE_LIMIT).read_until(b'\n', &mut line)?;
    if line.is_empty() || line.last() == Some(&b'\n') {
        return Ok(line);
    }
    Err(io::Error::new(ErrorKind::InvalidData, "a line that is too long or has no end"))
}

/// An answer of a server: a message, or the outcome.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    /// Longer work goes on.
    Message(Value),
    /// It is done.
    Ok(Value),
    /// It is not.
    Error {
        /// Why.
        #[serde(flatten)]
        refusal: Refusal,
        /// What becomes of the server.
        server: Afterwards,
    },
}

/// What becomes of a server after a request that it did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Afterwards {
    /// The request ends it all the same.
    Ends,
    /// The request does not end it.
    Stays,
}

/// An error that crosses from one process to another.
#[derive(Debug, Serialize, Deserialize)]
pub struct Refusal {
    kind: Kind,
    message: String,
    private: bool,
}

impl Refusal {
    /// Of this error; `naming` gives names to the settings in advice.
    pub fn of(e: &Error, naming: Naming) -> Refusal {
        Refusal { kind: e.kind(), message: e.named(naming), private: e.is_private() }
    }

    /// The error, in the words of the other process.
    pub fn error(self) -> Error {
        let error = Error::new(self.kind, self.message);
        if self.private { error.private() } else { error }
    }
}

impl Answer {
    /// The outcome of a request; `server` says what becomes of the server if it failed, and
    /// `naming` gives names to the settings in advice.
    pub(crate) fn of(outcome: Result<Value>, server: Afterwards, naming: Naming) -> Answer {
        let failed = |e: Error| Answer::Error { refusal: Refusal::of(&e, naming), server };
        outcome.map_or_else(failed, Answer::Ok)
    }

    /// The line, with its end.
    pub(crate) fn line(&self) -> String {
        let broken = r#"{"error":{"kind":"other","message":"","private":false,"server":"stays"}}"#;
        serde_json::to_string(self).unwrap_or_else(|_| broken.to_owned()) + "\n"
    }

    /// What a line says, or `None` if it is no answer.
    pub(crate) fn parse(line: &[u8]) -> Option<Answer> {
        // The line may be no answer: every caller takes that for a failure.
        serde_json::from_slice(line).ok()
    }
}

/// The line of a message.
pub(crate) fn message(message: &Value) -> String {
    format!("{{\"message\":{message}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::{Advice, Setting};

    #[test]
    fn a_request_crosses_as_it_is() {
        let disk = Meant { file: FileIdentity::File(u64::MAX, u64::MAX), id: Some("7".repeat(64)) };
        for op in [
            Op::Status,
            Op::Close,
            Op::Job(Job::Flush),
            Op::Job(Job::Cover),
            Op::Purge { uuid: None },
            Op::Purge { uuid: Some("7f".into()) },
            Op::Stat { ino: u64::MAX },
            Op::Job(Job::Check { disk: disk.clone() }),
            Op::Job(Job::Header { disk: Meant { file: FileIdentity::Unknown, id: None } }),
            Op::Job(Job::Resize { disk, size: Some(u64::MAX) }),
        ] {
            let line = op.line().unwrap();
            assert!(line.starts_with(r#"{"v":1,"op":""#) && line.len() < REQUEST_LIMIT, "{line}");
            assert_eq!(Op::parse(line.trim_end().as_bytes()).unwrap(), op);
        }
        assert_eq!(Op::Status.line().unwrap(), "{\"v\":1,\"op\":\"status\"}\n");
        assert_eq!(Op::Job(Job::Flush).line().unwrap(), "{\"v\":1,\"op\":\"job\",\"job\":\"flush\"}\n");
        // What may be none may be left out.
        assert_eq!(Op::parse(br#"{"op":"purge","v":1}"#).unwrap(), Op::Purge { uuid: None });
    }

    #[test]
    fn nothing_else_is_a_request() {
        let deep = "[".repeat(1000);
        for (line, found) in [
            ("", "no JSON"),
            ("status", "no JSON"),
            ("{\"v\":1,\"op\":\"sta", "no JSON"),
            (deep.as_str(), "no JSON"),
            ("{}", "version null"),
            ("[]", "version null"),
            ("7", "version null"),
            (r#"{"op":"status"}"#, "version null"),
            (r#"{"v":2,"op":"status"}"#, "version 2"),
            (r#"{"v":"1","op":"status"}"#, "version \"1\""),
            (r#"{"v":1}"#, "op"),
            (r#"{"v":1,"op":"sing"}"#, "sing"),
            (r#"{"v":1,"op":7}"#, "op"),
            (r#"{"v":1,"op":"stat","ino":-1}"#, "-1"),
            (r#"{"v":1,"op":"job"}"#, "job"),
            (r#"{"v":1,"op":"job","job":"sing"}"#, "unknown variant `sing`"),
            (r#"{"v":1,"op":"job","job":"check"}"#, "disk"),
            (r#"{"v":1,"op":"job","job":"check","disk":{"file":"file:1"}}"#, "file:1"),
            (r#"{"v":1,"op":"purge","uuid":7}"#, "7"),
        ] {
            let refused = Op::parse(line.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), Kind::Usage, "{line}");
            assert!(refused.to_string().contains(found), "{line}: {refused}");
        }
        assert_eq!(Op::parse(b"\xff\xfe").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn an_outcome_survives_the_crossing() {
        let cross = |outcome: Result<Value>| match Answer::parse(
            Answer::of(outcome, Afterwards::Ends, |_| "--size".into()).line().as_bytes(),
        ) {
            Some(Answer::Ok(value)) => Ok(value),
            Some(Answer::Error { refusal, server: Afterwards::Ends }) => Err(refusal.error()),
            other => panic!("{other:?}"),
        };
        assert_eq!(cross(Ok(Value::Null)).unwrap(), Value::Null);
        let sent = Error::new(Kind::Busy, "cannot close").found("bash \"1\"\n").remedy("leave");
        let got = cross(Err(sent.clone())).unwrap_err();
        assert_eq!((got.kind(), got.to_string()), (Kind::Busy, sent.to_string()));
        assert!(!got.is_private() && cross(Err(sent.private())).unwrap_err().is_private());
        let advice = Error::new(Kind::NoSpace, "full").remedy(Advice::from("give ").setting(Setting("size")));
        let got = cross(Err(advice)).unwrap_err();
        assert_eq!((got.kind(), got.to_string().as_str()), (Kind::NoSpace, "full; give --size"));
        assert!(matches!(
            Answer::parse(message(&Value::from(7)).as_bytes()),
            Some(Answer::Message(said)) if said == 7
        ));
        let unheard = r#"{"error":{"kind":"unheard-of","message":"x","private":false,"server":"stays"}}"#;
        let neither = r#"{"error":{"kind":"busy","message":"x","private":false,"server":"sleeps"}}"#;
        for none in [unheard, neither, "", "\n", "{\"ok\":", "{}", r#"{"ok":1,"error":2}"#, r#"{"error":{}}"#]
        {
            assert!(Answer::parse(none.as_bytes()).is_none(), "{none}");
        }
    }
}
