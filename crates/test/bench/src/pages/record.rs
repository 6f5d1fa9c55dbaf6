//! Records of stable measures: one run writes them, so that another run can be compared with it.

use crate::measuring::section_results::SectionResults;
use crate::pages::table::Table;
use crate::section::BenchSection;
use lacuna_contracts::{Error, Kind, Result};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Maximum relative difference between two runs on the same commit.
const MAX_DIFFERENCE: f64 = 0.05;
/// Counts below this in both records are ignored: two bytes or calls per thousand.
const NEGLIGIBLE: f64 = 0.002;
/// Rows of the table of the largest differences.
const MOST: usize = 20;

/// Stable measures by section and name.
pub(crate) type StableFigures = BTreeMap<(String, String), f64>;

/// Writes the stable measures of a run to a file, with the facts that they depend on.
pub(crate) fn write(
    path: &Path,
    facts: &[(&'static str, String)],
    sections: &[(&'static BenchSection, Box<dyn SectionResults>)],
) -> Result<()> {
    let mut figures = Map::new();
    for (section, measured) in sections {
        let stable = measured.stable().into_iter().map(|figure| (figure.name, json!(figure.value)));
        figures.insert(section.name.to_owned(), Value::Object(stable.collect()));
    }
    let machine: Map<String, Value> =
        facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let begun = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let record = json!({ "written": begun, "machine": machine, "figures": figures });
    let text = serde_json::to_string_pretty(&record).map_err(|e| invalid_record(path, &e))?;
    std::fs::write(path, text + "\n").map_err(|e| Error::io(format!("cannot write {}", path.display()), &e))
}

/// Reads a record: its time, and its figures.
fn read(path: &Path) -> Result<(String, StableFigures)> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::io(format!("cannot read {}", path.display()), &e))?;
    let record: Value = serde_json::from_str(&text).map_err(|e| invalid_record(path, &e))?;
    let mut all = StableFigures::new();
    for (section, figures) in record["figures"].as_object().into_iter().flatten() {
        for (name, value) in figures.as_object().into_iter().flatten() {
            let value =
                value.as_f64().ok_or_else(|| invalid_record(path, &format!("no number for {name}")))?;
            all.insert((section.clone(), name.clone()), value);
        }
    }
    Ok((record["written"].as_str().unwrap_or("unknown").to_owned(), all))
}

fn invalid_record(path: &Path, found: &impl ToString) -> Error {
    Error::new(Kind::Other, format!("cannot use {}", path.display()))
        .found(found.to_string())
        .expected("a record that --record wrote")
}

/// Compares two records. Returns a text for display, and whether they agree. Errors: if they have
/// no figure in common.
pub(crate) fn agree(one: &Path, other: &Path) -> Result<(String, bool)> {
    let ((first, ours), (second, theirs)) = (read(one)?, read(other)?);
    let mut differences: Vec<(&(String, String), f64, f64, f64)> = ours
        .iter()
        .filter_map(|(name, value)| {
            let other = theirs.get(name)?;
            let is_something = value.abs() >= NEGLIGIBLE || other.abs() >= NEGLIGIBLE;
            is_something.then_some((name, *value, *other, other / value - 1.0))
        })
        .collect();
    if differences.is_empty() {
        return Err(Error::new(Kind::Other, "the records have no figure in common"));
    }
    let lacks = |figures: &StableFigures, of: &StableFigures| {
        figures.keys().filter(|name| !of.contains_key(*name)).count()
    };
    let alone = lacks(&ours, &theirs) + lacks(&theirs, &ours);
    differences.sort_by(|a, b| b.3.abs().total_cmp(&a.3.abs()));
    let mut sections = Table::new(
        format!("Stable measures of {first} and {second}"),
        ["section", "measures", "half of them within", "95 % within", "all within", "beyond 5 %"],
    );
    let names: std::collections::BTreeSet<&str> =
        differences.iter().map(|((section, _), ..)| section.as_str()).collect();
    for section in names {
        // Sorted from the largest to the smallest.
        let moved: Vec<f64> =
            differences.iter().filter(|((of, _), ..)| of == section).map(|(.., moved)| moved.abs()).collect();
        let within = |part: f64| {
            let at = ((1.0 - part) * moved.len() as f64).floor() as usize;
            format!("{:.1}%", 100.0 * moved[at.min(moved.len() - 1)])
        };
        let beyond = moved.iter().filter(|moved| **moved > MAX_DIFFERENCE).count();
        sections.row(
            section,
            [moved.len().to_string(), within(0.5), within(0.95), within(1.0), beyond.to_string()],
        );
    }
    let mut most = Table::new("Largest differences", ["section", "measure", "one", "other", "moved"]);
    for ((section, name), one, other, moved) in differences.iter().take(MOST) {
        most.row(
            section,
            [name.clone(), format!("{one:.4}"), format!("{other:.4}"), format!("{:+.1}%", 100.0 * moved)],
        );
    }
    let beyond = differences.iter().filter(|(.., moved)| moved.abs() > MAX_DIFFERENCE).count();
    let verdict = format!(
        "{} of {} stable measures agree within {:.0} %; {alone} are in only one of the records.",
        differences.len() - beyond,
        differences.len(),
        100.0 * MAX_DIFFERENCE
    );
    Ok((format!("{}\n{}\n{verdict}", sections.text(), most.text()), beyond == 0 && alone == 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(dir: &Path, name: &str, value: f64) -> std::path::PathBuf {
        let path = dir.join(name);
        let record = json!({ "written": name, "figures": { "disks": { "a": value, "b": 0.0001 } } });
        std::fs::write(&path, record.to_string()).unwrap();
        path
    }

    #[test]
    fn records_agree_within_five_percent() {
        let dir = tempfile::tempdir().unwrap();
        let [one, near, far] = [("one", 1.0), ("near", 1.04), ("far", 1.06)]
            .map(|(name, value)| record(dir.path(), name, value));
        let (text, agrees) = agree(&one, &near).unwrap();
        assert!(agrees && text.contains("1 of 1 stable measures"), "{text}");
        let (text, agrees) = agree(&one, &far).unwrap();
        assert!(!agrees && text.contains("+6.0%"), "{text}");
        std::fs::write(dir.path().join("none"), "{}").unwrap();
        assert!(agree(&one, &dir.path().join("none")).is_err());
    }
}
