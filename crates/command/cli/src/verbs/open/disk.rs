//! `open` of a disk: mounts its file system.

use crate::args::OpenArgs;
use crate::args::size::budget;
use crate::terminal::console::{self, Console};
use crate::terminal::option_names;
use crate::terminal::progress::{self, ProgressStep};
use crate::verbs::empty_level;
use crate::verbs::open::left_mounts;
use crate::verbs::open::lowest_level::{LowestLevel, UnmountedLevels};
use crate::verbs::open::mountpoint::{self, MountPlan};
use crate::verbs::open::report::OpenedDisk;
use crate::verbs::open::stopping::{StoppedLevel, stop_all};
use crate::verbs::serve::background::{self, ReadyNotifier};
use crate::verbs::serve::disk_jobs::ServedDisk;
use crate::verbs::serve::notify;
use crate::verbs::serve::settling::Settling;
use crate::verbs::status;
use crate::verbs::unlock::{self, DiskArgs, UnlockArgs};
use lacuna_daemon::{Identity, TrackedFile, become_io_flusher};
use lacuna_fuse::{DiskRequest, MountedDisk, Stopper};
use lacuna_mount::{CoverRole, CoverSource, MountMethod, Program, ServerLog};
use lacuna_storage::format::Description;
use lacuna_storage::{Disk, Error, Kind, OpenDisk, OpenDiskOptions, Result, UnlockedDisk};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

/// `lacuna open`.
pub(crate) fn open(mut args: OpenArgs, console: Console) -> Result<()> {
    refuse_vault_options(&args)?;
    check_mount_method(&args)?;
    unlock::check_idle(&args.location, &args.opening.idle)?;
    let budget = budget(args.opening.cache)?;
    let peeked = lacuna_storage::read_public_params(&args.location)?;
    let has_levels = peeked.as_ref().is_some_and(|disk| disk.has_levels());
    // Deniability contract: messages on mount points would tell a log the number of levels.
    let redact = has_levels && !console::is_terminal();
    let refused = |e: Error| if redact { e.confidential() } else { e };
    let plan = MountPlan::of_disk(has_levels, args.raw, args.via);
    let (shown, note_console) = (status::canonical(&args.location), (!redact).then_some(console));
    left_mounts::clear(&shown, &args.mountpoints, note_console).map_err(refused)?;
    check_mountpoints(&mut args, plan, note_console).map_err(refused)?;
    peeked.map_or(Ok(()), |disk| check_level(&args, &disk.describe())).map_err(refused)?;
    unlock::check_writing(&args.location, &args.opening)?;
    args.read_only |= args.location.snapshot().is_some();
    let access = unlock::access(args.read_only);
    let place = DiskArgs { location: &args.location, pool_access: &args.opening.pool_access };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.opening.expect };
    let mut volume = unlock::unlock_to_serve(place, access, given, console)?;
    let file = volume.take_file();
    let described = volume.parameters.describe();
    let verifies = described.detects_alterations;
    let key = volume.into_disk(!args.foreground)?;
    unlock::refuse_idle(key.has_levels(), &args.opening.idle)?;
    // Before the disk is opened: closing a disk that was opened for writing writes to it. The
    // location may have held another disk before.
    check_level(&args, &described)
        .and_then(|()| check_count(&args, &key))
        .map_err(|e| if key.has_levels() { e.confidential() } else { e })?;
    let opening = args.opening.options(args.read_only, budget);
    let what = format!("opening {}", args.location);
    background::run(!args.foreground, key.has_levels(), console, &what, |ready| {
        serve(&args, DiskToServe { location: shown, key, verifies, file }, opening, console, ready)
    })
}

/// A disk that is unlocked and not yet open.
struct DiskToServe {
    /// The location under which the disk is registered.
    location: String,
    key: UnlockedDisk,
    /// Whether its cipher detects altered data.
    verifies: bool,
    /// Its file or device; `None` in a pool.
    file: Option<OwnedFd>,
}

/// Refuses unsuitable mount points before a passphrase is asked for. `console` gets notes.
fn check_mountpoints(args: &mut OpenArgs, plan: MountPlan, console: Option<Console>) -> Result<()> {
    if args.mkfs.is_some() && (args.raw || args.read_only) {
        return Err(Error::new(Kind::Usage, "cannot make a file system")
            .found(if args.raw { "--mkfs with --raw" } else { "--mkfs with --read-only" })
            .hint("leave one of them away"));
    }
    for at in 0..args.mountpoints.len() {
        let mountpoint = mountpoint::check(&args.mountpoints[at], plan, console)?;
        if args.mountpoints[..at].contains(&mountpoint) {
            return Err(Error::new(Kind::Usage, "cannot mount two levels in one place")
                .found(format!("{} twice", mountpoint.display()))
                .hint("give each level a directory of its own"));
        }
        args.mountpoints[at] = mountpoint;
    }
    Ok(())
}

