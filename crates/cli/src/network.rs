//! Who can reach a server: nobody but this machine, unless every client shows a certificate or the person who starts it
//! says in words that strangers may come.

use crate::args::{ServeArgs, Tls};
use lacuna_core::{Error, Kind, Result};
use lacuna_nbd::CLIENT_AUTHORITY;
use std::net::{SocketAddr, ToSocketAddrs};

/// Refuses to serve strangers by accident.
pub fn check(args: &ServeArgs) -> Result<()> {
    let Some(listen) = args.listen.as_deref().filter(|_| !args.allow_strangers) else { return Ok(()) };
    // An address that does not resolve is refused when it is bound, with the reason.
    let Ok(addresses) = listen.to_socket_addrs() else { return Ok(()) };
    if addresses.map(|address: SocketAddr| address.ip().to_canonical()).all(|ip| ip.is_loopback()) {
        return Ok(());
    }
    let refused = |found: &str| {
        Err(Error::new(Kind::Usage, format!("cannot listen on {listen}"))
            .found(found)
            .expected(format!("--tls-dir with a {CLIENT_AUTHORITY} in it, so that clients must show a certificate"))
            .remedy("listen on 127.0.0.1 or on --socket, or add --allow-strangers if everybody who can reach the address may read and write the disk"))
    };
    match &args.tls_dir {
        None => refused(
            "an address that other machines can reach, without TLS: the network would see the data of the disk",
        ),
        Some(_) if args.tls == Some(Tls::Allow) => {
            refused("an address that other machines can reach, and --tls allow: clients need not use TLS")
        }
        Some(dir) if !dir.join(CLIENT_AUTHORITY).exists() => refused(
            "an address that other machines can reach, and no certificates of clients: anybody could use the disk",
        ),
        Some(_) => Ok(()),
    }
}
