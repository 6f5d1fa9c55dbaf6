//! `status`: shows the status of running servers. Also finds servers for other verbs.

pub(crate) mod activity;
pub(crate) mod server_text;
mod watch;

use crate::args::StatusArgs;
use crate::terminal::console::{self, Console};
use crate::terminal::{option_names, terminal_size};
use crate::verbs::file_identity::file_at;
use crate::verbs::rados_target;
use lacuna_daemon::{
    DiskQuery, Identity, OtherUsers, Peer, PoolQuery, Registry, ServerStatus, TrackedFile, UserPeer,
};
use lacuna_storage::{ClusterOptions, Error, Kind, Location, OpenDisk, Result};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A server and its status.
pub(crate) struct PeerStatus {
    pub peer: Peer,
    pub status: ServerStatus,
}

/// `lacuna status`.
pub(crate) fn run(args: &StatusArgs, console: Console) -> Result<()> {
    let target = &args.target;
    let mut is_told = false;
    let mut look = || -> Result<Vec<Value>> {
        let seen = match target {
            Some(target) => seen_at(target, console)?,
            None => seen(args.all_users, console)?,
        };
        if !is_told {
            seen.tell_unseen(console);
        }
        is_told = true;
        Ok(seen.to_json())
    };
    let servers = look()?;
    if let Some(target) = target
        && servers.is_empty()
    {
        return Err(Error::new(Kind::NotFound, format!("no server for {target}"))
            .expected("the location or the mount point of an open disk or vault")
            .hint("`lacuna list` lists all that this user can see"));
    }
    if args.json {
        return console::json(&json!({ "servers": servers }));
    }
    if servers.is_empty() {
        return console.done("nothing is being served");
    }
    if args.watch {
        return watch::run(args, look);
    }
    let (all, width) = (console.is_verbose(), terminal_size::width());
    let texts = servers.iter().map(|server| server_text::render(server, all, width));
    texts.map(|text| format!("{}\n", text.trim_end())).try_for_each(|text| console::bytes(text.as_bytes()))
}

/// The servers that were found, of this user and of other users.
pub(crate) struct SeenServers {
    statuses: Vec<PeerStatus>,
    /// The errors of other users' servers.
    unseen: Vec<Error>,
}

impl SeenServers {
    /// As JSON.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        to_json(&self.statuses)
    }

    /// Prints why servers of other users are missing.
    pub(crate) fn tell_unseen(&self, console: Console) {
        self.unseen.iter().for_each(|e| console.note(&option_names::render(e)));
    }
}

/// All servers of this user, and with `all_users` those of all other users.
///
/// Errors: those of [`all_servers`]; [`Kind::Permission`] for the servers of other users, unless
/// this is root.
pub(crate) fn seen(all_users: bool, console: Console) -> Result<SeenServers> {
    let mut statuses = all_servers(console)?;
    let others = if all_users { OtherUsers::look()? } else { OtherUsers::default() };
    statuses.extend(statuses_of_others(others.seen));
    Ok(SeenServers { statuses, unseen: others.unseen })
}

/// The servers of this user at a target, or else for root those of other users.
fn seen_at(target: &Location, console: Console) -> Result<SeenServers> {
    let statuses = query_status(peers_at(target, None)?, console);
    if !statuses.is_empty() || !OtherUsers::may_look() {
        return Ok(SeenServers { statuses, unseen: Vec::new() });
    }
    let OtherUsers { seen, mut unseen } = of_other_users(target);
    if !seen.is_empty() {
        unseen.clear();
    }
    Ok(SeenServers { statuses: statuses_of_others(seen), unseen })
}

fn statuses_of_others(seen: Vec<UserPeer>) -> Vec<PeerStatus> {
    seen.into_iter().map(|UserPeer { peer, status, .. }| PeerStatus { peer, status }).collect()
}

/// The servers of other users at a target, for root.
pub(crate) fn of_other_users(target: &Location) -> OtherUsers {
    let mountpoint = match target {
        Location::Path(path) => Some(canonical_path(path)),
        Location::Nand(_) | Location::Ubi(_) | Location::Rados { .. } => None,
    };
    match OtherUsers::look() {
        Ok(others) => others.at(mountpoint.as_deref(), &canonical(target), file_at(target)),
        Err(e) => OtherUsers { unseen: vec![e], ..OtherUsers::default() },
    }
}

/// All servers of this user, as JSON. Errors: a server that cannot be inspected.
pub(crate) fn all_servers_json(console: Console) -> Result<Vec<Value>> {
    Ok(to_json(&all_servers(console)?))
}

/// The servers of a disk or a mount point, as JSON. Errors: those of [`all_servers_json`].
pub(crate) fn find_servers_json(
    target: &Location,
    cluster: &ClusterOptions,
    console: Console,
) -> Result<Vec<Value>> {
    Ok(to_json(&find_servers(target, cluster, console)?))
}

fn to_json(statuses: &[PeerStatus]) -> Vec<Value> {
    let one = |PeerStatus { peer, status }: &PeerStatus| {
        let mut out = status.to_json();
        if let Some(user) = peer.user() {
            out["user"] = json!(user);
            out["elsewhere"] = json!(peer.is_elsewhere());
        }
        out
    };
    statuses.iter().map(one).collect()
}

/// All servers of this user. Errors: a server that cannot be inspected.
pub(crate) fn all_servers(console: Console) -> Result<Vec<PeerStatus>> {
    Ok(query_status(Registry::open(None)?.all()?, console))
}

