//! Ensures a single writer of a disk on this machine, whatever names, links, loop devices or copies
//! lead to it.
//!
//! The lock on a file and the exclusive open of a block device
//! ([`FileMedium`](lacuna_medium::FileMedium)) belong to one name of the medium. This claim belongs
//! to the UUID in the header: it is a socket in the abstract namespace. The kernel gives each name
//! to one process at a time, and frees it when the process ends in any way. Claims are not visible
//! across network namespaces, and so not across most containers.
//!
//! Readers need no claim: a snapshot of a disk can be read beside the disk.

use crate::observer::Observer;
use lacuna_contracts::{Error, Hint, Kind, Result, Setting, SocketPeer};
use lacuna_header::{FormatId, Uuid};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, listen, socket_with};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

/// A claim on a disk for this process, and for a process that it forks, until this is dropped.
pub(crate) struct DiskClaim(UnixListener);

impl DiskClaim {
    /// Claims the disk or vault with this UUID. `None` if the system has no abstract sockets.
    /// Errors: [`Kind::Busy`] with `what` as its message, naming the process that has it open.
    pub(crate) fn take(
        uuid: Uuid,
        format: FormatId,
        what: &str,
        observer: &dyn Observer,
    ) -> Result<Option<DiskClaim>> {
        let bound = socket_address(uuid).and_then(|address| UnixListener::bind_addr(&address));
        Ok(claimed_socket(bound, || already_open_error(uuid, format, what), observer)?.map(DiskClaim))
    }

    /// After a fork: makes the kernel report this process as the holder.
    pub(crate) fn adopt_after_fork(&self) {
        // The kernel records the listening process. If the call fails, it reports the process
        // before the fork.
        let _noted = listen(&self.0, BACKLOG);
    }
}

/// The number of connections that may wait; each query of the holder uses one.
const BACKLOG: i32 = 4096;

fn socket_name(uuid: Uuid) -> String {
    format!("lacuna {uuid}")
}

fn socket_address(uuid: Uuid) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(socket_name(uuid))
}

/// The socket, if there is one. On a system without abstract sockets, continue unprotected.
fn claimed_socket(
    bound: std::io::Result<UnixListener>,
    taken: impl FnOnce() -> Error,
    observer: &dyn Observer,
) -> Result<Option<UnixListener>> {
    match bound {
        Ok(listener) => Ok(Some(listener)),
        Err(e) if e.kind() == ErrorKind::AddrInUse => Err(taken()),
        Err(e) => {
            observer.note(&format!(
                "this system does not support claims ({e}): make sure that it is not open under another name"
            ));
            Ok(None)
        }
    }
}

/// The process of this machine that has the disk with this UUID open for writing, if it is known at
/// once: it accepts no connections, so after a backlog of queries no more are answered.
pub fn claiming_process(uuid: Uuid) -> Option<u32> {
    let name = SocketAddrUnix::new_abstract_name(socket_name(uuid).as_bytes()).ok()?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.ok()?;
    connect(&socket, &name).ok()?;
    SocketPeer::of(&socket).ok()?.process
}

fn already_open_error(uuid: Uuid, format: FormatId, what: &str) -> Error {
    let holder = claiming_process(uuid).map_or_else(
        || "it is open on this machine already".to_owned(),
        |process| format!("it is open on this machine already, in process {process}{}", program(process)),
    );
    let (noun, copying) = if format.is_vault() {
        ("vault", "for a second vault, make one and copy the files into it")
    } else {
        ("disk", "for a second disk, create one and copy into it with nbdcopy")
    };
    Error::new(Kind::Busy, what)
        .found(holder)
        .expected(format!(
            "a {noun} that is open for writing under one name only; a copy counts as the same {noun}"
        ))
        .hint(
            Hint::from("close it there first, or open it with ")
                .setting(Setting("read_only"))
                .text(format!("; {copying}")),
        )
}

/// The name of a program, if it is readable. Without its arguments: they reveal the number of
/// levels of a disk, and messages end up in logs.
fn program(process: u32) -> String {
    let name = std::fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    if name.trim().is_empty() { String::new() } else { format!(" ({})", name.trim()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    #[test]
    fn any_number_of_claims_are_refused_without_waiting() {
        let uuid = Uuid([0x5a; 16]);
        let claim = DiskClaim::take(uuid, FormatId::SEALED, "take", &Silent).unwrap().unwrap();
        // Simulates a full backlog.
        listen(&claim.0, 1).unwrap();
        for _ in 0..8 {
            assert_eq!(
                DiskClaim::take(uuid, FormatId::SEALED, "take", &Silent).err().unwrap().kind(),
                Kind::Busy
            );
        }
        claim.adopt_after_fork();
        let refused = DiskClaim::take(uuid, FormatId::SEALED, "take", &Silent).err().unwrap().to_string();
        assert!(refused.contains(&format!("in process {}", std::process::id())), "{refused}");
        assert!(refused.contains("the same disk") && refused.contains("nbdcopy"), "{refused}");
        let refused = DiskClaim::take(uuid, FormatId::VAULT, "take", &Silent).err().unwrap().to_string();
        assert!(refused.contains("the same vault") && !refused.contains("nbdcopy"), "{refused}");
    }

    #[test]
    fn only_another_claim_is_an_error() {
        let busy = || Error::new(Kind::Busy, "taken");
        let judged = |kind: ErrorKind| claimed_socket(Err(kind.into()), busy, &Silent);
        assert_eq!(judged(ErrorKind::AddrInUse).unwrap_err().kind(), Kind::Busy);
        for kind in [ErrorKind::PermissionDenied, ErrorKind::Unsupported, ErrorKind::OutOfMemory] {
            assert!(judged(kind).unwrap().is_none(), "{kind}");
        }
    }
}
