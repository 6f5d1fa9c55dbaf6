//! `close`: closes mounts of `open` and servers of `serve`, and cleans up after dead servers.

mod closing_report;

use crate::args::{CloseArgs, ClusterArgs};
use crate::terminal::console::{self, Console};
use crate::terminal::option_names;
use crate::terminal::progress::{self, Poller, ProgressLine};
use crate::verbs::close::closing_report::ClosingReport;
use crate::verbs::closing_rounds;
use crate::verbs::open_instances::{OpenInstances, OpenMount};
use crate::verbs::serve::closing::{self, ClosingLevel, CoverSession, PendingPolicy};
use crate::verbs::status;
use lacuna_daemon::{CloseOutcome, OtherUsers, Peer, Registry, ServerStatus};
use lacuna_mount::proc;
use lacuna_storage::{Error, Kind, Location, Result, printable};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long root's own disks wait for the close of those of other users.
const OTHERS_WITHIN: Duration = Duration::from_secs(300);

/// `lacuna close`. A failure does not stop the rest. Each failure is printed; the first one is the
/// result of the command. If a level cannot be closed, level 0 stays open, because the level would
/// get no more cover without it.
pub(crate) fn close(args: &CloseArgs, console: Console) -> Result<()> {
    let patience = PendingPolicy::new(args.wait, args.now, console);
    let manner = Manner { force: args.force, deleted: args.deleted, patience, console };
    let unheard = |e: Error| console.detail(&format!("no note at an interrupt: {e}"));
    tell_when_interrupted().unwrap_or_else(unheard);
    if args.all {
        return close_all(args.all_users, manner);
    }
    let (namespace, ceph_conf) = (args.namespace.clone(), args.ceph_conf.clone());
    let cluster = ClusterArgs { namespace, ceph_conf, ceph_id: None, timeout: None };
    let mut open = OpenInstances::default();
    let mut failures = Failures::default();
    for target in &args.targets {
        match find_open(target, &cluster, manner) {
            Ok(of_target) => open.extend(of_target),
            Err(e) => failures.add(e),
        }
    }
    open.by_user().into_iter().for_each(|of_user| close_each(of_user, &mut failures, manner));
    failures.end()
}

/// How things are closed.
#[derive(Clone, Copy)]
struct Manner {
    /// Whether served disks are closed although clients use them.
    force: bool,
    /// Whether disks with a deleted file are closed.
    deleted: bool,
    patience: PendingPolicy,
    console: Console,
}

/// Prints a note when INT or TERM ends this command, because the servers that it asked to close go
/// on. A signal that was ignored at the start stays ignored.
///
/// Deniability contract: the note is the same whatever is being closed, and how far it is.
fn tell_when_interrupted() -> Result<()> {
    let failed = |e: &io::Error| Error::io("cannot listen for signals", e);
    let ends = [SIGINT, SIGTERM].into_iter().filter(|signal| !proc::ignores(*signal));
    let mut signals = Signals::new(ends).map_err(|e| failed(&e))?;
    let thread = thread::Builder::new().name("lacuna-signals".into());
    let spawned = thread.spawn(move || {
        if let Some(signal) = signals.forever().next() {
            console::print_always(
                "interrupted: closing goes on where it has begun; `lacuna status` shows it. Until it has ended, write nothing \
                 at the mount points: files may go into the directories below them, unencrypted",
            );
            // The shell that waits for this command learns that the signal ended it.
            let _ends = emulate_default_handler(signal);
        }
    });
    spawned.map(drop).map_err(|e| failed(&e).with_kind(Kind::Other))
}

/// Collects failures. The first one becomes the command's error and is printed at the end; the
/// following ones are printed at once.
#[derive(Default)]
pub(crate) struct Failures {
    first: Option<Error>,
    /// Whether a private failure was printed, or is the first one.
    has_confidential: bool,
}

impl Failures {
    pub(crate) fn add(&mut self, e: Error) {
        // Deniability contract: a log gets the sentence for private errors only once, regardless of
        // the number of levels that fail.
        let is_told = self.has_confidential && e.is_confidential() && !console::is_terminal();
        self.has_confidential |= e.is_confidential();
        if self.first.is_none() {
            self.first = Some(e);
        } else if !is_told {
            console::error(&e);
        }
    }

