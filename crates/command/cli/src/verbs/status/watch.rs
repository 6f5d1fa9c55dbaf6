//! `status --watch`: shows the counters of running servers and their rates periodically.
//!
//! A terminal shows one screen that is redrawn, and gets its former screen back before a signal
//! ends or stops the process. Other output gets one line per server and update, for logs and
//! programs.

use crate::args::StatusArgs;
use crate::terminal::caught_signals::CaughtSignals;
use crate::terminal::terminal_size::{TerminalSize, size};
use crate::terminal::utc::utc;
use crate::verbs::status::activity::{Activity, CacheUse};
use crate::verbs::status::server_text::{self, address, no_answer, printable, since};
use lacuna_storage::{Error, Result, human_size};
use serde_json::Value;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::raise;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::iter::once;
use std::time::{Duration, Instant};

/// Switches to the alternate screen, so that the old content comes back; hides the cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves to the first character.
const HOME: &str = "\x1b[H";
/// Clear the rest of the line, and of the screen.
const REST_OF_LINE: &str = "\x1b[K";
const REST_OF_SCREEN: &str = "\x1b[J";
/// Lines above the servers.
const TITLE: usize = 2;

/// Shows the results of `look` until INT, TERM or HUP, until there are no servers any more, or
/// until the given count is reached. Another signal has its usual effect, after which the display
/// goes on if the process does. Errors: those of `look`.
pub(crate) fn run(args: &StatusArgs, mut look: impl FnMut() -> Result<Vec<Value>>) -> Result<()> {
    let mut watch = Watching { interval: args.interval, left: args.count, before: SampleHistory::default() };
    loop {
        match watch.until_end(&mut look)? {
            Ended::Closed => {
                write("the watched disks are closed\n")?;
                return Ok(());
            }
            Ended::Shown | Ended::Signal(SIGINT | SIGTERM | SIGHUP) => return Ok(()),
            // Another program may have used the terminal meanwhile.
            Ended::Signal(SIGCONT) => {}
            Ended::Signal(signal) => raise(signal).map_err(|e| signals_failed(&e))?,
        }
    }
}

/// Why the display ends.
enum Ended {
    /// There are no servers any more.
    Closed,
    /// The given count is reached, or the reader has closed the stream.
    Shown,
    /// This signal came.
    Signal(i32),
}

/// The progress of a display.
struct Watching {
    interval: Duration,
    left: Option<u64>,
    before: SampleHistory,
}

impl Watching {
    /// Shows one update after another. The terminal and the handlers of signals are as before when
    /// this returns.
    fn until_end(&mut self, mut look: impl FnMut() -> Result<Vec<Value>>) -> Result<Ended> {
        // A shell starts commands in the background with INT ignored.
        let signals = CaughtSignals::new(&[SIGINT, SIGTERM]).map_err(|e| signals_failed(&e))?;
        let screen = Screen::start();
        loop {
            let begun = Instant::now();
            // The names may be those of other users.
            let servers: Vec<Value> = look()?.iter().map(printable).collect();
            if servers.is_empty() {
                return Ok(Ended::Closed);
            }
            let seen: Vec<ServerSample> =
                servers.iter().map(|server| self.before.sample(server, begun)).collect();
            self.before.update(&seen);
            let is_read = screen.show(&seen, self.interval)?;
            self.left = self.left.map(|left| left - 1);
            if !is_read || self.left == Some(0) {
                return Ok(Ended::Shown);
            }
            let pause = self.interval.saturating_sub(begun.elapsed());
            if let Some(signal) = signals.wait(pause).map_err(|e| signals_failed(&e))? {
                return Ok(Ended::Signal(signal));
            }
        }
    }
}

fn signals_failed(e: &io::Error) -> Error {
    Error::io("cannot listen for signals", e)
}

/// A server at one update.
struct ServerSample {
    key: String,
    server: Value,
    activity: Activity,
    at: Instant,
    /// Bytes per second since the previous update.
    read: Option<u64>,
    written: Option<u64>,
    /// Cache hits since then, in percent.
    hits: Option<u64>,
    /// The maximum of both rates so far.
    peak: (u64, u64),
}

/// The servers at the previous update.
#[derive(Default)]
struct SampleHistory(HashMap<String, (Instant, Activity, (u64, u64))>);

impl SampleHistory {
    fn sample(&self, server: &Value, at: Instant) -> ServerSample {
        let key = format!("{} {} {}", server["location"], address(server), server["pid"]);
        let activity = Activity::of(&server["items"]);
        let mut seen = ServerSample {
            key,
            server: server.clone(),
            activity,
            at,
            read: None,
            written: None,
            hits: None,
            peak: (0, 0),
        };
        if let Some((then, before, most)) = self.0.get(&seen.key) {
            let passed = at.saturating_duration_since(*then);
            seen.read = rate(before.read, seen.activity.read, passed);
            seen.written = rate(before.written, seen.activity.written, passed);
            let both = before.cache.zip(seen.activity.cache);
            seen.hits = both.and_then(|(before, now)| now.since(before).percent());
            seen.peak = (most.0.max(seen.read.unwrap_or(0)), most.1.max(seen.written.unwrap_or(0)));
        }
        seen
    }

