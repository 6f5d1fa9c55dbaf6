//! `list`: prints one line for each open disk and vault.

use crate::args::ListArgs;
use crate::terminal::console::{self, Console};
use crate::verbs::status;
use crate::verbs::status::account::{changed_file, no_answer, place, printable, since};
use crate::verbs::status::activity::Activity;
use lacuna_storage::{Result, shell_word};
use serde_json::{Value, json};

/// `lacuna list`.
pub(crate) fn run(args: &ListArgs, console: Console) -> Result<()> {
    let servers = status::all(console)?;
    if args.json {
        let open: Vec<Value> = servers.iter().map(entry).collect();
        return console::json(&json!({ "open": open }));
    }
    if servers.is_empty() {
        return console.done("nothing is open");
    }
    let rows: Vec<Vec<String>> = servers.iter().map(|server| row(&printable(server))).collect();
    lines(&rows).iter().try_for_each(|line| console::line(line))
}

/// A disk or vault as JSON.
fn entry(server: &Value) -> Value {
    let activity = Activity::of(&server["items"]);
    let mut out = json!({
        "location": server["location"],
        "format": server["format"],
        "front": server["front"],
        "at": place(server),
        "since": server["since"],
        "pid": server["pid"],
        "levels": activity.levels,
        "pending": activity.pending,
        "changed_files": activity.changed_files,
        "file": server["file"],
    });
    for flag in ["read_only", "raw", "died", "silent", "closing"] {
        out[flag] = json!(server[flag] == true);
    }
    out
}

/// A disk or vault as a row of the table.
fn row(server: &Value) -> Vec<String> {
    let text = |field: &str| server[field].as_str().unwrap_or_default().to_owned();
    let activity = Activity::of(&server["items"]);
    let told = if server["died"] == true {
        format!("its server died; `lacuna close {}` clears it away", shell_word(place(server)))
    } else if server["silent"] == true {
        format!("its server {}", no_answer(server))
    } else {
        let pending = activity.pending_words().map(|words| format!("{words} pending"));
        let marks = [("read_only", "read-only"), ("closing", "closing")];
        let marks = marks.into_iter().filter(|(field, _)| server[*field] == true);
        let marks = marks.map(|(_, word)| word.to_owned());
        let levels = Some(activity.level_words()).filter(|words| !words.is_empty());
        changed_file(server)
            .into_iter()
            .chain(pending)
            .chain(levels)
            .chain(marks)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let location = if server["location"].is_null() { "(unknown)".to_owned() } else { text("location") };
    let at = format!("at {}", place(server));
    let since = since(server).map(|moment| format!("since {moment}")).unwrap_or_default();
    vec![location, text("format"), at, since, told]
}

/// The rows as lines with aligned columns.
fn lines(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [["a", "sealed", ""], ["longer", "vault", "x"]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(ToString::to_string).collect()).collect();
        assert_eq!(lines(&rows), ["a       sealed", "longer  vault   x"]);
    }
}
