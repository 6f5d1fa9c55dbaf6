//! `close`: closes mounts of `open` and servers of `serve`, and cleans up after dead servers.

use crate::args::{CloseArgs, ClusterArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::working::{self, Looking, Working};
use crate::verbs::open_at::{Mount, OpenAt};
use crate::verbs::serve::closing::{self, Closing, CoverSession, Patience};
use crate::verbs::status;
use lacuna_daemon::{Closed, Registry, ServerStatus};
use lacuna_storage::{Error, Kind, Location, Result};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// `lacuna close`. A failure does not stop the rest. Each failure is printed; the first one is the
/// result of the command. If a level cannot be closed, level 0 stays open, because the level would
/// get no more cover without it.
pub(crate) fn close(args: &CloseArgs, console: Console) -> Result<()> {
    let patience = Patience::new(args.wait, args.now, console);
    if args.all {
        return close_all(args.deleted, patience, console);
    }
    let (namespace, ceph_conf) = (args.namespace.clone(), args.ceph_conf.clone());
    let cluster = ClusterArgs { namespace, ceph_conf, ceph_id: None, timeout: None };
    let mut open = OpenAt::default();
    let mut failures = Failures::default();
    for target in &args.targets {
        match open_at(target, &cluster, args.deleted) {
            Ok(of_target) => open.extend(of_target),
            Err(e) => failures.add(e),
        }
    }
    close_each(open, &mut failures, patience, console);
    failures.end()
}

/// Collects failures. The first one becomes the command's error and is printed at the end; the
/// following ones are printed at once.
#[derive(Default)]
pub(crate) struct Failures {
    first: Option<Error>,
    /// Whether a private failure was printed, or is the first one.
    private: bool,
}

impl Failures {
    pub(crate) fn add(&mut self, e: Error) {
        // Deniability contract: a log gets the sentence for private errors only once, regardless of
        // the number of levels that fail.
        let is_told = self.private && e.is_private() && !console::is_watched();
        self.private |= e.is_private();
        if self.first.is_none() {
            self.first = Some(e);
        } else if !is_told {
            console::error(&e);
        }
    }

    pub(crate) fn end(self) -> Result<()> {
        self.first.map_or(Ok(()), Err)
    }
}

/// Closes mounts first, then served disks.
fn close_each(open: OpenAt, failures: &mut Failures, patience: Patience, console: Console) {
    close_mounts(open.mounts, failures, patience, console);
    for peer in &open.served {
        closing::close_served(peer, patience).unwrap_or_else(|e| failures.add(e));
    }
}

/// The mounts and servers of a target. Errors: [`Kind::Usage`] if several disks match, and
/// [`Kind::Other`] for a disk with a deleted file, unless `deleted`.
fn open_at(target: &Path, cluster: &ClusterArgs, deleted: bool) -> Result<OpenAt> {
    let open = if let Some(mount) = mounted_at(target)? {
        // Refuses options that do not apply to a mount point.
        cluster.of(&Location::Path(target.to_owned()))?;
        OpenAt { mounts: vec![mount], served: Vec::new() }
    } else {
        let location = location_of(target);
        let mut open = OpenAt::find(&location, cluster)?;
        if open.mounts.is_empty() && open.served.is_empty() {
            // Closing it reports that nothing is open there.
            let mountpoint = location.path().map_or_else(|| target.to_owned(), status::canonical_path);
            open.mounts.push(Mount { mountpoint, location: None, vault: false });
        }
        open
    };
    if !deleted {
        open.refuse_deleted()?;
    }
    Ok(open)
}

/// Closes everything that this user has open; disks with a deleted file only with `deleted`. Each
/// failure is printed; the first one is the result of the command.
fn close_all(deleted: bool, patience: Patience, console: Console) -> Result<()> {
    let mut failures = Failures::default();
    let (mut peers, unseen) = Registry::open(None)?.seen();
    unseen.into_iter().for_each(|e| failures.add(e));
    // Mounts before served disks, and newer ones first: a mount may depend on a served disk, and a
    // newer one on an older one.
    peers.sort_by_key(|peer| (peer.mount().is_none(), Reverse(peer.record.since)));
    let all: Vec<OpenAt> = peers.into_iter().map(|peer| OpenAt::from(vec![peer])).collect();
    if all.is_empty() && failures.first.is_none() {
        return console.done("nothing is open");
    }
    let mut open = OpenAt::default();
    let mut kept = BTreeSet::new();
    for one in all {
        match if deleted { Ok(()) } else { one.refuse_deleted() } {
            Ok(()) => open.extend(one),
            Err(e) => {
                // All levels of a disk have the same file and the same server. Deniability
                // contract: the failure is printed once per disk.
                let disk = one.mounts.into_iter().find_map(|mount| mount.location);
                if kept.insert(disk.unwrap_or_else(|| e.to_string())) {
                    failures.add(e);
                }
            }
        }
    }
    close_each(open, &mut failures, patience, console);
    failures.end()
}

/// Closes mounts, deeper levels first.
///
/// Deniability contract: all deeper levels of a disk are closed at once, so that their pending data
/// is dropped at the same moment, regardless of their number. Level 0 is closed when the cover of
/// the closing is written, regardless of the time that the deeper levels took.
fn close_mounts(mounts: Vec<Mount>, failures: &mut Failures, patience: Patience, console: Console) {
    let levels = deepest_first(mounts);
    let mut covers = covers(&levels, patience, console);
    let mut stay = Vec::new();
    for mut together in in_turn(&levels) {
        together.retain(|level| level.mount.location.is_none() || !stay.contains(&level.mount.location));
        for level in together.iter().filter(|level| level.number == 0) {
            let its = covers.iter_mut().filter(|(of, _)| *of == level.mount.location);
            its.for_each(|(_, cover)| cover.wait(console));
        }
        for (level, closed) in together.iter().zip(close_together(&together, &covers, console)) {
            if let Err(e) = closed.map(|closed| tell(closed, console)) {
                // A level that was unmounted in spite of the error needs no more cover.
                if !matches!(mounted_at(&level.mount.mountpoint), Ok(None)) {
                    stay.push(level.mount.location.clone());
                }
                failures.add(not_mounted(e));
            }
        }
    }
}

/// Groups of levels that are closed concurrently, in order: deeper levels together, except that a
/// level with other mounts inside comes after those; then the public levels one by one.
fn in_turn(levels: &[Level]) -> Vec<Vec<&Level>> {
    let (mut deeper, public): (Vec<&Level>, Vec<&Level>) = levels.iter().partition(|level| level.number > 0);
    let mut groups = Vec::new();
    while !deeper.is_empty() {
        let holds = |outer: &Level| deeper.iter().any(|inner| is_within(inner, outer));
        let (outer, inner): (Vec<&Level>, Vec<&Level>) =
            deeper.iter().copied().partition(|level| holds(level));
        groups.push(inner);
        deeper = outer;
    }
    groups.extend(public.into_iter().map(|level| vec![level]));
    groups
}

/// Whether a level is mounted inside the file system of another one.
fn is_within(inner: &Level, outer: &Level) -> bool {
    let (inner, outer) = (&inner.mount.mountpoint, &outer.mount.mountpoint);
    inner != outer && inner.starts_with(outer)
}

type Covers = [(Option<String>, CoverSession)];

fn cover_of<'c>(level: &Level, covers: &'c Covers) -> Option<&'c CoverSession> {
    covers.iter().find(|(of, _)| *of == level.mount.location).map(|(_, cover)| cover)
}

