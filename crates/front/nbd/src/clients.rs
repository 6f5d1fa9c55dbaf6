//! The clients of a server: their connections, the connections that use a disk, and their end when
//! the server stops.

use crate::stream::{Socket, Transport};
use lacuna_contracts::SocketPeer;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most connections at a time that were closed to make room while their threads have yet to
/// end. So a flood of clients uses up neither threads nor file descriptors.
const MOST_LEAVING: usize = 128;

/// The other end of a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientPeer {
    /// The process of this machine that connected to a unix socket.
    Process(u32),
    /// The machine of a TCP connection.
    Address(IpAddr),
    /// The system does not name it, for example a process of another container.
    Unknown,
}

impl ClientPeer {
    fn of(socket: &Socket) -> Self {
        match socket {
            Socket::Unix(stream) => {
                let named = |peer: SocketPeer| peer.process.map_or(ClientPeer::Unknown, ClientPeer::Process);
                SocketPeer::of(stream).map_or(ClientPeer::Unknown, named)
            }
            Socket::Tcp(stream) => {
                let address = stream.peer_addr().map(|address| address.ip().to_canonical());
                address.map_or(ClientPeer::Unknown, ClientPeer::Address)
            }
        }
    }
}

impl fmt::Display for ClientPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientPeer::Process(number) => write!(f, "process {number}"),
            ClientPeer::Address(address) => write!(f, "{address}"),
            ClientPeer::Unknown => f.write_str("an unknown place"),
        }
    }
}

/// The clients of one server, also for the program that runs it. Clones are the same handle.
#[derive(Clone, Default)]
pub struct Clients(Arc<ClientTable>);

#[derive(Default)]
struct ClientTable {
    connections: Mutex<ClientConnections>,
    client_left: Condvar,
    /// Whether requests are not read any more.
    stopping: AtomicBool,
}

#[derive(Default)]
struct ClientConnections {
    /// By number, in the order of admission.
    all: BTreeMap<u64, ClientConnection>,
    next_number: u64,
    /// The number of connections that were closed to make room while their threads have yet to end.
    leaving: usize,
    /// When the last client left, or when an idle period was first measured.
    last_left: Option<Instant>,
    /// Whether no further connection may use a disk.
    closed: bool,
}

struct ClientConnection {
    socket: Arc<Socket>,
    peer: ClientPeer,
    /// Whether the client has chosen an export.
    uses_disk: bool,
}

impl Clients {
    /// The clients that use a disk now, one for each connection: a client counts when it has chosen
    /// an export, and until it ends its side. A client that only negotiates, perhaps without the
    /// right to use a disk, does not count. Nor do requests of a client that has left: the server
    /// finishes them when it stops.
    pub fn connected(&self) -> Vec<ClientPeer> {
        users(&self.connections())
    }

    /// Lets no further client use a disk, if no client uses one now. The check and the decision are
    /// one step: no client gets in between them.
    ///
    /// Errors: the clients that use a disk. Then nothing changes.
    pub fn close(&self) -> Result<(), Vec<ClientPeer>> {
        let mut connections = self.connections();
        let users = users(&connections);
        if !users.is_empty() {
            return Err(users);
        }
        connections.closed = true;
        Ok(())
    }

    /// Adds a connection. If there are `most` already, closes one without an export, so that
    /// clients that never choose one keep no other out. Returns `None`, and closes the new
    /// connection, if all of them use a disk, or many closed ones have yet to end.
    pub(crate) fn admit(&self, socket: Socket, most: usize) -> Option<ClientGuard> {
        let peer = ClientPeer::of(&socket);
        let mut connections = self.connections();
        if connections.all.len() >= most {
            connections.make_room()?;
        }
        let number = connections.next_number;
        connections.next_number += 1;
        let socket = Arc::new(socket);
        let connection = ClientConnection { socket: Arc::clone(&socket), peer, uses_disk: false };
        connections.all.insert(number, connection);
        drop(connections);
        Some(ClientGuard { clients: self.clone(), number, socket, peer })
    }

    /// How long no client has been connected.
    pub(crate) fn idle_for(&self) -> Duration {
        let mut connections = self.connections();
        let now = Instant::now();
        if !connections.all.is_empty() {
            return Duration::ZERO;
        }
        now.saturating_duration_since(*connections.last_left.get_or_insert(now))
    }

    /// Restarts the idle period.
    pub(crate) fn restart_idle_time(&self) {
        self.connections().last_left = Some(Instant::now());
    }

    /// Stops reading on all connections.
    pub(crate) fn stop_reading(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        self.connections().all.values().for_each(|connection| connection.socket.stop_reading());
    }

    /// Waits up to `limit` for the last replies, then closes the remaining connections.
    pub(crate) fn drain(&self, limit: Duration) {
        let mut connections = self.connections();
        let deadline = Instant::now() + limit;
        while !connections.all.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                connections.all.values().for_each(|connection| connection.socket.hang_up());
                return;
            }
            self.0.client_left.wait_for(&mut connections, left);
        }
    }

    fn connections(&self) -> MutexGuard<'_, ClientConnections> {
        self.0.connections.lock()
    }
}

impl ClientConnections {
    /// Closes a connection without an export. `None` if there is none, or if too many were closed.
    fn make_room(&mut self) -> Option<()> {
        if self.leaving >= MOST_LEAVING {
            return None;
        }
        let negotiating = self.all.iter().filter(|(_, of)| !of.uses_disk);
        let number = gives_way(&negotiating.map(|(number, of)| (*number, of.peer)).collect())?;
        self.all.remove(&number)?.socket.hang_up();
        self.leaving += 1;
        Some(())
    }
}

