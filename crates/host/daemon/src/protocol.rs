//! The protocol between servers and clients on the control socket: lines of JSON.
//!
//! A client begins with one line, `{"v":1,"op":"status"}` or another [`ControlOp`]. The server
//! answers with an empty line (keepalive) at least every second while it works, so that a client
//! can tell slow work from a stopped server; with a line `{"message":…}` for each message of a job;
//! and with one last line, `{"ok":…}` or `{"error":…}`. A client of a [`Job`] sends nothing more
//! before it has read the first empty line; then it may send messages of its own, each a line of
//! JSON.
//!
//! No line from the other side may exceed [`LINE_LIMIT`], and the first line of a client may not
//! exceed [`REQUEST_LIMIT`]. No input makes this side panic. A server answers an unknown request
//! with an error, and goes on.

use crate::file::FileIdentity;
use lacuna_contracts::{Error, ErrorText, Kind, Result, TermRenderer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, ErrorKind, Read};

/// The version of the protocol.
const VERSION: u64 = 1;
/// The longest first line of a client, in bytes.
pub(crate) const REQUEST_LIMIT: usize = 1024;
/// The longest line that is read, in bytes. Two copies of a header in hexadecimal digits fit.
pub(crate) const LINE_LIMIT: u64 = 1 << 17;

/// The keepalive of a working server.
pub(crate) const KEEPALIVE: &[u8] = b"\n";

/// The operation that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum ControlOp {
    /// Report the status.
    Status,
    /// Close the disk or vault, and end.
    Close {
        /// Also if clients use the disk over the network. Without it the server refuses then.
        #[serde(default)]
        force: bool,
    },
    /// Make deleted data unrecoverable.
    Purge {
        /// The UUID that the disk must have; `None` accepts any disk.
        uuid: Option<String>,
    },
    /// Report how a file of a vault is protected.
    Stat {
        /// The inode number of the file.
        ino: u64,
    },
    /// Longer work, with messages both ways.
    Job(Job),
}

/// The longer work that a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub enum Job {
    /// Read and verify everything.
    Check {
        /// The disk that the server must have.
        disk: ExpectedDisk,
    },
    /// Read and write the header.
    Header {
        /// The disk that the server must have.
        disk: ExpectedDisk,
    },
    /// Change the length of the disk.
    Resize {
        /// The disk that the server must have.
        disk: ExpectedDisk,
        /// The length in bytes; `None` takes the whole block device.
        size: Option<u64>,
    },
    /// Make level 0 durable.
    Flush,
    /// Write the cover for a close, for a client that is about to close the disk.
    Cover,
}

/// The disk that a client means. The path where the client found the server may name another disk
/// by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectedDisk {
    /// Its file.
    pub file: FileIdentity,
    /// The ID that it must have, as text; `None` accepts any ID.
    pub id: Option<String>,
}

#[derive(Serialize)]
struct RequestLine<'o> {
    v: u64,
    #[serde(flatten)]
    op: &'o ControlOp,
}

impl ControlOp {
    /// The request as a line with its newline.
    pub(crate) fn line(&self) -> Result<String> {
        let text = serde_json::to_string(&RequestLine { v: VERSION, op: self });
        text.map(|text| text + "\n")
            .map_err(|e| Error::new(Kind::Other, "cannot send a request to a server").found(e.to_string()))
    }

    /// Parses a request. Errors: [`Kind::Usage`] for a line that is no request, for another
    /// version, and for an unknown operation.
    pub(crate) fn parse(line: &[u8]) -> Result<ControlOp> {
        let shown = || format!("the request {:?}", String::from_utf8_lossy(line));
        let request: Value = serde_json::from_slice(line)
            .map_err(|e| refused(format!("{}, which is not JSON ({e})", shown())))?;
        let version = request.get("v").unwrap_or(&Value::Null);
        if *version != VERSION {
            return Err(refused(format!("version {version} of the protocol"))
                .expected(format!("version {VERSION}"))
                .hint("use the version of lacuna that the server runs, or restart the server"));
        }
        serde_json::from_value(request).map_err(|e| not_done(format!("{} ({e})", shown())))
    }

