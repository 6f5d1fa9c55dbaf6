//! Requirements, compared with the measurements.

use crate::pages::table::Table;

/// The bound of a requirement.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// The figure must be at least this value.
    AtLeast(f64),
    /// The figure must be at most this value.
    AtMost(f64),
}

use Bound::{AtLeast, AtMost};

/// A requirement with its cases; the worst case decides.
pub struct Requirement {
    line: String,
    bound: Bound,
    unit: &'static str,
    cases: Vec<(String, f64)>,
}

impl Requirement {
    /// A requirement on a ratio or, with a unit, on an absolute figure.
    pub fn new(line: impl Into<String>, bound: Bound, unit: &'static str) -> Self {
        Requirement { line: line.into(), bound, unit, cases: Vec::new() }
    }

    /// Adds a case; a case without a value is ignored.
    pub fn case(mut self, name: impl Into<String>, value: Option<f64>) -> Self {
        self.add(name, value);
        self
    }

    /// Adds a case in place; a case without a value is ignored.
    pub fn add(&mut self, name: impl Into<String>, value: Option<f64>) {
        self.cases.extend(value.map(|value| (name.into(), value)));
    }

    /// The worst case; `None` if none was measured.
    pub(crate) fn worst(&self) -> Option<(&str, f64)> {
        let worse = |a: &&(String, f64), b: &&(String, f64)| match self.bound {
            AtLeast(_) => a.1.total_cmp(&b.1),
            AtMost(_) => b.1.total_cmp(&a.1),
        };
        self.cases.iter().min_by(worse).map(|(name, value)| (name.as_str(), *value))
    }

    /// Whether the worst case satisfies the requirement; `None` if nothing was measured.
    pub(crate) fn is_met(&self) -> Option<bool> {
        self.worst().map(|(_, value)| self.is_met_by(value))
    }

    fn is_met_by(&self, value: f64) -> bool {
        match self.bound {
            AtLeast(least) => value >= least,
            AtMost(most) => value <= most,
        }
    }

    fn cells(&self) -> [String; 3] {
        let bound = match self.bound {
            AtLeast(least) => format!("at least {least}{}", self.unit),
            AtMost(most) => format!("at most {most}{}", self.unit),
        };
        let missed = self.cases.iter().filter(|(_, value)| !self.is_met_by(*value));
        let (measured, reached) = match (self.worst(), self.is_met()) {
            (Some((name, value)), Some(reached)) => {
                let figure = if value >= 10.0 { format!("{value:.1}") } else { format!("{value:.2}") };
                let place = if self.cases.len() > 1 { format!(" ({name})") } else { String::new() };
                let verdict = match (reached, self.cases.len()) {
                    (true, _) => "yes".into(),
                    (false, 1) => "NO".into(),
                    (false, n) => format!("NO, {} of {n} missed", missed.count()),
                };
                (format!("{figure}{}{place}", self.unit), verdict)
            }
            _ => ("-".into(), "not measured".into()),
        };
        [bound, measured, reached]
    }
}

/// The table of all requirements.
pub(crate) fn table(requirements: &[Requirement]) -> Table {
    let mut table = Table::new("Required and measured", ["", "required", "measured, worst case", "reached"]);
    requirements.iter().for_each(|r| table.row(r.line.clone(), r.cells()));
    table
}

/// Number of satisfied requirements, and of measured ones: `5 of 6`.
pub fn tally(requirements: &[Requirement]) -> String {
    let verdicts: Vec<bool> = requirements.iter().filter_map(Requirement::is_met).collect();
    format!("{} of {}", verdicts.iter().filter(|v| **v).count(), verdicts.len())
}

/// A sentence with the tally.
pub(crate) fn verdict(requirements: &[Requirement]) -> String {
    format!("{} requirements are reached.", tally(requirements))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_case_decides() {
        let reads =
            Requirement::new("reads", AtLeast(0.95), "").case("4 KiB", Some(1.1)).case("1 MiB", Some(0.9));
        assert_eq!(reads.worst(), Some(("1 MiB", 0.9)));
        assert_eq!(reads.is_met(), Some(false));
        assert_eq!(reads.cells()[1..], ["0.90 (1 MiB)", "NO, 1 of 2 missed"]);
        let memory =
            Requirement::new("memory", AtMost(96.0), " MiB").case("", Some(64.0)).case("gcm", Some(80.0));
        assert_eq!(memory.worst(), Some(("gcm", 80.0)));
        assert_eq!(memory.is_met(), Some(true));
        assert_eq!(tally(&[reads, memory]), "1 of 2");
    }

    #[test]
    fn an_unmeasured_requirement_is_neither_met_nor_missed() {
        let skipped = Requirement::new("peer", AtLeast(5.0), "").case("", None);
        assert_eq!(skipped.is_met(), None);
        assert_eq!(skipped.cells()[2], "not measured");
        assert_eq!(tally(&[skipped]), "0 of 0");
    }
}
