//! A server's status as text: about ten lines, or all counters.

use crate::terminal::terminal_size::{filled, fits, listed};
use crate::terminal::utc::utc;
use crate::verbs::status::activity::{Activity, CacheUse};
use lacuna_storage::{Location, human_size, shell_word};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// The width of the names of rows.
const NAME: usize = 24;

/// The text for a server; with `all` also all its counters. With a `width` its lines are folded,
/// except sentences, which may have commands in them.
pub(crate) fn render(server: &Value, all: bool, width: Option<usize>) -> String {
    let server = &printable(server);
    let place = address(server);
    let location = server["location"].as_str().unwrap_or("a disk");
    let pid = &server["pid"];
    if let Some(restart) = restart(server) {
        return format!("{location} at {place}: its server died (process {pid}), and {restart}\n");
    }
    if server["died"] == true {
        return format!(
            "{location} at {place}: its server died (process {pid}); `lacuna close {}` clears it away\n",
            shell_word(&place)
        );
    }
    if server["silent"] == true {
        return format!("{location} at {place}: its server {}; {}\n", no_answer(server), resume_hint(server));
    }
    let mut out = heading(location, &place, facts(server), width);
    if let Some(changed) = changed_file(server) {
        let _ = writeln!(out, "  {changed}");
    }
    if server["keeper_died"] == true {
        out.push_str("  its keeper died: if the server dies too, writes that were not flushed are lost\n");
    }
    if let Some(error) = server["last_error"].as_str() {
        let _ = writeln!(out, "  last failure: {error}");
    }
    if let Some(refused) = refused_clients(server) {
        let _ = writeln!(out, "  {refused}");
    }
    let mut rows = short(server);
    if all {
        rows.extend(server["id"].as_str().map(|id| ("ID".to_owned(), id.to_owned())));
        rows.extend(counters(server));
    }
    rows.iter().for_each(|(name, value)| out.push_str(&row(name, value, width)));
    out
}

/// The first line, or several lines where it is wider than the terminal.
fn heading(location: &str, place: &str, facts: Vec<String>, width: Option<usize>) -> String {
    let line = format!("{location} at {place} ({})", facts.join(", "));
    let lines = match width.filter(|_| !fits(&line, width)) {
        None => vec![line],
        Some(width) => {
            let facts = [vec![format!("at {place}")], facts].concat();
            [vec![location.to_owned()], listed(&facts, "  ", width)].concat()
        }
    };
    lines.join("\n") + "\n"
}

/// A name and its value, folded below the value.
fn row(name: &str, value: &str, width: Option<usize>) -> String {
    let begin = format!("  {name:<NAME$} ");
    let lines = match width {
        None => vec![value.to_owned()],
        Some(width) => filled(value.split(' '), width.saturating_sub(begin.chars().count())),
    };
    begin + &lines.join(&format!("\n{:1$}", "", NAME + 3)) + "\n"
}

/// The number of clients that use a served disk, if there are any.
pub(crate) fn clients(server: &Value) -> Option<String> {
    match server["clients"].as_u64()? {
        0 => None,
        1 => Some("1 client".to_owned()),
        count => Some(format!("{count} clients")),
    }
}

/// The clients that use a served disk, with the names of the first; `None` for a mount.
fn named_clients(server: &Value) -> Option<String> {
    let count = server["clients"].as_u64()?;
    let names: Vec<&str> =
        server["peers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Some(if count == 0 { "none".to_owned() } else { format!("{count}: {}", names.join(", ")) })
}

/// The clients that a server refused, if there are any.
fn refused_clients(server: &Value) -> Option<String> {
    let refused = &server["refused_clients"];
    let last = refused["last"].as_str()?;
    Some(match refused["count"].as_u64()? {
        1 => format!("1 client refused: {last}"),
        count => format!("{count} clients refused, the last: {last}"),
    })
}

/// A server's status with printable texts: file names are untrusted.
pub(crate) fn printable(value: &Value) -> Value {
    match value {
        Value::String(text) => Value::String(lacuna_storage::printable(text).into_owned()),
        Value::Array(items) => items.iter().map(printable).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), printable(value))).collect()
        }
        other => other.clone(),
    }
}

/// The mount point, or the URIs of the server.
pub(crate) fn address(server: &Value) -> String {
    if server["front"] == "fuse" {
        return server["mountpoint"].as_str().unwrap_or_default().to_owned();
    }
    let uris: Vec<&str> = server["uris"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if uris.is_empty() { "an unknown address".to_owned() } else { uris.join(" and ") }
}

/// Text on the keeper that starts a server again, if the server died.
pub(crate) fn restart(server: &Value) -> Option<String> {
    let restarts = server["died"] == true && server["keeper_died"] != true;
    let keeper = server["keeper"].as_u64().filter(|_| restarts)?;
    let waits = server["keeper_waits_for"].as_str();
    let waits = waits.map_or_else(String::new, |obstacle| format!(" as soon as it can: {obstacle}"));
    Some(format!("its keeper (process {keeper}) starts it again{waits}"))
}

/// Text on a server that does not answer, after its name.
pub(crate) fn no_answer(server: &Value) -> String {
    format!("does not answer (process {})", server["pid"])
}

/// Advice on a server that does not answer.
pub(crate) fn resume_hint(server: &Value) -> String {
    format!("if it was stopped, `kill -CONT {}` lets it go on", server["pid"])
}

/// Whether the file of the open disk was deleted.
pub(crate) fn is_deleted(server: &Value) -> bool {
    server["file"]["deleted"] == true
}

/// A description of the change if the file is no longer at its path.
pub(crate) fn changed_file(server: &Value) -> Option<String> {
    if is_deleted(server) {
        let rescue = if server["vault"] == true { "" } else { ": copy your data before you close it" };
        return Some(format!("its {} was deleted{rescue}", file_noun(server)));
    }
    if server["file"]["removed"] == true {
        return Some("its device was removed, or has another name".to_owned());
    }
    moved_to(server).map(|path| format!("its {} is {path} now", file_noun(server)))
}

/// The noun for the file or directory.
pub(crate) fn file_noun(server: &Value) -> &'static str {
    if server["vault"] == true { "directory" } else { "file" }
}

