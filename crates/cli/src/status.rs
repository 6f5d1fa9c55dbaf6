//! `status`: what running servers say of themselves, and the servers that there are.

use crate::args::StatusArgs;
use crate::console::{self, Console};
use crate::in_pool;
use crate::place::Place;
use crate::settings;
use crate::{status_watch, status_words};
use lacuna::{ByteDisk, ClusterOptions, Error, FormatId, Kind, Location, Result, Site, Target};
use lacuna_daemon::{Attendance, Counters, InPool, Record, StatusSocket};
use lacuna_nbd::StopHandle;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a server knows of itself.
pub(crate) struct Account {
    location: String,
    /// Of the disk.
    format: FormatId,
    /// When it was opened, in seconds since 1970.
    since: u64,
    /// What the name of its socket is made from.
    identity: String,
    /// Which of the disks of its name it is, if it is one in a pool.
    in_pool: Option<InPool>,
    /// For clients, one for each place where it listens.
    uris: Vec<String>,
    /// With which the server is told to end.
    stop: StopHandle,
    /// Of level 0.
    read_only: bool,
    counters: Counters,
    /// Level 0.
    disk: ByteDisk,
    last_error: Arc<Mutex<Option<String>>>,
}

impl Account {
    /// Of a server that serves a disk with these open levels, found at `location` (in RADOS: in this `cluster`), at these
    /// `uris`, until it is told to `stop`.
    pub(crate) fn of(
        (location, format): (&Location, FormatId),
        cluster: &ClusterOptions,
        (uris, stop): (Vec<String>, StopHandle),
        levels: Vec<ByteDisk>,
        last_error: Arc<Mutex<Option<String>>>,
    ) -> Self {
        let in_pool = in_pool::of(location, cluster);
        let identity = Site::of(location, cluster).target().map(Target::identity);
        let location = canonical(location);
        let identity = identity.unwrap_or_else(|| location.clone());
        let (read_only, disk) = (levels[0].read_only(), levels[0].clone());
        let counters = Counters::of(levels);
        let since = lacuna_daemon::seconds_now();
        Account {
            location,
            format,
            since,
            identity,
            in_pool,
            uris,
            stop,
            read_only,
            counters,
            disk,
            last_error,
        }
    }

    /// Answers for this server as long as what is given back lives, if that can be had: a disk is served without it just as
    /// well.
    pub(crate) fn publish(self, attendance: Attendance, console: Console) -> Option<StatusSocket> {
        let mut identity = self.identity.clone();
        let own = json!({ "file": attendance.file() });
        let place = status_words::place_of(&own);
        // Another server may have a file open that was at this path before.
        let unseen = |e: &Error| {
            console.note(&format!("`lacuna status` will not see this server: {}", settings::words(e)));
        };
        let other = match other_under(&identity) {
            Ok(other) => other,
            Err(e) => {
                unseen(&e);
                return None;
            }
        };
        if other.is_some_and(|other| !place.is_empty() && status_words::place_of(&other) != place) {
            identity = format!("{identity}\0{place}");
        }
        let asked = (self.disk.clone(), settings::full_name as lacuna::Naming);
        let stop = self.stop.clone();
        let attends = attendance.clone();
        let account = move || self.to_json(&attends);
        let started = StatusSocket::start(&identity, asked, attendance, account, move || stop.stop());
        started.inspect_err(unseen).ok()
    }

    /// `attendance` knows what became of the file that is open.
    fn to_json(&self, attendance: &Attendance) -> Value {
        let mut out = json!({
            "location": self.location,
            "front": "nbd",
            "format": self.format.to_string(),
            "since": self.since,
            "uri": self.uris.first(),
            "uris": self.uris,
            "pid": std::process::id(),
            "read_only": self.read_only,
            "size": self.disk.len(),
            "closing": self.stop.stopped(),
            "items": self.counters.now(),
            "last_error": *self.last_error.lock(),
            "id": attendance.id(),
            "file": attendance.file(),
        });
        in_pool::tell(self.in_pool.as_ref(), &mut out);
        out
    }
}

/// What a server says that listens under the name made from `identity`. One that does not answer is found when another is to listen
/// there.
fn other_under(identity: &str) -> Result<Option<Value>> {
    match lacuna_daemon::serving(identity)? {
        Some(socket) => if_it_answers(lacuna_daemon::account(&socket)),
        None => Ok(None),
    }
}

/// What a server says; none if it has ended by now.
pub(crate) fn unless_ended<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// What a server says; none if it has ended by now, or does not answer and is known by its name alone.
pub(crate) fn if_it_answers<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(e) if e.kind() == Kind::TimedOut => Ok(None),
        answer => unless_ended(answer),
    }
}

/// A location as a server says it: of a path, the one that does not depend on where somebody stands.
pub(crate) fn canonical(location: &Location) -> String {
    match location {
        Location::Path(path) | Location::Nand(path) | Location::Ubi(path) => {
            location.with_path(canonical_path(path)).to_string()
        }
        Location::Rados { .. } => location.to_string(),
    }
}

/// A path that does not depend on where somebody stands.
pub(crate) fn canonical_path(path: &Path) -> PathBuf {
    // What a dead server left mounted has no more than its name.
    let by_name = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let found = path.canonicalize().ok().or_else(by_name).or_else(|| std::path::absolute(path).ok());
    found.unwrap_or_else(|| path.to_owned())
}

