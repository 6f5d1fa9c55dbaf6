//! The registry: all instances of this user, found by their disk or vault, or by its mount point.

use crate::dead::{self, is_alive};
use crate::disk_query::DiskQuery;
use crate::file::FileIdentity;
use crate::other_users;
use crate::peer::{self, Closed, Peer};
use crate::run_base::run_bases;
use crate::run_dir::RunPaths;
use lacuna_contracts::{Error, Kind, Result, shell_word};
use lacuna_mount::mount_table;
use lacuna_mount::mount_table::Entry;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Where the instances of this user are looked for.
pub struct Registry {
    bases: Vec<PathBuf>,
}

impl Registry {
    /// All instances of this user, or those in `run_base` alone.
    ///
    /// Errors: [`Kind::Permission`] if others can change the directory of run directories.
    pub fn open(run_base: Option<&Path>) -> Result<Registry> {
        let bases = run_base.map_or_else(run_bases, |base| Ok(vec![base.to_owned()]))?;
        Ok(Registry { bases })
    }

    /// All instances whose servers live, then those that left something mounted when they died.
    /// Errors: any failure to see one of them.
    pub fn all(&self) -> Result<Vec<Peer>> {
        let (peers, errors) = self.seen();
        errors.into_iter().next().map_or(Ok(peers), Err)
    }

    /// The same, and the errors that keep others from being seen: for a caller that works with the
    /// rest.
    pub fn seen(&self) -> (Vec<Peer>, Vec<Error>) {
        let (mut peers, mut errors) = (Vec::new(), Vec::new());
        for base in &self.bases {
            match RunPaths::all(base) {
                Ok(all) => {
                    for paths in all {
                        match look(paths) {
                            Ok(peer) => peers.extend(peer),
                            Err(e) => errors.push(e),
                        }
                    }
                }
                Err(e) => errors.push(e),
            }
        }
        // Where a living server has mounted since, a dead one has left nothing: whoever cleared it
        // away would tear away the other's mount.
        let living = peers.iter().filter(|peer| peer.alive).filter_map(Peer::mount);
        let taken: Vec<PathBuf> = living.map(|mount| mount.mountpoint.clone()).collect();
        let is_taken = |peer: &Peer| peer.mount().is_some_and(|mount| taken.contains(&mount.mountpoint));
        peers.retain(|peer| peer.alive || !is_taken(peer));
        peers.sort_by_key(|peer| !peer.alive);
        (peers, errors)
    }

    /// The instances of the disk or vault at a location, where `file` is now: by the file, whatever
    /// its name was when it was opened, and by the name where the file is unknown. A dead server is
    /// known by the name alone.
    ///
    /// Errors: those of [`Registry::all`].
    pub fn by_location(&self, location: &str, file: FileIdentity) -> Result<Vec<Peer>> {
        let mut peers = self.all()?;
        peers.retain(|peer| {
            let is_named = peer.record.location == location;
            if !peer.alive {
                return is_named;
            }
            file.is(peer.record.file) || (is_named && file.may_be(peer.record.file))
        });
        Ok(peers)
    }

    /// The instances of one disk or vault, or of those of its name in pools that are meant; as of
    /// [`Registry::by_location`].
    ///
    /// Errors: those of [`Registry::all`].
    pub fn by_disk(&self, wanted: &DiskQuery<'_>) -> Result<Vec<Peer>> {
        let mut peers = self.by_location(wanted.location, wanted.file)?;
        let open = peers.iter().filter_map(|peer| peer.record.in_pool.clone()).collect();
        let meant = wanted.in_pool.as_ref().map(|query| query.chosen(open));
        peers.retain(|peer| match (&peer.record.in_pool, &meant) {
            (Some(in_pool), Some(meant)) => meant.contains(in_pool),
            (in_pool, meant) => in_pool.is_none() && meant.is_none(),
        });
        Ok(peers)
    }

    /// The instances that are mounted at this canonical path, that of a living server before what
    /// dead ones left. Nothing looks at the path itself: every look at the mount of a dead server
    /// fails.
    ///
    /// Errors: where there are none, what keeps others from being seen.
    pub fn mounted_at(&self, mountpoint: &Path) -> Result<Vec<Peer>> {
        let (mut peers, unseen) = self.seen();
        peers.retain(|peer| peer.record.is_mounted_at(mountpoint));
        match unseen.into_iter().next() {
            Some(e) if peers.is_empty() => Err(e),
            _ => Ok(peers),
        }
    }

    /// The instance at a mount point as a person writes it; its server may have died.
    ///
    /// Errors: [`Kind::NotFound`] if nothing of lacuna is open there, or if its server is still
    /// starting.
    pub fn by_mountpoint(&self, given: &Path) -> Result<Peer> {
        let (paths, mountpoint) = self.find(given, "cannot ask the server of")?;
        let starting = || {
            Error::new(Kind::NotFound, format!("no answer from the server of {}", mountpoint.display()))
                .found("a server that is still starting")
        };
        look(paths)?.ok_or_else(starting)
    }

    /// The run directory for a mount point as a person writes it; `what` is what fails where there
    /// is none. The mount point itself is looked at last: if its server died, every look at it
    /// fails.
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
            // A mount may have its name alone: its server died, or is another user's.
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

