//! Tests of listening, of stopping, and of the socket file afterwards.

mod harness;

use harness::client::*;
use harness::{GatedDisk, ServerThread, run, served, text};
use lacuna_contracts::Kind;
use lacuna_nbd::{
    ClientPeer, Clients, Exports, Listen, Listeners, NbdServer, ServerSettings, StopHandle, TlsMode,
};
use lacuna_testkit::{is_program_available, skip_unless, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn bind(listen: &Listen) -> lacuna_contracts::Result<NbdServer> {
    NbdServer::bind(std::slice::from_ref(listen), GatedDisk::new(4).exports(), ServerSettings::default())
}

#[test]
fn the_socket_is_private_and_removed_at_the_end() {
    let mut server = ServerThread::unix(GatedDisk::new(4).exports(), ServerSettings::default());
    let socket = server.socket();
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(server.uri, format!("nbd+unix:///?socket={}", socket.display()));
    server.stop.stop();
    server.join();
    assert!(server.stop.is_stopped());
    assert!(!socket.exists());
}

#[test]
fn a_live_socket_is_respected_and_a_dead_one_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listen = Listen::Unix(path.clone());
    let live = bind(&listen).unwrap();
    let refused = bind(&listen).err().unwrap();
    assert_eq!(refused.kind(), Kind::Busy);
    drop(live);
    assert!(!path.exists());
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(bind(&listen).unwrap());
    std::fs::write(&path, "precious").unwrap();
    assert_eq!(bind(&listen).err().unwrap().kind(), Kind::Usage);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let long = Listen::Unix(directory.path().join("x".repeat(200)));
    assert_eq!(bind(&long).err().unwrap().kind(), Kind::Usage);
    let nowhere = Listen::Unix(directory.path().join("none/s"));
    assert_eq!(bind(&nowhere).err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn only_its_own_socket_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let server = bind(&Listen::Unix(path.clone())).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "another's").unwrap();
    drop(server);
    assert!(path.exists());
}

/// Clients wait at the socket for the server that follows a failed one.
#[test]
fn a_server_that_never_ran_on_a_copy_of_a_socket_leaves_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let sockets = Listeners::open(&[Listen::Unix(path.clone())]).unwrap();
    let start = || {
        let copy = || sockets.try_clone();
        NbdServer::listening(copy, GatedDisk::new(4).exports(), ServerSettings::default()).unwrap()
    };
    drop(start());
    assert!(path.exists());
    let stop = StopHandle::new().unwrap();
    stop.stop();
    start().run(&stop).unwrap();
    assert!(!path.exists());
    drop(start());
    let sockets = Listeners::open(&[Listen::Unix(path.clone())]).unwrap();
    assert!(path.exists());
    drop(sockets);
    assert!(!path.exists());
}

