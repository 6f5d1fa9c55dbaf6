//! The listening sockets: a unix socket, a TCP address, or sockets that the service manager has
//! opened.

use crate::stream::Socket;
use crate::sys;
use lacuna_contracts::{Error, Kind, Result};
use rustix::fs::{Access, AtFlags, CWD, FlockOperation, Mode, accessat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BACKLOG: i32 = 128;
/// Tries for the lock on a socket's directory, and for a place that is in use, [`LOCK_PAUSE`]
/// apart.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A unix socket at this path, accessible to its owner only. A dead server's socket there is
    /// replaced.
    Unix(PathBuf),
    /// A TCP address ([`Listen::tcp`]).
    Tcp {
        /// The address that the user gave.
        name: String,
        /// The addresses that `name` resolved to: the first available one is bound. A name is
        /// resolved once, so that the checked address is the bound address.
        addresses: Vec<SocketAddr>,
    },
    /// The sockets passed by the service manager (`LISTEN_PID`, `LISTEN_FDS`).
    Activated,
}

impl Listen {
    /// A TCP address such as `127.0.0.1:10809`, or a host name in place of the number. Port 0 takes
    /// any free port.
    ///
    /// Errors: [`Kind::Usage`] if `name` resolves to no address.
    pub fn tcp(name: &str) -> Result<Listen> {
        let refused = |found: String| {
            Error::new(Kind::Usage, format!("cannot listen on {name}"))
                .found(found)
                .expected("ADDRESS:PORT, like 127.0.0.1:10809")
        };
        let addresses: Vec<_> = name.to_socket_addrs().map_err(|e| refused(e.to_string()))?.collect();
        if addresses.is_empty() {
            return Err(refused("a name without an address".to_owned()));
        }
        Ok(Listen::Tcp { name: name.to_owned(), addresses })
    }
}

pub(crate) enum Listener {
    Unix { listener: UnixListener, file: Option<OwnedPath> },
    Tcp(TcpListener),
}

/// A socket file that this process has created; removed on drop unless it was replaced, or stays
/// for other copies of the socket.
pub(crate) struct OwnedPath {
    path: PathBuf,
    identity: (u64, u64),
    stays: bool,
}

