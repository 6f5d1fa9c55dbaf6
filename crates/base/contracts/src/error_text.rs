//! The text of an error in its parts: on one line for logs and JSON, on up to three for a terminal,
//! and as a record for another process.

use crate::printable;
use serde::{Deserialize, Serialize};

/// The text of an error: failure, finding, expectation and advice, with names for the settings and
/// actions in the advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorText {
    /// The failure.
    pub message: String,
    /// The finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    /// The expectation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The advice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl ErrorText {
    /// The whole text on one line, printable ([`printable`]).
    pub fn line(&self) -> String {
        let mut line = self.finding();
        if let Some(expected) = &self.expected {
            line += "; expected: ";
            line += &printable(expected);
        }
        if let Some(advice) = &self.advice {
            line += "; ";
            line += &printable(advice);
        }
        line
    }

    /// The whole text on up to three lines, printable: the failure with its finding, the
    /// expectation, and the advice as a hint.
    pub fn lines(&self) -> String {
        let mut lines = match &self.found {
            Some(found) => printable(&format!("{}: {found}", self.message)).into_owned(),
            None => printable(&self.message).into_owned(),
        };
        for (name, part) in [("expected", &self.expected), ("hint", &self.advice)] {
            if let Some(part) = part {
                lines.push_str(&["\n  ", name, ": ", &*printable(part)].concat());
            }
        }
        lines
    }

    /// The failure and the finding on one line, printable.
    pub(crate) fn finding(&self) -> String {
        let found = self.found.as_ref().map_or_else(String::new, |found| format!("; found: {found}"));
        printable(&format!("{}{found}", self.message)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(found: Option<&str>, expected: Option<&str>, advice: Option<&str>) -> ErrorText {
        let owned = |part: Option<&str>| part.map(str::to_owned);
        let message = "cannot purge d.img".to_owned();
        ErrorText { message, found: owned(found), expected: owned(expected), advice: owned(advice) }
    }

    #[test]
    fn a_log_gets_one_line_and_a_terminal_three() {
        let whole = text(Some("a file"), Some("a chip"), Some("name a chip"));
        assert_eq!(whole.line(), "cannot purge d.img; found: a file; expected: a chip; name a chip");
        assert_eq!(whole.lines(), "cannot purge d.img: a file\n  expected: a chip\n  hint: name a chip");
        let bare = text(None, None, None);
        assert_eq!(
            (bare.line().as_str(), bare.lines().as_str()),
            ("cannot purge d.img", "cannot purge d.img")
        );
        assert_eq!(text(None, None, Some("wait")).lines(), "cannot purge d.img\n  hint: wait");
        assert_eq!(text(Some("x"), None, None).lines(), "cannot purge d.img: x");
    }

    #[test]
    fn no_part_forges_a_line() {
        let evil = "x\n  hint: run this";
        let forged = text(Some(evil), Some(evil), Some(evil));
        assert_eq!(forged.line().lines().count(), 1);
        assert_eq!(forged.lines().lines().count(), 3);
    }
}
