//! The server of this user that has a disk open, asked to do what only the one can do who has it open.

use crate::args::{ExpectArgs, HolderArgs};
use crate::attendant;
use crate::header_wire::RemoteHeader;
use crate::in_pool;
use crate::place::Place;
use crate::status;
use crate::status_words::place_of;
use lacuna::{ClusterOptions, DiskId, Location, Medium, Result, Site, Target};
use lacuna_daemon::{Conversation, Record};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;

/// Work that a server has begun.
pub(crate) struct Begun {
    /// What it says.
    pub talk: Conversation,
    /// Where the disk is mounted, if it is.
    pub mounted: Option<Record>,
}

/// Begins with `request` at the server that has the disk open. None if this user has no such server: the disk is closed then, or
/// another's, which is found out by opening it.
///
/// Errors: [`Kind::Corrupt`](lacuna::Kind::Corrupt) from a server that has another disk than the expected one.
pub(crate) fn begin(
    location: &Location,
    holder: &HolderArgs,
    ExpectArgs { expect }: ExpectArgs,
    request: &str,
) -> Result<Option<Begun>> {
    let cluster = holder.cluster.of(location)?;
    if holder.steal || location.snapshot().is_some() {
        return Ok(None);
    }
    // The server compares the ID: it is its disk that the request is carried out on.
    let expected = expect.map(|id| format!("{}{id} ", attendant::EXPECT));
    let request = &format!("{} {}{request}", Place::of(location), expected.as_deref().unwrap_or(""));
    if let Some(record) = mount_of(location, &cluster)? {
        if !is_of(record.pid, location, &cluster) {
            return Ok(None);
        }
        let talk = lacuna_daemon::begin_mounted(&record.mountpoint, request, None)?;
        return Ok(Some(Begun { talk, mounted: Some(record) }));
    }
    let Some(socket) = served_at(location, &cluster)? else { return Ok(None) };
    // Of one that accepts nobody the process is not known.
    if lacuna_daemon::process_at(&socket).is_some_and(|process| !is_of(process, location, &cluster)) {
        return Ok(None);
    }
    let talk = lacuna_daemon::begin_served(&socket, request)?;
    Ok(Some(Begun { talk, mounted: None }))
}

/// The socket of the server without a mount point: by the name of the disk, or by its file, which was moved.
fn served_at(location: &Location, cluster: &ClusterOptions) -> Result<Option<PathBuf>> {
    let identity =
        Site::of(location, cluster).target().map_or_else(|| status::canonical(location), Target::identity);
    let place = Place::of(location);
    if let Some(socket) = lacuna_daemon::serving(&identity)? {
        let account = status::if_it_answers(lacuna_daemon::account(&socket))?;
        if account.is_none_or(|account| place.may_be(place_of(&account))) {
            return Ok(Some(socket));
        }
    }
    // Others are asked only if somebody has the disk open.
    let Some(claimer) = claimer(location, cluster) else { return Ok(None) };
    let mut answers = lacuna_daemon::answers()?.into_iter();
    let found = answers.find(|(_, account)| account["pid"] == claimer && place.is(place_of(account)));
    Ok(found.map(|(socket, _)| socket))
}

/// Whether the disk that is at this location now can be the one that the process opened there: that may have been moved since, and
/// another put in its place.
fn is_of(process: u32, location: &Location, cluster: &ClusterOptions) -> bool {
    // In a pool nobody claims a disk on this machine, and readers claim none anywhere.
    if matches!(location, Location::Rados { .. }) {
        return true;
    }
    claimer(location, cluster).is_none_or(|claimer| claimer == process)
}

/// The process that has the disk at this location open for writing, on this machine.
pub(crate) fn claimer(location: &Location, cluster: &ClusterOptions) -> Option<u32> {
    lacuna::process_of(lacuna::about(location, cluster).ok()?.header.uuid)
}

/// Refuses what is mounted if it is another disk than the expected one.
///
/// Errors: [`Kind::Corrupt`](lacuna::Kind::Corrupt), and what keeps its server from being asked.
pub(crate) fn check_mounted(record: &Record, expect: ExpectArgs) -> Result<()> {
    if expect.expect.is_none() {
        return Ok(());
    }
    let account = lacuna_daemon::status(&record.mountpoint, None)?;
    check_account(&account, expect).map_err(|e| e.context(record.mountpoint.display()))
}

/// The same of what a server says of itself.
pub(crate) fn check_account(account: &Value, ExpectArgs { expect }: ExpectArgs) -> Result<()> {
    if expect.is_none() {
        return Ok(());
    }
    account["id"].as_str().unwrap_or("no ID told").parse::<DiskId>()?.check(expect)
}

/// The header of the disk, if a server of this user has it open.
pub(crate) fn header(
    location: &Location,
    holder: &HolderArgs,
    expect: ExpectArgs,
) -> Result<Option<Arc<dyn Medium>>> {
    let Some(begun) = begin(location, holder, expect, attendant::HEADER)? else { return Ok(None) };
    Ok(Some(Arc::new(RemoteHeader::begin(begun.talk)?)))
}

/// Where a disk is mounted: one that writes before those that read.
pub(crate) fn mount_of(location: &Location, cluster: &ClusterOptions) -> Result<Option<Record>> {
    let (shown, in_pool) = (status::canonical(location), in_pool::of(location, cluster));
    let mut running = lacuna_daemon::running(None)?;
    let place = Place::of(location);
    let is_of = |record: &Record| {
        let is_named = record.location == shown && record.in_pool == in_pool;
        // A name may be that of another file by now.
        place.is(&record.place) || (is_named && place.may_be(&record.place))
    };
    running.retain(|record| !record.vault && is_of(record));
    running.sort_by_key(|record| (record.read_only, record.mountpoint.clone()));
    Ok(running.into_iter().next())
}