    /// The run directory for this canonical mount point. In one base there may be what a server
    /// left that died, and in another the one that came after it: that comes first. One whose name
    /// is the same by chance is another mount point's.
    fn of_mountpoint(&self, mountpoint: &Path) -> Result<Option<RunPaths>> {
        let mut found = None;
        for paths in self.bases.iter().map(|base| RunPaths::of_mount(base, mountpoint)) {
            // A server that is still starting has no record, and one whose record is broken can be
            // closed all the same.
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

    /// The same, if there is one. Errors: what keeps it from being seen.
    fn find_if_open(&self, given: &Path) -> Result<Option<(RunPaths, PathBuf)>> {
        match self.find(given, "cannot find the server of") {
            Err(e) if e.kind() == Kind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    /// Whether `top`, the upmost mount of `mountpoint`, which is canonical, is what a server left
    /// there that died.
    fn is_of_dead(&self, mountpoint: &Path, top: &Entry) -> Result<bool> {
        // FUSE mounts of ours look the same whoever serves them.
        if top.is_our_fuse()
            && let Some(paths) = self.of_mountpoint(mountpoint)?
            && is_alive(&paths)? == Some(true)
        {
            return Ok(false);
        }
        for base in &self.bases {
            if dead::left_in(&RunPaths::of_mount(base, mountpoint), top)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The instance of a run directory, if it has a record. The run directory of a dead server without
/// a mount point is removed.
fn look(paths: RunPaths) -> Result<Option<Peer>> {
    let Some(alive) = is_alive(&paths)? else { return Ok(None) };
    let Some(record) = paths.record()? else { return Ok(None) };
    if !alive && record.mount().is_none() {
        // A directory that stays is looked at again the next time, and is in no way of another
        // server.
        let _ = dead::remove_served(&paths);
        return Ok(None);
    }
    Ok(Some(Peer { record, alive, paths }))
}

/// Closes the disk or vault that is open at `mountpoint`: unmounts, and waits until the server has
/// flushed and gone.
///
/// `run_base` is the directory of the run directories, if not all that this user may have. Errors:
/// [`Kind::NotFound`] if lacuna has nothing open there, and those of [`Peer::close`].
pub fn close(mountpoint: &Path, run_base: Option<&Path>) -> Result<Closed> {
    let what = "cannot close";
    let (paths, at) = Registry::open(run_base)?.find(mountpoint, what)?;
    peer::close(&paths, &at.display().to_string(), Some(&at))?.ok_or_else(|| not_open(&at, what))
}

/// Returns when no server of `mountpoint` is dying any more, or has been for
/// [`RELEASE_LIMIT`](lacuna_mount::RELEASE_LIMIT).
///
/// Errors: what keeps it from being seen.
pub fn await_dying(mountpoint: &Path, run_base: Option<&Path>) -> Result<()> {
    let Some((paths, _)) = Registry::open(run_base)?.find_if_open(mountpoint)? else { return Ok(()) };
    let Some(record) = paths.record()? else { return Ok(()) };
    dead::wait_while_dying(&paths, record.pid)
}

/// Whether the mount at the path that a person gives was left there by a server that died. The path
/// is not looked at: every look would fail.
pub(crate) fn is_left_by_dead(given: &Path, run_base: Option<&Path>) -> Result<bool> {
    let Some((_, mountpoint)) = Registry::open(run_base)?.find_if_open(given)? else { return Ok(false) };
    match mount_table::at(&mountpoint)? {
        Some(top) => left_by_dead(&mountpoint, &top, run_base),
        None => Ok(false),
    }
}

/// Whether `top`, the upmost mount of `mountpoint`, which is canonical, is what a server left there
/// that died.
pub(crate) fn left_by_dead(mountpoint: &Path, top: &Entry, run_base: Option<&Path>) -> Result<bool> {
    Registry::open(run_base)?.is_of_dead(mountpoint, top)
}

/// None if there is nothing at a path, or if a server died on the way there: nothing is open below
/// what it left.
fn if_there(path: io::Result<PathBuf>) -> io::Result<Option<PathBuf>> {
    match path {
        Ok(path) => Ok(Some(path)),
        Err(e) => match e.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::NotConnected => Ok(None),
            _ => Err(e),
        },
    }
}

/// The error where nothing of this user is open; `what` is what failed.
fn not_open(mountpoint: &Path, what: &str) -> Error {
    let what = format!("{what} {}", mountpoint.display());
    let mounted = match mount_table::at(mountpoint) {
        Ok(mounted) => mounted,
        // It cannot be told that nothing is there.
        Err(e) => return e.context(what).with_kind(Kind::Io),
    };
    let error = Error::new(Kind::NotFound, what);
    let Some(entry) = mounted else { return error.found("nothing of lacuna open there") };
    match other_users::owner(&entry) {
        Some(owner) => error
            .found(format!("what lacuna has open for {owner}"))
            .expected("what this user opened")
            .remedy("each user closes what is theirs"),
        None => error
            .found(format!("a mount of type {} that lacuna did not make", entry.fs_type))
            .remedy(format!("unmount it with `umount {}`", shell_word(mountpoint))),
    }
}

#[cfg(test)]
mod tests;
