//! The clients of an NBD server in words: for `status`, for the refusal to close a disk that they
//! use, and for the log of clients that were refused.

use crate::terminal::option_names;
use lacuna_daemon::{ConnectedClients, RefusedClients, log_refused_client};
use lacuna_mount::{ServerLog, proc};
use lacuna_nbd::{ClientPeer, Clients, Reporter};
use lacuna_storage::{Error, Kind, Result};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The most clients that a message names.
const NAMED: usize = 8;

/// The clients of a server.
pub(crate) struct ServedClients {
    connected: Clients,
    refused: Mutex<RefusedClients>,
    /// Whether no log may tell that the disk is in use: it has levels.
    private: bool,
}

impl ServedClients {
    pub(crate) fn new(private: bool) -> Arc<Self> {
        let (connected, refused) = (Clients::default(), Mutex::default());
        Arc::new(ServedClients { connected, refused, private })
    }

    /// The handle for the settings of the server.
    pub(crate) fn handle(&self) -> Clients {
        self.connected.clone()
    }

    /// The clients that use the disk now.
    pub(crate) fn connected(&self) -> ConnectedClients {
        in_words(&self.connected.connected())
    }

    /// The clients that were refused.
    pub(crate) fn refused(&self) -> RefusedClients {
        self.refused.lock().clone()
    }

    /// Lets no further client use the disk at this location. Errors: [`Kind::Busy`], with the names
    /// of the clients that use it now; then nothing changes.
    pub(crate) fn close(&self, location: &str) -> Result<()> {
        let close = self.connected.close();
        close.map_err(|users| in_use(location, &in_words(&users), self.private))
    }

    /// Counts refused clients, and logs the first of them.
    pub(crate) fn note_refused(self: &Arc<Self>, log: ServerLog) -> Reporter {
        let clients = Arc::clone(self);
        Arc::new(move |e: &Error| {
            let mut refused = clients.refused.lock();
            let before = refused.count;
            *refused =
                RefusedClients { count: before + 1, last: Some(e.render_with(option_names::full_name)) };
            drop(refused);
            log_refused_client(e, before, &log);
        })
    }
}

/// The number of clients, and the names of the first of them.
fn in_words(clients: &[ClientPeer]) -> ConnectedClients {
    let mut each = BTreeMap::<ClientPeer, usize>::new();
    clients.iter().for_each(|client| *each.entry(*client).or_default() += 1);
    let more = each.len().saturating_sub(NAMED);
    let named = each.into_iter().take(NAMED).map(|(client, connections)| {
        let name = match client {
            ClientPeer::Process(process) => proc::described(process),
            ClientPeer::Address(address) => address.to_string(),
            ClientPeer::Unknown => "unknown".to_owned(),
        };
        if connections == 1 { name } else { format!("{connections} of {name}") }
    });
    let named = named.chain((more > 0).then(|| format!("{more} more"))).collect();
    ConnectedClients { count: clients.len() as u64, named }
}

/// The refusal to close the disk at this location while clients use it.
///
/// Deniability contract: of a disk with levels (`private`) no log gets the reason, as for every
/// refusal to close, and the number and names of clients do not depend on the level that they use.
pub(crate) fn in_use(location: &str, clients: &ConnectedClients, private: bool) -> Error {
    let are = if clients.count == 1 { "client is" } else { "clients are" };
    let error = Error::new(Kind::Busy, format!("cannot close {location}"))
        .found(format!("{} {are} connected: {}", clients.count, clients.named.join(", ")))
        .hint("disconnect them, or give --force, which cuts them off");
    if private { error.confidential() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn clients_are_named_once_each_and_no_more_than_a_few() {
        let [one, two] = [5, 6].map(|last| ClientPeer::Address(Ipv4Addr::new(10, 0, 0, last).into()));
        let process = ClientPeer::Process(std::process::id());
        let own = proc::described(std::process::id());
        let clients = in_words(&[one, process, two, one]);
        assert_eq!((clients.count, clients.named), (4, vec![own, "2 of 10.0.0.5".into(), "10.0.0.6".into()]));
        let many = (0..=255_u32).map(|number| ClientPeer::Address(Ipv4Addr::from(number).into()));
        let many = in_words(&many.collect::<Vec<_>>());
        assert_eq!((many.count, many.named.len(), many.named[NAMED].as_str()), (256, NAMED + 1, "248 more"));
        assert_eq!(in_words(&[]), ConnectedClients::default());
    }

    #[test]
    fn a_disk_in_use_is_refused_with_the_clients_and_the_way_out() {
        let refused = in_use("/vm.img", &in_words(&[ClientPeer::Unknown]), false);
        assert_eq!(
            (refused.kind(), refused.to_string().as_str()),
            (
                Kind::Busy,
                "cannot close /vm.img; found: 1 client is connected: unknown; disconnect them, or give --force, \
                 which cuts them off"
            )
        );
        assert!(
            !refused.is_confidential()
                && in_use("/d.img", &ConnectedClients::default(), true).is_confidential()
        );
    }

    #[test]
    fn refused_clients_are_counted_and_the_last_is_kept() {
        let clients = ServedClients::new(false);
        let logged = Arc::new(Mutex::new(0));
        let log = Arc::clone(&logged);
        let note = clients.note_refused(Arc::new(move |_: &Error| *log.lock() += 1));
        (0..100).for_each(|n| note(&Error::new(Kind::Permission, format!("client {n}"))));
        let last = Some("client 99".to_owned());
        assert_eq!((clients.refused(), *logged.lock()), (RefusedClients { count: 100, last }, 33));
    }
}
