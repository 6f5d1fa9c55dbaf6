//! What `doctor` found, as words, as JSON, and as the kind of failure that it ends with.

use crate::terminal::settings;
use lacuna_storage::{Error, Kind};
use serde_json::{Value, json};
use std::fmt::Write;

/// What was looked at, in order.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

struct Finding {
    /// What was looked at.
    check: &'static str,
    state: State,
    /// What was found, in words.
    found: String,
    /// What to do; may be empty.
    remedy: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Note,
    /// Not as it should be, and what kind of failure it is or leads to.
    Wrong(Kind),
}

impl Findings {
    /// All is as it should be.
    pub(crate) fn fine(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, State::Fine, found.into(), String::new());
    }

    /// Something worth knowing.
    pub(crate) fn note(&mut self, check: &'static str, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(check, State::Note, found.into(), remedy.into());
    }

    /// Something that is wrong.
    pub(crate) fn wrong(
        &mut self,
        check: &'static str,
        kind: Kind,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(check, State::Wrong(kind), found.into(), remedy.into());
    }

    /// An error, which says itself what to do.
    pub(crate) fn failed(&mut self, check: &'static str, e: &Error) {
        self.wrong(check, e.kind(), settings::words(e), "");
    }

    fn add(&mut self, check: &'static str, state: State, found: String, remedy: String) {
        self.0.push(Finding { check, state, found, remedy });
    }

    /// How many are wrong.
    pub(crate) fn count_wrong(&self) -> usize {
        self.0.iter().filter(|finding| matches!(finding.state, State::Wrong(_))).count()
    }

    /// The kind that the command ends with: damage before anything else.
    pub(crate) fn worst(&self) -> Option<Kind> {
        let wrong = || {
            self.0.iter().filter_map(|finding| match finding.state {
                State::Wrong(kind) => Some(kind),
                State::Fine | State::Note => None,
            })
        };
        wrong().find(|kind| *kind == Kind::Corrupt).or_else(|| wrong().next())
    }

    /// For a program.
    pub(crate) fn to_json(&self, location: &str) -> Value {
        let one = |finding: &Finding| {
            let state = match finding.state {
                State::Fine => "fine",
                State::Note => "note",
                State::Wrong(_) => "wrong",
            };
            json!({
                "check": finding.check,
                "state": state,
                "found": finding.found,
                "remedy": (!finding.remedy.is_empty()).then_some(&finding.remedy),
            })
        };
        let findings: Vec<Value> = self.0.iter().map(one).collect();
        json!({ "location": location, "healthy": self.worst().is_none(), "findings": findings })
    }

    /// For a person: a line for each, and one below it with what to do.
    pub(crate) fn words(&self) -> String {
        let mut words = String::new();
        for Finding { check, state, found, remedy } in &self.0 {
            let mark = match state {
                State::Fine => "fine",
                State::Note => "note",
                State::Wrong(_) => "WRONG",
            };
            let _ = writeln!(words, "{mark:<6} {check:<12} {found}");
            if !remedy.is_empty() {
                let _ = writeln!(words, "{:<6} {:<12} -> {remedy}", "", "");
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_decides_before_anything_else() {
        let mut findings = Findings::default();
        findings.fine("a", "x");
        findings.note("b", "x", "y");
        assert_eq!(findings.worst(), None);
        assert_eq!(findings.to_json("l")["healthy"], true);
        findings.wrong("c", Kind::Busy, "x", "");
        assert_eq!(findings.worst(), Some(Kind::Busy));
        findings.wrong("d", Kind::Corrupt, "x", "y");
        assert_eq!(findings.worst(), Some(Kind::Corrupt));
        assert!(findings.words().contains("WRONG  d            x\n                    -> y\n"));
    }
}