    fn update(&mut self, seen: &[ServerSample]) {
        let kept = seen.iter().map(|seen| (seen.key.clone(), (seen.at, seen.activity.clone(), seen.peak)));
        self.0 = kept.collect();
    }
}

/// The rate per second.
fn rate(before: Option<u64>, now: Option<u64>, passed: Duration) -> Option<u64> {
    let more = now?.saturating_sub(before?);
    (!passed.is_zero()).then(|| (more as f64 / passed.as_secs_f64()).round() as u64)
}

/// The output.
struct Screen {
    /// Whether it is a terminal with cursor control.
    drawn: bool,
}

impl Screen {
    fn start() -> Screen {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let drawn = io::stdout().is_terminal() && !dumb;
        if drawn {
            let _ = io::stdout().write_all(ENTER.as_bytes());
        }
        Screen { drawn }
    }

    /// Shows an update. `false` if the reader has closed the stream.
    fn show(&self, seen: &[ServerSample], interval: Duration) -> Result<bool> {
        let mut text = String::new();
        if self.drawn {
            let size = size();
            text.push_str(HOME);
            let frame = frame(seen, interval, size);
            for (number, line) in frame.iter().enumerate() {
                let end = if number + 1 < frame.len() { "\r\n" } else { "" };
                let _ = write!(text, "{}{REST_OF_LINE}{end}", cut(line, size.columns));
            }
            text.push_str(REST_OF_SCREEN);
        } else {
            let now = utc(lacuna_daemon::seconds_now());
            seen.iter().for_each(|seen| _ = writeln!(text, "{now}  {}", line(seen)));
        }
        write(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.drawn {
            let mut out = io::stdout();
            let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
        }
    }
}

fn write(text: &str) -> Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::io("cannot write to standard output", &e)),
    }
}

/// The line cut to the width, without control characters.
fn cut(line: &str, width: usize) -> String {
    line.chars().map(|c| if c.is_control() { '?' } else { c }).take(width).collect()
}

/// The lines of a screen, at most the number of its rows: a block for each server if all fit,
/// otherwise a table with a row for each server.
fn frame(seen: &[ServerSample], interval: Duration, size: TerminalSize) -> Vec<String> {
    let title = format!(
        "lacuna status   {}   every {} s, Ctrl-C ends it",
        utc(lacuna_daemon::seconds_now()),
        interval.as_secs_f64()
    );
    let mut lines = vec![title, String::new()];
    let whole: Vec<String> = seen.iter().flat_map(block).collect();
    let room = size.rows.saturating_sub(TITLE);
    let table = || once(heading()).chain(seen.iter().map(|seen| row(seen, size.columns))).collect();
    let rest: Vec<String> = if whole.len() <= room { whole } else { table() };
    let fits = rest.len() <= room;
    let shown = if fits { rest.len() } else { room.saturating_sub(1) };
    lines.extend(rest.iter().take(shown).cloned());
    if !fits {
        lines.push(format!("and {} more", rest.len() - shown));
    }
    lines.truncate(size.rows);
    lines
}

/// The details of a server, followed by an empty line.
fn block(seen: &ServerSample) -> Vec<String> {
    let ServerSample { server, activity, .. } = seen;
    let text = |field: &str| server[field].as_str().unwrap_or_default().to_owned();
    if let Some(absent) = absent(server) {
        return vec![
            format!("{} at {}", text("location"), address(server)),
            format!("  {absent}"),
            String::new(),
        ];
    }
    let moment = since(server).map(|moment| format!(", since {moment}")).unwrap_or_default();
    let closing = if server["closing"] == true { ", closing" } else { "" };
    let clients = server_text::clients(server).map(|words| format!(", {words}"));
    let clients = clients.as_deref().unwrap_or("");
    let user = server_text::user(server).map(|words| format!(", {words}"));
    let user = user.as_deref().unwrap_or("");
    let levels = Some(activity.levels_text()).filter(|words| !words.is_empty());
    let levels = levels.map(|words| format!(", {words}")).unwrap_or_default();
    let mut lines = vec![
        format!("{} at {}", text("location"), address(server)),
        format!("  {}{levels}, process {}{user}{moment}{clients}{closing}", text("format"), server["pid"]),
        format!("  {:<14}{:>14}{:>14}{:>14}", "", "now", "most", "in all"),
    ];
    let traffic = [
        ("read", seen.read, seen.peak.0, activity.read),
        ("written", seen.written, seen.peak.1, activity.written),
    ];
    for (name, now, most, all) in traffic {
        let all = all.map_or_else(|| "-".to_owned(), human_size);
        lines.push(format!("  {name:<14}{:>14}{:>14}{all:>14}", speed(now), speed(now.map(|_| most))));
    }
    let number = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    lines.push(format!("  {:<14}{:>14}", "in flight", number(activity.in_flight)));
    lines.push(format!(
        "  {:<14}{:>14}{}",
        "pending",
        activity.pending_text().unwrap_or_else(|| "-".to_owned()),
        activity
            .waiting_for_cover
            .map(|bytes| format!("   {} waiting for cover", human_size(bytes)))
            .unwrap_or_default()
    ));
    lines.extend(server_text::cover(activity).map(|words| format!("  {:<14}{words}", "cover")));
    if let Some(all) = activity.cache.and_then(CacheUse::percent) {
        let now = seen.hits.map_or_else(|| "-".to_owned(), |hits| format!("{hits}%"));
        lines.push(format!("  {:<14}{now:>14}{:>14}{:>14}", "cache hits", "", format!("{all}%")));
    }
    lines.extend(server["last_error"].as_str().map(|error| format!("  last failure: {error}")));
    lines.push(String::new());
    lines
}