/// Starts the cover of the closing for every disk with its level 0 in this list.
fn covers(levels: &[Level], patience: Patience, console: Console) -> Vec<(Option<String>, CoverSession)> {
    let mut covers = Vec::new();
    for level in levels.iter().filter(|level| level.has_levels && level.number == 0) {
        let of_disk = |other: &&Level| other.number > 0 && other.mount.location == level.mount.location;
        let hidden = levels.iter().filter(of_disk).map(|other| other.mount.mountpoint.clone()).collect();
        match CoverSession::of_mounted(&level.mount.mountpoint, hidden, patience) {
            Ok(cover) => covers.push((level.mount.location.clone(), cover)),
            // Closing the level reports the failure too.
            Err(e) => console.detail(&format!("no cover for the closing: {e}")),
        }
    }
    covers
}

/// The mount at a given path, also if other instances cannot be inspected. Does not access the path
/// itself.
fn mounted_at(target: &Path) -> Result<Option<Mount>> {
    let peers = Registry::open(None)?.mounted_at(&status::canonical_path(target))?;
    Ok(peers.first().and_then(Mount::of))
}

fn location_of(target: &Path) -> Location {
    let location = Location::of_word(target.as_os_str()).ok();
    location.unwrap_or_else(|| Location::Path(target.to_owned()))
}

/// Adds advice to the error of a path that is not mounted.
fn not_mounted(e: Error) -> Error {
    if e.kind() != Kind::NotFound || e.advice().is_some() {
        return e;
    }
    e.remedy("`lacuna list` says what is open, and where")
}

