//! Restricts access to a server to this machine, unless every client presents a certificate or the
//! user allows other clients explicitly.

use crate::args::{ServeArgs, Tls};
use lacuna_nbd::{CLIENT_AUTHORITY, Listen, passed_addresses};
use lacuna_storage::{Error, Kind, Result};
use std::net::SocketAddr;

/// Refuses to serve clients of other machines by accident.
pub(crate) fn check(args: &ServeArgs, listen: &[Listen]) -> Result<()> {
    if args.allow_strangers {
        return Ok(());
    }
    listen.iter().try_for_each(|place| {
        let (name, addresses) = addresses(place);
        let mut addresses = addresses.into_iter().map(|address: SocketAddr| address.ip().to_canonical());
        if addresses.all(|ip| ip.is_loopback()) { Ok(()) } else { check_clients(args, &name) }
    })
}

/// A name and the network addresses of a listening socket.
fn addresses(place: &Listen) -> (String, Vec<SocketAddr>) {
    match place {
        Listen::Unix(path) => (path.display().to_string(), Vec::new()),
        Listen::Tcp { name, addresses } => (name.clone(), addresses.clone()),
        Listen::Activated => {
            let passed = passed_addresses();
            let shown: Vec<_> = passed.iter().map(ToString::to_string).collect();
            (format!("{} (passed by the service manager)", shown.join(", ")), passed)
        }
    }
}

/// Refuses clients of other machines that need not present a certificate.
fn check_clients(args: &ServeArgs, name: &str) -> Result<()> {
    let refused = |found: &str| {
        let build = if cfg!(feature = "tls") { "" } else { "a build with the feature `tls`, and " };
        Err(Error::new(Kind::Usage, format!("cannot listen on {name}"))
            .found(found)
            .expected(format!("{build}--tls-dir with a {CLIENT_AUTHORITY} in it, so that clients must show a certificate"))
            .hint("listen on 127.0.0.1 or on a unix socket, or add --allow-strangers if every client that can reach the address may read and write the disk"))
    };
    match &args.tls_dir {
        None => refused(
            "an address that other machines can reach, without TLS: the network would see the data of the disk",
        ),
        Some(_) if args.tls == Some(Tls::Allow) => {
            refused("an address that other machines can reach, and --tls allow: clients need not use TLS")
        }
        Some(dir) if !dir.join(CLIENT_AUTHORITY).exists() => refused(
            "an address that other machines can reach, and no certificates of clients: any client could use the disk",
        ),
        Some(_) => Ok(()),
    }
}