    /// Adds the failure that another collection has not printed.
    fn add_first_of(&mut self, other: Failures) {
        other.first.into_iter().for_each(|e| self.add(e));
        self.has_confidential |= other.has_confidential;
    }

    pub(crate) fn end(self) -> Result<()> {
        self.first.map_or(Ok(()), Err)
    }
}

/// Closes in the order of [`closing_rounds`].
fn close_each(open: OpenInstances, failures: &mut Failures, manner: Manner) {
    for OpenInstances { mounts, served } in closing_rounds::of(open) {
        close_mounts(mounts, failures, manner);
        for peer in &served {
            let closed = closing::close_served(peer, manner.patience, manner.force);
            closed.unwrap_or_else(|e| failures.add(e));
        }
    }
}

/// The mounts and servers of a target, ready to be closed. Errors: [`Kind::Usage`] if several disks
/// match, and those of [`OpenInstances::prepare_to_close`].
fn find_open(target: &Path, cluster: &ClusterArgs, manner: Manner) -> Result<OpenInstances> {
    let mut open = if let Some(mount) = mounted_at(target)? {
        // Refuses options that do not apply to a mount point.
        cluster.options_for(&Location::Path(target.to_owned()))?;
        OpenInstances { mounts: vec![mount], served: Vec::new() }
    } else {
        let location = location_of(target);
        let mut open = OpenInstances::find(&location, cluster)?;
        if open.is_empty() {
            open = of_other_users(&location, manner.console);
        }
        if open.is_empty() {
            // Closing it reports that nothing is open there.
            let mountpoint = location.path().map_or_else(|| target.to_owned(), status::canonical_path);
            open.mounts.push(OpenMount { mountpoint, location: None, is_vault: false, peer: None });
        }
        open
    };
    open.prepare_to_close(manner.force, manner.deleted, manner.console)?;
    Ok(open)
}

/// Mounts and servers of a target that other users have open, for root. A disk in a pool is found
/// by its mount point alone, because its name may mean several disks.
fn of_other_users(location: &Location, console: Console) -> OpenInstances {
    if location.path().is_none() || !OtherUsers::may_look() {
        return OpenInstances::default();
    }
    let others = status::of_other_users(location);
    if others.seen.is_empty() {
        others.unseen.iter().for_each(|e| console.note(&option_names::render(e)));
    }
    for user in others.seen.iter().map(|seen| seen.user).collect::<BTreeSet<u32>>() {
        console.note(&format!("it is open for user {user}"));
    }
    others.seen.into_iter().map(|seen| seen.peer).collect::<Vec<Peer>>().into()
}

/// Closes everything that this user has open, in this manner, and with `all_users` first everything
/// of all other users. Each failure is printed; the first one is the result of the command.
fn close_all(all_users: bool, manner: Manner) -> Result<()> {
    let mut failures = Failures::default();
    let others = if all_users { close_other_users(manner, &mut failures)? } else { 0 };
    let (peers, unseen) = Registry::open(None)?.all_with_errors();
    unseen.into_iter().for_each(|e| failures.add(e));
    if peers.is_empty() && others == 0 && failures.first.is_none() {
        return manner.console.done("nothing is open");
    }
    close_peers(peers, &mut failures, manner);
    failures.end()
}