/// `lacuna status`.
pub(crate) fn run(args: &StatusArgs, console: Console) -> Result<()> {
    let target = &args.target;
    let look = || -> Result<Vec<Value>> {
        let servers = all(console)?;
        Ok(match target {
            Some(target) => those_of(servers, target),
            None => servers,
        })
    };
    let servers = look()?;
    if let Some(target) = target
        && servers.is_empty()
    {
        return Err(Error::new(Kind::NotFound, format!("no server for {target}"))
            .expected("the location or the mount point of a disk that is being served")
            .remedy("`lacuna list` lists all that this user can see"));
    }
    if args.json {
        return console::json(&json!({ "servers": servers }));
    }
    if servers.is_empty() {
        return console.done("nothing is being served");
    }
    if args.watch {
        return status_watch::run(args, look);
    }
    servers
        .iter()
        .try_for_each(|server| console::line(status_words::of(server, console.is_verbose()).trim_end()))
}

/// The servers of a disk, or of what is mounted there. Errors: those of [`all`].
pub(crate) fn servers_of(
    target: &Location,
    cluster: &ClusterOptions,
    console: Console,
) -> Result<Vec<Value>> {
    let mut servers = those_of(all(console)?, target);
    if let Some(meant) = in_pool::of(target, cluster) {
        servers.retain(|server| in_pool::of_server(server) == meant);
    }
    Ok(servers)
}

/// The location of what a process of this user serves. Errors: those of [`all`].
pub(crate) fn of_process(process: u32, console: Console) -> Result<Option<String>> {
    let servers = all(console)?;
    Ok(servers.iter().find(|server| server["pid"] == process).and_then(location_now))
}

/// The location of what a server has open: the path that its file has now, if it was moved.
pub(crate) fn location_now(server: &Value) -> Option<String> {
    status_words::moved_to(server).or(server["location"].as_str()).map(str::to_owned)
}

/// All servers of this user. Errors: what keeps one of them from being seen.
pub(crate) fn all(console: Console) -> Result<Vec<Value>> {
    let mut servers = nbd_servers(console)?;
    servers.extend(mounts(console)?);
    Ok(servers)
}

/// Those that serve this location, or are mounted there; of a file also under another path. The name alone does not count where
/// another file is at that path now.
fn those_of(mut servers: Vec<Value>, target: &Location) -> Vec<Value> {
    let wanted = canonical(target);
    let is_at = |server: &Value| server["mountpoint"] == *wanted;
    if servers.iter().any(is_at) {
        // A mount point is not looked at: its server may not answer.
        servers.retain(is_at);
        return servers;
    }
    let place = Place::of(target);
    servers.retain(|server| {
        let of = status_words::place_of(server);
        place.is(of) || (server["location"] == *wanted && place.may_be(of))
    });
    servers
}

fn nbd_servers(console: Console) -> Result<Vec<Value>> {
    lacuna_daemon::accounts(|path, e| console.detail(&format!("no answer from {}: {e}", path.display())))
}

fn mounts(console: Console) -> Result<Vec<Value>> {
    let answered = |record: Record| match lacuna_daemon::status(&record.mountpoint, None) {
        Ok(status) => Some(mount(&record, status)),
        Err(e) => {
            console.detail(&settings::words(&e));
            // One that ended at this moment, or does not listen yet, is not there. Any other is, whatever is wrong with it.
            (e.kind() != Kind::NotFound).then(|| mount(&record, json!({ "silent": true })))
        }
    };
    let mut servers: Vec<Value> = lacuna_daemon::running(None)?.into_iter().filter_map(answered).collect();
    servers.sort_by_key(order);
    servers.extend(lacuna_daemon::died(None)?.into_iter().map(|record| mount(&record, Value::Null)));
    Ok(servers)
}

/// Mounts of one disk stand together, by level.
fn order(server: &Value) -> (String, u64) {
    let first = &server["items"][0];
    let level = if first["name"] == "level" { first["value"].as_u64().unwrap_or(0) } else { 0 };
    (server["location"].as_str().unwrap_or_default().to_owned(), level)
}

/// What is known of a mounted disk; `status` is what its server says, or null if it died.
fn mount(record: &Record, mut status: Value) -> Value {
    // It need not answer to be known by its file.
    let is_silent = status["silent"] == true && !record.place.is_empty();
    let silent_file = is_silent.then(|| json!({ "place": record.place }));
    let mut out = json!({
        "location": record.location,
        "front": "fuse",
        "mountpoint": record.mountpoint.to_string_lossy(),
        "pid": record.pid,
        "raw": record.raw,
        "via": record.via,
        "vault": record.vault,
        "format": record.format,
        "since": record.since,
        "read_only": record.read_only,
        "died": status.is_null(),
        "silent": status["silent"] == true,
        "closing": status["closing"] == true,
        "items": status.get_mut("items").map_or_else(|| json!([]), Value::take),
        "last_error": status.get_mut("last_error").map(Value::take),
        "id": status.get_mut("id").map(Value::take),
        "file": status.get_mut("file").map(Value::take).or(silent_file),
    });
    in_pool::tell(record.in_pool.as_ref(), &mut out);
    out
}
