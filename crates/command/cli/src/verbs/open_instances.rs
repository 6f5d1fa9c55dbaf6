//! Mounts and servers of one location: those of this user, and for root those of other users.

use crate::args::ClusterArgs;
use crate::terminal::console::Console;
use crate::terminal::option_names;
use crate::terminal::progress;
use crate::verbs::file_identity::file_at;
use crate::verbs::rados_target;
use crate::verbs::status;
use lacuna_daemon::{DiskQuery, FileIdentity, Peer, PoolQuery, PoolScope, Registry, ServerStatus};
use lacuna_storage::{Error, Kind, Location, Result, shell_word};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Mounts and servers of one location.
#[derive(Default)]
pub(crate) struct OpenInstances {
    pub mounts: Vec<OpenMount>,
    /// Servers without a mount point.
    pub served: Vec<Peer>,
}

impl OpenInstances {
    /// Finds mounts and servers of the disk at a location. The options select one of several disks
    /// of the same name in pools.
    pub(crate) fn find(location: &Location, options: &ClusterArgs) -> Result<OpenInstances> {
        let cluster = &options.options_for(location)?;
        let in_pool = rados_target::target_of(location, cluster).map(|disk| PoolQuery {
            disk,
            is_namespace_named: options.namespace.is_some(),
            is_conf_named: cluster.conf.is_some(),
        });
        let (shown, is_in_pool) = (status::canonical(location), in_pool.is_some());
        let registry = Registry::open(None)?;
        let peers = registry.by_disk(&DiskQuery { location: &shown, file: file_at(location), in_pool })?;
        if peers.is_empty() && !is_in_pool {
            // If the present file is not open, the name may mean a deleted file.
            return OpenInstances::find_deleted(&registry, &shown);
        }
        let places: BTreeSet<&PoolScope> =
            peers.iter().filter_map(|peer| peer.record.in_pool.as_ref()).collect();
        if places.len() > 1 {
            return Err(ambiguous_name(location, &places));
        }
        Ok(peers.into())
    }

    /// Disks that were opened under this name and have a deleted file.
    fn find_deleted(registry: &Registry, shown: &str) -> Result<OpenInstances> {
        let mut deleted = Vec::new();
        for peer in registry.by_location(shown, FileIdentity::Unknown)? {
            if status::unless_ended(peer.status())?.is_some_and(|status| status.is_deleted()) {
                deleted.push(peer);
            }
        }
        Ok(deleted.into())
    }

    /// Whether nothing was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.mounts.is_empty() && self.served.is_empty()
    }

    /// Divides mounts and servers by user, because the servers of another user may say that they
    /// have a disk of this user. Those of this user come first.
    pub(crate) fn by_user(self) -> Vec<OpenInstances> {
        let mut by_user: BTreeMap<Option<u32>, OpenInstances> = BTreeMap::new();
        for mount in self.mounts {
            let user = mount.peer.as_ref().and_then(Peer::user);
            by_user.entry(user).or_default().mounts.push(mount);
        }
        for peer in self.served {
            by_user.entry(peer.user()).or_default().served.push(peer);
        }
        by_user.into_values().collect()
    }

    /// Adds mounts and servers of another location.
    pub(crate) fn extend(&mut self, other: OpenInstances) {
        self.mounts.extend(other.mounts);
        self.served.extend(other.served);
    }

    /// Makes sure that these can be closed. With `force`, servers that do not answer are killed
    /// first. Without `deleted`, disks with a deleted file are refused.
    ///
    /// Errors: those of [`OpenInstances::refuse_deleted`], and a server that cannot be killed.
    pub(crate) fn prepare_to_close(&mut self, force: bool, deleted: bool, console: Console) -> Result<()> {
        if force {
            self.take_over_silent(deleted, console)?;
        }
        if deleted {
            return Ok(());
        }
        let may_force = !force && self.mounts.is_empty();
        self.refuse_deleted().map_err(|e| if may_force { with_force_hint(e) } else { e })
    }

    /// Kills the servers without a mount point that do not answer. A server that a keeper starts
    /// then takes the place of its predecessor. A server of another user is left as it is, and
    /// without `deleted` a disk that would be lost with its server.
    fn take_over_silent(&mut self, deleted: bool, console: Console) -> Result<()> {
        for peer in std::mem::take(&mut self.served) {
            let is_silent = matches!(peer.status(), Err(e) if e.kind() == Kind::TimedOut);
            let may_end = peer.user().is_none() && (deleted || peer.record.is_kept() || is_in_place(&peer));
            if !is_silent || !may_end {
                self.served.push(peer);
                continue;
            }
            let process = peer.record.pid;
            let waiting = format!("waiting for the end of process {process}");
            let taken_over = progress::show(console, &waiting, |_| peer.take_over())?;
            let outcome = match &taken_over.next {
                Some(_) => "its keeper started it again, with all writes that it had acknowledged",
                None if taken_over.was_kept => {
                    "its keeper has ended since: if writes are lost, it has reported that"
                }
                None => "writes that were not flushed are lost",
            };
            if taken_over.was_killed {
                console.note(&format!(
                    "the server of {} did not answer, and was killed (process {process}); {outcome}",
                    peer.record.location
                ));
            }
            self.served.extend(taken_over.next);
        }
        Ok(())
    }

    /// Refuses a disk with a deleted file, which closing would lose. A vault is not refused: its
    /// deleted files are gone already, and closing it reports unwritten data. A server that cannot
    /// be asked now is refused too: it may have such a disk, and may still obey the request to
    /// close.
    ///
    /// Deniability contract: the error does not name a mount point of a disk with levels, or it is
    /// private. The first failure ends the search, so its time does not depend on the number of
    /// mounts.
    fn refuse_deleted(&self) -> Result<()> {
        let mut statuses = Vec::new();
        for mount in self.mounts.iter().filter(|mount| !mount.is_vault && mount.location.is_some()) {
            statuses.extend(status::unless_ended(mount.status())?);
        }
        for peer in &self.served {
            statuses.extend(status::unless_ended(peer.status())?);
        }
        let deleted = statuses.into_iter().find(ServerStatus::is_deleted);
        let Some(location) = deleted.map(|status| status.record.location) else { return Ok(()) };
        Err(Error::new(Kind::Other, format!("cannot close {location}"))
            .found(
                "its file was deleted while it was open: with the server the disk goes, and all that is on it",
            )
            .hint(format!("copy your data; then `lacuna close --deleted {}`", shell_word(location))))
    }
}