/// The path of the file of the open disk, if it was moved.
pub(crate) fn moved_to(server: &Value) -> Option<&str> {
    if is_deleted(server) || server["file"]["removed"] == true {
        return None;
    }
    // Does not access the path: its file system may hang.
    let location = Location::parse(server["location"].as_str()?).ok()?;
    // If another hard link keeps the file, its path is that of the removed link, and the path of
    // the remaining link is unknown.
    let is_known = |path: &&str| path.starts_with('/') && !path.ends_with(" (deleted)");
    let path = server["file"]["path"].as_str().filter(is_known)?;
    (location.path() != Some(Path::new(path))).then_some(path)
}

/// The time when it was opened, if known.
pub(crate) fn since(server: &Value) -> Option<String> {
    server["since"].as_u64().map(utc)
}

/// The user, if it is another one than this.
pub(crate) fn user(server: &Value) -> Option<String> {
    let user = server["user"].as_u64()?;
    let elsewhere = if server["elsewhere"] == true { ", in another mount namespace" } else { "" };
    Some(format!("user {user}{elsewhere}"))
}

/// The facts after the name.
fn facts(server: &Value) -> Vec<String> {
    let mut facts = vec![format!("process {}", server["pid"])];
    let keeper = server["keeper"].as_u64().filter(|_| server["keeper_died"] != true);
    facts.extend(keeper.map(|keeper| format!("keeper {keeper}")));
    facts.extend(user(server));
    facts.extend(server["namespace"].as_str().map(|namespace| format!("namespace {namespace}")));
    facts.extend(server["format"].as_str().map(str::to_owned));
    facts.extend(since(server).map(|moment| format!("since {moment}")));
    let marks = [("read_only", "read-only"), ("closing", "closing")];
    facts.extend(marks.into_iter().filter(|(field, _)| server[*field] == true).map(|(_, word)| word.into()));
    facts
}

/// The counters that most users need.
fn short(server: &Value) -> Vec<(String, String)> {
    let activity = Activity::of(&server["items"]);
    let clients = named_clients(server);
    if server["items"].as_array().is_none_or(Vec::is_empty) {
        let none = ("counters".to_owned(), "none now: it waits for its medium".to_owned());
        return clients.map(|words| ("clients".to_owned(), words)).into_iter().chain([none]).collect();
    }
    let levels = Some(activity.levels_text()).filter(|words| !words.is_empty());
    let requests = |count: u64| if count == 1 { "1 request".to_owned() } else { format!("{count} requests") };
    let rows = [
        ("open", levels),
        ("clients", clients),
        ("read", activity.read.map(human_size)),
        ("written", activity.written.map(human_size)),
        ("in flight", activity.in_flight.map(requests)),
        ("not yet on the medium", activity.pending_text()),
        ("of it waiting for cover", activity.waiting_for_cover.map(human_size)),
        ("cover", cover(&activity)),
        (
            "metadata in the cache",
            activity.cache.and_then(CacheUse::percent).map(|hits| format!("{hits}% of look-ups")),
        ),
        (
            "host",
            activity.medium_full.then(|| {
                "full, or fails calls (see its log): free space there, or delete and trim here".to_owned()
            }),
        ),
    ];
    rows.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The interval of cover writes, and their amount.
pub(crate) fn cover(activity: &Activity) -> Option<String> {
    let own = match activity.cover_interval? {
        0 => "none of its own".to_owned(),
        millis => format!("every {} s, {} so far", millis as f64 / 1000.0, activity.cover.unwrap_or(0)),
    };
    let (medium, public) = activity.amplified.filter(|(_, public)| *public > 0).unwrap_or((0, 1));
    if medium == 0 {
        return Some(own);
    }
    let factor = medium as f64 / public as f64;
    Some(format!("{own}; {factor:.1} bytes went to the medium for each byte of level 0"))
}

/// All counters.
fn counters(server: &Value) -> Vec<(String, String)> {
    let items = server["items"].as_array().into_iter().flatten();
    let row = |item: &Value| {
        let name = item["name"].as_str().unwrap_or_default().replace('_', " ");
        let value = match (item["value"].as_u64(), item["unit"].as_str()) {
            (Some(bytes), Some("bytes")) => human_size(bytes),
            (Some(so), Some("")) => if so == 0 { "no" } else { "yes" }.to_owned(),
            (Some(value), Some(unit)) => format!("{value} {unit}"),
            _ => String::new(),
        };
        (name, value)
    };
    items.map(row).collect()
}
