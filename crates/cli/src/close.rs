//! `close`: ends what `open` mounted or `serve` serves, or clears away what a dead server left.

use crate::args::{CloseArgs, ClusterArgs};
use crate::console::{self, Console};
use crate::open_at::{Mount, OpenAt};
use crate::status;
use crate::working::{self, Looking};
use lacuna::{Error, Kind, Location, Result};
use lacuna_service::Closed;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;

/// `lacuna close`. All disks are closed that can be, whatever becomes of the others. Each failure is told; the first one is what the
/// command ends with. When a level cannot be closed, those above it stay open: without level 0 it would get no more cover.
pub(crate) fn close(args: &CloseArgs, console: Console) -> Result<()> {
    if args.all {
        return close_all(args.deleted, console);
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
    close_each(open, &mut failures, console);
    failures.end()
}

/// What kept things open. The first failure is told at the end, as that of every command, and the others at once.
#[derive(Default)]
pub(crate) struct Failures(Option<Error>);

impl Failures {
    pub(crate) fn add(&mut self, e: Error) {
        if self.0.is_none() {
            self.0 = Some(e);
        } else {
            console::error(&e);
        }
    }

    pub(crate) fn end(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// Closes all of it: mounts, then what is served.
fn close_each(open: OpenAt, failures: &mut Failures, console: Console) {
    close_mounts(open.mounts.into_iter(), failures, console);
    for socket in open.sockets {
        close_served(&socket, console).unwrap_or_else(|e| failures.add(e));
    }
}

/// What is to be closed when a target is given. Errors: [`Kind::Usage`] where several disks can be meant, and [`Kind::Other`] for
/// one whose file was deleted, unless that may be.
fn open_at(target: &Path, cluster: &ClusterArgs, deleted: bool) -> Result<OpenAt> {
    let open = if let Some(mount) = mounted_at(target)? {
        // Refuses what means nothing for a mount point.
        cluster.of(&Location::Path(target.to_owned()))?;
        OpenAt { mounts: vec![mount], sockets: Vec::new() }
    } else {
        let location = location_of(target);
        let mut open = OpenAt::find(&location, cluster)?;
        if open.mounts.is_empty() && open.sockets.is_empty() {
            // It says that nothing is open there.
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

fn close_served(socket: &Path, console: Console) -> Result<()> {
    working::show(console, "closing what is served", |_| lacuna_service::close_served(socket))
}

/// Closes everything that this user has open; what was `deleted` only if that is said. Each failure is told; the first one is what the
/// command ends with.
fn close_all(deleted: bool, console: Console) -> Result<()> {
    let mut failures = Failures::default();
    let sockets = lacuna_service::sockets().unwrap_or_else(|e| {
        failures.add(e);
        Vec::new()
    });
    let (mut records, unseen) = lacuna_service::seen(None)?;
    unseen.into_iter().for_each(|e| failures.add(e));
    // What was opened last may rest on what was opened before.
    records.sort_by_key(|record| Reverse(record.since));
    let mounts =
        records.into_iter().map(|record| OpenAt { mounts: vec![Mount::of(record)], sockets: Vec::new() });
    let served = sockets.into_iter().map(|socket| OpenAt { mounts: Vec::new(), sockets: vec![socket] });
    let all: Vec<OpenAt> = mounts.chain(served).collect();
    if all.is_empty() && failures.0.is_none() {
        return console.done("nothing is open");
    }
    let mut open = OpenAt::default();
    let mut kept = BTreeSet::new();
    for one in all {
        match if deleted { Ok(()) } else { one.refuse_deleted() } {
            Ok(()) => open.extend(one),
            Err(e) => {
                // All levels of a disk have the same file and the same server. Deniability contract: that is told once.
                let disk = one.mounts.into_iter().find_map(|mount| mount.location);
                if kept.insert(disk.unwrap_or_else(|| e.to_string())) {
                    failures.add(e);
                }
            }
        }
    }
    close_each(open, &mut failures, console);
    failures.end()
}

/// Closes these, the deepest levels first.
fn close_mounts(mounts: impl Iterator<Item = Mount>, failures: &mut Failures, console: Console) {
    let mut stay = Vec::new();
    for Mount { mountpoint, location, .. } in deepest_first(mounts) {
        if location.is_some() && stay.contains(&location) {
            continue;
        }
        if let Err(e) = close_one(&mountpoint, console) {
            stay.push(location);
            failures.add(not_mounted(e));
        }
    }
}

/// What is mounted at a path that is given, also where something else keeps others from being seen. Nothing looks at the path itself.
fn mounted_at(target: &Path) -> Result<Option<Mount>> {
    let path = status::canonical(&Location::Path(target.to_owned()));
    let (records, unseen) = lacuna_service::seen(None)?;
    match records.into_iter().find(|record| record.mountpoint == Path::new(&path)) {
        Some(record) => Ok(Some(Mount::of(record))),
        None => unseen.into_iter().next().map_or(Ok(None), Err),
    }
}

fn location_of(target: &Path) -> Location {
    let location = target.to_str().and_then(|text| Location::parse(text).ok());
    location.unwrap_or_else(|| Location::Path(target.to_owned()))
}

/// The refusal to close what is not mounted.
fn not_mounted(e: Error) -> Error {
    if e.kind() != Kind::NotFound || e.advice().is_some() {
        return e;
    }
    e.remedy("`lacuna list` says what is open, and where")
}

/// Those of deeper levels before others: hidden writes that wait for cover get it while level 0 is still in use.
fn deepest_first(mounts: impl Iterator<Item = Mount>) -> Vec<Mount> {
    let level = |mount: &Mount| {
        let status = lacuna_service::status(&mount.mountpoint, None).unwrap_or_default();
        let found = working::counters(&status["items"]).find(|(name, _)| *name == "level");
        found.map_or(0, |(_, level)| level)
    };
    let mut mounts: Vec<Mount> = mounts.collect();
    mounts.sort_by_cached_key(|mount| Reverse(level(mount)));
    mounts
}

fn close_one(mountpoint: &Path, console: Console) -> Result<()> {
    let what = format!("closing {}", mountpoint.display());
    // To a person alone: on a disk with levels it takes long when something hidden waits, above all.
    let closed = working::show(console, &what, |working| {
        let (working, at) = (working.clone(), mountpoint.to_owned());
        let _looking = console.draws().then(|| {
            Looking::start(move || {
                if let Ok(status) = lacuna_service::status(&at, None) {
                    working.tell(
                        working::unfinished(&working::counters(&status["items"]))
                            .within("closing", &at.to_string_lossy()),
                    );
                }
            })
        });
        lacuna_service::close(mountpoint, None)
    });
    match closed? {
        Closed::Cleanly => console.detail("the server has ended"),
        Closed::AfterCrash => console.note(
            "the server had died before; what it left mounted is cleared away, and what had not been flushed \
             then is lost",
        ),
    }
    Ok(())
}
