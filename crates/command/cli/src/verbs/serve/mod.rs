//! `serve`: serves a disk to NBD clients, until a signal.

pub(crate) mod background;
pub(crate) mod clients;
pub(crate) mod closing;
pub(crate) mod disk_jobs;
pub(crate) mod header_wire;
mod kept;
mod network;
pub(crate) mod notify;
mod pid_file;
mod registration;
pub(crate) mod settling;

use crate::args::size::budget;
use crate::args::{ServeArgs, Tls};
use crate::terminal::console::Console;
use crate::terminal::option_names;
use crate::terminal::progress::{self, Poller};
use crate::verbs::missing_features;
use crate::verbs::serve::background::ReadyNotifier;
use crate::verbs::serve::clients::ServedClients;
use crate::verbs::serve::disk_jobs::ServedDisk;
use crate::verbs::serve::pid_file::PidFile;
use crate::verbs::serve::registration::{NbdState, RegisteredServer};
use crate::verbs::status;
use crate::verbs::unlock::{self, DiskArgs, UnlockArgs};
use lacuna_daemon::{Identity, Instance, Jobs, TrackedFile, log_failure};
use lacuna_nbd::{Exports, Listen, Listeners, NbdServer, ServerSettings, StopHandle, TlsMode};
use lacuna_storage::{ByteDisk, Disk, Error, Kind, OpenDisk, ResolvedLocation, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads of a connection if requests wait for a network: this number of requests is in flight at
/// once.
const WORKERS_OVER_NETWORK: usize = 64;

/// Interval between checks whether another client has taken over the disk.
const OWNERSHIP_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// `lacuna serve`.
pub(crate) fn run(mut args: ServeArgs, console: Console) -> Result<()> {
    missing_features::check_tls(&args)?;
    let budget = budget(args.opening.cache)?;
    args.pid_file.as_deref().map_or(Ok(()), pid_file::check)?;
    if args.fork {
        make_absolute(&mut args)?;
    }
    let listen = listen(&args)?;
    network::check(&args, &listen)?;
    args.tls_dir.as_deref().map_or(Ok(()), lacuna_nbd::check_certificates)?;
    lacuna_nbd::check_listen(&listen)?;
    unlock::check_writing(&args.location, &args.opening)?;
    unlock::check_idle(&args.location, &args.opening.idle)?;
    let access = unlock::access(args.read_only);
    let place = DiskArgs { location: &args.location, pool_access: &args.opening.pool_access };
    let given = UnlockArgs { passphrase: &args.passphrase, expect: args.opening.expect };
    let mut volume = unlock::unlock_to_serve(place, access, given, console)?;
    let file = volume.take_file();
    let verifies = volume.parameters.describe().detects_alterations;
    let may_keep = !args.no_keeper && !args.read_only;
    // A keeper forks too.
    let key = volume.into_disk(args.fork || may_keep)?;
    unlock::refuse_idle(key.has_levels(), &args.opening.idle)?;
    let format = key.format();
    let opening = args.opening.options(args.read_only, budget);
    let what = format!("opening {}", args.location);
    if may_keep && key.keeps_writes() {
        let disk = key.into_reopenable(file)?;
        let consoles = (console, progress_console(&args, console));
        return kept::serve(&args, &listen, &disk, verifies, consoles, |listeners, served, ready| {
            serve(&args, || Ok(listeners), served, console, ready)
        });
    }
    background::run(args.fork, key.has_levels(), console, &what, |ready| {
        let drawn = progress_console(&args, console);
        // An error here leaves no disk open.
        let file = Arc::new(TrackedFile::of(file)?);
        let cluster = args.opening.pool_access.cluster.options_for(&args.location)?;
        let disk = Arc::new(progress::show(drawn, &what, |_| {
            unlock::open_to_serve(key, opening, &args.opening.purging)
        })?);
        if let Some(note) = disk.note() {
            console.note(note);
        }
        let identity = status::identity(&args.location, format.to_string(), &cluster, &disk, file);
        let listen = || Listeners::open(&listen);
        serve(&args, listen, ServedDisk::new(disk, verifies, identity), console, ready)
    })
}

/// The listening sockets: from the options, or passed by a service manager.
fn listen(args: &ServeArgs) -> Result<Vec<Listen>> {
    let sockets = args.socket.iter().cloned().map(Listen::Unix).map(Ok);
    let addresses = args.listen.iter().map(|address| Listen::tcp(address));
    let listen = sockets.chain(addresses).collect::<Result<Vec<_>>>()?;
    if !listen.is_empty() {
        return Ok(listen);
    }
    if std::env::var_os("LISTEN_FDS").is_none() {
        return Err(Error::new(Kind::Usage, "nowhere to listen")
            .expected("--socket PATH, --listen ADDR:PORT, or a socket passed by a service manager")
            .hint("give for example --socket /run/user/1000/disk.sock"));
    }
    if args.fork {
        return Err(Error::new(Kind::Usage, "cannot go to the background")
            .found("a socket passed by the service manager")
            .hint("leave --fork out: the service manager watches this process"));
    }
    Ok(vec![Listen::Activated])
}

/// Makes paths absolute, because a background process changes its working directory.
fn make_absolute(args: &mut ServeArgs) -> Result<()> {
    let paths = [&mut args.tls_dir, &mut args.pid_file, &mut args.opening.pool_access.cluster.ceph_conf];
    for path in paths.into_iter().flatten().chain(&mut args.socket) {
        *path = std::path::absolute(&*path)
            .map_err(|e| Error::io(format!("cannot find {}", path.display()), &e))?;
    }
    Ok(())
}

/// The console for progress of long work. In the background the parent process draws instead.
fn progress_console(args: &ServeArgs, console: Console) -> Console {
    if args.fork { console.without_drawing() } else { console }
}

fn serve(
    args: &ServeArgs,
    listen: impl FnOnce() -> Result<Listeners>,
    ServedDisk { disk, jobs, identity }: ServedDisk,
    console: Console,
    ready: &mut ReadyNotifier,
) -> Result<()> {
    let drawn = progress_console(args, console);
    let stop = StopHandle::new()?;
    let (stopping, signals) = (stop.clone(), Arc::new(AtomicU64::new(0)));
    let signalled = Arc::clone(&signals);
    background::on_signal(move || {
        signalled.fetch_add(1, Ordering::Relaxed);
        stopping.stop();
    })?;
    ready.let_signals_act();
    let lookout = disk.can_be_taken_over().then(|| OwnershipMonitor::start(&disk, &stop)).transpose()?;
    let ending = stop.clone();
    let kept =
        notify::start_reports(progress::remaining_bytes(disk.levels(), disk.has_levels()), move || {
            ending.is_stopped()
        });
    // NBD clients learn a new length when they reconnect, so there is nothing to notify.
    let jobs = Jobs::new(Some(jobs), Arc::new(|| Ok(())), option_names::full_name);
    let before_drain = before_drain_of(&disk, &stop, &jobs, args.fork, signals, drawn);
    let mut signs = Published::default();
    let parts = ServerParts { disk: &disk, jobs, identity, stop: &stop, before_drain };
    let served = serve_disk(args, listen, parts, console, ready, &mut signs);
    drop(lookout);
    // Also if serving did not start: after this, `status` shows the server as closing.
    stop.stop();
    signs.served.iter().for_each(RegisteredServer::end_work);
    let what = format!("closing {}", args.location);
    let closed = progress::show(drawn, &what, |working| {
        let (working, weak, location) = (working.clone(), Arc::downgrade(&disk), args.location.to_string());
        let _looking = Poller::start(move || {
            let levels = weak.upgrade().map(|disk| disk.levels()).unwrap_or_default();
            working.set_step(progress::remaining_work_of_levels(&levels).within("closing", &location));
        });
        // Acknowledged writes go to the medium, whatever ended the serving.
        disk.close()
    });
    let (waiting, instance) = signs.served.map(RegisteredServer::end).unzip();
    drop(kept);
    let say = background::server_log(args.fork, disk.has_levels());
    // Keys leave memory and the lock is released before clients learn of the end.
    drop(disk);
    // A script that waits for the removal of the file may then remove the disk.
    drop(signs.pid_file);
    // Clients that wait for the end must learn of lost data.
    let ended = background::combine(closed, served, &say);
    waiting.into_iter().flatten().for_each(|client| client.answer(&ended));
    if let Some(Err(e)) = instance.map(Instance::end) {
        say(&e);
    }
    ended
}

/// The actions when a server stops, for any reason, before it waits for requests in progress:
/// `status` shows it as closing, the jobs end, and the requests get the cover of the closing.
fn before_drain_of(
    disk: &Arc<OpenDisk>,
    stop: &StopHandle,
    jobs: &Jobs,
    forks: bool,
    signals: Arc<AtomicU64>,
    console: Console,
) -> Arc<dyn Fn() + Send + Sync> {
    let (disk, stop, jobs) = (Arc::clone(disk), stop.clone(), jobs.clone());
    Arc::new(move || {
        stop.stop();
        // A job that covers a closing lets hidden levels wait again when it ends.
        jobs.end();
        let count = || signals.load(Ordering::Relaxed);
        // A client that closes the disk has decided before whether to wait.
        let signalled = !forks && count() > 0;
        closing::cover_last_requests(&disk, signalled, || count() > 1, console);
    })
}

/// The registration and the PID file of a server.
#[derive(Default)]
struct Published {
    served: Option<RegisteredServer>,
    pid_file: Option<PidFile>,
}

/// Stops serving a disk that another client has taken over, even if no request finds out. Dropping
/// it ends its thread.
struct OwnershipMonitor {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OwnershipMonitor {
    fn start(disk: &Arc<OpenDisk>, stop: &StopHandle) -> Result<Self> {
        let (end, ended) = channel();
        let (disk, stop) = (Arc::clone(disk), stop.clone());
        let look = move || {
            while ended.recv_timeout(OWNERSHIP_CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if disk.takeover_error().is_some() {
                    return stop.stop();
                }
            }
        };
        let thread = std::thread::Builder::new().name("lacuna-owner".into()).spawn(look);
        let thread = thread.map_err(|e| Error::io("cannot start the ownership monitor", &e))?;
        Ok(OwnershipMonitor { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for OwnershipMonitor {
    fn drop(&mut self) {
        drop(self.end.take());
        let _panicked = self.thread.take().map(JoinHandle::join);
    }
}

/// The parts of an NBD server.
struct ServerParts<'s> {
    disk: &'s Arc<OpenDisk>,
    jobs: Jobs,
    identity: Identity,
    stop: &'s StopHandle,
    /// Called when it stops, before it waits for requests in progress.
    before_drain: Arc<dyn Fn() + Send + Sync>,
}

fn serve_disk(
    args: &ServeArgs,
    listen: impl FnOnce() -> Result<Listeners>,
    ServerParts { disk, jobs, identity, stop, before_drain }: ServerParts<'_>,
    console: Console,
    ready: &mut ReadyNotifier,
    signs: &mut Published,
) -> Result<()> {
    let say = background::server_log(args.fork, disk.has_levels());
    let last_error = Arc::new(Mutex::new(None));
    let remembered = Arc::clone(&last_error);
    let clients = ServedClients::new(disk.has_levels());
    let report_refused = clients.note_refused(Arc::clone(&say));
    let failures = AtomicU64::new(0);
    let stopping = stop.clone();
    let report = move |e: &Error| {
        if e.kind() == Kind::Fenced {
            // Another client has the disk now: connected clients could only be misled.
            stopping.stop();
        }
        // Shown by `lacuna status`.
        *remembered.lock() = Some(e.clone());
        log_failure(e, failures.fetch_add(1, Ordering::Relaxed), &say);
    };
    let (working, file) = (jobs.clone(), Arc::clone(&identity.file));
    let mut server_settings = ServerSettings {
        in_use: Some(Arc::new(move || working.is_at_work() || file.is_deleted())),
        before_drain: Some(before_drain),
        report: Some(Arc::new(report)),
        report_refused: Some(report_refused),
        clients: clients.handle(),
        max_connections: usize::from(args.max_connections),
        idle_timeout: args.opening.idle.idle_timeout,
        ..ServerSettings::default()
    };
    let holder = args.opening.pool_access.access_for(&args.location)?;
    let site = ResolvedLocation::of(&args.location, &holder.cluster);
    if site.pool_location().is_some() {
        server_settings.max_workers = WORKERS_OVER_NETWORK;
    }
    if let Some(workers) = args.workers {
        server_settings.workers = usize::from(workers);
        server_settings.max_workers = server_settings.max_workers.max(server_settings.workers);
    }
    server_settings.tls = match (&args.tls_dir, args.tls) {
        (None, _) => TlsMode::Off,
        (Some(_), Some(Tls::Allow)) => TlsMode::Allow,
        (Some(_), _) => TlsMode::Require,
    };
    server_settings.certificates.clone_from(&args.tls_dir);
    let levels: Vec<ByteDisk> = disk.levels().into_iter().map(ByteDisk::new).collect();
    let server = NbdServer::listening(listen, Exports::levels(levels.iter().cloned()), server_settings)?;
    let uris = server.uris();
    let state = NbdState {
        stop: stop.clone(),
        last_error,
        level_0: levels[0].clone(),
        clients,
        keeper: ready.keeper(),
    };
    let served = RegisteredServer::start(identity, uris.clone(), &levels, state, jobs);
    let unseen = |e: &Error| {
        console.note(&format!("`lacuna status` will not see this server: {}", option_names::render(e)));
    };
    signs.served = served.inspect_err(unseen).ok();
    signs.pid_file = write_pid_file(args, ready)?;
    ready.print_uris(&uris)?;
    ready.notify()?;
    server.run(stop)
}

fn write_pid_file(args: &ServeArgs, ready: &ReadyNotifier) -> Result<Option<PidFile>> {
    args.pid_file.as_deref().map(|path| PidFile::write(path, ready.main_process())).transpose()
}