/// The servers of a disk or a mount point. Errors: those of [`all_servers`].
pub(crate) fn find_servers(
    target: &Location,
    cluster: &ClusterOptions,
    console: Console,
) -> Result<Vec<PeerStatus>> {
    Ok(query_status(peers_at(target, Some(cluster))?, console))
}

/// The servers of the mount at a path, or else of the disk or vault at this location; without
/// `cluster`, of all disks in pools with this name.
fn peers_at(target: &Location, cluster: Option<&ClusterOptions>) -> Result<Vec<Peer>> {
    let registry = Registry::open(None)?;
    // Does not access the mount point: its server may hang.
    let mounted = match target {
        Location::Path(path) => registry.mounted_at(&canonical_path(path))?,
        Location::Nand(_) | Location::Ubi(_) | Location::Rados { .. } => Vec::new(),
    };
    if !mounted.is_empty() {
        return Ok(mounted);
    }
    match cluster {
        Some(cluster) => peers_of_disk(target, cluster),
        None => registry.by_location(&canonical(target), file_at(target)),
    }
}

/// The servers of the disk or vault that is at this location now.
pub(crate) fn peers_of_disk(location: &Location, cluster: &ClusterOptions) -> Result<Vec<Peer>> {
    let in_pool = rados_target::target_of(location, cluster).map(PoolQuery::exactly);
    let (shown, file) = (canonical(location), file_at(location));
    Registry::open(None)?.by_disk(&DiskQuery { location: &shown, file, in_pool })
}

/// The status of each server: NBD servers, then mounts, then mounts of dead servers. Mounts of one
/// disk are adjacent, by level.
fn query_status(peers: Vec<Peer>, console: Console) -> Vec<PeerStatus> {
    // Deniability contract: neither the time nor the details depend on the number of levels that a
    // silent server has mounted.
    let (mut silent, mut told) = (BTreeSet::new(), BTreeSet::new());
    let answered = |peer: Peer| {
        let server = (peer.record.location.clone(), peer.record.pid);
        if !silent.contains(&server) {
            let e = match peer.status() {
                Ok(status) => return Some(PeerStatus { peer, status }),
                Err(e) => e,
            };
            let text = option_names::render(&e);
            if told.insert(text.clone()) {
                console.detail(&text);
            }
            // A server that has just ended, or does not listen yet, is skipped. After any other
            // error it counts as silent.
            if e.kind() == Kind::NotFound {
                return None;
            }
            silent.insert(server);
        }
        let status = ServerStatus::of_silent(peer.record.clone());
        Some(PeerStatus { peer, status })
    };
    let mut statuses: Vec<PeerStatus> = peers.into_iter().filter_map(answered).collect();
    statuses.sort_by_key(|PeerStatus { peer, status }| {
        let level =
            status.counters().next().filter(|(name, _)| *name == "level").map_or(0, |(_, level)| level);
        (status.is_dead(), peer.mount().is_some(), peer.record.location.clone(), level)
    });
    statuses
}

/// The location of the disk that a process of this user serves, or keeps for its server. Errors:
/// those of [`all_servers`].
pub(crate) fn location_of_process(process: u32, console: Console) -> Result<Option<String>> {
    let servers = all_servers_json(console)?;
    let is_its = |server: &&Value| server["pid"] == process || server["keeper"] == process;
    Ok(servers.iter().find(is_its).and_then(current_location))
}

/// The location of a server's disk: the present path of its file, if it was moved.
pub(crate) fn current_location(server: &Value) -> Option<String> {
    server_text::moved_to(server).or(server["location"].as_str()).map(str::to_owned)
}

/// The status of the server of a mount point. Errors: [`Kind::NotFound`] if there is none or it has
/// just ended, [`Kind::TimedOut`] if it does not answer.
pub(crate) fn at_mountpoint(mountpoint: &Path) -> Result<ServerStatus> {
    Registry::open(None)?.by_mountpoint(mountpoint)?.status()
}

/// A server's answer; `None` if it has ended by now.
pub(crate) fn unless_ended<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Err(e) if e.kind() == Kind::NotFound => Ok(None),
        answer => answer.map(Some),
    }
}

/// The registry's identity of a disk that this process opened at `location`.
pub(crate) fn identity(
    location: &Location,
    format: String,
    cluster: &ClusterOptions,
    disk: &OpenDisk,
    file: Arc<TrackedFile>,
) -> Identity {
    Identity {
        location: canonical(location),
        format,
        uuid: Some(disk.uuid().to_string()),
        id: Some(disk.id().to_string()),
        in_pool: rados_target::target_of(location, cluster),
        file,
        private: disk.has_levels(),
    }
}

/// A location as servers register it: paths do not depend on the working directory.
pub(crate) fn canonical(location: &Location) -> String {
    match location {
        Location::Path(path) | Location::Nand(path) | Location::Ubi(path) => {
            location.with_path(canonical_path(path)).to_string()
        }
        Location::Rados { .. } => location.to_string(),
    }
}

/// A path that does not depend on the working directory.
pub(crate) fn canonical_path(path: &Path) -> PathBuf {
    // A dead server's mount cannot be resolved itself, only its parent directory.
    let by_name = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    let found = path.canonicalize().ok().or_else(by_name).or_else(|| std::path::absolute(path).ok());
    found.unwrap_or_else(|| path.to_owned())
}
