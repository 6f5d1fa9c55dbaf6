//! The registry: all instances of this user, found by disk, vault or mount point.

use crate::client::disk_query::DiskQuery;
use crate::client::peer::{self, Peer, Reach};
use crate::dead_server::{self, is_alive};
use crate::file::FileIdentity;
use crate::record::KeeperId;
use crate::run_dir::RunPaths;
use crate::run_dir::run_base::run_bases;
use crate::server_end::CloseOutcome;
use crate::users::all_users::OtherUsers;
use crate::users::other_users;
use lacuna_contracts::{Error, Kind, Result, shell_word};
use lacuna_mount::mount_table;
use lacuna_mount::mount_table::MountEntry;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The directories to search for instances of this user.
pub struct Registry {
    bases: Vec<PathBuf>,
}

impl Registry {
    /// Searches all instances of this user, or only those in `run_base`.
    ///
    /// Errors: [`Kind::Permission`] if other users can change the directory of run directories.
    pub fn open(run_base: Option<&Path>) -> Result<Registry> {
        let bases = run_base.map_or_else(run_bases, |base| Ok(vec![base.to_owned()]))?;
        Ok(Registry { bases })
    }

    /// All instances with a living server, then dead ones that left a mount or that a keeper starts
    /// again. Errors: any failure to inspect an instance.
    pub fn all(&self) -> Result<Vec<Peer>> {
        let (peers, errors) = self.all_with_errors();
        errors.into_iter().next().map_or(Ok(peers), Err)
    }

    /// All instances that could be inspected, and the errors of the remaining ones: for a caller
    /// that works with an incomplete list.
    pub fn all_with_errors(&self) -> (Vec<Peer>, Vec<Error>) {
        let (mut peers, mut errors) = (Vec::new(), Vec::new());
        for base in &self.bases {
            match RunPaths::all(base) {
                Ok(all) => {
                    for paths in all {
                        match inspect(paths) {
                            Ok(peer) => peers.extend(peer),
                            Err(e) => errors.push(e),
                        }
                    }
                }
                Err(e) => errors.push(e),
            }
        }
        // Drop dead instances at a mount point that a living server has taken since: cleaning up
        // after them would unmount the living server.
        let living = peers.iter().filter(|peer| peer.alive).filter_map(Peer::mount);
        let taken: Vec<PathBuf> = living.map(|mount| mount.mountpoint.clone()).collect();
        let is_taken = |peer: &Peer| peer.mount().is_some_and(|mount| taken.contains(&mount.mountpoint));
        // A keeper has one server at a time.
        let living = peers.iter().filter(|peer| peer.alive);
        let replaced: Vec<KeeperId> = living.filter_map(|peer| peer.record.keeper).collect();
        let is_replaced = |peer: &Peer| peer.record.keeper.is_some_and(|keeper| replaced.contains(&keeper));
        peers.retain(|peer| peer.alive || !(is_taken(peer) || is_replaced(peer)));
        peers.sort_by_key(|peer| !peer.alive);
        (peers, errors)
    }

    /// Notes for [`Registry::all`] the obstacle that keeps the next server of this keeper from its
    /// disk.
    ///
    /// Errors: the record of its dead server cannot be read or written.
    pub fn note_obstacle(&self, keeper: KeeperId, obstacle: &str) -> Result<()> {
        // An instance that cannot be inspected is none of a server that served until it died.
        let (peers, _unseen) = self.all_with_errors();
        for peer in peers.iter().filter(|peer| !peer.alive && peer.record.keeper == Some(keeper)) {
            if let Reach::Own(paths) = &peer.reach {
                dead_server::note_obstacle(paths, keeper, obstacle)?;
            }
        }
        Ok(())
    }

    /// The instances of the disk or vault at a location, where `file` is now. A living server
    /// matches by its file, even if it was opened under another name, and by name if either file is
    /// unknown. A dead server matches by name only.
    ///
    /// Errors: those of [`Registry::all`].
    pub fn by_location(&self, location: &str, file: FileIdentity) -> Result<Vec<Peer>> {
        let mut peers = self.all()?;
        peers.retain(|peer| {
            let is_named = peer.record.location == location;
            if !peer.alive {
                return is_named;
            }
            file.is_same(peer.record.file) || (is_named && file.may_be_same(peer.record.file))
        });
        Ok(peers)
    }

