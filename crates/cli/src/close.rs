//! `close`: ends what `open` mounted or `serve` serves, or clears away what a dead server left.

use crate::args::CloseArgs;
use crate::console::{self, Console};
use crate::status;
use crate::working::{self, Looking};
use lacuna::{Error, Kind, Location, Result};
use lacuna_service::{Closed, Record};
use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// `lacuna close`. All disks are closed, whatever becomes of the others; the first failure is told. When a level cannot be
/// closed, those above it stay open: without level 0 it would get no more cover.
pub(crate) fn close(args: &CloseArgs, console: Console) -> Result<()> {
    if args.all {
        return close_all(console);
    }
    let (mut mounts, mut served) = (Vec::new(), Vec::new());
    for target in &args.targets {
        if let Some(mount) = mounted_at(target) {
            mounts.push(mount);
            continue;
        }
        let mut open = OpenAt::find(&location_of(target));
        open.only_in(args.namespace.as_deref(), target)?;
        if open.mounts.is_empty() && open.sockets.is_empty() {
            // It says that nothing is open there.
            mounts.push(Mount { mountpoint: target.clone(), location: None });
        }
        mounts.extend(open.mounts.into_iter().map(|(mount, _)| mount));
        served.extend(open.sockets.into_iter().map(|(socket, _)| socket));
    }
    let closed = close_mounts(mounts.into_iter(), console, |_| {});
    served.into_iter().fold(closed, |closed, socket| closed.and(close_served(&socket, console)))
}

fn close_served(socket: &Path, console: Console) -> Result<()> {
    working::show(console, "closing what is served", |_| lacuna_service::close_served(socket))
}

/// Closes everything that this user has open. Each failure is told; the first one is what the command ends with.
fn close_all(console: Console) -> Result<()> {
    lacuna_service::default_run_base()?;
    let told = Cell::new(false);
    // The first failure is told at the end, as that of every command.
    let failed = |e: &Error| {
        if told.replace(true) {
            console::error(e);
        }
    };
    let sockets = lacuna_service::sockets();
    let mut records: Vec<Record> = records().collect();
    // What was opened last may rest on what was opened before.
    records.sort_by_key(|record| Reverse(record.since));
    let mounts: Vec<Mount> = records.into_iter().map(Mount::of).collect();
    if sockets.is_empty() && mounts.is_empty() {
        return console.done("nothing is open");
    }
    let mut closed = close_mounts(mounts.into_iter(), console, failed);
    for socket in sockets {
        let one = close_served(&socket, console);
        one.as_ref().err().into_iter().for_each(failed);
        closed = closed.and(one);
    }
    closed
}

/// Closes these, the deepest levels first, and tells `failed` of each that stays.
fn close_mounts(
    mounts: impl Iterator<Item = Mount>,
    console: Console,
    mut failed: impl FnMut(&Error),
) -> Result<()> {
    let mut closed = Ok(());
    let mut stay = Vec::new();
    for Mount { mountpoint, location } in deepest_first(mounts) {
        if location.is_some() && stay.contains(&location) {
            continue;
        }
        let one = close_one(&mountpoint, console).map_err(not_mounted);
        if let Err(e) = &one {
            stay.push(location);
            failed(e);
        }
        closed = closed.and(one);
    }
    closed
}

/// What this user has open of one location, each with its namespace in a pool.
struct OpenAt {
    mounts: Vec<(Mount, Option<String>)>,
    sockets: Vec<(PathBuf, Option<String>)>,
}

impl OpenAt {
    fn find(location: &Location) -> OpenAt {
        let shown = status::canonical(location);
        let mounted = records().filter(|record| record.location == shown).map(|record| {
            let namespace = record.in_pool.as_ref().and_then(|in_pool| in_pool.namespace.clone());
            (Mount::of(record), namespace)
        });
        let sockets = match location {
            // What tells servers apart is more than the location there.
            Location::Rados { .. } => lacuna_service::answers()
                .into_iter()
                .filter(|(_, account)| account["location"] == *shown)
                .map(|(socket, account)| (socket, account["namespace"].as_str().map(str::to_owned)))
                .collect(),
            Location::Path(_) | Location::Nand(_) | Location::Ubi(_) => {
                lacuna_service::serving(&shown).map(|socket| (socket, None)).into_iter().collect()
            }
        };
        OpenAt { mounts: mounted.collect(), sockets }
    }

    /// Leaves those in `namespace`. Errors: [`Kind::Usage`] if it is not given, and there are disks of this name in several.
    fn only_in(&mut self, namespace: Option<&str>, target: &Path) -> Result<()> {
        let (mounts, sockets) = (&mut self.mounts, &mut self.sockets);
        if let Some(wanted) = namespace {
            let is_it = |of: &Option<String>| of.as_deref().unwrap_or_default() == wanted;
            mounts.retain(|(_, of)| is_it(of));
            sockets.retain(|(_, of)| is_it(of));
            return Ok(());
        }
        let all = mounts.iter().map(|(_, of)| of).chain(sockets.iter().map(|(_, of)| of));
        let all: BTreeSet<&str> = all.map(|of| of.as_deref().unwrap_or_default()).collect();
        if all.len() < 2 {
            return Ok(());
        }
        let named: Vec<String> = all.iter().map(|of| format!("'{of}'")).collect();
        Err(Error::new(Kind::Usage, format!("cannot close {}", target.display()))
            .found(format!("open disks of this name in the namespaces {}", named.join(", ")))
            .expected("one disk")
            .remedy("say which one with --namespace, or give its mount point"))
    }
}

/// A mount point to close.
struct Mount {
    mountpoint: PathBuf,
    /// The location of its disk, if it is one of ours.
    location: Option<String>,
}

impl Mount {
    fn of(record: Record) -> Mount {
        let Record { mountpoint, location, .. } = record;
        Mount { mountpoint, location: Some(location) }
    }
}

/// What is mounted, or was left mounted by servers that died.
pub(crate) fn records() -> impl Iterator<Item = Record> {
    let running = lacuna_service::running(None).unwrap_or_default();
    running.into_iter().chain(lacuna_service::died(None).unwrap_or_default())
}

/// What is mounted at a mount point.
fn mounted_at(target: &Path) -> Option<Mount> {
    let path = status::canonical(&Location::Path(target.to_owned()));
    records().find(|record| record.mountpoint == Path::new(&path)).map(Mount::of)
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
