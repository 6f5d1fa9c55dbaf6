//! Connecting to the socket of a server that may not answer.

use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a server may leave as many clients unaccepted as the system lets wait.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// Connects. Errors: [`io::ErrorKind::TimedOut`] if as many clients wait as may: each client of a server that was stopped stays among
/// them, and a connection that blocks would wait for ever.
pub(crate) fn to_server(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let begun = Instant::now();
    loop {
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            Err(Errno::AGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The number of the process that listens at a socket, also if it was stopped. None if it accepts nobody: as many clients wait for
/// it as the system lets wait.
pub fn process_at(path: &Path) -> Option<u32> {
    process_behind(&to_server(path).ok()?)
}

/// The number of the process that listens at the other end, if the system tells.
pub(crate) fn process_behind(stream: &UnixStream) -> Option<u32> {
    let peer = socket_peercred(stream).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// Whether somebody listens there, even if nobody is accepted.
pub(crate) fn is_listened_at(path: &Path) -> io::Result<bool> {
    let Err(e) = to_server(path) else { return Ok(true) };
    match (e.kind(), e.raw_os_error()) {
        (io::ErrorKind::TimedOut, _) => Ok(true),
        // No server can listen under a name that is too long for a socket.
        (_, Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ECONNREFUSED)) => Ok(false),
        _ => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen, socket};

    #[test]
    fn a_server_that_accepts_nobody_hangs_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(!is_listened_at(&path).unwrap());
        assert!(!is_listened_at(&dir.path().join("x".repeat(200))).unwrap());
        std::fs::write(dir.path().join("file"), "").unwrap();
        for no_socket in ["file", "file/socket"] {
            assert!(!is_listened_at(&dir.path().join(no_socket)).unwrap());
        }
        let server = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        bind(&server, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        assert_eq!(to_server(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        listen(&server, 1).unwrap();
        let waiting: Vec<UnixStream> = (0..2).map(|_| to_server(&path).unwrap()).collect();
        assert_eq!(to_server(&path).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(is_listened_at(&path).unwrap());
        drop((waiting, server));
    }
}
