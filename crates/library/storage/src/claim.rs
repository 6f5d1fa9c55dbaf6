//! One writer of a disk on this machine, whatever names, links, loop devices or copies lead to it.
//!
//! The lock on a file and the hold on a block device ([`FileMedium`](lacuna_medium::FileMedium))
//! belong to one name of the medium. This claim belongs to the UUID in the header: a socket in the
//! abstract namespace, which the kernel gives to one process at a time and takes back when that
//! process ends, however it ends. Network namespaces, and so most containers, do not see the claims
//! of each other.
//!
//! Readers claim nothing: a snapshot of a disk can be read beside the disk.

use crate::observer::Observer;
use lacuna_contracts::{Advice, Error, Kind, Result, Setting};
use lacuna_header::Uuid;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred, connect, listen, socket_with,
};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// A disk that is claimed for this process, and for one that it forks, until this is dropped.
pub(crate) struct Claim(UnixListener);

impl Claim {
    /// Claims the disk with this UUID. None where the system has no such sockets. Errors:
    /// [`Kind::Busy`], with the process that has it open, as an error of `what`.
    pub(crate) fn take(uuid: Uuid, what: &str, observer: &dyn Observer) -> Result<Option<Claim>> {
        let bound = address(uuid).and_then(|address| UnixListener::bind_addr(&address));
        Ok(judge(bound, || taken(uuid, what), observer)?.map(Claim))
    }

    /// After a fork: from now on others are told of this process.
    pub(crate) fn renew(&self) {
        // The kernel notes who listens. If it does not, others are told of the process before the
        // fork.
        let _noted = listen(&self.0, BACKLOG);
    }
}

/// Others that may ask who has claimed a disk.
const BACKLOG: i32 = 4096;

fn name(uuid: Uuid) -> String {
    format!("lacuna {uuid}")
}

fn address(uuid: Uuid) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name(uuid))
}

/// The socket, if there is one. A system that refuses such sockets takes the protection away, not
/// the disk.
fn judge(
    bound: std::io::Result<UnixListener>,
    taken: impl FnOnce() -> Error,
    observer: &dyn Observer,
) -> Result<Option<UnixListener>> {
    match bound {
        Ok(listener) => Ok(Some(listener)),
        Err(e) if e.kind() == ErrorKind::AddrInUse => Err(taken()),
        Err(e) => {
            observer.note(&format!(
                "this system does not let a disk be claimed ({e}): see to it that it is not open under another name"
            ));
            Ok(None)
        }
    }
}

/// Who has claimed the disk, if that can be learned at once: nobody accepts connections, and when
/// as many as the backlog allows have asked, the next is not answered.
fn holder(uuid: Uuid) -> Option<UCred> {
    let name = SocketAddrUnix::new_abstract_name(name(uuid).as_bytes()).ok()?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.ok()?;
    connect(&socket, &name).ok()?;
    socket_peercred(&socket).ok()
}

/// The number of the process of this machine that has the disk with this UUID open for writing, if
/// that can be learned.
pub fn process_of(uuid: Uuid) -> Option<u32> {
    holder(uuid).and_then(|holder| u32::try_from(holder.pid.as_raw_nonzero().get()).ok())
}

fn taken(uuid: Uuid, what: &str) -> Error {
    let holder = holder(uuid);
    let holder = holder.map_or_else(
        || "it is open on this machine already".to_owned(),
        |holder| {
            let pid = holder.pid.as_raw_nonzero();
            format!("it is open on this machine already, in process {pid}{}", program(pid.get()))
        },
    );
    Error::new(Kind::Busy, what)
        .found(holder)
        .expected("a disk that is written under one name at a time; copies of a disk count as the disk")
        .remedy(
            Advice::from("close it there first (or stop the server), or open it with ")
                .setting(Setting("read_only")),
        )
}

/// The name of a program, if it can be read. Its arguments stay out: they tell how many levels a
/// disk has, and messages end up in logs.
fn program(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    if name.trim().is_empty() { String::new() } else { format!(" ({})", name.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    #[test]
    fn any_number_of_others_are_refused_at_once() {
        let uuid = Uuid([0x5a; 16]);
        let claim = Claim::take(uuid, "take", &Silent).unwrap().unwrap();
        // As the kernel has it when nobody else fits.
        listen(&claim.0, 1).unwrap();
        for _ in 0..8 {
            assert_eq!(Claim::take(uuid, "take", &Silent).err().unwrap().kind(), Kind::Busy);
        }
        claim.renew();
        let refused = Claim::take(uuid, "take", &Silent).err().unwrap().to_string();
        assert!(refused.contains(&format!("in process {}", std::process::id())), "{refused}");
    }

    #[test]
    fn only_a_claim_of_another_is_in_the_way() {
        let busy = || Error::new(Kind::Busy, "taken");
        let judged = |kind: ErrorKind| judge(Err(kind.into()), busy, &Silent);
        assert_eq!(judged(ErrorKind::AddrInUse).unwrap_err().kind(), Kind::Busy);
        for kind in [ErrorKind::PermissionDenied, ErrorKind::Unsupported, ErrorKind::OutOfMemory] {
            assert!(judged(kind).unwrap().is_none(), "{kind}");
        }
    }
}