/// Closes everything of all other users, and returns the number of mounts and servers.
///
/// Each user has a thread, because the server of a hostile user may never finish. Disks of other
/// users may be on disks of root: those are closed afterwards, at the latest after
/// [`OTHERS_WITHIN`].
fn close_other_users(manner: Manner, failures: &mut Failures) -> Result<usize> {
    let OtherUsers { seen, unseen } = OtherUsers::look()?;
    unseen.into_iter().for_each(|e| failures.add(e));
    let count = seen.len();
    let mut of_users: BTreeMap<u32, Vec<Peer>> = BTreeMap::new();
    seen.into_iter().for_each(|seen| of_users.entry(seen.user).or_default().push(seen.peer));
    let (console, patience) = (manner.console.without_drawing(), manner.patience.without_drawing());
    let theirs = Manner { patience, console, ..manner };
    let (done, ended) = channel();
    let mut waiting = BTreeSet::new();
    for (user, peers) in of_users {
        let done = done.clone();
        let close = move || {
            let mut failures = Failures::default();
            close_peers(peers, &mut failures, theirs);
            // The receiver may have given up.
            let _late = done.send((user, failures));
        };
        match thread::Builder::new().name("lacuna-user".into()).spawn(close) {
            Ok(_thread) => {
                waiting.insert(user);
            }
            Err(e) => failures.add(Error::io(format!("cannot close the disks of user {user}"), &e)),
        }
    }
    drop(done);
    let mut of_all = Vec::new();
    progress::show(manner.console, "closing the disks of other users", |_| {
        let until = Instant::now() + OTHERS_WITHIN;
        while let Ok((user, of_user)) = ended.recv_timeout(until.saturating_duration_since(Instant::now())) {
            waiting.remove(&user);
            of_all.push(of_user);
        }
    });
    of_all.into_iter().for_each(|of_user| failures.add_first_of(of_user));
    waiting.into_iter().for_each(|user| failures.add(still_closing(user)));
    Ok(count)
}

/// The error for a user with disks that are not closed in time.
fn still_closing(user: u32) -> Error {
    Error::new(Kind::TimedOut, format!("cannot close the disks of user {user}"))
        .found(format!("servers that are still closing after {} minutes", OTHERS_WITHIN.as_secs() / 60))
        .hint("closing goes on; `lacuna status --all-users` shows it")
}

/// Closes all these mounts and servers, except disks with a deleted file.
fn close_peers(mut peers: Vec<Peer>, failures: &mut Failures, manner: Manner) {
    // Mounts before served disks, and newer ones first: a mount may depend on a served disk, and a
    // newer one on an older one.
    peers.sort_by_key(|peer| (peer.mount().is_none(), Reverse(peer.record.since)));
    let mut open = OpenInstances::default();
    let mut kept = BTreeSet::new();
    for peer in peers {
        // All levels of a disk have the same file and the same server. Deniability contract: after
        // a failure the server is not asked again, which could take seconds for each level, and the
        // failure is printed once.
        let server = (peer.record.location.clone(), peer.record.pid);
        if kept.contains(&server) {
            continue;
        }
        let mut one = OpenInstances::from(vec![peer]);
        match one.prepare_to_close(manner.force, manner.deleted, manner.console) {
            Ok(()) => open.extend(one),
            Err(e) => {
                kept.insert(server);
                failures.add(e);
            }
        }
    }
    close_each(open, failures, manner);
}

/// Closes mounts, deeper levels first.
///
/// Deniability contract: all deeper levels of a disk are closed at once, so that their pending data
/// is dropped at the same moment, regardless of their number. Level 0 is closed when the cover of
/// the closing is written, regardless of the time that the deeper levels took.
fn close_mounts(mounts: Vec<OpenMount>, failures: &mut Failures, manner: Manner) {
    let Manner { patience, console, .. } = manner;
    let levels = deepest_first(mounts);
    let mut covers = covers(&levels, patience, console);
    let (mut stay, mut report) = (Vec::new(), ClosingReport::new(console));
    for mut together in closing_order(&levels) {
        together.retain(|level| level.mount.location.is_none() || !stay.contains(&level.mount.location));
        for level in together.iter().filter(|level| level.number == 0) {
            let its = covers.iter_mut().filter(|(of, _)| *of == level.mount.location);
            its.for_each(|(_, cover)| cover.wait(console));
        }
        for (level, closed) in together.iter().zip(close_together(&together, &covers, console)) {
            match closed {
                Ok(outcome) => report.add(&level.mount, Some(outcome)),
                Err(e) => {
                    report.add(&level.mount, None);
                    // A level that was unmounted in spite of the error needs no more cover.
                    if !level.mount.is_gone() {
                        stay.push(level.mount.location.clone());
                    }
                    failures.add(if manner.force { not_forced(e) } else { with_list_hint(e) });
                }
            }
        }
    }
    report.end();
}

