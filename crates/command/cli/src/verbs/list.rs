//! `list`: prints one line for each open disk and vault, or two where the terminal is too narrow.

use crate::args::ListArgs;
use crate::terminal::console::{self, Console};
use crate::terminal::terminal_size::{fits, listed, width};
use crate::verbs::status;
use crate::verbs::status::activity::Activity;
use crate::verbs::status::server_text::{
    address, changed_file, clients, no_answer, printable, restart, since, user,
};
use lacuna_daemon::OtherUsers;
use lacuna_storage::{Result, shell_word};
use serde_json::{Value, json};

/// The widest cell of the table that has others aligned after it. Names that another user gave may
/// be much longer.
const MOST_ALIGNED: usize = 200;

/// `lacuna list`.
pub(crate) fn run(args: &ListArgs, console: Console) -> Result<()> {
    let seen = status::seen(args.all_users, console)?;
    seen.tell_unseen(console);
    let servers = seen.to_json();
    if args.json {
        let open: Vec<Value> = servers.iter().map(entry).collect();
        return console::json(&json!({ "open": open }));
    }
    if servers.is_empty() {
        if !args.all_users && OtherUsers::may_look() && console::is_terminal() {
            console.note("this lists the disks of root alone; `lacuna list --all-users` those of all users");
        }
        return console.done("nothing is open");
    }
    let rows: Vec<ListRow> = servers.iter().map(|server| row(&printable(server))).collect();
    lines(&rows, width()).iter().try_for_each(|line| console::line(line))
}

/// A disk or vault as JSON.
fn entry(server: &Value) -> Value {
    let activity = Activity::of(&server["items"]);
    let mut out = json!({
        "location": server["location"],
        "format": server["format"],
        "front": server["front"],
        "at": address(server),
        "since": server["since"],
        "pid": server["pid"],
        "levels": activity.levels,
        "pending": activity.pending,
        "changed_files": activity.changed_files,
        "clients": server["clients"],
        "file": server["file"],
    });
    for flag in ["read_only", "raw", "died", "silent", "closing", "keeper_died"] {
        out[flag] = json!(server[flag] == true);
    }
    for (field, of_server) in [("user", "user"), ("elsewhere", "elsewhere"), ("at_bytes", "mountpoint_bytes")]
    {
        if !server[of_server].is_null() {
            out[field] = server[of_server].clone();
        }
    }
    out
}

/// A disk or vault in the table.
struct ListRow {
    location: String,
    format: String,
    /// Where it is open.
    at: String,
    /// Since when; empty if that is unknown.
    since: String,
    /// Facts on its state.
    state: Vec<String>,
}

/// A disk or vault as a row of the table.
fn row(server: &Value) -> ListRow {
    let text = |field: &str| server[field].as_str().unwrap_or_default().to_owned();
    let activity = Activity::of(&server["items"]);
    let state = if let Some(restart) = restart(server) {
        vec![format!("its server died, and {restart}")]
    } else if server["died"] == true {
        vec![format!("its server died; `lacuna close {}` clears it away", shell_word(address(server)))]
    } else if server["silent"] == true {
        vec![format!("its server {}", no_answer(server))]
    } else {
        let pending = activity.pending_text().map(|words| format!("{words} pending"));
        let marks = [("read_only", "read-only"), ("closing", "closing"), ("keeper_died", "its keeper died")];
        let marks = marks.into_iter().filter(|(field, _)| server[*field] == true);
        let marks = marks.map(|(_, word)| word.to_owned());
        let levels = Some(activity.levels_text()).filter(|words| !words.is_empty());
        let state = user(server).into_iter().chain(changed_file(server)).chain(pending).chain(levels);
        state.chain(clients(server)).chain(marks).collect()
    };
    let location = if server["location"].is_null() { "(unknown)".to_owned() } else { text("location") };
    let at = format!("at {}", address(server));
    let since = since(server).map(|moment| format!("since {moment}")).unwrap_or_default();
    ListRow { location, format: text("format"), at, since, state }
}

/// The rows as lines of at most this width, if there is one.
fn lines(rows: &[ListRow], width: Option<usize>) -> Vec<String> {
    let table = aligned(rows);
    match width.filter(|_| !table.iter().all(|line| fits(line, width))) {
        None => table,
        Some(width) => rows.iter().flat_map(|row| folded(row, width)).collect(),
    }
}

/// A row in lines of its own: its name and format, and below them the other facts.
fn folded(row: &ListRow, width: usize) -> Vec<String> {
    let ListRow { location, format, at, since, state } = row;
    let since = Some(since.clone()).filter(|since| !since.is_empty());
    let facts: Vec<String> = [at.clone()].into_iter().chain(since).chain(state.iter().cloned()).collect();
    let name = format!("{location}  {format}");
    [vec![name], listed(&facts, "  ", width)].concat()
}

/// The rows as lines with aligned columns.
fn aligned(rows: &[ListRow]) -> Vec<String> {
    let cells = |row: &ListRow| {
        let ListRow { location, format, at, since, state } = row;
        [location.clone(), format.clone(), at.clone(), since.clone(), state.join(", ")]
    };
    let rows: Vec<[String; 5]> = rows.iter().map(cells).collect();
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let width = |column: usize| widest(column).min(MOST_ALIGNED);
    let line = |row: &[String; 5]| {
        let cells = row.iter().enumerate().map(|(column, cell)| format!("{cell:<0$}", width(column)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(location: &str, format: &str, state: &[&str]) -> ListRow {
        let state = state.iter().map(ToString::to_string).collect();
        let (at, since) = ("at /mnt".to_owned(), "since noon".to_owned());
        ListRow { location: location.to_owned(), format: format.to_owned(), at, since, state }
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [row("a", "sealed", &[]), row("longer", "vault", &["x", "y"])];
        let table = ["a       sealed  at /mnt  since noon", "longer  vault   at /mnt  since noon  x, y"];
        assert_eq!(lines(&rows, None), table);
        assert_eq!(lines(&rows, Some(41)), table);
    }

    #[test]
    fn a_narrow_terminal_gets_two_lines_for_each() {
        let rows = [row("a", "sealed", &[]), row("longer", "vault", &["x", "y"])];
        let folded = ["a  sealed", "  at /mnt, since noon", "longer  vault", "  at /mnt, since noon, x, y"];
        assert_eq!(lines(&rows, Some(40)), folded);
        let narrower = lines(&rows[1..], Some(22));
        assert_eq!(narrower, ["longer  vault", "  at /mnt, since noon,", "  x, y"]);
        let unknown = ListRow { since: String::new(), ..row("a", "sealed", &[]) };
        assert_eq!(lines(&[unknown], Some(1)), ["a  sealed", "  at /mnt"]);
    }
}