/// Refuses a mount that this machine or this user cannot make, before a passphrase is asked for.
fn check_mount_method(args: &OpenArgs) -> Result<()> {
    if let Some(lacking) = lacuna_mount::lacking_for_fuse() {
        return Err(lacking.context(format!("cannot open {}", args.location)));
    }
    if args.raw {
        return Ok(());
    }
    MountMethod::check(args.via, args.mkfs.as_deref())
        .map_err(|e| e.context(format!("cannot open {}", args.location)))
}

/// Refuses options for vaults.
fn refuse_vault_options(args: &OpenArgs) -> Result<()> {
    let given = [("--anchor", args.anchor.anchor.is_some()), ("--allow-other", args.vault.allow_other)];
    let Some((option, _)) = given.iter().find(|(_, given)| *given) else { return Ok(()) };
    Err(Error::new(Kind::Usage, format!("cannot open {}", args.location))
        .found(format!("{option}, which applies to vaults only"))
        .expected("the directory of a vault with it")
        .hint("leave it out"))
}

/// Refuses a level to mount alone that this disk cannot have, or that could not write.
///
/// Deniability contract: the checks follow from the options and the public parameters alone.
fn check_level(args: &OpenArgs, disk: &Description) -> Result<()> {
    let Some(level) = args.level else { return Ok(()) };
    let refused = |found: String| {
        Error::new(Kind::Usage, format!("cannot open {} with --level {level}", args.location)).found(found)
    };
    let Some(hidden) = &disk.hidden_sizes else {
        return Err(refused("a disk without levels".to_owned()).hint("leave it out"));
    };
    if usize::from(level) > hidden.len() {
        return Err(refused("a disk that has no such level whatever the passphrase is".to_owned())
            .expected(format!("at most {}", hidden.len())));
    }
    if args.mountpoints.len() > 1 {
        return Err(refused(format!("{} mount points", args.mountpoints.len()))
            .expected("one, for that level")
            .hint("leave --level out to mount the levels in order, level 0 first"));
    }
    if level > 0 && !args.read_only && disk.overwritten_within.is_none() {
        return Err(refused("a disk that writes no cover by itself (--cover 0)".to_owned())
            .expected("level 0 mounted too: its writes are the cover")
            .hint("give a mount point for each level, level 0 first; or --read-only"));
    }
    Ok(())
}

/// Refuses mount points for levels that are not open.
fn check_count(args: &OpenArgs, key: &UnlockedDisk) -> Result<()> {
    let (first, count, open) = (args.first_level(), args.mountpoints.len(), key.levels());
    if first + count as u64 <= open as u64 {
        return Ok(());
    }
    let refused = Error::new(Kind::Usage, format!("cannot open {}", args.location));
    Err(if first > 0 {
        refused
            .found(format!("a passphrase that opens level {} and no deeper one", open - 1))
            .expected(format!("one that opens level {first}"))
    } else {
        refused.found(format!("{count} mount points")).expected(match open {
            1 => "one: this passphrase opens one level".to_owned(),
            _ => format!("at most {open}: this passphrase opens {open} levels"),
        })
    })
}