impl Drop for OwnedPath {
    fn drop(&mut self) {
        if !self.stays && identity(&self.path) == Some(self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

/// Open listening sockets. Clients that connect wait until a server accepts them, or until the last
/// copy of the sockets is closed.
pub struct Listeners(pub(crate) Vec<Listener>);

impl Listeners {
    /// Begins to listen at all these places.
    pub fn open(listen: &[Listen]) -> Result<Listeners> {
        open(listen).map(Listeners)
    }

    /// The same sockets once more. A copy leaves the files of unix sockets, unless a server has
    /// [run](crate::NbdServer::run) with it: that server removes them at its end, before other
    /// programs see the disk free. After one that fails before, clients still find the sockets.
    pub fn try_clone(&self) -> Result<Listeners> {
        let copies = self.0.iter().map(Listener::try_clone).collect::<io::Result<_>>();
        copies.map(Listeners).map_err(|e| Error::io("cannot copy a listening socket", &e))
    }
}

/// Refuses places where listening fails now, for a caller that has other work to do before it
/// listens. An address is taken for a moment. No socket file is made or removed.
///
/// Errors: those of [`Listeners::open`].
pub fn check_listen(listen: &[Listen]) -> Result<()> {
    listen.iter().try_for_each(|place| {
        for _ in 1..LOCK_TRIES {
            match check_place(place) {
                // A server that was killed a moment ago may still have it.
                Err(e) if e.kind() == Kind::Busy => std::thread::sleep(LOCK_PAUSE),
                checked => return checked,
            }
        }
        check_place(place)
    })
}

fn check_place(place: &Listen) -> Result<()> {
    match place {
        Listen::Unix(path) => check_unix(path),
        Listen::Tcp { name, addresses } => open_tcp(name, addresses).map(drop),
        Listen::Activated => Ok(()),
    }
}

fn check_unix(path: &Path) -> Result<()> {
    let address = unix_address(path)?;
    let failed = |e: io::Error| in_use(format!("cannot listen on {}", path.display()), &e);
    match std::fs::symlink_metadata(path) {
        Ok(_) => check_is_dead(path, &address),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let may = Access::WRITE_OK | Access::EXEC_OK;
            match accessat(CWD, folder.unwrap_or(Path::new(".")), may, AtFlags::EACCESS) {
                // An old system cannot tell: making the socket shows it.
                Ok(()) | Err(Errno::NOSYS) => Ok(()),
                Err(e) => Err(failed(e.into())),
            }
        }
        Err(e) => Err(failed(e)),
    }
}

/// Opens the listeners at all these places, ready for clients.
pub(crate) fn open(listen: &[Listen]) -> Result<Vec<Listener>> {
    let mut opened = Vec::new();
    for place in listen {
        match place {
            Listen::Unix(path) => opened.push(open_unix(path)?),
            Listen::Tcp { name, addresses } => opened.push(open_tcp(name, addresses)?),
            Listen::Activated => opened.extend(activated()?),
        }
    }
    Ok(opened)
}

/// The network addresses of the sockets that the service manager has passed. The sockets remain for
/// [`Listen::Activated`] to take.
pub fn passed_addresses() -> Vec<SocketAddr> {
    let address = |socket: BorrowedFd| SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok();
    sys::look_at_inherited(passed(), address).into_iter().flatten().collect()
}

fn open_tcp(name: &str, addresses: &[SocketAddr]) -> Result<Listener> {
    let bound = TcpListener::bind(addresses).map(Listener::Tcp);
    bound.map_err(|e| tcp_error(name, &e))
}

fn tcp_error(name: &str, e: &io::Error) -> Error {
    let error = in_use(format!("cannot listen on {name}"), e);
    match e.kind() {
        io::ErrorKind::PermissionDenied => error.hint("ports below 1024 are for root: choose another one"),
        _ => error,
    }
}

fn in_use(what: String, e: &io::Error) -> Error {
    let error = Error::io(what, e);
    match e.kind() {
        io::ErrorKind::AddrInUse => {
            error.with_kind(Kind::Busy).hint("stop the other server or choose another address")
        }
        io::ErrorKind::AddrNotAvailable => {
            error.with_kind(Kind::Usage).hint("give an address of this machine")
        }
        _ => error,
    }
}

fn unix_address(path: &Path) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|_| {
        Error::new(Kind::Usage, format!("cannot listen on {}", path.display()))
            .found(format!("a path of {} bytes", path.as_os_str().len()))
            .expected("at most 107 bytes")
            .hint("choose a shorter path for the socket")
    })
}

fn open_unix(path: &Path) -> Result<Listener> {
    let what = || format!("cannot listen on {}", path.display());
    let address = unix_address(path)?;
    // Held while the old socket is checked and replaced, so that of two servers that start at the
    // same time only one succeeds.
    let _directory = lock_directory(path);
    let socket = match bind_unix(&address) {
        Err(Errno::ADDRINUSE) => {
            check_is_dead(path, &address)?;
            std::fs::remove_file(path).map_err(|e| Error::io(what(), &e))?;
            bind_unix(&address)
        }
        other => other,
    };
    let socket = socket.map_err(|e| in_use(what(), &e.into()))?;
    let file = identity(path).map(|identity| OwnedPath { path: path.to_path_buf(), identity, stays: false });
    Ok(Listener::Unix { listener: UnixListener::from(socket), file })
}

/// Returns `None` if the lock cannot be had soon: any user with read permission for the directory
/// can hold its lock forever, and must not keep a server from starting.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = File::open(parent).ok()?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(directory),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(_) => return None,
        }
    }
    None
}

fn unix_socket(extra: SocketFlags) -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | extra, None)
}

fn bind_unix(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let socket = unix_socket(SocketFlags::empty())?;
    // The file takes its mode from the socket, so that other users can connect at no moment.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Refuses anything except a socket without a listener.
fn check_is_dead(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let what = || format!("cannot listen on {}", path.display());
    let meta = std::fs::symlink_metadata(path).map_err(|e| Error::io(what(), &e))?;
    if !meta.file_type().is_socket() {
        return Err(Error::new(Kind::Usage, what())
            .found("something there that is not a socket")
            .hint("choose another path for the socket"));
    }
    let probe = unix_socket(SocketFlags::NONBLOCK).map_err(|e| Error::io(what(), &e.into()))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => Err(Error::new(Kind::Busy, what())
            .found("another server that answers there")
            .hint("stop it or choose another path for the socket")),
        Err(e) => Err(Error::io(what(), &e.into())),
    }
}

/// The number of sockets that the service manager has passed to this process.
fn passed() -> i32 {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<i32>().ok());
    let ours = number("LISTEN_PID").is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
    number("LISTEN_FDS").filter(|count| ours && (1..=64).contains(count)).unwrap_or(0)
}