    /// The instances of one disk or vault, or of the selected disks of one name in pools, matched
    /// as in [`Registry::by_location`].
    ///
    /// Errors: those of [`Registry::all`].
    pub fn by_disk(&self, wanted: &DiskQuery<'_>) -> Result<Vec<Peer>> {
        let mut peers = self.by_location(wanted.location, wanted.file)?;
        let open = peers.iter().filter_map(|peer| peer.record.in_pool.clone()).collect();
        let meant = wanted.in_pool.as_ref().map(|query| query.select(open));
        peers.retain(|peer| match (&peer.record.in_pool, &meant) {
            (Some(in_pool), Some(meant)) => meant.contains(in_pool),
            (in_pool, meant) => in_pool.is_none() && meant.is_none(),
        });
        Ok(peers)
    }

    /// The instances that are mounted at this canonical path, a living server before dead ones.
    /// Does not access the path itself: every access to the mount of a dead server fails.
    ///
    /// Errors: if no instance is found, any failure to inspect one.
    pub fn mounted_at(&self, mountpoint: &Path) -> Result<Vec<Peer>> {
        let (mut peers, unseen) = self.all_with_errors();
        peers.retain(|peer| peer.record.is_mounted_at(mountpoint));
        match unseen.into_iter().next() {
            Some(e) if peers.is_empty() => Err(e),
            _ => Ok(peers),
        }
    }

    /// The instance at a mount point as the user gave it; its server may be dead.
    ///
    /// Errors: [`Kind::NotFound`] if nothing of lacuna is open there, or if its server is still
    /// starting.
    pub fn by_mountpoint(&self, given: &Path) -> Result<Peer> {
        let (paths, mountpoint) = self.find(given, "cannot ask the server of")?;
        let starting = || {
            Error::new(Kind::NotFound, format!("no answer from the server of {}", mountpoint.display()))
                .found("a server that is still starting")
        };
        inspect(paths)?.ok_or_else(starting)
    }

    /// The run directory for a mount point as the user gave it; `what` begins the error if there is
    /// none. Accesses the mount point itself last: if its server is dead, every access fails.
    fn find(&self, given: &Path, what: &str) -> Result<(RunPaths, PathBuf)> {
        let failed = |e: &io::Error| Error::io(format!("cannot find the mount point {}", given.display()), e);
        let absolute = std::path::absolute(given).map_err(|e| failed(&e))?;
        let beside = match absolute.parent().zip(absolute.file_name()) {
            Some((parent, name)) => {
                if_there(parent.canonicalize()).map_err(|e| failed(&e))?.map(|parent| parent.join(name))
            }
            None => None,
        };
        if let Some(at) = &beside
            && let Some(paths) = self.of_mountpoint(at)?
        {
            return Ok((paths, at.clone()));
        }
        let itself = match (absolute.canonicalize(), beside) {
            // A mount may cover this name: its server is dead, or belongs to another user.
            (Err(_), Some(at)) if mount_table::at(&at)?.is_some() => None,
            (itself, _) => if_there(itself).map_err(|e| failed(&e))?,
        };
        if let Some(at) = itself
            && let Some(paths) = self.of_mountpoint(&at)?
        {
            return Ok((paths, at));
        }
        Err(not_open(given, what))
    }

    /// The run directory for this canonical mount point. A dead server's directory may exist in one
    /// base and its successor's in another; prefers the living server. Skips a directory that has
    /// the same name by a hash collision.
    fn of_mountpoint(&self, mountpoint: &Path) -> Result<Option<RunPaths>> {
        let mut found = None;
        for paths in self.bases.iter().map(|base| RunPaths::of_mount(base, mountpoint)) {
            // A server that is still starting has no record, and a server with a broken record can
            // still be closed.
            if matches!(paths.record(), Ok(Some(record)) if !record.is_mounted_at(mountpoint)) {
                continue;
            }
            match is_alive(&paths)? {
                Some(true) => return Ok(Some(paths)),
                Some(false) => found = found.or(Some(paths)),
                None => {}
            }
        }
        Ok(found)
    }

