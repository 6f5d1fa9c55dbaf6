//! Tests with hostile clients, and with clients that die at the wrong moment.

mod harness;

use harness::client::*;
use harness::{GatedDisk, ServerThread, served};
use lacuna_nbd::{Clients, Exports, NbdRequest, REQUEST_LEN, ServerSettings, serve_replayed};
use lacuna_testkit::{Rng, noise, wait_until};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// The bytes of a valid client up to transmission.
fn opening() -> Vec<u8> {
    [
        3u32.to_be_bytes().to_vec(),
        option(OPT_STRUCTURED_REPLY, &[]),
        option(OPT_SET_META_CONTEXT, &meta_query("", &["base:allocation"])),
        option(OPT_GO, &info_query("")),
    ]
    .concat()
}

#[test]
fn no_bytes_break_the_server() {
    let disk = GatedDisk::new(16);
    let mut random = Rng::new(21);
    for round in 0..3000u64 {
        let len = random.below(400) as usize;
        let mut bytes = if round % 3 == 0 { Vec::new() } else { opening() };
        if round % 3 == 1 {
            for _ in 0..random.below(20) {
                let flags = random.below(16) as u16;
                let command = random.below(10) as u16;
                let length = random.below(70_000) as u32 >> random.below(17);
                bytes.extend(RawClient::header(flags, command, round, random.below(70_000), length));
                if command == WRITE {
                    bytes.extend(noise(round, length as usize));
                }
            }
        }
        bytes.extend(noise(round, len));
        for _ in 0..random.below(4) {
            let at = random.below(bytes.len() as u64 + 1) as usize;
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        serve_replayed(&bytes, disk.byte_disk());
    }
    for seed in 0..1000 {
        let mut header: [u8; REQUEST_LEN] = noise(seed, REQUEST_LEN).try_into().unwrap();
        let _ = NbdRequest::parse(&header);
        header[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        assert!(NbdRequest::parse(&header).is_ok());
    }
}

#[test]
fn a_scripted_client_is_served_to_its_end() {
    let disk = GatedDisk::new(16);
    let mut bytes = opening();
    let greeting = serve_replayed(&bytes, disk.byte_disk());
    bytes.extend(RawClient::header(0, WRITE, 1, 100, 5));
    bytes.extend(b"hello");
    bytes.extend(RawClient::header(0, READ, 2, 0, 8192));
    assert_eq!(serve_replayed(&bytes, disk.byte_disk()), greeting + 16 + 28 + 8192);
    assert_eq!(&disk.contents()[100..105], b"hello");
}

#[test]
fn a_write_cut_short_is_not_performed() {
    let disk = GatedDisk::new(1024);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    for sent in [0, 1, 4096, 70_000, (1 << 20) - 1] {
        let mut client = RawClient::connect(&server.socket(), true);
        client.send(0, WRITE, 4096, 1 << 20, &vec![7; sent]);
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert!(client.closed());
    }
    let mut half = RawClient::connect(&server.socket(), true);
    half.stream.write_all(&RawClient::header(0, WRITE, 1, 0, 1)[..20]).unwrap();
    drop(half);
    let mut client = RawClient::connect(&server.socket(), true);
    assert_eq!(client.read(0, 4096), [0; 4096]);
    assert_eq!(disk.writes.load(Ordering::SeqCst), 0);
}

#[test]
fn a_request_read_whole_is_performed_after_its_client_left() {
    let (disk, _server, mut client) = served(64, true);
    disk.open_gate(false);
    client.send(FUA, WRITE, 0, 4096, &[9; 4096]);
    wait_until("the write in the disk", || disk.at_gate.load(Ordering::SeqCst) == 1);
    drop(client);
    disk.open_gate(true);
    wait_until("the flush", || disk.flushes.load(Ordering::SeqCst) == 1);
    assert_eq!(disk.contents()[..4096], [9; 4096]);
}

#[test]
fn a_client_that_shuts_down_its_side_still_gets_its_replies() {
    let (_disk, _server, mut client) = served(64, true);
    for i in 0..20 {
        client.send(0, READ, i * 4096, 4096, &[]);
    }
    client.send(0, DISC, 0, 0, &[]);
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..20 {
        assert_eq!(client.receive(|_| Some(4096)).1, Reply::Data(vec![0; 4096]));
    }
    assert!(client.closed());
}

#[test]
fn an_invalid_request_ends_only_its_connection() {
    let disk = GatedDisk::new(64);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    let mut good = RawClient::connect(&server.socket(), true);
    let mut huge = RawClient::greet(&server.socket(), 3).unwrap();
    huge.stream.write_all(&[b"IHAVEOPT", &7u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat()).unwrap();
    assert!(huge.closed());
    let mut wrong = RawClient::greet(&server.socket(), 3).unwrap();
    wrong.stream.write_all(b"IHAVENOTHING....").unwrap();
    assert!(wrong.closed());
    let mut queries = RawClient::greet(&server.socket(), 3).unwrap();
    queries.option(OPT_STRUCTURED_REPLY, &[]);
    let many = [&0u32.to_be_bytes()[..], &u32::MAX.to_be_bytes(), &[0; 4000]].concat();
    assert_eq!(queries.option(OPT_SET_META_CONTEXT, &many)[0].0, ERR_INVALID);
    let mut lost = RawClient::connect(&server.socket(), true);
    lost.stream.write_all(&noise(4, 500)).unwrap();
    assert!(lost.closed());
    good.write(3, b"still here");
    assert_eq!(good.read(3, 10), b"still here");
}

#[test]
fn a_silent_client_is_disconnected_before_it_chooses_an_export() {
    let disk = GatedDisk::new(4);
    let settings = ServerSettings {
        handshake_timeout: Duration::from_secs(1),
        max_connections: 2,
        ..ServerSettings::default()
    };
    let server = ServerThread::unix(disk.exports(), settings);
    for said in [&b""[..], b"\0\0", b"\0\0\0\x03", b"\0\0\0\x03IHAVE"] {
        let mut stream = UnixStream::connect(server.socket()).unwrap();
        let _ = stream.write_all(said);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    // The time limit does not apply in transmission.
    let mut client = RawClient::connect(&server.socket(), true);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(client.read(0, 1), [0]);
}

#[test]
fn more_users_of_a_disk_than_allowed_are_closed_at_once() {
    let (disk, clients) = (GatedDisk::new(4), Clients::default());
    let settings =
        ServerSettings { max_connections: 2, clients: clients.clone(), ..ServerSettings::default() };
    let server = ServerThread::unix(disk.exports(), settings);
    let first = RawClient::connect(&server.socket(), true);
    let second = RawClient::connect(&server.socket(), true);
    wait_until("both clients", || clients.connected().len() == 2);
    let mut stream = UnixStream::connect(server.socket()).unwrap();
    let mut nothing = Vec::new();
    let _ = stream.read_to_end(&mut nothing);
    assert!(nothing.is_empty());
    drop(first);
    wait_until("a free place", || RawClient::greet(&server.socket(), 3).is_ok());
    drop(second);
}

/// There are more clients that say nothing than places, and the server waits days for each.
#[test]
fn silent_clients_keep_no_other_out() {
    let disk = GatedDisk::new(4);
    let settings = ServerSettings {
        handshake_timeout: Duration::from_secs(1_000_000),
        max_connections: 4,
        ..ServerSettings::default()
    };
    let server = ServerThread::unix(disk.exports(), settings);
    let silent = [(); 8].map(|()| UnixStream::connect(server.socket()).unwrap());
    let mut client = RawClient::connect(&server.socket(), true);
    client.write(3, b"data");
    assert_eq!(client.read(3, 4), b"data");
    // Four places were taken when four more silent clients came, and then the client.
    let [gone @ .., one, two, three] = silent;
    assert_eq!(gone.len(), 5);
    for mut stream in gone {
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert!(heard.len() <= 18, "a greeting at most");
    }
    // The remaining clients have not sent a byte, and can begin now.
    for mut stream in [one, two, three] {
        stream.read_exact(&mut [0; 18]).unwrap();
        stream.write_all(&opening()).unwrap();
        stream.write_all(&RawClient::header(0, DISC, 1, 0, 0)).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert!(heard.len() > 100, "{} bytes of replies to options", heard.len());
    }
    assert_eq!(client.read(3, 4), b"data");
}

#[test]
fn a_client_that_takes_no_replies_delays_no_other_client() {
    let disk = GatedDisk::new(1024);
    let server = ServerThread::unix(
        disk.exports(),
        ServerSettings { drain_timeout: Duration::from_millis(50), ..ServerSettings::default() },
    );
    let mut stalled: Vec<_> = (0..4).map(|_| RawClient::connect(&server.socket(), true)).collect();
    for client in &mut stalled {
        for _ in 0..12 {
            client.send(0, READ, 0, 4 << 20, &[]);
        }
        client.stream.write_all(&RawClient::header(0, WRITE, 99, 0, 64 << 20)).unwrap();
    }
    let mut client = RawClient::connect(&server.socket(), true);
    for round in 0..100 {
        let data = noise(round, 200_000);
        client.write(round, &data);
        assert_eq!(client.read(round, 200_000), data);
    }
    // Dropping the server with stalled clients must still end.
}

#[test]
fn requests_that_find_no_memory_are_answered() {
    const ENOMEM: u32 = 12;
    let disk = GatedDisk::new(4096);
    let server = ServerThread::unix(
        disk.exports(),
        ServerSettings { large_memory: 4 << 20, ..ServerSettings::default() },
    );
    let mut client = RawClient::connect(&server.socket(), true);
    client.send(0, READ, 0, 8 << 20, &[]);
    assert_eq!(client.receive(|_| Some(8 << 20)).1, Reply::Failed(ENOMEM));
    client.send(0, WRITE, 0, 8 << 20, &vec![1; 8 << 20]);
    assert_eq!(client.receive(|_| None).1, Reply::Failed(ENOMEM));
    assert_eq!(disk.writes.load(Ordering::SeqCst), 0);
    for len in [1 << 20, 3 << 20, 2 << 20, 100] {
        let data = noise(len, len as usize);
        client.write(5, &data);
        assert_eq!(client.read(5, len as u32), data);
    }
}

#[test]
fn requests_of_another_level_that_hang_take_no_memory_of_level_0() {
    const LARGE: usize = 64 << 20;
    let (zero, one) = (GatedDisk::new(LARGE / 4096), GatedDisk::new(LARGE / 4096));
    // Simulates hidden writes that wait for cover.
    one.gate_writes.store(true, Ordering::SeqCst);
    one.open_gate(false);
    let server =
        ServerThread::unix(Exports::levels([zero.byte_disk(), one.byte_disk()]), ServerSettings::default());
    let data = noise(5, LARGE);
    let to = |export| {
        let mut client = RawClient::greet(&server.socket(), 3).unwrap();
        client.go(export);
        client
    };
    std::thread::scope(|scope| {
        for _ in 0..10 {
            // Answered with success or an error when the gate opens.
            scope.spawn(|| to("1").call(0, WRITE, 0, LARGE as u32, &data));
        }
        wait_until("a hidden write", || one.at_gate.load(Ordering::SeqCst) > 0);
        let mut public = to("0");
        let done: Vec<_> = (0..4).map(|_| public.call(0, WRITE, 0, LARGE as u32, &data)).collect();
        one.open_gate(true);
        assert!(done.iter().all(|reply| *reply == Reply::Done), "{done:?}");
    });
    assert!(zero.contents() == data);
}

#[test]
fn a_client_that_sends_before_it_reads_is_served() {
    let (_disk, _server, mut client) = served(1024, true);
    // More replies than the socket buffer holds are due before the last request is sent.
    for i in 0..8 {
        client.send(0, READ, i * 4096, 60_000, &[]);
        client.send(0, WRITE, 2 << 20, 1 << 20, &vec![i as u8; 1 << 20]);
    }
    for _ in 0..16 {
        client.receive(|cookie| (cookie % 2 == 1).then_some(60_000));
    }
}
