//! The server: accepts clients until it is told to stop, and serves each in a thread of its own.

use crate::clients::{ClientGuard, Clients};
use crate::exports::Exports;
use crate::listen::{Listen, Listener, Listeners};
use crate::memory::ServerMemory;
use crate::negotiate::{ExportSession, HandshakeOutcome, TlsState, handshake};
use crate::reporter::Reporter;
use crate::stream::{Socket, TimedSocket, Transport};
use crate::tls::{self, Certificates};
use crate::tls_mode::TlsMode;
use crate::transmit::{Connection, ThreadLimits};
use lacuna_contracts::{Error, Kind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Settings of a server.
#[derive(Clone)]
pub struct ServerSettings {
    /// Whether clients may or must encrypt.
    pub tls: TlsMode,
    /// Directory with `server-cert.pem` and `server-key.pem`. If `ca-cert.pem` is there too, every
    /// client must show a certificate that it has signed. Needed unless `tls` is off.
    pub certificates: Option<PathBuf>,
    /// Maximum number of threads of a connection while the disk is fast.
    pub workers: usize,
    /// Maximum number of threads of a connection while operations take long, and so of requests in
    /// progress.
    pub max_workers: usize,
    /// Maximum number of connections. At one more, a connection without an export is closed; if
    /// there is none, the new one is. Threads of up to 128 closed ones may have yet to end.
    pub max_connections: usize,
    /// Memory for requests of more than 256 KiB, of all connections to level 0 together; each
    /// further level has a third of that. A request to level 0 that finds none in a few seconds
    /// fails with ENOMEM.
    pub large_memory: usize,
    /// How long a client may be silent before it has chosen an export.
    pub handshake_timeout: Duration,
    /// How long clients may take to accept their last replies when the server stops.
    pub drain_timeout: Duration,
    /// Stop when no client was connected for this time.
    pub idle_timeout: Option<Duration>,
    /// Whether the disk is in use by other users than clients; then the server does not stop for
    /// lack of clients.
    pub in_use: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    /// Called once when the server stops, after the last request was read and before the server
    /// waits for the requests in progress. It must ensure that they wait for the medium only, and
    /// not, for example, for a request of another client that is not read any more.
    pub before_drain: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Receives failures of the disk, and failures of the system to let a client in.
    pub report: Option<Reporter>,
    /// Receives the reason for each failed TLS handshake, except that the client left or was
    /// silent. Any machine that reaches the server can cause such failures, in any number.
    pub report_refused: Option<Reporter>,
    /// Lists the clients for the program that runs the server. One handle is for one server.
    pub clients: Clients,
}

impl Default for ServerSettings {
    fn default() -> Self {
        let cores = thread::available_parallelism().map_or(2, usize::from);
        ServerSettings {
            tls: TlsMode::Off,
            certificates: None,
            workers: cores.clamp(2, 16),
            max_workers: 16,
            max_connections: 64,
            large_memory: 192 << 20,
            handshake_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(10),
            idle_timeout: None,
            in_use: None,
            before_drain: None,
            report: None,
            report_refused: None,
            clients: Clients::default(),
        }
    }
}

/// Tells a server to stop. Clones are the same handle.
#[derive(Clone)]
pub struct StopHandle(Arc<StopState>);

struct StopState {
    stopped: AtomicBool,
    event: OwnedFd,
}

impl StopHandle {
    /// A handle that is not stopped.
    pub fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("cannot create an event descriptor", &e.into()))?;
        Ok(StopHandle(Arc::new(StopState { stopped: AtomicBool::new(false), event })))
    }

    /// Tells the server to stop, and returns at once.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::SeqCst);
        let _ = rustix::io::write(&self.0.event, &1u64.to_ne_bytes());
    }

    /// Whether [`StopHandle::stop`] has been called.
    pub fn is_stopped(&self) -> bool {
        self.0.stopped.load(Ordering::SeqCst)
    }
}

/// A server that is already listening.
pub struct NbdServer {
    listeners: Vec<Listener>,
    exports: Exports,
    settings: ServerSettings,
    tls: Option<Certificates>,
    memory: ServerMemory,
}

/// Refuses certificates in `directory` that a server cannot use. Errors: those of
/// [`NbdServer::bind`].
pub fn check_certificates(directory: &Path) -> Result<()> {
    tls::load(directory).map(drop)
}

impl NbdServer {
    /// Loads the certificates and begins to listen; clients that connect wait until
    /// [`NbdServer::run`].
    pub fn bind(listen: &[Listen], exports: Exports, settings: ServerSettings) -> Result<Self> {
        Self::listening(|| Listeners::open(listen), exports, settings)
    }

    /// As [`NbdServer::bind`], on sockets that `listen` returns. It is called when the certificates
    /// were loaded.
    pub fn listening(
        listen: impl FnOnce() -> Result<Listeners>,
        exports: Exports,
        settings: ServerSettings,
    ) -> Result<Self> {
        let tls = match (settings.tls, &settings.certificates) {
            (TlsMode::Off, _) => None,
            (_, Some(directory)) => Some(tls::load(directory)?),
            (_, None) => {
                return Err(Error::new(Kind::Usage, "cannot serve TLS")
                    .found("no certificates")
                    .hint("name the directory of server-cert.pem and server-key.pem"));
            }
        };
        let Listeners(listeners) = listen()?;
        for listener in &listeners {
            listener.set_nonblocking().map_err(|e| Error::io("cannot set up the listening socket", &e))?;
        }
        let memory = ServerMemory::new(settings.large_memory);
        Ok(NbdServer { listeners, exports, settings, tls, memory })
    }