impl From<Vec<Peer>> for OpenInstances {
    fn from(peers: Vec<Peer>) -> Self {
        let mut open = OpenInstances::default();
        for peer in peers {
            match OpenMount::of(&peer) {
                Some(mount) => open.mounts.push(mount),
                None => open.served.push(peer),
            }
        }
        open
    }
}

/// Whether the file of an open disk is where it was opened, so that its data outlives the server.
fn is_in_place(peer: &Peer) -> bool {
    let there = Location::parse(&peer.record.location).map(|location| file_at(&location));
    peer.record.in_pool.is_some() || there.is_ok_and(|there| there.is_same(peer.record.file))
}

/// Adds to the error of a served disk with a server that does not answer that `--force` ends it.
fn with_force_hint(e: Error) -> Error {
    if e.kind() != Kind::TimedOut {
        return e;
    }
    let before =
        e.get_hint().map_or_else(String::new, |advice| advice.render_with(option_names::name) + "; ");
    e.hint(before + "--force kills it")
}

fn ambiguous_name(location: &Location, places: &BTreeSet<&PoolScope>) -> Error {
    let named: Vec<String> = places.iter().copied().map(rados_target::to_options).collect();
    Error::new(Kind::Usage, format!("cannot close {location}"))
        .found(format!("open disks of this name in several places: {}", named.join("; ")))
        .expected("one disk")
        .hint("say which one with these options, or give its mount point")
}

/// A mount point to close.
#[derive(Clone)]
pub(crate) struct OpenMount {
    pub mountpoint: PathBuf,
    /// The location of its disk, if lacuna mounted it.
    pub location: Option<String>,
    /// Whether a vault is mounted there.
    pub is_vault: bool,
    /// Its instance, if one was found: closing it succeeds also if it has ended by then, for
    /// example because a user unmounted it by hand.
    pub peer: Option<Peer>,
}

impl OpenMount {
    /// The mount of an instance; `None` if it has no mount point.
    pub(crate) fn of(peer: &Peer) -> Option<OpenMount> {
        let mount = peer.mount()?;
        let location = Some(peer.record.location.clone());
        let (mountpoint, vault) = (mount.mountpoint.clone(), mount.is_vault());
        Some(OpenMount { mountpoint, location, is_vault: vault, peer: Some(peer.clone()) })
    }

    /// Whether errors about it are private.
    pub(crate) fn is_private(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.record.private)
    }

    /// Its server now. Errors: [`Kind::NotFound`] if there is none.
    pub(crate) fn server(&self) -> Result<Peer> {
        match self.of_other_user() {
            Some(peer) => Ok(peer.clone()),
            None => Registry::open(None)?
                .by_mountpoint(&self.mountpoint)
                .map_err(|e| if self.is_private() { e.confidential() } else { e }),
        }
    }

    /// The status of its server. Errors: [`Kind::NotFound`] if there is none or it has just ended,
    /// [`Kind::TimedOut`] if it does not answer.
    pub(crate) fn status(&self) -> Result<ServerStatus> {
        self.server()?.status()
    }

    /// Whether it is certain that it is no longer mounted. Does not access the mount point itself.
    pub(crate) fn is_gone(&self) -> bool {
        if let Some(peer) = self.of_other_user() {
            return matches!(peer.status(), Err(e) if e.kind() == Kind::NotFound);
        }
        let here = Registry::open(None).and_then(|registry| registry.mounted_at(&self.mountpoint));
        here.is_ok_and(|here| here.is_empty())
    }

    /// Its server, if it is of another user.
    fn of_other_user(&self) -> Option<&Peer> {
        self.peer.as_ref().filter(|peer| peer.user().is_some())
    }
}