fn serve(
    args: &OpenArgs,
    unlocked: DiskToServe,
    opening: OpenDiskOptions,
    console: Console,
    ready: &mut ReadyNotifier,
) -> Result<()> {
    if !args.raw {
        // Before any thread starts: threads that carry the loop device's writes must not wait for
        // that device.
        become_io_flusher();
    }
    let (signalled, signals) = mpsc::channel();
    background::on_signal(move || {
        let _ = signalled.send(());
    })?;
    let what = format!("opening {}", args.location);
    let drawn = if args.foreground { console } else { console.without_drawing() };
    let DiskToServe { location, key, verifies, file } = unlocked;
    let format = key.format();
    // An error here leaves no disk open.
    let (held, cluster) =
        (Arc::new(TrackedFile::of(file)?), args.opening.pool_access.cluster.options_for(&args.location)?);
    let disk = Arc::new(progress::show(drawn, &what, |_| {
        unlock::open_to_serve(key, opening, &args.opening.purging)
    })?);
    if let Some(note) = disk.note() {
        console.note(note);
    }
    let levels = disk.levels();
    let log = background::server_log(!args.foreground, disk.has_levels());
    let settling = Arc::<Settling>::default();
    let opened = ready.show_progress(console, opening_stage(args, &levels), || {
        // Only the server holds the file: once it has ended, the user may remove the file.
        let identity = status::identity(&args.location, format.to_string(), &cluster, &disk, held);
        let identity = Identity { location, ..identity };
        let served = ServedDisk::with_settling(Arc::clone(&disk), verifies, identity, Arc::clone(&settling));
        mount(args, &served, &levels, &settling, &log)
    })?;
    let closing: Vec<_> = opened.iter().map(MountedDisk::closing).collect();
    let covering = Arc::new(AtomicBool::new(false));
    let covers = Arc::clone(&covering);
    let is_closing = move || covers.load(Ordering::Relaxed) || closing.iter().any(|closing| closing());
    let _kept =
        notify::start_reports(progress::remaining_bytes(levels.clone(), disk.has_levels()), is_closing);
    notes(args, &disk, &levels, console);
    let stoppers: Vec<_> = opened.iter().map(MountedDisk::stopper).collect();
    let stopped: Vec<_> =
        (args.first_level()..).zip(&opened).map(|(number, one)| StoppedLevel::of(number, one)).collect();
    let ending = Arc::downgrade(&disk);
    let forward =
        move || signals.into_iter().for_each(|()| stop_all(&stopped, &ending, &settling, &covering));
    let started = std::thread::Builder::new().name("lacuna-stop".into()).spawn(forward);
    let report = OpenedDisk {
        has_levels: disk.has_levels(),
        levels: levels.len() as u64,
        made: opened.iter().map(MountedDisk::made_file_system).collect(),
    };
    let reported = started
        .map_err(|e| Error::io("cannot listen for signals", &e))
        .and_then(|_| report.report(args, console))
        .and_then(|()| ready.notify());
    if reported.is_err() {
        // The parent process is gone: unmount everything.
        stoppers.iter().for_each(Stopper::request);
    }
    background::combine(reported, wait_all(opened, &log), &log)
}

/// The stage of an opening and its remaining work.
fn opening_stage(args: &OpenArgs, levels: &[Arc<dyn Disk>]) -> impl Fn() -> ProgressStep + use<> {
    let (watched, mkfs, shown) = (levels.to_vec(), args.mkfs.clone(), args.location.to_string());
    move || {
        let stage = progress::remaining_work_of_levels(&watched);
        let waits = stage.remaining.is_some_and(|left| left > 0);
        let making = || {
            mkfs.as_ref()
                .map_or_else(ProgressStep::default, |wanted| ProgressStep::of(format!("making {wanted}")))
        };
        if waits { stage } else { making() }.within("opening", &shown)
    }
}

/// Prints notes on a disk that was just mounted.
fn notes(args: &OpenArgs, disk: &OpenDisk, levels: &[Arc<dyn Disk>], console: Console) {
    if args.raw || args.read_only || MountMethod::is_loop(args.via) {
        return;
    }
    if disk.can_purge() {
        console.note(
            "without a loop device the disk does not learn of deletions in the file system: deleted data is \
             forgotten when its place is written again, and a purge then",
        );
    }
    // Deniability contract: the text does not depend on the number of levels.
    if args.via != Some(MountMethod::Program(Program::Lklfuse))
        && disk.has_levels()
        && progress::writes_no_cover(levels)
    {
        console.note(
            "fuse2fs keeps times of access whatever the mount options are: to look at files is to write, and on a deeper level waits \
             for writes of level 0; open it read-only to look only",
        );
    }
}

