//! How a result crosses from one process to another: one line of JSON.

use lacuna_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Line {
    ok: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(default)]
    private: bool,
    /// The server goes on: what was asked for was not done, and all is as it was.
    #[serde(default)]
    stays: bool,
}

/// The line, with its end.
pub(crate) fn encode(result: &Result<()>) -> String {
    text(&line(result))
}

/// The line of a server that goes on.
pub(crate) fn encode_refusal(error: &Error) -> String {
    text(&Line { stays: true, ..line(&Err(error.clone())) })
}

/// Whether a line says that the server goes on.
pub(crate) fn stays_open(line: &str) -> bool {
    serde_json::from_str(line).is_ok_and(|line: Line| line.stays)
}

fn line(result: &Result<()>) -> Line {
    match result {
        Ok(()) => {
            Line { ok: true, kind: String::new(), message: String::new(), private: false, stays: false }
        }
        Err(e) => Line {
            ok: false,
            kind: name(e.kind()).to_owned(),
            message: e.to_string(),
            private: e.is_private(),
            stays: false,
        },
    }
}

fn text(line: &Line) -> String {
    let mut text = serde_json::to_string(line).unwrap_or_else(|_| r#"{"ok":false}"#.to_owned());
    text.push('\n');
    text
}

/// What the line says, or `None` if it is not such a line.
pub(crate) fn decode(line: &str) -> Option<Result<()>> {
    let line: Line = serde_json::from_str(line).ok()?;
    let error = || {
        let error = Error::new(kind(&line.kind), line.message.clone());
        if line.private { error.private() } else { error }
    };
    Some(if line.ok { Ok(()) } else { Err(error()) })
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Usage => "usage",
        Kind::Passphrase => "passphrase",
        Kind::Permission => "permission",
        Kind::Memory => "memory",
        Kind::NotFound => "not-found",
        Kind::Busy => "busy",
        Kind::Corrupt => "corrupt",
        Kind::RolledBack => "rolled-back",
        Kind::NoSpace => "no-space",
        Kind::Io => "io",
        Kind::FailStop => "fail-stop",
        Kind::ReadOnly => "read-only",
        Kind::Exists => "exists",
        Kind::Changed => "changed",
        Kind::Fenced => "fenced",
        Kind::TimedOut => "timed-out",
        Kind::NoCover => "no-cover",
        Kind::Other => "other",
    }
}

fn kind(wanted: &str) -> Kind {
    const ALL: [Kind; 17] = [
        Kind::Usage,
        Kind::Passphrase,
        Kind::Permission,
        Kind::Memory,
        Kind::NotFound,
        Kind::Busy,
        Kind::Corrupt,
        Kind::RolledBack,
        Kind::NoSpace,
        Kind::Io,
        Kind::FailStop,
        Kind::ReadOnly,
        Kind::Exists,
        Kind::Changed,
        Kind::Fenced,
        Kind::TimedOut,
        Kind::NoCover,
    ];
    ALL.into_iter().find(|&k| name(k) == wanted).unwrap_or(Kind::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_survives_the_crossing() {
        assert!(matches!(decode(&encode(&Ok(()))), Some(Ok(()))));
        let sent = Error::new(Kind::Busy, "cannot close").found("bash \"1\"\n").remedy("leave");
        let got = decode(&encode(&Err(sent.clone()))).unwrap().unwrap_err();
        assert_eq!((got.kind(), got.to_string()), (Kind::Busy, sent.to_string()));
        assert!(
            !got.is_private() && decode(&encode(&Err(sent.private()))).unwrap().unwrap_err().is_private()
        );
        assert!(decode("").is_none());
        assert!(decode("{\"ok\":").is_none());
    }
}