/// A mount and its level, as its server reports it.
struct Level {
    mount: Mount,
    /// Also 0 for a disk without levels.
    number: u64,
    has_levels: bool,
}

/// Deeper levels first: pending hidden writes get cover while level 0 is still in use.
fn deepest_first(mounts: Vec<Mount>) -> Vec<Level> {
    let level = |mount: Mount| {
        // A server that does not answer counts as level 0: the server of level 0 refuses a wrong
        // order.
        let status = status::at_mountpoint(&mount.mountpoint).ok();
        let level = status.as_ref().and_then(|of| of.counters().find(|(name, _)| *name == "level"));
        let number = level.map_or(0, |(_, level)| level);
        Level { mount, number, has_levels: status.as_ref().is_some_and(closing::has_levels) }
    };
    let mut levels: Vec<Level> = mounts.into_iter().map(level).collect();
    levels.sort_by_key(|level| Reverse(level.number));
    levels
}

/// Closes these mounts concurrently, and returns the result of each.
fn close_together(levels: &[&Level], covers: &Covers, console: Console) -> Vec<Result<Closed>> {
    let mountpoints: Vec<PathBuf> = levels.iter().map(|level| level.mount.mountpoint.clone()).collect();
    let shown: Vec<String> = mountpoints.iter().map(|at| at.display().to_string()).collect();
    let shown = shown.join(", ");
    let closing = levels.iter().map(|level| {
        let cover = cover_of(level, covers).filter(|_| level.number > 0);
        cover.map(|cover| cover.closing(level.number))
    });
    let begun: Vec<Option<Closing>> = closing.collect();
    // Progress is shown only on a terminal. Closing takes long mainly on disks with levels that
    // have pending hidden writes.
    working::show(console, &format!("closing {shown}"), |working| {
        let _looking = console.draws().then(|| look(working.clone(), mountpoints.clone(), shown.clone()));
        std::thread::scope(|scope| {
            let each = mountpoints.iter().zip(begun);
            let each: Vec<_> =
                each.map(|(at, closing)| scope.spawn(move || close_one(at, closing))).collect();
            let panicked = || Error::new(Kind::Other, "a defect of lacuna (a panic)");
            each.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(panicked()))).collect()
        })
    })
}

fn close_one(mountpoint: &Path, closing: Option<Closing>) -> Result<Closed> {
    let closed = lacuna_daemon::close(mountpoint, None);
    drop(closing);
    closed
}

/// Shows the remaining work of these mounts.
fn look(working: Working, mountpoints: Vec<PathBuf>, shown: String) -> Looking {
    Looking::start(move || {
        let mut statuses: Vec<ServerStatus> = Vec::new();
        for at in &mountpoints {
            if let Ok(status) = status::at_mountpoint(at) {
                statuses.push(status);
            }
        }
        if !statuses.is_empty() {
            let items = statuses.iter().flat_map(ServerStatus::counters);
            working.tell(working::unfinished(&items).within("closing", &shown));
        }
    })
}

/// Prints how a mount was closed.
fn tell(closed: Closed, console: Console) {
    match closed {
        Closed::Cleanly => console.detail("the server has ended"),
        Closed::AfterCrash => console.note(
            "the server had died before; what it left mounted is cleared away, and what had not been flushed \
             then is lost",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeper_levels_are_closed_at_once_and_first_unless_others_are_mounted_in_them() {
        let level = |(at, number): (&str, u64)| {
            let mount = Mount { mountpoint: at.into(), location: Some("disk".into()), vault: false };
            Level { mount, number, has_levels: true }
        };
        let groups = |of: &[(&str, u64)]| {
            let levels: Vec<Level> = of.iter().copied().map(level).collect();
            let numbers = |group: Vec<&Level>| group.iter().map(|level| level.number).collect::<Vec<_>>();
            in_turn(&levels).into_iter().map(numbers).collect::<Vec<_>>()
        };
        assert_eq!(groups(&[("/c", 2), ("/b", 1), ("/a", 0), ("/z", 0)]), [vec![2, 1], vec![0], vec![0]]);
        let within = [("/a/b/c", 3), ("/a/b", 2), ("/a/bc", 1), ("/a", 0)];
        assert_eq!(groups(&within), [vec![3, 1], vec![2], vec![0]]);
        // The same mount given twice.
        assert_eq!(groups(&[("/b", 1), ("/b", 1)]), [vec![1, 1]]);
        assert!(groups(&[]).is_empty());
    }
}
