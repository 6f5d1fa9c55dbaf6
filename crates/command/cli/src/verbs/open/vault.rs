//! `open` of a vault: mounts its file system, served by a process of its own.

use crate::allocator;
use crate::args::OpenArgs;
use crate::args::size::budget;
use crate::terminal::console::Console;
use crate::terminal::option_names;
use crate::terminal::progress::ProgressStep;
use crate::verbs::open::left_mounts;
use crate::verbs::open::mountpoint::{self, MountPlan};
use crate::verbs::serve::background::{self, ReadyNotifier};
use crate::verbs::serve::notify;
use crate::verbs::status;
use crate::verbs::unlock::{self, UnlockArgs};
use crate::verbs::vault;
use lacuna_daemon::{Identity, TrackedFile, become_io_flusher};
use lacuna_fuse::{MountedVault, VaultRequest};
use lacuna_storage::vault::{OpenVault, OpenVaultOptions, UnlockedVault};
use lacuna_storage::{Error, Kind, Location, Result, shell_word};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;

/// The directory, if the location is that of a vault.
pub(crate) fn directory(location: &Location) -> Option<PathBuf> {
    let Location::Path(path) = location else { return None };
    path.is_dir().then(|| path.clone())
}

/// `lacuna open` of the vault in `dir`.
pub(crate) fn open(dir: &Path, args: &OpenArgs, console: Console) -> Result<()> {
    check_options(dir, args)?;
    let opening = OpenVaultOptions {
        read_only: args.read_only,
        budget: budget(args.opening.cache)?,
        anchor: args.anchor.anchor.clone(),
        expect: args.opening.expect.expect,
        ..OpenVaultOptions::default()
    };
    let location = status::canonical(&args.location);
    left_mounts::clear(&location, &args.mountpoints, Some(console))?;
    let mountpoint = mountpoint::check(&args.mountpoints[0], MountPlan::default(), Some(console))?;
    refuse_nested(dir, &mountpoint)?;
    let access = unlock::access(args.read_only);
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.opening.expect };
    let key = vault::unlock_vault(dir, access, given, console)?;
    let what = format!("opening {}", dir.display());
    background::run(!args.foreground, false, console, &what, |ready| {
        let place = VaultMount { dir, location: &location, mountpoint: &mountpoint };
        serve(&place, args, key, opening, console, ready)
    })
}

/// A vault and its mount point.
struct VaultMount<'p> {
    dir: &'p Path,
    /// The canonical path of the directory, under which the vault is registered.
    location: &'p str,
    mountpoint: &'p Path,
}

/// Refuses options for disks.
fn check_options(dir: &Path, args: &OpenArgs) -> Result<()> {
    let refused = |found: &str| {
        Err(Error::new(Kind::Usage, format!("cannot open the vault {} in this way", dir.display()))
            .found(found)
            .expected("options that a vault has: it is a file system already, and has no disk below it")
            .hint("leave it out"))
    };
    let given = [
        ("--mkfs", args.mkfs.is_some()),
        ("--raw", args.raw),
        ("--level", args.level.is_some()),
        ("--via", args.via.is_some()),
        ("--write-through", args.opening.writing.write_through),
        ("--cover-timeout", args.opening.waiting.cover_timeout.is_some()),
    ];
    let given = given.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
    if let Some(option) = given.or(args.opening.purging.given_option()) {
        return refused(option);
    }
    if let Some(option) = mount_options(args).find(|option| !ALLOWED_MOUNT_OPTIONS.contains(option)) {
        return refused(&format!("the mount option {option}"));
    }
    if args.mountpoints.len() > 1 {
        return refused(&format!("{} mount points", args.mountpoints.len()));
    }
    args.opening.pool_access.access_for(&args.location).map(drop)
}

/// The mount options that a vault accepts. It is always mounted without devices and set-user-ID
/// programs, and keeps access times like `relatime`.
const ALLOWED_MOUNT_OPTIONS: [&str; 5] = ["nodev", "nosuid", "relatime", "noexec", "exec"];