    /// The error of a server that does not support this operation on its disk or vault.
    pub(crate) fn unsupported_error(&self) -> Error {
        not_done(format!("the request {self:?}"))
    }
}

fn refused(found: String) -> Error {
    Error::new(Kind::Usage, "the server refused the request").found(found)
}

fn not_done(found: String) -> Error {
    refused(found).hint("close it, then give the command again")
}

/// A line with its newline; empty when the other side has left. Errors: [`ErrorKind::InvalidData`]
/// for a line that is too long or was cut short.
pub(crate) fn read_line(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    reader.take(LINE_LIMIT).read_until(b'\n', &mut line)?;
    if line.is_empty() || line.last() == Some(&b'\n') {
        return Ok(line);
    }
    Err(io::Error::new(ErrorKind::InvalidData, "a line that is too long or unterminated"))
}

/// An answer of a server: a message, or the outcome.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ServerAnswer {
    /// A message of a job that goes on.
    Message(Value),
    /// The request was done.
    Ok(Value),
    /// The request was refused or failed.
    Error {
        /// The error.
        #[serde(flatten)]
        refusal: WireError,
        /// Whether the server ends.
        server: AfterFailure,
    },
}

/// Whether the server ends after a request that it did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AfterFailure {
    /// The server ends all the same.
    Ends,
    /// The server stays.
    Stays,
}

/// An error as it is sent to another process.
#[derive(Debug, Serialize, Deserialize)]
pub struct WireError {
    kind: Kind,
    #[serde(flatten)]
    text: ErrorText,
    private: bool,
}

impl WireError {
    /// Encodes an error; `naming` gives names to the settings in advice.
    pub fn of(e: &Error, naming: TermRenderer) -> WireError {
        WireError { kind: e.kind(), text: e.text(naming), private: e.is_confidential() }
    }

    /// The error, with the text of the other process.
    pub fn error(self) -> Error {
        let error = Error::of_text(self.kind, self.text);
        if self.private { error.confidential() } else { error }
    }
}

impl ServerAnswer {
    /// Encodes the outcome of a request. `server` says whether the server ends after a failure;
    /// `naming` gives names to the settings in advice.
    pub(crate) fn of(outcome: Result<Value>, server: AfterFailure, naming: TermRenderer) -> ServerAnswer {
        let failed = |e: Error| ServerAnswer::Error { refusal: WireError::of(&e, naming), server };
        outcome.map_or_else(failed, ServerAnswer::Ok)
    }

    /// The answer as a line with its newline.
    pub(crate) fn line(&self) -> String {
        let broken = r#"{"error":{"kind":"other","message":"","private":false,"server":"stays"}}"#;
        serde_json::to_string(self).unwrap_or_else(|_| broken.to_owned()) + "\n"
    }

    /// Parses a line; `None` if it is no answer.
    pub(crate) fn parse(line: &[u8]) -> Option<ServerAnswer> {
        // Every caller treats `None` as a failure.
        serde_json::from_slice(line).ok()
    }
}