fn activated() -> Result<Vec<Listener>> {
    let what = "cannot listen on a socket passed by the service manager";
    let sockets = sys::inherited(passed());
    if sockets.is_empty() {
        return Err(Error::new(Kind::Usage, what)
            .found("no sockets")
            .expected("LISTEN_PID with the number of this process and LISTEN_FDS with that of the sockets")
            .hint("start this from a .socket unit, or name a socket or an address"));
    }
    sockets.into_iter().map(adopt).collect()
}

fn adopt(socket: OwnedFd) -> Result<Listener> {
    let what = "cannot listen on a socket passed by the service manager";
    let listening = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or(false);
    let family = rustix::net::getsockname(&socket).map(|address| address.address_family());
    match family {
        Ok(AddressFamily::UNIX) if listening => {
            Ok(Listener::Unix { listener: UnixListener::from(socket), file: None })
        }
        Ok(AddressFamily::INET | AddressFamily::INET6) if listening => {
            Ok(Listener::Tcp(TcpListener::from(socket)))
        }
        _ => Err(Error::new(Kind::Usage, what)
            .found("a descriptor that does not listen")
            .expected("a listening stream socket, unix or TCP")),
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Unix { listener, .. } => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    fn try_clone(&self) -> io::Result<Listener> {
        Ok(match self {
            Listener::Unix { listener, file } => {
                let copy = |OwnedPath { path, identity, .. }: &OwnedPath| OwnedPath {
                    path: path.clone(),
                    identity: *identity,
                    stays: true,
                };
                Listener::Unix { listener: listener.try_clone()?, file: file.as_ref().map(copy) }
            }
            Listener::Tcp(listener) => Listener::Tcp(listener.try_clone()?),
        })
    }

    /// Makes dropping the listener remove the file of its socket.
    pub(crate) fn remove_at_end(&mut self) {
        if let Listener::Unix { file: Some(file), .. } = self {
            file.stays = false;
        }
    }

    /// Makes [`Listener::accept`] return at once when the client has already left.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Listener::Unix { listener, .. } => listener.set_nonblocking(true),
            Listener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    pub(crate) fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Unix { listener, .. } => Ok(Socket::Unix(listener.accept()?.0)),
            Listener::Tcp(listener) => Ok(Socket::Tcp(listener.accept()?.0)),
        }
    }

    /// The URI for clients.
    pub(crate) fn uri(&self, tls: bool) -> String {
        let scheme = if tls { "nbds" } else { "nbd" };
        match self {
            Listener::Unix { listener, .. } => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                let path = path.map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()));
                format!("{scheme}+unix:///?socket={}", percent_encoded(&path.unwrap_or_default()))
            }
            Listener::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("{scheme}://{address}"),
                Err(_) => format!("{scheme}://"),
            },
        }
    }
}

fn percent_encoded(path: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    let mut encoded = String::new();
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~".contains(byte) {
            encoded.push(char::from(*byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded_for_uris() {
        assert_eq!(percent_encoded(Path::new("/run/a b&c.sock")), "/run/a%20b%26c.sock");
    }

    #[test]
    fn a_refused_port_comes_with_a_remedy() {
        let refused = |number| tcp_error("[::]:80", &io::Error::from_raw_os_error(number)).to_string();
        assert!(refused(libc::EACCES).ends_with("; ports below 1024 are for root: choose another one"));
        assert!(refused(libc::EADDRINUSE).ends_with("; stop the other server or choose another address"));
    }

    /// The name is not resolved again: by now it could resolve to an unchecked address.
    #[test]
    fn the_resolved_addresses_are_bound() {
        let addresses: Vec<SocketAddr> = vec!["127.0.0.2:0".parse().unwrap()];
        for name in ["0.0.0.0:0", "no.such.host.invalid:0"] {
            let place = Listen::Tcp { name: name.to_owned(), addresses: addresses.clone() };
            let opened = open(&[place]).unwrap();
            let [listener] = &opened[..] else { panic!("{} listeners", opened.len()) };
            let uri = listener.uri(false);
            assert!(uri.starts_with("nbd://127.0.0.2:"), "{name}: {uri}");
        }
        let stored = Listen::tcp("127.0.0.2:0").unwrap();
        assert_eq!(stored, Listen::Tcp { name: "127.0.0.2:0".to_owned(), addresses });
    }
}