#[test]
fn unusable_addresses_are_refused() {
    let taken = bind(&Listen::tcp("127.0.0.1:0").unwrap()).unwrap();
    let address = taken.uris()[0].replace("nbd://", "");
    assert_eq!(bind(&Listen::tcp(&address).unwrap()).err().unwrap().kind(), Kind::Busy);
    for nonsense in ["", "127.0.0.1", "127.0.0.1:x", ":::"] {
        assert_eq!(Listen::tcp(nonsense).unwrap_err().kind(), Kind::Usage, "{nonsense}");
    }
    assert_eq!(bind(&Listen::Activated).err().unwrap().kind(), Kind::Usage);
    let no_certificates = ServerSettings { tls: TlsMode::Require, ..ServerSettings::default() };
    let listen = [Listen::tcp("127.0.0.1:0").unwrap()];
    assert!(NbdServer::bind(&listen, Exports::new(), no_certificates.clone()).is_err());
    let empty = tempfile::tempdir().unwrap();
    let empty = ServerSettings { certificates: Some(empty.path().into()), ..no_certificates };
    assert_eq!(NbdServer::bind(&listen, Exports::new(), empty).err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn a_stopping_server_answers_requests_in_progress() {
    let (disk, mut server, mut client) = served(16, true);
    let idle = RawClient::connect(&server.socket(), true);
    let greeted = RawClient::greet(&server.socket(), 3).unwrap();
    disk.open_gate(false);
    let flush = client.send(0, FLUSH, 0, 0, &[]);
    let fua = client.send(FUA, WRITE, 0, 4, b"last");
    wait_until("both in the disk", || disk.at_gate.load(Ordering::SeqCst) == 2);
    server.stop.stop();
    assert!(idle.closed() && greeted.closed());
    disk.open_gate(true);
    let mut answered = [client.receive(|_| None), client.receive(|_| None)];
    answered.sort_by_key(|(cookie, _)| *cookie);
    assert_eq!(answered, [(flush, Reply::Done), (fua, Reply::Done)]);
    assert!(client.closed());
    server.join();
    assert_eq!(&disk.contents()[..4], b"last");
    assert!(!disk.closed.load(Ordering::SeqCst), "closing the disk is the caller's business");
}

#[test]
fn before_drain_can_release_waiting_requests() {
    let disk = GatedDisk::new(16);
    let gate = Arc::clone(&disk);
    let settings = ServerSettings {
        before_drain: Some(Arc::new(move || gate.open_gate(true))),
        ..ServerSettings::default()
    };
    let mut server = ServerThread::unix(disk.exports(), settings);
    let mut client = RawClient::connect(&server.socket(), true);
    disk.open_gate(false);
    let flush = client.send(0, FLUSH, 0, 0, &[]);
    wait_until("the flush in the disk", || disk.at_gate.load(Ordering::SeqCst) == 1);
    server.stop.stop();
    assert_eq!(client.receive(|_| None), (flush, Reply::Done));
    assert!(client.closed());
    server.join();
}

#[test]
fn clients_are_counted_until_they_leave() {
    let clients = Clients::default();
    let settings = ServerSettings { clients: clients.clone(), ..ServerSettings::default() };
    let server = ServerThread::unix(GatedDisk::new(4).exports(), settings);
    let mut negotiating = RawClient::greet(&server.socket(), 3).unwrap();
    assert_eq!(negotiating.option(OPT_LIST, &[]).last().unwrap().0, ACK);
    let [one, two] = [true, false].map(|structured| RawClient::connect(&server.socket(), structured));
    wait_until("both clients", || clients.connected().len() == 2);
    let own = ClientPeer::Process(std::process::id());
    assert_eq!((clients.connected(), clients.close()), (vec![own; 2], Err(vec![own; 2])));
    drop(one);
    wait_until("one client", || clients.connected().len() == 1);
    drop(two);
    wait_until("no client", || clients.connected().is_empty());
    // A client that only negotiates does not count, and gets no disk once the server is closed.
    clients.close().unwrap();
    negotiating.go("");
    assert!(negotiating.closed() && clients.connected().is_empty());
}

#[test]
fn a_busy_server_stops() {
    let disk = GatedDisk::new(256);
    let settings = ServerSettings { drain_timeout: Duration::from_secs(60), ..ServerSettings::default() };
    let mut server = ServerThread::unix(disk.exports(), settings);
    let socket = server.socket();
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let socket = socket.clone();
            std::thread::spawn(move || {
                use std::io::{Read, Write};
                let mut stream = RawClient::connect(&socket, true).stream;
                let mut reader = stream.try_clone().unwrap();
                let drain = std::thread::spawn(move || reader.read_to_end(&mut Vec::new()));
                let request = RawClient::header(0, READ, 1, 0, 65536);
                while stream.write_all(&request).is_ok() {}
                let _ = drain.join().unwrap();
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(100));
    server.stop.stop();
    server.join();
    busy.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn zeroing_at_length_is_given_up_when_the_server_stops() {
    const ESHUTDOWN: u32 = 108;
    let (disk, mut server, mut client) = served(16 << 10, true);
    let idle = RawClient::connect(&server.socket(), true);
    disk.gate_writes.store(true, Ordering::SeqCst);
    disk.open_gate(false);
    client.send(NO_HOLE, WRITE_ZEROES, 0, 64 << 20, &[]);
    wait_until("the first piece in the disk", || disk.at_gate.load(Ordering::SeqCst) == 1);
    server.stop.stop();
    // The idle connection is closed only after every connection has been told to stop.
    assert!(idle.closed());
    disk.open_gate(true);
    assert_eq!(client.receive(|_| None).1, Reply::Failed(ESHUTDOWN));
    server.join();
    assert_eq!(disk.writes.load(Ordering::SeqCst), 1);
}

#[test]
fn a_locked_directory_does_not_keep_a_server_from_starting() {
    let directory = tempfile::tempdir().unwrap();
    let other = std::fs::File::open(directory.path()).unwrap();
    other.lock().unwrap();
    let server = bind(&Listen::Unix(directory.path().join("s"))).unwrap();
    drop((server, other));
}

#[test]
fn a_stop_before_the_start_counts() {
    let server = bind(&Listen::tcp("127.0.0.1:0").unwrap()).unwrap();
    let stop = StopHandle::new().unwrap();
    stop.clone().stop();
    server.run(&stop).unwrap();
}

#[test]
fn sockets_are_taken_over_from_a_service_manager() {
    let example = std::env::current_exe().unwrap().parent().unwrap().join("../examples/serve");
    skip_unless!(is_program_available("nbdinfo"));
    skip_unless!(example.exists(), "examples/serve is not built");
    // libnbd starts a server for itself with socket activation.
    let size = run("nbdinfo", &["--size", "--", "[", text(&example), "activated", "memory:3", "]"]);
    assert_eq!(String::from_utf8_lossy(&size.stdout).trim(), (3 << 20).to_string());
}
