//! Findings of `doctor`, as text, as JSON, and as the kind of error that the command ends with.

use crate::terminal::settings;
use lacuna_storage::{Error, Kind};
use serde_json::{Value, json};
use std::fmt::Write;

/// The findings, in the order of the checks.
#[derive(Default)]
pub(crate) struct Findings(Vec<Finding>);

struct Finding {
    /// The name of the check.
    check: &'static str,
    state: State,
    /// The finding as text.
    found: String,
    /// Advice; may be empty.
    remedy: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No problem.
    Fine,
    /// Useful information.
    Note,
    /// A problem, with the kind of failure that it is or leads to.
    Wrong(Kind),
}

impl Findings {
    /// Adds a finding without a problem.
    pub(crate) fn fine(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, State::Fine, found.into(), String::new());
    }

    /// Adds useful information.
    pub(crate) fn note(&mut self, check: &'static str, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(check, State::Note, found.into(), remedy.into());
    }

    /// Adds a problem.
    pub(crate) fn wrong(
        &mut self,
        check: &'static str,
        kind: Kind,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(check, State::Wrong(kind), found.into(), remedy.into());
    }

    /// Adds an error, which contains its advice.
    pub(crate) fn failed(&mut self, check: &'static str, e: &Error) {
        self.wrong(check, e.kind(), settings::words(e), "");
    }

    fn add(&mut self, check: &'static str, state: State, found: String, remedy: String) {
        self.0.push(Finding { check, state, found, remedy });
    }

    /// Number of problems.
    pub(crate) fn count_wrong(&self) -> usize {
        self.0.iter().filter(|finding| matches!(finding.state, State::Wrong(_))).count()
    }

    /// The kind of error that the command ends with: damage takes precedence.
    pub(crate) fn worst(&self) -> Option<Kind> {
        let wrong = || {
            self.0.iter().filter_map(|finding| match finding.state {
                State::Wrong(kind) => Some(kind),
                State::Fine | State::Note => None,
            })
        };
        wrong().find(|kind| *kind == Kind::Corrupt).or_else(|| wrong().next())
    }

    /// The findings as JSON.
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

    /// The findings as text: a line for each, and a second line with the advice.
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
