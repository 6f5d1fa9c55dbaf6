//! One writer of a disk on this machine, whatever names, links, loop devices or copies lead to it.
//!
//! The lock on a file and the hold on a block device ([`FileMedium`](lacuna_medium::FileMedium)) belong to one name of the
//! medium. This claim belongs to the UUID in the header: a socket in the abstract namespace, which the kernel gives to one
//! process at a time and takes back when that process ends, however it ends. Network namespaces, and so most
//! containers, do not see the claims of each other.
//!
//! Readers claim nothing: a snapshot of a disk can be read beside the disk.

use lacuna_core::{Error, Kind, Result};
use lacuna_volume::{Location, Uuid};
use rustix::net::{listen, sockopt::socket_peercred};
use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::OnceLock;

/// Held until the process ends, as is everything that a command opens.
static HELD: OnceLock<UnixListener> = OnceLock::new();

/// Claims the disk with this UUID for this process, and for one that it forks. Errors: [`Kind::Busy`], with the process
/// that has it open.
pub fn take(uuid: Uuid, location: &Location) -> Result<()> {
    let failed = |e: std::io::Error| Error::io(format!("cannot claim {location} for this process"), &e);
    let address = SocketAddr::from_abstract_name(format!("lacuna {uuid}")).map_err(failed)?;
    match UnixListener::bind_addr(&address) {
        Ok(listener) => {
            // A process claims one disk, once.
            let _first = HELD.set(listener);
            Ok(())
        }
        Err(e) if e.kind() == ErrorKind::AddrInUse => Err(taken(&address, location)),
        Err(e) => Err(failed(e)),
    }
}

/// After a fork: from now on others are told of this process.
pub fn renew() {
    if let Some(listener) = HELD.get() {
        // The kernel notes who listens. If it does not, others are told of the process before the fork.
        let _noted = listen(listener, 1);
    }
}

fn taken(address: &SocketAddr, location: &Location) -> Error {
    let holder = UnixStream::connect_addr(address).ok().and_then(|stream| socket_peercred(&stream).ok());
    let holder = holder.map_or_else(
        || "it is open on this machine already".to_owned(),
        |holder| {
            let pid = holder.pid.as_raw_nonzero();
            format!("it is open on this machine already, in process {pid}{}", program(pid.get()))
        },
    );
    Error::new(Kind::Busy, format!("cannot open {location}"))
        .found(holder)
        .expected("a disk that is written under one name at a time; copies of a disk count as the disk")
        .remedy("close it there first (`lacuna close MOUNTPOINT`, or stop the server), or give --read-only")
}

/// The name of a program, if it can be read. Its arguments stay out: they tell how many levels a disk has, and messages
/// end up in logs.
fn program(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(&name);
    if name.trim().is_empty() { String::new() } else { format!(" ({})", name.trim()) }
}
