//! The process at the other end of a unix socket.
//!
//! `rustix` takes its number for one that is never zero. The kernel gives zero for a process
//! outside of the reader's PID namespace, as in another container.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a unix socket: for a client the listener, for a server the
/// client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPeer {
    /// Its number; `None` if the system does not name it here, as for a process of another
    /// container.
    pub process: Option<u32>,
    /// Its user.
    pub user: u32,
}

impl SocketPeer {
    /// The peer of a connected socket. Errors: those of the system.
    pub fn of(socket: impl AsFd) -> io::Result<SocketPeer> {
        let mut peer = MaybeUninit::<libc::ucred>::zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let (fd, level, name) = (socket.as_fd().as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: `peer` has room for `len` bytes, and all zeros are a valid value of it.
        let (result, peer) = unsafe {
            let result = libc::getsockopt(fd, level, name, peer.as_mut_ptr().cast(), &raw mut len);
            (result, peer.assume_init())
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let process = (peer.pid > 0).then_some(peer.pid.unsigned_abs());
        Ok(SocketPeer { process, user: peer.uid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, id};

    /// A command in a container of its own, as its first process.
    fn in_container(program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--"]).arg(program);
        command
    }

    #[test]
    fn a_process_of_another_container_has_no_number() {
        if id() == 1 {
            // This is the first process of the container, which the code below has started.
            assert_eq!(SocketPeer::of(io::stdin()).unwrap().process, None);
            return;
        }
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert_eq!(SocketPeer::of(&ours).unwrap().process, Some(id()));
        if !in_container("true".as_ref()).status().is_ok_and(|status| status.success()) {
            return eprintln!("skipped: containers are not permitted here");
        }
        let mut inside = in_container(std::env::current_exe().unwrap().as_os_str());
        inside.args(["--exact", "socket_peer::tests::a_process_of_another_container_has_no_number"]);
        let ran = inside.stdin(OwnedFd::from(theirs)).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    }

    #[test]
    fn a_file_has_no_peer() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(SocketPeer::of(file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