/// The heading of the table.
fn heading() -> String {
    format!("{:>12}{:>13}{:>10}{:>12}  location", "read", "written", "in flight", "pending")
}

/// The row of a server in the table. A long name loses its beginning, because its end tells more.
fn row(seen: &ServerSample, width: usize) -> String {
    let ServerSample { server, activity, .. } = seen;
    let number = activity.in_flight.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let pending = activity.pending_text().unwrap_or_else(|| "-".to_owned());
    let mut row = format!("{:>12}{:>13}{number:>10}{pending:>12}  ", speed(seen.read), speed(seen.written));
    let marked = absent(server).map(|absent| format!(": {absent}")).unwrap_or_default();
    let name = format!("{}{marked}", server["location"].as_str().unwrap_or("a disk"));
    let (length, room) = (name.chars().count(), width.saturating_sub(row.chars().count()));
    if length > room {
        row.push_str("..");
        row.extend(name.chars().skip(length - room.saturating_sub(2).min(length)));
    } else {
        row.push_str(&name);
    }
    row
}

/// An update of a server in one line.
fn line(seen: &ServerSample) -> String {
    let ServerSample { server, activity, .. } = seen;
    let name = format!("{} at {}", server["location"].as_str().unwrap_or("a disk"), address(server));
    if let Some(absent) = absent(server) {
        return cut(&format!("{name}: {absent}"), usize::MAX);
    }
    let mut parts = vec![format!("read {}", speed(seen.read)), format!("written {}", speed(seen.written))];
    parts.extend(activity.in_flight.map(|count| format!("in flight {count}")));
    parts.extend(activity.pending_text().map(|words| format!("pending {words}")));
    parts.extend(activity.cover.map(|count| format!("cover {count}")));
    parts.extend(
        seen.hits.or(activity.cache.and_then(CacheUse::percent)).map(|hits| format!("cache hits {hits}%")),
    );
    parts.extend(server_text::clients(server));
    parts.extend(server_text::user(server));
    parts.extend((server["closing"] == true).then(|| "closing".to_owned()));
    parts.extend(server["last_error"].as_str().map(|error| format!("last failure: {error}")));
    cut(&format!("{name}: {}", parts.join(", ")), usize::MAX)
}

/// The reason why there are no counters.
fn absent(server: &Value) -> Option<String> {
    if server["died"] == true {
        return Some("its server died".to_owned());
    }
    (server["silent"] == true).then(|| format!("its server {}", no_answer(server)))
}

fn speed(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{}/s", human_size(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::terminal_size::USUAL;
    use serde_json::json;

    fn seen(number: u64) -> Value {
        json!({
            "location": format!("/disk{number}\x1b[2J"), "front": "fuse", "mountpoint": "/mnt", "format": "sealed", "pid": 7,
            "items": [{ "name": "bytes_read", "value": number << 20 }, { "name": "dirty", "value": 0 }],
        })
    }

    #[test]
    fn a_frame_fits_a_screen_of_any_size() {
        let history = SampleHistory::default();
        for servers in [1, 2, 3, 40] {
            let all: Vec<ServerSample> =
                (0..servers).map(|n| history.sample(&seen(n), Instant::now())).collect();
            for rows in [1, 2, 3, 10, 24, 100] {
                for columns in [1, 40, 52, 80, 200] {
                    let lines = frame(&all, Duration::from_secs(1), TerminalSize { columns, rows });
                    assert!(lines.len() <= rows, "{servers} in {rows}: {lines:?}");
                }
            }
            assert!(frame(&all, Duration::from_secs(1), USUAL).concat().contains("disk0"));
        }
        assert_eq!(cut("ab\x1b[Jc\nd", 6), "ab?[Jc");
    }

    #[test]
    fn speed_is_the_change_since_the_last_sample() {
        let (mut history, start) = (SampleHistory::default(), Instant::now());
        let first = history.sample(&seen(1), start);
        assert_eq!(first.read, None);
        history.update(&[first]);
        let mut later = seen(1);
        later["items"][0]["value"] = json!(5 << 20);
        let second = history.sample(&later, start + Duration::from_secs(2));
        assert_eq!((second.read, second.peak.0, second.written), (Some(2 << 20), 2 << 20, None));
        assert!(line(&second).contains("read 2 MiB/s"));
    }
}
