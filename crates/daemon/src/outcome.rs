//! How a result crosses from one process to another: one line of JSON.

use lacuna_core::{Error, Kind, Naming, Result, Status};
use serde::{Deserialize, Serialize};

/// What a client is told at once whose wish may take long; the line with its outcome comes when all is done.
pub(crate) const HEARD: &[u8] = b"\n";

#[derive(Default, Serialize, Deserialize)]
struct Line {
    ok: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    message: String,
    private: bool,
    /// The server goes on: what was asked for was not done, and all is as it was.
    stays: bool,
    /// Counters of what was done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    items: Vec<serde_json::Value>,
    /// The disk to which it was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
}

/// The line, with its end; `naming` gives names to the settings in advice.
pub(crate) fn encode(result: &Result<()>, naming: Naming) -> String {
    text(&line(result, naming))
}

/// The line of a server that goes on.
pub(crate) fn encode_refusal(error: &Error, naming: Naming) -> String {
    text(&Line { stays: true, ..line(&Err(error.clone()), naming) })
}

/// The line of a server that purged the disk of this UUID, with counters of what was done.
pub(crate) fn encode_purged(result: &Result<Status>, uuid: Option<String>, naming: Naming) -> String {
    match result {
        Ok(done) => {
            let items = done.items.iter().map(|item| serde_json::json!(item)).collect();
            text(&Line { ok: true, items, uuid, ..Line::default() })
        }
        Err(e) => text(&Line { uuid, ..line(&Err(e.clone()), naming) }),
    }
}

/// The line of a server that was asked a question of its own.
pub(crate) fn encode_value(answer: &Result<serde_json::Value>, naming: Naming) -> String {
    match answer {
        Ok(value) => text(&Line { ok: true, items: vec![value.clone()], ..Line::default() }),
        Err(e) => text(&line(&Err(e.clone()), naming)),
    }
}

/// What such a line says, or `None` if it is not one.
pub(crate) fn decode_items(line: &str) -> Option<Result<Vec<serde_json::Value>>> {
    let done = decode(line)?;
    Some(done.map(|()| serde_json::from_str(line).map(|line: Line| line.items).unwrap_or_default()))
}

/// The disk of which a line speaks.
pub(crate) fn uuid_in(line: &str) -> Option<String> {
    serde_json::from_str(line).ok().and_then(|line: Line| line.uuid)
}

/// Whether a line says that the server goes on.
pub(crate) fn stays_open(line: &str) -> bool {
    serde_json::from_str(line).is_ok_and(|line: Line| line.stays)
}

fn line(result: &Result<()>, naming: Naming) -> Line {
    match result {
        Ok(()) => Line { ok: true, ..Line::default() },
        Err(e) => Line {
            kind: Some(e.kind()),
            message: e.named(naming),
            private: e.is_private(),
            ..Line::default()
        },
    }
}

fn text(line: &Line) -> String {
    let mut text = serde_json::to_string(line)
        .unwrap_or_else(|_| r#"{"ok":false,"private":false,"stays":false}"#.to_owned());
    text.push('\n');
    text
}

/// Why the server refused what it was asked for, if a line says that.
pub(crate) fn refusal(line: &str) -> Option<Error> {
    decode(line)?.err()
}

/// What the line says, or `None` if it is not such a line.
pub(crate) fn decode(line: &str) -> Option<Result<()>> {
    let Line { ok, kind, message, private, .. } = serde_json::from_str(line).ok()?;
    let error = || {
        let error = Error::new(kind.unwrap_or(Kind::Other), message);
        if private { error.private() } else { error }
    };
    Some(if ok { Ok(()) } else { Err(error()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_core::{Advice, Setting};

    #[test]
    fn a_result_survives_the_crossing() {
        let encode = |result: &Result<()>| encode(result, |_| "--size".into());
        assert!(matches!(decode(&encode(&Ok(()))), Some(Ok(()))));
        let sent = Error::new(Kind::Busy, "cannot close").found("bash \"1\"\n").remedy("leave");
        let got = decode(&encode(&Err(sent.clone()))).unwrap().unwrap_err();
        assert_eq!((got.kind(), got.to_string()), (Kind::Busy, sent.to_string()));
        assert!(
            !got.is_private() && decode(&encode(&Err(sent.private()))).unwrap().unwrap_err().is_private()
        );
        let advice = Error::new(Kind::NoSpace, "full").remedy(Advice::from("give ").setting(Setting("size")));
        let got = decode(&encode(&Err(advice))).unwrap().unwrap_err();
        assert_eq!((got.kind(), got.to_string().as_str()), (Kind::NoSpace, "full; give --size"));
        let unheard = r#"{"ok":false,"kind":"unheard-of","message":"x","private":false,"stays":false}"#;
        for none in [unheard, "", "{\"ok\":", r#"{"ok":true}"#, r#"{"items":[],"last_error":null}"#] {
            assert!(decode(none).is_none() && refusal(none).is_none(), "{none}");
        }
    }
}