/// Groups of levels that are closed concurrently, in order: deeper levels together, except that a
/// level with other mounts inside comes after those; then the public levels one by one.
fn closing_order(levels: &[MountedLevel]) -> Vec<Vec<&MountedLevel>> {
    let (mut deeper, public): (Vec<&MountedLevel>, Vec<&MountedLevel>) =
        levels.iter().partition(|level| level.number > 0);
    let mut groups = Vec::new();
    while !deeper.is_empty() {
        let holds = |outer: &MountedLevel| deeper.iter().any(|inner| is_within(inner, outer));
        let (outer, inner): (Vec<&MountedLevel>, Vec<&MountedLevel>) =
            deeper.iter().copied().partition(|level| holds(level));
        groups.push(inner);
        deeper = outer;
    }
    groups.extend(public.into_iter().map(|level| vec![level]));
    groups
}

/// Whether a level is mounted inside the file system of another one.
fn is_within(inner: &MountedLevel, outer: &MountedLevel) -> bool {
    let (inner, outer) = (&inner.mount.mountpoint, &outer.mount.mountpoint);
    inner != outer && inner.starts_with(outer)
}

type Covers = [(Option<String>, CoverSession)];

fn cover_of<'c>(level: &MountedLevel, covers: &'c Covers) -> Option<&'c CoverSession> {
    covers.iter().find(|(of, _)| *of == level.mount.location).map(|(_, cover)| cover)
}

/// Starts the cover of the closing for every disk with its lowest mounted level in this list.
fn covers(
    levels: &[MountedLevel],
    patience: PendingPolicy,
    console: Console,
) -> Vec<(Option<String>, CoverSession)> {
    let mut covers = Vec::new();
    for level in levels.iter().filter(|level| level.has_levels && (level.number == 0 || level.is_alone)) {
        let of_disk =
            |other: &&MountedLevel| other.number > 0 && other.mount.location == level.mount.location;
        let hidden = levels.iter().filter(of_disk).map(|other| other.mount.clone()).collect();
        match CoverSession::of_mounted(&level.mount, hidden, patience) {
            Ok(cover) => covers.push((level.mount.location.clone(), cover)),
            // Closing the level reports the failure too.
            Err(e) => console.detail_error(&e.context("no cover for the closing")),
        }
    }
    covers
}

/// The mount at a given path, also if other instances cannot be inspected. Does not access the path
/// itself.
fn mounted_at(target: &Path) -> Result<Option<OpenMount>> {
    let peers = Registry::open(None)?.mounted_at(&status::canonical_path(target))?;
    Ok(peers.first().and_then(OpenMount::of))
}

fn location_of(target: &Path) -> Location {
    let location = Location::from_os_str(target.as_os_str()).ok();
    location.unwrap_or_else(|| Location::Path(target.to_owned()))
}

/// Adds advice to the error of a path that is not mounted.
fn with_list_hint(e: Error) -> Error {
    if e.kind() != Kind::NotFound || e.get_hint().is_some() {
        return e;
    }
    e.hint("`lacuna list` shows the open disks and vaults, and where they are mounted")
}

/// Adds to the error of a mount in use that `--force` does not apply to it: the kernel keeps a file
/// system that programs use.
fn not_forced(e: Error) -> Error {
    if e.kind() != Kind::Busy {
        return with_list_hint(e);
    }
    let before =
        e.get_hint().map_or_else(String::new, |advice| advice.render_with(option_names::name) + "; ");
    e.hint(before + "--force applies to served disks alone")
}

/// A mount and its level, as its server reports it.
struct MountedLevel {
    mount: OpenMount,
    /// Also 0 for a disk without levels.
    number: u64,
    has_levels: bool,
    /// Whether it is a hidden level, and level 0 is open and not mounted. Its server keeps level 0
    /// open until the cover has settled.
    is_alone: bool,
}

/// Deeper levels first: pending hidden writes get cover while level 0 is still in use.
///
/// A server that does not answer counts as level 0: the server of level 0 refuses a wrong order.
/// Deniability contract: such a server is asked once, however many levels it has mounted, so that
/// the time of a close does not tell their number.
fn deepest_first(mounts: Vec<OpenMount>) -> Vec<MountedLevel> {
    let mut silent = BTreeSet::new();
    let level = |mount: OpenMount| {
        let server = mount.peer.as_ref().map(|peer| peer.record.pid);
        let status =
            if server.is_some_and(|server| silent.contains(&server)) { None } else { mount.status().ok() };
        if status.is_none() {
            silent.extend(server);
        }
        let level = status.as_ref().and_then(|of| of.counters().find(|(name, _)| *name == "level"));
        let number = level.map_or(0, |(_, level)| level);
        let is = |property: fn(&ServerStatus) -> bool| status.as_ref().is_some_and(property);
        let (has_levels, is_alone) = (is(closing::has_levels), is(closing::is_mounted_alone));
        MountedLevel { mount, number, has_levels, is_alone }
    };
    let mut levels: Vec<MountedLevel> = mounts.into_iter().map(level).collect();
    levels.sort_by_key(|level| Reverse(level.number));
    levels
}

