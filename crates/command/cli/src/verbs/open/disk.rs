//! `open` of a disk: mounts its file system.

use crate::args::OpenArgs;
use crate::args::size::budget;
use crate::terminal::console::{self, Console};
use crate::terminal::settings;
use crate::terminal::working::{self, Stage};
use crate::verbs::open::mountpoint;
use crate::verbs::serve::background::{self, Ready};
use crate::verbs::serve::disk_jobs::ServedDisk;
use crate::verbs::serve::notify;
use crate::verbs::status;
use crate::verbs::unlock::{self, DiskArgs, UnlockArgs};
use lacuna_daemon::{HeldFile, Identity, Registry, become_io_flusher};
use lacuna_fuse::{DiskRequest, MountedDisk, Stopper};
use lacuna_mount::{Cover, CoverSource, MountMethod, Program, ServerLog};
use lacuna_storage::{Disk, Error, Key, Kind, OpenDisk, Opening, Pace, Result, shell_word};
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Two pauses of this length follow the cover of a closing after a signal, on every disk with
/// levels. During the first one, deeper levels still wait for more cover. At its end they drop
/// their pending data, all at once (except on a terminal, where closing waits for it), and are
/// unmounted during the second one, while level 0 is still open.
const SETTLE: Duration = Duration::from_secs(1);
/// How long deeper levels still drop pending data after that.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// `lacuna open`.
pub(crate) fn open(mut args: OpenArgs, console: Console) -> Result<()> {
    check_of_vaults(&args)?;
    check_mount_method(&args)?;
    unlock::check_idle(&args.location, &args.idle)?;
    let budget = budget(args.cache)?;
    // Deniability contract: messages on mount points would tell a log the number of levels.
    let secretive =
        !console::is_watched() && lacuna_storage::peek(&args.location)?.is_some_and(|at| at.has_levels());
    check_mountpoints(&mut args, console, secretive).map_err(|e| if secretive { e.private() } else { e })?;
    unlock::check_writing(&args.location, &args.writing, &args.waiting, &args.purging)?;
    args.read_only |= args.location.snapshot().is_some();
    let shown = status::canonical(&args.location);
    for left in Registry::open(None)?.all()? {
        let is_left = !left.alive && left.record.location == shown && !secretive;
        if let Some(mount) =
            left.mount().filter(|mount| is_left && !args.mountpoints.contains(&mount.mountpoint))
        {
            let (at, word) = (mount.mountpoint.display(), shell_word(&mount.mountpoint));
            console.note(&format!(
                "a server that had it open at {at} died; `lacuna close {word}` clears away what it left"
            ));
        }
    }
    let access = unlock::access(args.read_only);
    let place = DiskArgs { location: &args.location, holder: &args.holder };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.expect };
    let mut volume = unlock::unlock_expected(place, access, given, console)?;
    let file = volume.take_file();
    let verifies = volume.parameters.describe().verifies;
    let key = volume.into_key(!args.foreground)?;
    unlock::refuse_idle(key.has_levels(), &args.idle)?;
    // Before the disk is opened: closing a disk that was opened for writing writes to it.
    check_count(&args, &key).map_err(|e| if key.has_levels() { e.private() } else { e })?;
    let opening = Opening {
        read_only: args.read_only,
        budget,
        write_through: args.writing.write_through,
        cover_timeout: args.waiting.cover_timeout(),
        purging: args.purging.policy(),
        expect: args.expect.expect,
    };
    let what = format!("opening {}", args.location);
    background::run(!args.foreground, key.has_levels(), console, &what, |ready| {
        serve(&args, UnlockedDisk { location: shown, key, verifies, file }, opening, console, ready)
    })
}

/// A disk that is unlocked and not yet open.
struct UnlockedDisk {
    /// The location under which the disk is registered.
    location: String,
    key: Key,
    /// Whether its cipher detects altered data.
    verifies: bool,
    /// Its file or device; `None` in a pool.
    file: Option<OwnedFd>,
}

