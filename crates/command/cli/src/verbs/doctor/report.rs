//! Findings of `doctor`, as text, as JSON, and as the kind of error that the command ends with.

use crate::terminal::option_names;
use lacuna_daemon::set_path;
use lacuna_storage::{Error, Kind, Location, printable};
use serde_json::{Value, json};
use std::fmt::Write;

/// The findings, in the order of the checks.
#[derive(Default)]
pub(crate) struct DoctorReport(Vec<DoctorFinding>);

struct DoctorFinding {
    /// The name of the check.
    check: &'static str,
    state: FindingState,
    /// The finding as text.
    found: String,
    /// Advice; may be empty.
    remedy: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FindingState {
    /// No problem.
    Fine,
    /// Useful information.
    Note,
    /// A problem, with the kind of failure that it is or leads to.
    Problem(Kind),
}

impl DoctorReport {
    /// Adds a finding without a problem.
    pub(crate) fn fine(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, FindingState::Fine, found.into(), String::new());
    }

    /// Adds useful information.
    pub(crate) fn note(&mut self, check: &'static str, found: impl Into<String>, remedy: impl Into<String>) {
        self.add(check, FindingState::Note, found.into(), remedy.into());
    }

    /// Adds a problem.
    pub(crate) fn problem(
        &mut self,
        check: &'static str,
        kind: Kind,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(check, FindingState::Problem(kind), found.into(), remedy.into());
    }

    /// Adds an error, which contains its advice.
    pub(crate) fn failed(&mut self, check: &'static str, e: &Error) {
        self.problem(check, e.kind(), option_names::render(e), "");
    }

    fn add(&mut self, check: &'static str, state: FindingState, found: String, remedy: String) {
        self.0.push(DoctorFinding { check, state, found, remedy });
    }

    /// Number of problems.
    pub(crate) fn count_problems(&self) -> usize {
        self.0.iter().filter(|finding| matches!(finding.state, FindingState::Problem(_))).count()
    }

    /// The kind of error that the command ends with: damage takes precedence.
    pub(crate) fn worst(&self) -> Option<Kind> {
        let wrong = || {
            self.0.iter().filter_map(|finding| match finding.state {
                FindingState::Problem(kind) => Some(kind),
                FindingState::Fine | FindingState::Note => None,
            })
        };
        wrong().find(|kind| *kind == Kind::Corrupt).or_else(|| wrong().next())
    }

    /// The findings as JSON.
    pub(crate) fn to_json(&self, location: &Location) -> Value {
        let one = |finding: &DoctorFinding| {
            let state = match finding.state {
                FindingState::Fine => "fine",
                FindingState::Note => "note",
                FindingState::Problem(_) => "wrong",
            };
            json!({
                "check": finding.check,
                "state": state,
                "found": finding.found,
                "remedy": (!finding.remedy.is_empty()).then_some(&finding.remedy),
            })
        };
        let findings: Vec<Value> = self.0.iter().map(one).collect();
        let mut out = json!({ "healthy": self.worst().is_none(), "findings": findings });
        set_path(&mut out, "location", location.to_os_string());
        out
    }

    /// The findings as text: a line for each, and a second line with the advice.
    pub(crate) fn to_text(&self) -> String {
        let mut words = String::new();
        for DoctorFinding { check, state, found, remedy } in &self.0 {
            let mark = match state {
                FindingState::Fine => "fine",
                FindingState::Note => "note",
                FindingState::Problem(_) => "WRONG",
            };
            let _ = writeln!(words, "{mark:<6} {check:<12} {}", printable(found));
            if !remedy.is_empty() {
                let _ = writeln!(words, "{:<6} {:<12} -> {}", "", "", printable(remedy));
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_takes_precedence() {
        let mut findings = DoctorReport::default();
        findings.fine("a", "x");
        findings.note("b", "x", "y");
        assert_eq!(findings.worst(), None);
        assert_eq!(findings.to_json(&Location::Path("l".into()))["healthy"], true);
        findings.problem("c", Kind::Busy, "x", "");
        assert_eq!(findings.worst(), Some(Kind::Busy));
        findings.problem("d", Kind::Corrupt, "x", "y");
        assert_eq!(findings.worst(), Some(Kind::Corrupt));
        assert!(findings.to_text().contains("WRONG  d            x\n                    -> y\n"));
        findings.note("e", "x\u{1b}", "y\nfine   f");
        let text = findings.to_text();
        assert!(
            text.contains("note   e            x\\u{1b}\n                    -> y\\nfine   f\n"),
            "{text}"
        );
    }
}