/// Closes these mounts concurrently, and returns the result of each.
fn close_together(levels: &[&MountedLevel], covers: &Covers, console: Console) -> Vec<Result<CloseOutcome>> {
    let mounts: Vec<OpenMount> = levels.iter().map(|level| level.mount.clone()).collect();
    let shown: Vec<String> = mounts.iter().map(|mount| mount.mountpoint.display().to_string()).collect();
    // The server of another user may give its mount point any name.
    let shown = printable(&shown.join(", ")).into_owned();
    let closing = levels.iter().map(|level| {
        let cover = cover_of(level, covers).filter(|_| level.number > 0);
        cover.map(|cover| cover.register_closing(level.number))
    });
    let begun: Vec<Option<ClosingLevel>> = closing.collect();
    // Progress is shown only on a terminal. Closing takes long mainly on disks with levels that
    // have pending hidden writes.
    progress::show(console, &format!("closing {shown}"), |working| {
        let _looking =
            console.can_draw().then(|| poll_remaining_work(working.clone(), mounts, shown.clone()));
        thread::scope(|scope| {
            let each = levels.iter().zip(begun);
            let each: Vec<_> =
                each.map(|(level, closing)| scope.spawn(move || close_one(&level.mount, closing))).collect();
            let panicked = || Error::new(Kind::Other, "a defect of lacuna (a panic)");
            each.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(panicked()))).collect()
        })
    })
}

/// Closes a mount. A mount that was found and has ended since counts as closed.
fn close_one(mount: &OpenMount, closing: Option<ClosingLevel>) -> Result<CloseOutcome> {
    let closed = match &mount.peer {
        Some(peer) => peer.close(),
        None => lacuna_daemon::close(&mount.mountpoint, None),
    };
    drop(closing);
    closed
}

/// Shows the remaining work of these mounts.
fn poll_remaining_work(working: ProgressLine, mounts: Vec<OpenMount>, shown: String) -> Poller {
    Poller::start(move || {
        let mut statuses: Vec<ServerStatus> = Vec::new();
        for mount in &mounts {
            if let Ok(status) = mount.status() {
                statuses.push(status);
            }
        }
        if !statuses.is_empty() {
            let items = statuses.iter().flat_map(ServerStatus::counters);
            working.set_step(progress::remaining_work(&items).within("closing", &shown));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeper_levels_are_closed_first_and_together_unless_nested() {
        let level = |(at, number): (&str, u64)| {
            let (mountpoint, location) = (at.into(), Some("disk".into()));
            let mount = OpenMount { mountpoint, location, is_vault: false, peer: None };
            MountedLevel { mount, number, has_levels: true, is_alone: false }
        };
        let groups = |of: &[(&str, u64)]| {
            let levels: Vec<MountedLevel> = of.iter().copied().map(level).collect();
            let numbers =
                |group: Vec<&MountedLevel>| group.iter().map(|level| level.number).collect::<Vec<_>>();
            closing_order(&levels).into_iter().map(numbers).collect::<Vec<_>>()
        };
        assert_eq!(groups(&[("/c", 2), ("/b", 1), ("/a", 0), ("/z", 0)]), [vec![2, 1], vec![0], vec![0]]);
        let within = [("/a/b/c", 3), ("/a/b", 2), ("/a/bc", 1), ("/a", 0)];
        assert_eq!(groups(&within), [vec![3, 1], vec![2], vec![0]]);
        // The same mount given twice.
        assert_eq!(groups(&[("/b", 1), ("/b", 1)]), [vec![1, 1]]);
        assert!(groups(&[]).is_empty());
    }
}