/// Mounts the levels that have a mount point. After a failure nothing is mounted, and all levels
/// are closed.
///
/// Deniability contract: the disk is closed together with the last of its levels, and closing
/// writes cover. If unmounted levels stayed open, the medium would reveal that there are some. The
/// lowest mounted level closes them.
fn mount(
    args: &OpenArgs,
    served: &ServedDisk,
    levels: &[Arc<dyn Disk>],
    settling: &Arc<Settling>,
    log: &ServerLog,
) -> Result<Vec<MountedDisk>> {
    let disk = &served.disk;
    let mut opened: Vec<MountedDisk> = Vec::new();
    let (source, unmounted) = (CoverSource::default(), UnmountedLevels::of(levels));
    let uncovered = disk.has_levels() && progress::writes_no_cover(levels);
    let chosen = (0..).zip(levels).skip_while(|(number, _)| *number < args.first_level());
    for ((number, level), mountpoint) in chosen.zip(&args.mountpoints) {
        unmounted.remove(number);
        let lowest = || LowestLevel {
            number,
            level: Arc::clone(level),
            disk: Arc::downgrade(disk),
            unmounted: unmounted.clone(),
            settling: Arc::clone(settling),
            log: Arc::clone(log),
        };
        let data = empty_level::data(&**level);
        let is_lowest = disk.has_levels() && opened.is_empty();
        let level: Arc<dyn Disk> = if is_lowest { Arc::new(lowest()) } else { Arc::clone(level) };
        let mut request = request(args, served, level, mountpoint, log);
        request.cover = match opened.is_empty() {
            _ if !uncovered || args.read_only => CoverRole::Unneeded,
            true => CoverRole::Gives(source.clone()),
            false => CoverRole::Needs(source.clone()),
        };
        // The same advice for every level: a failure must not reveal whether it concerns level 0.
        let started = MountedDisk::start(request);
        let started = started.map_err(|e| match e.kind() {
            Kind::NoCover => e.hint(
                "nothing is mounted now: give the command again, and write to level 0 while it runs (level 0 is mounted first)",
            ),
            Kind::NotFound => empty_level::not_mounted(e, &args.location, number, data),
            _ => e,
        });
        match started {
            Ok(server) => opened.push(server),
            Err(e) => {
                let failed: Result<()> = Err(if disk.has_levels() { e.confidential() } else { e });
                // Level 0 first: then no other level waits for cover that does not come.
                let ended = opened
                    .into_iter()
                    .fold(failed, |ended, server| background::combine(ended, server.end(), log));
                return ended.map(|()| Vec::new());
            }
        }
    }
    Ok(opened)
}

/// The request to mount a level, or a disk without levels.
fn request(
    args: &OpenArgs,
    ServedDisk { disk, jobs, identity }: &ServedDisk,
    level: Arc<dyn Disk>,
    mountpoint: &Path,
    log: &ServerLog,
) -> DiskRequest {
    let mut request = DiskRequest::new(level, identity.location.as_str(), mountpoint);
    request.make_mountpoint = mountpoint::may_be_made(mountpoint, disk.has_levels());
    request.identity = identity.clone();
    request.mkfs.clone_from(&args.mkfs);
    request.overwrite = args.force;
    // One of several levels may have got its file system before another one failed.
    request.keep_existing = args.mountpoints.len() > 1;
    request.read_only = args.read_only;
    request.raw = args.raw;
    request.via = args.via;
    request.idle_timeout = args.opening.idle.idle_timeout;
    // Otherwise reading would write access times to every level, and wait for cover on one without.
    let given = args.mount_options.as_deref();
    let chosen = given.is_some_and(|given| given.split(',').any(|option| option.ends_with("atime")));
    let quiet = disk.has_levels().then_some("noatime").filter(|_| !args.raw && !chosen);
    // Deleted data is forgotten only if the file system discards it.
    let discards =
        |option: &str| option == "discard" || option == "nodiscard" || option.starts_with("discard=");
    let is_given = given.is_some_and(|given| given.split(',').any(discards));
    let forgets =
        disk.can_purge() && !args.raw && !args.read_only && !is_given && MountMethod::is_loop(args.via);
    let forget = forgets.then_some("discard");
    let options: Vec<&str> = quiet.into_iter().chain(forget).chain(given).collect();
    request.mount_options = (!options.is_empty()).then(|| options.join(","));
    // If another client takes the disk over, the mount stays and fails: without it, programs would
    // write to the directory below.
    request.log = Arc::clone(log);
    // `lacuna close` and `lacuna status` print the server's errors, so commands are named in full.
    request.naming = option_names::full_name;
    request.jobs = Some(Arc::clone(jobs));
    request
}

/// Serves until all levels are closed. Returns the first failure; further ones go to `log`.
fn wait_all(opened: Vec<MountedDisk>, log: &ServerLog) -> Result<()> {
    let mut opened = opened.into_iter();
    let Some(first) = opened.next() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = opened.map(|one| scope.spawn(move || one.wait())).collect();
        others.into_iter().fold(first.wait(), |done, other| {
            let ended =
                other.join().unwrap_or_else(|_| Err(Error::new(Kind::Other, "a defect of lacuna (a panic)")));
            background::combine(done, ended, log)
        })
    })
}