/// The connection that is closed for a new one: of the peer with the most connections without an
/// export the first one. So a peer that opens many does not end the negotiation of another peer.
fn gives_way(negotiating: &BTreeMap<u64, ClientPeer>) -> Option<u64> {
    let mut of_peer = BTreeMap::<ClientPeer, usize>::new();
    for peer in negotiating.values() {
        *of_peer.entry(*peer).or_default() += 1;
    }
    // Of equals this takes the last one, and so the first number.
    let from_last = negotiating.iter().rev();
    from_last.max_by_key(|(_, peer)| of_peer.get(*peer)).map(|(number, _)| *number)
}

/// The clients that use a disk.
fn users(connections: &ClientConnections) -> Vec<ClientPeer> {
    let uses = |of: &&ClientConnection| of.uses_disk && !of.socket.has_ended();
    connections.all.values().filter(uses).map(|of| of.peer).collect()
}

/// A connection in [`Clients`], removed on drop.
pub(crate) struct ClientGuard {
    clients: Clients,
    number: u64,
    pub socket: Arc<Socket>,
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "only a failed TLS handshake names it"))]
    pub peer: ClientPeer,
}

impl ClientGuard {
    /// Counts the client among the users of a disk. False if no further client may use one, or if
    /// the connection was closed for another client.
    pub(crate) fn begin_use(&self) -> bool {
        let mut connections = self.clients.connections();
        let closed = connections.closed;
        let Some(connection) = connections.all.get_mut(&self.number).filter(|_| !closed) else {
            return false;
        };
        connection.uses_disk = true;
        true
    }

    /// Whether requests are not read any more.
    pub(crate) fn stopping(&self) -> &AtomicBool {
        &self.clients.0.stopping
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        let mut connections = self.clients.connections();
        if connections.all.remove(&self.number).is_none() {
            connections.leaving -= 1;
        }
        if connections.all.is_empty() {
            connections.last_left = Some(Instant::now());
        }
        drop(connections);
        self.clients.0.client_left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn local() -> (Socket, UnixStream) {
        let (server, client) = UnixStream::pair().unwrap();
        (Socket::Unix(server), client)
    }

    #[test]
    fn a_server_closes_between_clients_and_never_under_one() {
        let clients = Clients::default();
        let (socket, _client) = local();
        let negotiating = clients.admit(socket, 2).unwrap();
        assert!(clients.connected().is_empty());
        let (socket, other) = local();
        let user = clients.admit(socket, 2).unwrap();
        assert!(user.begin_use());
        let process = ClientPeer::Process(std::process::id());
        assert_eq!((clients.connected(), clients.close()), (vec![process], Err(vec![process])));
        // The server may still work for a client that has left.
        drop(other);
        assert!(clients.connected().is_empty());
        clients.close().unwrap();
        drop(user);
        // A client that is about to use a disk comes too late.
        assert!(!negotiating.begin_use() && clients.connected().is_empty());
        clients.close().unwrap();
    }

    #[test]
    fn a_client_without_an_export_gives_its_place_to_another_and_a_user_does_not() {
        let clients = Clients::default();
        let [(one, mut first), (two, _second), (three, _third), (four, _)] = [(); 4].map(|()| local());
        let negotiating = clients.admit(one, 2).unwrap();
        let user = clients.admit(two, 2).unwrap();
        assert!(user.begin_use());
        let next = clients.admit(three, 2).unwrap();
        assert_eq!(first.read(&mut [0]).unwrap(), 0);
        assert!(!negotiating.begin_use() && next.begin_use());
        // The end of the closed connection takes nothing from later ones.
        drop(negotiating);
        assert_eq!(clients.connected().len(), 2);
        assert!(clients.admit(four, 2).is_none());
    }

    #[test]
    fn clients_that_come_faster_than_others_end_are_refused() {
        let clients = Clients::default();
        let mut guards: Vec<_> = (0..=MOST_LEAVING).map(|_| clients.admit(local().0, 1).unwrap()).collect();
        assert!(clients.admit(local().0, 1).is_none());
        drop(guards.remove(0));
        guards.push(clients.admit(local().0, 1).unwrap());
        assert!(clients.admit(local().0, 1).is_none());
        drop(guards);
        assert_eq!(clients.connections().leaving, 0);
    }

    #[test]
    fn of_clients_without_an_export_the_first_one_of_the_greediest_peer_gives_way() {
        let peer = |last| ClientPeer::Address(Ipv4Addr::new(10, 0, 0, last).into());
        let gives_way = |peers: &[u8]| gives_way(&(0..).zip(peers.iter().map(|last| peer(*last))).collect());
        assert_eq!(gives_way(&[]), None);
        assert_eq!(gives_way(&[1, 2, 3]), Some(0));
        assert_eq!(gives_way(&[1, 2, 2, 3]), Some(1));
        assert_eq!(gives_way(&[1, 2, 2, 3, 3, 3, 1]), Some(3));
    }

    #[test]
    fn a_peer_is_a_process_or_an_address() {
        let listener = TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let peer = ClientPeer::of(&Socket::Tcp(listener.accept().unwrap().0));
        assert_eq!((peer, peer.to_string()), (ClientPeer::Address(address.ip()), address.ip().to_string()));
        drop(client);
        let peer = ClientPeer::of(&local().0);
        assert_eq!(peer.to_string(), format!("process {}", std::process::id()));
    }
}