/// Refuses unsuitable mount points before a passphrase is asked for.
fn check_mountpoints(args: &mut OpenArgs, console: Console, secretive: bool) -> Result<()> {
    if args.mkfs.is_some() && (args.raw || args.read_only) {
        return Err(Error::new(Kind::Usage, "cannot make a file system")
            .found(if args.raw { "--mkfs with --raw" } else { "--mkfs with --read-only" })
            .remedy("leave one of them away"));
    }
    for at in 0..args.mountpoints.len() {
        let mountpoint = mountpoint::check(&args.mountpoints[at], (!secretive).then_some(console))?;
        if args.mountpoints[..at].contains(&mountpoint) {
            return Err(Error::new(Kind::Usage, "cannot mount two levels in one place")
                .found(format!("{} twice", mountpoint.display()))
                .remedy("give each level a directory of its own"));
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
fn check_of_vaults(args: &OpenArgs) -> Result<()> {
    let given = [("--anchor", args.anchor.anchor.is_some()), ("--allow-other", args.vault.allow_other)];
    let Some((option, _)) = given.iter().find(|(_, given)| *given) else { return Ok(()) };
    Err(Error::new(Kind::Usage, format!("cannot open {}", args.location))
        .found(format!("{option}, which means nothing for a disk"))
        .expected("the directory of a vault with it")
        .remedy("leave it out"))
}

/// Refuses more mount points than open levels.
fn check_count(args: &OpenArgs, key: &Key) -> Result<()> {
    if args.mountpoints.len() <= key.levels() {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot open {}", args.location))
        .found(format!("{} mount points", args.mountpoints.len()))
        .expected(format!("at most {}, one for each level that the passphrase opens", key.levels())))
}

fn serve(
    args: &OpenArgs,
    unlocked: UnlockedDisk,
    opening: Opening,
    console: Console,
    ready: &mut Ready,
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
    let UnlockedDisk { location, key, verifies, file } = unlocked;
    let format = key.format();
    // An error here leaves no disk open.
    let (held, cluster) = (Arc::new(HeldFile::of(file)?), args.holder.cluster.of(&args.location)?);
    let disk = Arc::new(working::show(drawn, &what, |_| unlock::open_to_serve(key, opening, &args.purging))?);
    if let Some(note) = disk.note() {
        console.note(note);
    }
    let levels = disk.levels();
    let say = background::reporter(!args.foreground, disk.has_levels());
    let opened = ready.working(console, opening_stage(args, &levels), || {
        // Only the server holds the file: once it has ended, the user may remove the file.
        let identity = status::identity(&args.location, format.to_string(), &cluster, &disk, held);
        let identity = Identity { location, ..identity };
        mount(args, &ServedDisk::new(Arc::clone(&disk), verifies, identity), &levels, &say)
    })?;
    let closing: Vec<_> = opened.iter().map(MountedDisk::closing).collect();
    let covering = Arc::new(AtomicBool::new(false));
    let covers = Arc::clone(&covering);
    let is_closing = move || covers.load(Ordering::Relaxed) || closing.iter().any(|closing| closing());
    let _kept = notify::keep(working::left(levels.clone(), disk.has_levels()), is_closing);
    notes(args, &disk, &levels, console);
    let stoppers: Vec<_> = opened.iter().map(MountedDisk::stopper).collect();
    let deeper_closing: Vec<_> = opened.iter().skip(1).map(MountedDisk::closing).collect();
    let ending = Arc::downgrade(&disk);
    let made: Vec<bool> = opened.iter().map(MountedDisk::made_file_system).collect();
    let now = stoppers.clone();
    let stop_now = move || now.iter().for_each(Stopper::request);
    let forward =
        move || signals.into_iter().for_each(|()| stop_all(&stoppers, &deeper_closing, &ending, &covering));
    let started = std::thread::Builder::new().name("lacuna-stop".into()).spawn(forward);
    let told = started
        .map_err(|e| Error::io("cannot listen for signals", &e))
        .and_then(|_| {
            // Standard output may be a log too.
            let told = if io::stdout().is_terminal() { args.mountpoints.len() } else { 1 };
            args.mountpoints
                .iter()
                .zip(made)
                .take(told)
                .try_for_each(|(at, made)| tell(args, at, made, console))
        })
        .and_then(|()| ready.tell());
    if told.is_err() {
        // The parent process is gone: unmount everything.
        stop_now();
    }
    let ended = wait_all(opened, &say);
    let rest = close_unmounted(&levels[args.mountpoints.len()..], &say);
    background::both(background::both(told, ended, &say), rest, &say)
}

/// Closes levels that are open only for their protection and are not mounted. Returns the first
/// failure; further ones go to `say`.
fn close_unmounted(levels: &[Arc<dyn Disk>], say: &ServerLog) -> Result<()> {
    let mut closed = Ok(());
    for level in levels {
        closed = background::both(closed, level.close(), say);
    }
    closed
}

/// The stage of an opening and its remaining work.
fn opening_stage(args: &OpenArgs, levels: &[Arc<dyn Disk>]) -> impl Fn() -> Stage + use<> {
    let (watched, mkfs, shown) = (levels.to_vec(), args.mkfs.clone(), args.location.to_string());
    move || {
        let stage = working::unfinished_in(&watched);
        let waits = stage.left.is_some_and(|left| left > 0);
        let making =
            || mkfs.as_ref().map_or_else(Stage::default, |wanted| Stage::of(format!("making {wanted}")));
        if waits { stage } else { making() }.within("opening", &shown)
    }
}

/// Ends all levels, level 0 when the cover of the closing is written (deniability contract). As
/// with `lacuna close`, pending data of closing deeper levels is waited for only on a terminal.
/// `covering` is set until level 0 is asked to end, so that the service manager extends its timeout
/// in the same way on every disk.
fn stop_all(
    stoppers: &[Stopper],
    deeper_closing: &[impl Fn() -> bool],
    disk: &Weak<OpenDisk>,
    covering: &AtomicBool,
) {
    let Some((level_0, deeper)) = stoppers.split_first() else { return };
    deeper.iter().for_each(Stopper::request);
    let Some(disk) = disk.upgrade() else { return };
    covering.store(true, Ordering::Relaxed);
    // Closing reports the same failure.
    let _told = disk.cover_closing(Pace::Even);
    let settle = || {
        if disk.has_levels() && !disk.read_only() {
            std::thread::sleep(SETTLE);
        }
    };
    settle();
    let closing = (1..).zip(deeper_closing).filter(|(_, closing)| !console::is_watched() && closing());
    let given_up: Vec<u64> = closing.map(|(level, _)| level).collect();
    given_up.iter().for_each(|level| disk.give_up(*level, true));
    settle();
    level_0.request();
    covering.store(false, Ordering::Relaxed);
    if !given_up.is_empty() {
        std::thread::sleep(GIVEN_UP);
        given_up.iter().for_each(|level| disk.give_up(*level, false));
    }
}

/// Prints notes on a disk that was just mounted.
fn notes(args: &OpenArgs, disk: &OpenDisk, levels: &[Arc<dyn Disk>], console: Console) {
    if args.raw || args.read_only || MountMethod::is_loop(args.via) {
        return;
    }
    if disk.forgets() {
        console.note(
            "without a loop device the disk is not told what is deleted in the file system: it is forgotten when its place is \
             written again, and a purge then",
        );
    }
    // Deniability contract: the text does not depend on the number of levels.
    if args.via != Some(MountMethod::Program(Program::Lklfuse))
        && disk.has_levels()
        && working::is_uncovered(levels)
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
/// writes cover. If unmounted levels stayed open, the medium would reveal that there are some.
fn mount(
    args: &OpenArgs,
    ServedDisk { disk, jobs, identity }: &ServedDisk,
    levels: &[Arc<dyn Disk>],
    say: &ServerLog,
) -> Result<Vec<MountedDisk>> {
    let mut opened: Vec<MountedDisk> = Vec::new();
    let source = CoverSource::default();
    let uncovered = disk.has_levels() && working::is_uncovered(levels);
    for (level, mountpoint) in levels.iter().zip(&args.mountpoints) {
        let mut request = DiskRequest::new(Arc::clone(level), identity.location.as_str(), mountpoint);
        request.identity = identity.clone();
        request.mkfs.clone_from(&args.mkfs);
        request.overwrite = args.force;
        // One of several levels may have got its file system before another one failed.
        request.keep_existing = args.mountpoints.len() > 1;
        request.read_only = args.read_only;
        request.raw = args.raw;
        request.via = args.via;
        request.private = disk.has_levels();
        request.idle_timeout = args.idle.idle_timeout;
        request.cover = match opened.is_empty() {
            _ if !uncovered || args.read_only => Cover::Unneeded,
            true => Cover::Gives(source.clone()),
            false => Cover::Needs(source.clone()),
        };
        // Otherwise reading would write access times to every level, and wait for cover on one
        // without.
        let given = args.mount_options.as_deref();
        let chosen = given.is_some_and(|given| given.split(',').any(|option| option.ends_with("atime")));
        let quiet = disk.has_levels().then_some("noatime").filter(|_| !args.raw && !chosen);
        // Deleted data is forgotten only if the file system discards it.
        let discards =
            |option: &str| option == "discard" || option == "nodiscard" || option.starts_with("discard=");
        let told = given.is_some_and(|given| given.split(',').any(discards));
        let forgets =
            disk.forgets() && !args.raw && !args.read_only && !told && MountMethod::is_loop(args.via);
        let forget = forgets.then_some("discard");
        let options: Vec<&str> = quiet.into_iter().chain(forget).chain(given).collect();
        request.mount_options = (!options.is_empty()).then(|| options.join(","));
        // If another client takes the disk over, the mount stays and fails: without it, programs
        // would write to the directory below.
        request.log = Arc::clone(say);
        // `lacuna close` and `lacuna status` print the server's errors, so commands are named in
        // full.
        request.naming = settings::full_name;
        request.jobs = Some(Arc::clone(jobs));
        // The same advice for every level: a failure must not reveal whether it concerns level 0.
        let started = MountedDisk::start(request);
        let started = started.map_err(|e| match e.kind() {
            Kind::NoCover => e.remedy(
                "nothing is mounted now: give the command again, and write to level 0 while it runs (level 0 is mounted first)",
            ),
            _ => e,
        });
        match started {
            Ok(server) => opened.push(server),
            Err(e) => {
                let failed: Result<()> = Err(if disk.has_levels() { e.private() } else { e });
                let rest = &levels[opened.len() + 1..];
                // Level 0 first: then no other level waits for cover that does not come.
                let ended = opened
                    .into_iter()
                    .fold(failed, |ended, server| background::both(ended, server.end(), say));
                return background::both(ended, close_unmounted(rest, say), say).map(|()| Vec::new());
            }
        }
    }
    Ok(opened)
}

/// Prints the mount point of a level. `made`: its file system was made now.
fn tell(args: &OpenArgs, mountpoint: &Path, made: bool, console: Console) -> Result<()> {
    let shown = mountpoint.display();
    let file_system = match &args.mkfs {
        Some(wanted) if made => format!(", with {wanted} made on it"),
        Some(_) => ", with the file system that was there already".to_owned(),
        None => String::new(),
    };
    // With several levels, a mount point would close only one.
    let word = match args.mountpoints.as_slice() {
        [_] => shell_word(mountpoint),
        _ => shell_word(Path::new(&args.location.to_string())),
    };
    console.done(&format!("opened {} at {shown}{file_system}; `lacuna close {word}` ends it", args.location))
}

/// Serves until all levels are closed. Returns the first failure; further ones go to `say`.
fn wait_all(opened: Vec<MountedDisk>, say: &ServerLog) -> Result<()> {
    let mut opened = opened.into_iter();
    let Some(first) = opened.next() else { return Ok(()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = opened.map(|one| scope.spawn(move || one.wait())).collect();
        others.into_iter().fold(first.wait(), |done, other| {
            let ended =
                other.join().unwrap_or_else(|_| Err(Error::new(Kind::Other, "a defect of lacuna (a panic)")));
            background::both(done, ended, say)
        })
    })
}