/// A message as a line with its newline.
pub(crate) fn message(message: &Value) -> String {
    format!("{{\"message\":{message}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_contracts::{Hint, Setting, Term};

    #[test]
    fn requests_are_encoded_and_parsed() {
        let disk = ExpectedDisk { file: FileIdentity::File(u64::MAX, u64::MAX), id: Some("7".repeat(64)) };
        for op in [
            ControlOp::Status,
            ControlOp::Close { force: false },
            ControlOp::Close { force: true },
            ControlOp::Job(Job::Flush),
            ControlOp::Job(Job::Cover),
            ControlOp::Purge { uuid: None },
            ControlOp::Purge { uuid: Some("7f".into()) },
            ControlOp::Stat { ino: u64::MAX },
            ControlOp::Job(Job::Check { disk: disk.clone() }),
            ControlOp::Job(Job::Header { disk: ExpectedDisk { file: FileIdentity::Unknown, id: None } }),
            ControlOp::Job(Job::Resize { disk, size: Some(u64::MAX) }),
        ] {
            let line = op.line().unwrap();
            assert!(line.starts_with(r#"{"v":1,"op":""#) && line.len() < REQUEST_LIMIT, "{line}");
            assert_eq!(ControlOp::parse(line.trim_end().as_bytes()).unwrap(), op);
        }
        assert_eq!(ControlOp::Status.line().unwrap(), "{\"v\":1,\"op\":\"status\"}\n");
        assert_eq!(
            ControlOp::Job(Job::Flush).line().unwrap(),
            "{\"v\":1,\"op\":\"job\",\"job\":\"flush\"}\n"
        );
        // An optional field may be left out.
        assert_eq!(ControlOp::parse(br#"{"op":"close","v":1}"#).unwrap(), ControlOp::Close { force: false });
        assert_eq!(ControlOp::parse(br#"{"op":"purge","v":1}"#).unwrap(), ControlOp::Purge { uuid: None });
    }

    #[test]
    fn invalid_requests_are_refused() {
        let deep = "[".repeat(1000);
        for (line, found) in [
            ("", "not JSON"),
            ("status", "not JSON"),
            ("{\"v\":1,\"op\":\"sta", "not JSON"),
            (deep.as_str(), "not JSON"),
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
            (r#"{"v":1,"op":"close","force":7}"#, "7"),
        ] {
            let refused = ControlOp::parse(line.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), Kind::Usage, "{line}");
            assert!(refused.to_string().contains(found), "{line}: {refused}");
        }
        assert_eq!(ControlOp::parse(b"\xff\xfe").unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn outcomes_are_encoded_and_parsed() {
        let cross = |outcome: Result<Value>| match ServerAnswer::parse(
            ServerAnswer::of(outcome, AfterFailure::Ends, |_| "--size".into()).line().as_bytes(),
        ) {
            Some(ServerAnswer::Ok(value)) => Ok(value),
            Some(ServerAnswer::Error { refusal, server: AfterFailure::Ends }) => Err(refusal.error()),
            other => panic!("{other:?}"),
        };
        assert_eq!(cross(Ok(Value::Null)).unwrap(), Value::Null);
        let sent = Error::new(Kind::Busy, "cannot close").found("bash \"1\"\n").hint("leave");
        let got = cross(Err(sent.clone())).unwrap_err();
        assert_eq!((got.kind(), got.to_string()), (Kind::Busy, sent.to_string()));
        assert!(!got.is_confidential() && cross(Err(sent.confidential())).unwrap_err().is_confidential());
        let advice = Error::new(Kind::NoSpace, "full").hint(Hint::from("give ").setting(Setting("size")));
        let got = cross(Err(advice)).unwrap_err();
        assert_eq!((got.kind(), got.to_string().as_str()), (Kind::NoSpace, "full; give --size"));
        // In its parts, so that a terminal can show them on lines of their own.
        let parts = Error::new(Kind::Usage, "what").found("found").expected("expected").hint("advice");
        let got = cross(Err(parts.clone())).unwrap_err();
        assert_eq!(got.text(Term::quoted), parts.text(Term::quoted));
        assert!(matches!(
            ServerAnswer::parse(message(&Value::from(7)).as_bytes()),
            Some(ServerAnswer::Message(said)) if said == 7
        ));
        let unheard = r#"{"error":{"kind":"unheard-of","message":"x","private":false,"server":"stays"}}"#;
        let neither = r#"{"error":{"kind":"busy","message":"x","private":false,"server":"sleeps"}}"#;
        for none in [unheard, neither, "", "\n", "{\"ok\":", "{}", r#"{"ok":1,"error":2}"#, r#"{"error":{}}"#]
        {
            assert!(ServerAnswer::parse(none.as_bytes()).is_none(), "{none}");
        }
    }
}