    /// The URIs of the default export, one for each listening socket: `nbd+unix:///?socket=…`,
    /// `nbd://…`, or `nbds` in place of `nbd` where TLS is required.
    pub fn uris(&self) -> Vec<String> {
        let tls = self.settings.tls == TlsMode::Require;
        self.listeners.iter().map(|listener| listener.uri(tls)).collect()
    }

    /// Serves until `stop` is used, or until the idle timeout. Then no more requests are read,
    /// requests already read are performed and answered ([`ServerSettings::before_drain`]), all
    /// connections are closed and the socket file is removed. The disks stay open; the caller
    /// flushes and closes them.
    pub fn run(mut self, stop: &StopHandle) -> Result<()> {
        self.listeners.iter_mut().for_each(Listener::remove_at_end);
        let clients = &self.settings.clients;
        thread::scope(|scope| {
            let result = self.accept_until(stop, clients, |socket| {
                let Some(client) = clients.admit(socket, self.settings.max_connections) else {
                    return;
                };
                let server = &self;
                let serve = move || {
                    // A panic ends this connection, not the server; the panic hook has reported it.
                    let _ = catch_unwind(AssertUnwindSafe(|| server.serve(&client)));
                };
                // If the system has no thread left, dropping the client closes the connection.
                if let Err(e) = thread::Builder::new().name("lacuna-nbd".into()).spawn_scoped(scope, serve) {
                    self.report(&Error::io("cannot serve a client", &e));
                }
            });
            clients.stop_reading();
            if let Some(before_drain) = &self.settings.before_drain {
                before_drain();
            }
            clients.drain(self.settings.drain_timeout);
            result
        })
    }

    fn accept_until(
        &self,
        stop: &StopHandle,
        clients: &Clients,
        mut serve: impl FnMut(Socket),
    ) -> Result<()> {
        let mut is_reported = false;
        while !stop.is_stopped() {
            let patience = self.settings.idle_timeout.map(|limit| limit.saturating_sub(clients.idle_for()));
            if patience.is_some_and(|left| left.is_zero()) {
                if !self.settings.in_use.as_ref().is_some_and(|in_use| in_use()) {
                    return Ok(());
                }
                clients.restart_idle_time();
                continue;
            }
            let patience = patience.and_then(|left| Timespec::try_from(left).ok());
            let event = stop.0.event.as_fd();
            let mut fds = vec![PollFd::new(&event, PollFlags::IN)];
            fds.extend(self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)));
            match poll(&mut fds, patience.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                other => other.map_err(|e| Error::io("cannot wait for clients", &e.into()))?,
            };
            let ready: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            for (listener, _) in self.listeners.iter().zip(ready).filter(|(_, ready)| *ready) {
                match listener.accept() {
                    Ok(socket) => {
                        is_reported = false;
                        serve(socket);
                    }
                    // The client has already left.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(e) if is_final(&e) => return Err(Error::io("cannot accept clients", &e)),
                    // Too many open files, no memory, network trouble: this passes, or stays until
                    // the server stops.
                    Err(e) => {
                        if !std::mem::replace(&mut is_reported, true) {
                            self.report(&Error::io("cannot accept a client; trying again", &e));
                        }
                        pause(stop);
                    }
                }
            }
        }
        Ok(())
    }

    fn report(&self, e: &Error) {
        if let Some(report) = &self.settings.report {
            report(e);
        }
    }

    fn serve(&self, client: &ClientGuard) {
        let socket = &*client.socket;
        if socket.prepare().is_err() {
            return;
        }
        let tls = match (self.settings.tls, &self.tls) {
            (TlsMode::Off, _) | (_, None) => TlsState::Unavailable,
            (TlsMode::Allow, _) => TlsState::Offered,
            (TlsMode::Require, _) => TlsState::Required,
        };
        let mut timed = TimedSocket::new(socket, self.settings.handshake_timeout);
        match handshake(&mut timed, &self.exports, tls) {
            Ok(HandshakeOutcome::Transmit(session)) => self.transmit(client, socket, session),
            Ok(HandshakeOutcome::StartTls(greeting)) => {
                let Some(certificates) = &self.tls else { return };
                match certificates.secure(client, &mut timed, &self.exports, greeting) {
                    Ok(Some((stream, session))) => self.transmit(client, &stream, session),
                    Ok(None) => {}
                    Err(e) => self.settings.report_refused.iter().for_each(|report| report(&e)),
                }
            }
            _ => {}
        }
    }

    /// Serves the requests of a client, unless the server takes no further users of a disk.
    fn transmit<T: Transport>(&self, client: &ClientGuard, transport: &T, session: ExportSession) {
        if client.socket.patient().is_err() || !client.begin_use() {
            return;
        }
        let workers = self.settings.workers.max(1);
        let limits = ThreadLimits { workers, max_workers: self.settings.max_workers.max(workers) };
        let report = self.settings.report.as_ref();
        let memory = self.memory.of(session.level);
        Connection::new(transport, session, report, client.stopping(), limits, memory).run();
    }
}

fn is_final(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::EBADF | libc::EINVAL | libc::ENOTSOCK | libc::EOPNOTSUPP | libc::EFAULT)
    )
}

fn pause(stop: &StopHandle) {
    let limit = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let _ = poll(&mut [PollFd::new(&stop.0.event, PollFlags::IN)], Some(&limit));
}
