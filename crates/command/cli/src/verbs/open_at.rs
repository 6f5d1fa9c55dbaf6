//! What this user has open of one location: mounts, and servers without a mount point.

use crate::args::ClusterArgs;
use crate::verbs::in_pool;
use crate::verbs::place::file_at;
use crate::verbs::status;
use lacuna_daemon::{DiskQuery, FileIdentity, InPool, Peer, PoolQuery, Registry, ServerStatus};
use lacuna_storage::{Error, Kind, Location, Result, shell_word};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What this user has open of one location.
#[derive(Default)]
pub(crate) struct OpenAt {
    pub mounts: Vec<Mount>,
    /// Servers without a mount point.
    pub served: Vec<Peer>,
}

impl OpenAt {
    /// The options say which of the disks of this name in pools is meant, where there are several.
    pub(crate) fn find(location: &Location, options: &ClusterArgs) -> Result<OpenAt> {
        let cluster = &options.of(location)?;
        let in_pool = in_pool::of(location, cluster).map(|disk| PoolQuery {
            disk,
            is_namespace_named: options.namespace.is_some(),
            is_conf_named: cluster.conf.is_some(),
        });
        let (shown, is_in_pool) = (status::canonical(location), in_pool.is_some());
        let registry = Registry::open(None)?;
        let peers = registry.by_disk(&DiskQuery { location: &shown, file: file_at(location), in_pool })?;
        if peers.is_empty() && !is_in_pool {
            // Where nothing of the file is open, a file that was deleted has the name.
            return OpenAt::deleted(&registry, &shown);
        }
        let places: BTreeSet<&InPool> =
            peers.iter().filter_map(|peer| peer.record.in_pool.as_ref()).collect();
        if places.len() > 1 {
            return Err(several(location, &places));
        }
        Ok(peers.into())
    }

    /// Disks that were opened under a name and whose file was deleted.
    fn deleted(registry: &Registry, shown: &str) -> Result<OpenAt> {
        let mut deleted = Vec::new();
        for peer in registry.by_location(shown, FileIdentity::Unknown)? {
            if status::unless_ended(peer.status())?.is_some_and(|status| status.is_deleted()) {
                deleted.push(peer);
            }
        }
        Ok(deleted.into())
    }

    /// Adds those of another location.
    pub(crate) fn extend(&mut self, other: OpenAt) {
        self.mounts.extend(other.mounts);
        self.served.extend(other.served);
    }

    /// Refuses what closing would lose: a disk whose file was deleted. What was in the directory of
    /// a vault is gone with its files, and closing it tells what it could not write. What cannot be
    /// asked now is refused as well: it may be such a disk, and may answer when it is told to
    /// close.
    ///
    /// Deniability contract: not where it is mounted.
    pub(crate) fn refuse_deleted(&self) -> Result<()> {
        let mut told = Vec::new();
        for mount in self.mounts.iter().filter(|mount| !mount.vault && mount.location.is_some()) {
            told.extend(status::unless_ended(status::at_mountpoint(&mount.mountpoint))?);
        }
        for peer in &self.served {
            told.extend(status::unless_ended(peer.status())?);
        }
        let deleted = told.into_iter().find(ServerStatus::is_deleted);
        let Some(location) = deleted.map(|status| status.record.location) else { return Ok(()) };
        Err(Error::new(Kind::Other, format!("cannot close {location}"))
            .found(
                "its file was deleted while it was open: with the server the disk goes, and all that is on it",
            )
            .remedy(format!("copy what you need; then `lacuna close --deleted {}`", shell_word(location))))
    }
}

impl From<Vec<Peer>> for OpenAt {
    fn from(peers: Vec<Peer>) -> Self {
        let mut open = OpenAt::default();
        for peer in peers {
            match Mount::of(&peer) {
                Some(mount) => open.mounts.push(mount),
                None => open.served.push(peer),
            }
        }
        open
    }
}

fn several(location: &Location, places: &BTreeSet<&InPool>) -> Error {
    let named: Vec<String> = places.iter().copied().map(in_pool::options).collect();
    Error::new(Kind::Usage, format!("cannot close {location}"))
        .found(format!("open disks of this name in several places: {}", named.join("; ")))
        .expected("one disk")
        .remedy("say which one with these options, or give its mount point")
}

/// A mount point to close.
pub(crate) struct Mount {
    pub mountpoint: PathBuf,
    /// The location of its disk, if it is one of ours.
    pub location: Option<String>,
    /// Whether it is a vault.
    pub vault: bool,
}

impl Mount {
    /// Of a mount; none of another server.
    pub(crate) fn of(peer: &Peer) -> Option<Mount> {
        let mount = peer.mount()?;
        let location = Some(peer.record.location.clone());
        Some(Mount { mountpoint: mount.mountpoint.clone(), location, vault: mount.is_vault() })
    }
}
