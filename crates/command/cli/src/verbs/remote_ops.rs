//! Requests to the server of this user that has a disk open.

use crate::args::{ExpectArgs, PoolAccessArgs};
use crate::verbs::file_identity::file_at;
use crate::verbs::serve::header_wire::RemoteHeader;
use crate::verbs::status;
use lacuna_daemon::{ExpectedDisk, Job, JobClient, MountRecord, Peer, Record, ServerStatus};
use lacuna_storage::{ClusterOptions, DiskId, Location, Medium, Result};
use std::path::PathBuf;
use std::sync::Arc;

/// A job that a server has begun.
pub(crate) struct StartedJob {
    /// The server's messages.
    pub stream: JobClient,
    /// The mount of the disk, if it is mounted.
    pub mounted: Option<MountRecord>,
}

/// Begins a job on a disk at the server that has it open; `job` makes it for this disk. `None` if
/// this user has no such server: then the disk is closed, or open by another user, which opening it
/// will show.
///
/// Errors: [`Kind::Corrupt`](lacuna_storage::Kind::Corrupt) from a server that has another disk
/// than the expected one.
pub(crate) fn start_job(
    location: &Location,
    holder: &PoolAccessArgs,
    ExpectArgs { expect }: ExpectArgs,
    job: impl FnOnce(ExpectedDisk) -> Job,
) -> Result<Option<StartedJob>> {
    let cluster = holder.cluster.options_for(location)?;
    if holder.steal || location.snapshot().is_some() {
        return Ok(None);
    }
    let Some(peer) = servers(location, &cluster)?.into_iter().next() else { return Ok(None) };
    if !may_be_served_by(&peer.record, location, &cluster) {
        return Ok(None);
    }
    // The server compares both with its own disk.
    let meant = ExpectedDisk { file: file_at(location), id: expect.map(|id| id.to_string()) };
    let talk = peer.begin(&job(meant))?;
    Ok(Some(StartedJob { stream: talk, mounted: peer.mount().cloned() }))
}

/// The living servers of the disk that is at this location now: mounts first, and writers before
/// readers.
fn servers(location: &Location, cluster: &ClusterOptions) -> Result<Vec<Peer>> {
    let mut peers = status::peers_of_disk(location, cluster)?;
    peers.retain(|peer| peer.alive && !peer.mount().is_some_and(MountRecord::is_vault));
    let key = |peer: &Peer| -> (bool, bool, Option<PathBuf>) {
        let mountpoint = peer.mount().map(|mount| mount.mountpoint.clone());
        (mountpoint.is_none(), peer.record.read_only, mountpoint)
    };
    peers.sort_by_key(key);
    Ok(peers)
}

/// Whether the disk at this location can be the disk that the server opened there. It may have been
/// moved since, and another one put in its place.
fn may_be_served_by(server: &Record, location: &Location, cluster: &ClusterOptions) -> bool {
    // Disks in a pool are not claimed on this machine, and readers claim no disk.
    if matches!(location, Location::Rados { .. }) {
        return true;
    }
    let keeper = server.keeper.map(|keeper| keeper.pid);
    writer_process(location, cluster).is_none_or(|claimer| claimer == server.pid || Some(claimer) == keeper)
}

/// The process on this machine that has the disk at this location open for writing: its server, or
/// the keeper of that.
pub(crate) fn writer_process(location: &Location, cluster: &ClusterOptions) -> Option<u32> {
    lacuna_storage::claiming_process(lacuna_storage::public_info(location, cluster).ok()?.header.uuid)
}

/// Refuses a server's disk or vault that is not the expected one. Errors:
/// [`Kind::Corrupt`](lacuna_storage::Kind::Corrupt).
pub(crate) fn check_status_id(account: &ServerStatus, ExpectArgs { expect }: ExpectArgs) -> Result<()> {
    if expect.is_none() {
        return Ok(());
    }
    let id = account.id.as_deref().unwrap_or("no ID").parse::<DiskId>()?;
    let is_vault = account.record.mount().is_some_and(MountRecord::is_vault);
    if is_vault { id.check_vault(expect) } else { id.check(expect) }
}

/// [`check_status_id`] for a mount. Errors: also any failure to ask its server.
pub(crate) fn check_mounted(mount: &MountRecord, expect: ExpectArgs) -> Result<()> {
    if expect.expect.is_none() {
        return Ok(());
    }
    let account = status::at_mountpoint(&mount.mountpoint)?;
    check_status_id(&account, expect).map_err(|e| e.context(mount.mountpoint.display()))
}

/// The header of the disk, if a server of this user has it open.
pub(crate) fn header(
    location: &Location,
    holder: &PoolAccessArgs,
    expect: ExpectArgs,
) -> Result<Option<Arc<dyn Medium>>> {
    let Some(begun) = start_job(location, holder, expect, |disk| Job::Header { disk })? else {
        return Ok(None);
    };
    Ok(Some(Arc::new(RemoteHeader::begin(begun.stream)?)))
}

/// A mount of the disk, writers first.
pub(crate) fn mount_of(location: &Location, cluster: &ClusterOptions) -> Result<Option<MountRecord>> {
    Ok(servers(location, cluster)?.into_iter().find_map(|peer| peer.mount().cloned()))
}