    /// Like [`Registry::find`], with `None` if there is none. Errors: a failure to inspect the
    /// mount point.
    fn find_if_open(&self, given: &Path) -> Result<Option<(RunPaths, PathBuf)>> {
        match self.find(given, "cannot find the server of") {
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Whether `top`, the topmost mount at the canonical path `mountpoint`, was left by a dead
    /// server.
    fn is_mount_of_dead_server(&self, mountpoint: &Path, top: &MountEntry) -> Result<bool> {
        // All FUSE mounts of lacuna look the same, so check for a living server first.
        if top.is_our_fuse()
            && let Some(paths) = self.of_mountpoint(mountpoint)?
            && is_alive(&paths)? == Some(true)
        {
            return Ok(false);
        }
        for base in &self.bases {
            if dead_server::is_mount_of_dead_server(&RunPaths::of_mount(base, mountpoint), top)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The instance of a run directory, if it has a record. Removes the run directory of a dead server
/// that had no mount point, unless its keeper starts it again.
fn inspect(paths: RunPaths) -> Result<Option<Peer>> {
    let Some(alive) = is_alive(&paths)? else { return Ok(None) };
    let Some(record) = paths.record()? else { return Ok(None) };
    if !alive && record.mount().is_none() && !record.is_kept() {
        // Safe to ignore: the next call tries again, and a leftover directory does not disturb
        // another server.
        let _ = dead_server::remove_served(&paths);
        return Ok(None);
    }
    Ok(Some(Peer { record, alive, reach: Reach::Own(paths) }))
}

/// Closes the disk or vault that is open at `mountpoint`: unmounts, and waits until the server has
/// flushed and exited. `run_base` is the only base to search; without it, all of this user.
///
/// Errors: [`Kind::NotFound`] if lacuna has nothing open there, and those of [`Peer::close`].
pub fn close(mountpoint: &Path, run_base: Option<&Path>) -> Result<CloseOutcome> {
    let what = "cannot close";
    let (paths, at) = Registry::open(run_base)?.find(mountpoint, what)?;
    peer::close(&paths, &at.display().to_string(), Some(&at))?.ok_or_else(|| not_open(&at, what))
}

/// Clears away what a dead server left at `mountpoint`, while this process holds its lock. Waits up
/// to `limit` for the lock. A living server stays.
///
/// Errors: [`Kind::Busy`], naming the users, if it is in use; a failure to inspect the server.
pub(crate) fn clear_dead(mountpoint: &Path, run_base: Option<&Path>, limit: Duration) -> Result<()> {
    let Some((paths, at)) = Registry::open(run_base)?.find_if_open(mountpoint)? else { return Ok(()) };
    peer::clear_dead(&paths, Some(&at), limit).map(drop)
}

/// Waits while a server of `mountpoint` is dying, for at most
/// [`RELEASE_LIMIT`](lacuna_mount::RELEASE_LIMIT).
///
/// Errors: a failure to inspect the server.
pub fn await_dying(mountpoint: &Path, run_base: Option<&Path>) -> Result<()> {
    let Some((paths, _)) = Registry::open(run_base)?.find_if_open(mountpoint)? else { return Ok(()) };
    let Some(record) = paths.record()? else { return Ok(()) };
    dead_server::wait_while_dying(&paths, record.pid)
}

/// Whether the mount at a path that the user gave was left by a dead server. Does not access the
/// path, because every access would fail.
pub(crate) fn has_mount_of_dead_server(given: &Path, run_base: Option<&Path>) -> Result<bool> {
    let Some((_, mountpoint)) = Registry::open(run_base)?.find_if_open(given)? else { return Ok(false) };
    match mount_table::at(&mountpoint)? {
        Some(top) => is_mount_of_dead_server(&mountpoint, &top, run_base),
        None => Ok(false),
    }
}

/// Whether `top`, the topmost mount at the canonical path `mountpoint`, was left by a dead server.
pub(crate) fn is_mount_of_dead_server(
    mountpoint: &Path,
    top: &MountEntry,
    run_base: Option<&Path>,
) -> Result<bool> {
    Registry::open(run_base)?.is_mount_of_dead_server(mountpoint, top)
}

/// `None` if nothing is at a path, or if the path leads through the mount of a dead server: nothing
/// can be open below that.
fn if_there(path: io::Result<PathBuf>) -> io::Result<Option<PathBuf>> {
    match path {
        Ok(path) => Ok(Some(path)),
        Err(e) => match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::NotConnected => Ok(None),
            _ => Err(e),
        },
    }
}

/// The error if this user has nothing open there; `what` names the failed operation.
fn not_open(mountpoint: &Path, what: &str) -> Error {
    let what = format!("{what} {}", mountpoint.display());
    let mounted = match mount_table::at(mountpoint) {
        Ok(mounted) => mounted,
        // Without the mount table it is unknown whether anything is mounted.
        Err(e) => return e.context(what).with_kind(Kind::Io),
    };
    let error = Error::new(Kind::NotFound, what);
    let Some(entry) = mounted else { return error.found("nothing of lacuna open there") };
    match other_users::owner_of_mount(&entry) {
        Some(owner) => {
            let error = error.found(format!("a mount of lacuna for {owner}"));
            match entry.user.filter(|user| *user != 0 && OtherUsers::may_look()) {
                Some(user) => error
                    .expected("a server that answers root")
                    .hint(format!("if it died, close it as that user, with `sudo -u '#{user}'`")),
                None => error.expected("a mount of this user").hint("only that user can close it"),
            }
        }
        None => error
            .found(format!("a mount of type {} that lacuna did not make", entry.fs_type))
            .hint(format!("unmount it with `umount {}`", shell_word(mountpoint))),
    }
}

#[cfg(test)]
mod tests;