fn mount_options(args: &OpenArgs) -> impl Iterator<Item = &str> {
    let options = args.mount_options.iter().flat_map(|list| list.split(','));
    options.filter(|option| !option.is_empty())
}

/// Refuses the vault's directory as a mount point, and a mount point inside or above it.
fn refuse_nested(dir: &Path, mountpoint: &Path) -> Result<()> {
    let dir = match dir.canonicalize() {
        Ok(dir) => dir,
        // Opening it reports the error.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(format!("cannot find the vault {}", dir.display()), &e)),
    };
    if !mountpoint.starts_with(&dir) && !dir.starts_with(mountpoint) {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, format!("cannot mount at {}", mountpoint.display()))
        .found(format!("a directory that holds the vault {}, or lies in it", dir.display()))
        .expected("a directory elsewhere"))
}

fn serve(
    place: &VaultMount<'_>,
    args: &OpenArgs,
    key: UnlockedVault,
    opening: OpenVaultOptions,
    console: Console,
    ready: &mut ReadyNotifier,
) -> Result<()> {
    allocator::map_large_allocations();
    // Before any thread starts: threads that write for the mounted file system must not wait for
    // it.
    become_io_flusher();
    let (signalled, signals) = mpsc::channel();
    background::on_signal(move || {
        let _ = signalled.send(());
    })?;
    let log = background::server_log(!args.foreground, false);
    let opening = OpenVaultOptions { log: vault::log(&log), ..opening };
    let shown = place.dir.display().to_string();
    // An error here leaves no vault open.
    let (held, id) = (TrackedFile::of_directory(place.dir)?, key.id());
    let look = move || ProgressStep::default().within("opening", &shown);
    let mounted = ready.show_progress(console, look, || -> Result<MountedVault> {
        let open = key.open(opening)?;
        // The lock on the directory must end with the vault.
        drop(key);
        vault::notes(&open, args.read_only);
        let (location, format) = (place.location.to_owned(), "vault".to_owned());
        let (id, file) = (Some(id.to_string()), Arc::new(held));
        let identity = Identity { location, format, id, file, ..Identity::default() };
        mount(place, args, open, identity, &log)
    })?;
    let _kept = notify::start_reports(|| None, mounted.closing());
    let stopper = mounted.stopper();
    let stop_now = stopper.clone();
    let forward = move || signals.into_iter().for_each(|()| stopper.request());
    let started = std::thread::Builder::new().name("lacuna-stop".into()).spawn(forward);
    let reported = started
        .map_err(|e| Error::io("cannot listen for signals", &e))
        .and_then(|_| {
            let word = shell_word(place.mountpoint);
            let (dir, at) = (place.dir.display(), place.mountpoint.display());
            console.done(&format!("opened {dir} at {at}; `lacuna close {word}` ends it"))
        })
        .and_then(|()| ready.notify());
    if reported.is_err() {
        // The parent process is gone: unmount.
        stop_now.request();
    }
    background::combine(reported, mounted.wait(), &log)
}

fn mount(
    place: &VaultMount<'_>,
    args: &OpenArgs,
    open: OpenVault,
    identity: Identity,
    log: &lacuna_mount::ServerLog,
) -> Result<MountedVault> {
    let mut request = VaultRequest::new(Arc::clone(open.vault()), place.location, place.mountpoint);
    request.make_mountpoint = true;
    request.source = status::canonical_path(place.dir).into_os_string();
    request.allow_other = args.vault.allow_other;
    request.idle_timeout = args.opening.idle.idle_timeout;
    request.read_only = args.read_only;
    request.identity = identity;
    request.no_exec = mount_options(args).filter(|option| option.ends_with("exec")).last() == Some("noexec");
    request.log = Arc::clone(log);
    // `lacuna close` and `lacuna status` print the server's errors, so commands are named in full.
    request.naming = option_names::full_name;
    // The lock on the directory ends with the vault, before clients learn that it is closed.
    request.held = Some(Box::new(open));
    MountedVault::start(request)
}
