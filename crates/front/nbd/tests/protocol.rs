//! Tests of the protocol with a client that can send any message.

mod harness;

use harness::client::*;
use harness::{GatedDisk, ServerThread, served};
use lacuna_contracts::BLOCK_SIZE;
use lacuna_nbd::{Exports, ServerSettings};
use lacuna_testkit::{Rng, noise, wait_until};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

#[test]
fn options_are_answered_as_the_protocol_says() {
    let (zero, one) = (GatedDisk::new(16), GatedDisk::with(8, true));
    let server =
        ServerThread::unix(Exports::levels([zero.byte_disk(), one.byte_disk()]), ServerSettings::default());
    let mut client = RawClient::greet(&server.socket(), 3).unwrap();
    let last = |replies: Vec<(u32, Vec<u8>)>| replies.last().unwrap().0;

    let names: Vec<_> = client.option(OPT_LIST, &[]).into_iter().map(|(_, data)| data).collect();
    assert_eq!(names, [&b"\0\0\0\0"[..], b"\0\0\0\x010", b"\0\0\0\x011", b""]);
    assert_eq!(last(client.option(OPT_LIST, b"x")), ERR_INVALID);
    for unknown in [4, 11, 1000, u32::MAX] {
        assert_eq!(last(client.option(unknown, b"whatever")), ERR_UNSUP);
    }
    assert_eq!(last(client.option(OPT_STARTTLS, &[])), ERR_POLICY);
    assert_eq!(last(client.option(OPT_INFO, &info_query("2"))), ERR_UNKNOWN);
    assert_eq!(last(client.option(OPT_INFO, b"\xff\xff\xff\xff")), ERR_INVALID);
    assert_eq!(last(client.option(OPT_INFO, b"")), ERR_INVALID);
    assert_eq!(last(client.option(OPT_INFO, &vec![0; 200_000])), ERR_TOO_BIG);

    let info = client.option(OPT_INFO, &info_query("1"));
    assert_eq!(info[0].1[2..10], (8 * BLOCK_SIZE as u64).to_be_bytes());
    let flags = u16::from_be_bytes(info[0].1[10..12].try_into().unwrap());
    assert_eq!(flags & 2, 2, "read-only");
    assert_eq!(flags & 0x60, 0, "no trim, no write zeroes");
    assert_eq!(
        info[1].1,
        [&[0, 3][..], &4096u32.to_be_bytes(), &4096u32.to_be_bytes(), &(64u32 << 20).to_be_bytes()].concat()
    );
    assert_eq!(info[2].1, b"\0\x011");

    let query = meta_query("", &["base:allocation"]);
    assert_eq!(last(client.option(OPT_SET_META_CONTEXT, &query)), ERR_INVALID, "no structured replies yet");
    assert_eq!(last(client.option(OPT_STRUCTURED_REPLY, b"x")), ERR_INVALID);
    assert_eq!(last(client.option(OPT_STRUCTURED_REPLY, b"")), ACK);
    client.structured = true;
    assert_eq!(client.option(OPT_LIST_META_CONTEXT, &meta_query("", &[])).len(), 2);
    assert_eq!(client.option(OPT_LIST_META_CONTEXT, &meta_query("", &["base:"])).len(), 2);
    assert_eq!(client.option(OPT_LIST_META_CONTEXT, &meta_query("", &["qemu:"])).len(), 1);
    assert_eq!(last(client.option(OPT_LIST_META_CONTEXT, &meta_query("9", &[]))), ERR_UNKNOWN);
    assert_eq!(
        client.option(OPT_SET_META_CONTEXT, &meta_query("", &[])).len(),
        1,
        "nothing asked, nothing set"
    );
    let set = client.option(OPT_SET_META_CONTEXT, &query);
    assert_eq!(set[0], (4, [&1u32.to_be_bytes()[..], b"base:allocation"].concat()));
    // The context was selected for one export and another is used, so it does not apply.
    client.go("1");
    assert_eq!(client.call(0, BLOCK_STATUS, 0, 4096, &[]), Reply::Failed(22));
    assert_eq!(client.call(0, WRITE, 0, 4096, &[1; 4096]), Reply::Failed(1));
    assert_eq!(client.call(0, TRIM, 0, 4096, &[]), Reply::Failed(1));
    assert_eq!(client.read(0, 10), [0; 10]);
}

#[test]
fn the_option_export_name_works() {
    use std::io::Read;
    let disk = GatedDisk::new(4);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    for (client_flags, zeroes) in [(1, 124), (3, 0)] {
        let mut client = RawClient::greet(&server.socket(), client_flags).unwrap();
        client.send_option(OPT_EXPORT_NAME, b"0");
        let mut answer = vec![0; 10 + zeroes];
        client.stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], (4 * BLOCK_SIZE as u64).to_be_bytes());
        client.write(5, b"hello");
        assert_eq!(client.read(4, 7), b"\0hello\0");
    }
    let mut client = RawClient::greet(&server.socket(), 3).unwrap();
    client.send_option(OPT_EXPORT_NAME, b"none such");
    assert!(client.closed());
    let mut client = RawClient::greet(&server.socket(), 3).unwrap();
    assert_eq!(client.option(OPT_ABORT, &[]).last().unwrap().0, ACK);
    assert!(client.closed());
    assert!(RawClient::greet(&server.socket(), 0xff).unwrap().closed());
}

#[test]
fn requests_of_any_alignment_match_an_array() {
    for structured in [false, true] {
        let (disk, _server, mut client) = served(64, structured);
        assert_eq!(client.size, 64 * BLOCK_SIZE as u64);
        let mut model = noise(1, client.size as usize);
        client.write(0, &model);
        let mut random = Rng::new(7);
        for round in 0..600u64 {
            let offset = random.below(client.size);
            let length = random.below((client.size - offset).min(40_000) + 1);
            let range = offset as usize..(offset + length) as usize;
            match round % 5 {
                0 | 1 => {
                    let data = noise(round, length as usize);
                    client.write(offset, &data);
                    model[range.clone()].copy_from_slice(&data);
                }
                2 => {
                    let flags = if round % 2 == 0 { NO_HOLE } else { FUA };
                    let reply = client.call(flags, WRITE_ZEROES, offset, length as u32, &[]);
                    assert_eq!(reply, Reply::Done);
                    model[range.clone()].fill(0);
                }
                3 => assert_eq!(client.call(0, CACHE, offset, length as u32, &[]), Reply::Done),
                _ => {}
            }
            assert_eq!(client.read(offset, length as u32), model[range]);
        }
        assert!(disk.contents() == model);
    }
}

#[test]
fn many_requests_in_flight_are_all_answered_once() {
    for structured in [false, true] {
        let disk = GatedDisk::new(1024);
        let server =
            ServerThread::unix(disk.exports(), ServerSettings { workers: 3, ..ServerSettings::default() });
        let mut client = RawClient::connect(&server.socket(), structured);
        let contents = noise(3, client.size as usize);
        client.write(0, &contents);
        let mut random = Rng::new(11);
        for _ in 0..60 {
            let mut expected: HashMap<u64, (u64, Option<usize>)> = HashMap::new();
            for _ in 0..random.below(40) {
                let offset = random.below(1000) * 4096;
                let length = [512, 4096, 12288, 65536][random.below(4) as usize];
                let length = length.min(client.size - offset);
                let (start, end) = (offset as usize, (offset + length) as usize);
                let cookie = if random.below(3) == 0 {
                    let data = contents[start..end].to_vec();
                    let cookie = client.send(0, WRITE, offset, length as u32, &data);
                    expected.insert(cookie, (offset, None));
                    cookie
                } else {
                    let cookie = client.send(0, READ, offset, length as u32, &[]);
                    expected.insert(cookie, (offset, Some(length as usize)));
                    cookie
                };
                assert!(cookie > 0);
                if expected.values().filter_map(|(_, len)| *len).sum::<usize>() > 150_000 {
                    break;
                }
            }
            while !expected.is_empty() {
                let (cookie, reply) = client.receive(|cookie| expected[&cookie].1);
                let (offset, length) = expected.remove(&cookie).unwrap();
                match length {
                    Some(len) => assert_eq!(reply, Reply::Data(contents[offset as usize..][..len].to_vec())),
                    None => assert_eq!(reply, Reply::Done),
                }
            }
        }
    }
}

#[test]
fn block_status_is_exact_to_the_byte() {
    let (_disk, _server, mut client) = served(64, true);
    client.write(8 * 4096, &[1; 3 * 4096]);
    client.write(20 * 4096, &[1; 4096]);
    let all = vec![(8 * 4096, 3), (3 * 4096, 0), (9 * 4096, 3), (4096, 0), (43 * 4096, 3)];
    let size = client.size as u32;
    assert_eq!(client.call(0, BLOCK_STATUS, 0, size, &[]), Reply::Extents(all));
    assert_eq!(client.call(REQ_ONE, BLOCK_STATUS, 0, size, &[]), Reply::Extents(vec![(8 * 4096, 3)]));
    let odd = client.call(0, BLOCK_STATUS, 8 * 4096 - 1, 3 * 4096 + 3, &[]);
    assert_eq!(odd, Reply::Extents(vec![(1, 3), (3 * 4096, 0), (2, 3)]));
    let inside = client.call(REQ_ONE, BLOCK_STATUS, 8 * 4096 + 100, 1000, &[]);
    assert_eq!(inside, Reply::Extents(vec![(1000, 0)]));
    assert_eq!(client.call(0, BLOCK_STATUS, 0, 0, &[]), Reply::Failed(22));
    assert_eq!(client.call(0, BLOCK_STATUS, 4096, size, &[]), Reply::Failed(22));
    assert_eq!(client.call(0, TRIM, 8 * 4096 + 1, 3 * 4096 - 1, &[]), Reply::Done);
    let trimmed = client.call(0, BLOCK_STATUS, 0, 20 * 4096, &[]);
    assert_eq!(trimmed, Reply::Extents(vec![(8 * 4096, 3), (4096, 0), (11 * 4096, 3)]));
    assert_eq!(client.read(8 * 4096, 4096), [1; 4096]);
}

#[test]
fn failures_get_a_number_and_the_connection_goes_on() {
    use std::sync::{Arc, Mutex};
    for structured in [false, true] {
        let disk = GatedDisk::new(64);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = heard.clone();
        let settings = ServerSettings {
            report: Some(Arc::new(move |e| hearing.lock().unwrap().push(e.to_string()))),
            ..ServerSettings::default()
        };
        let server = ServerThread::unix(disk.exports(), settings);
        let mut client = RawClient::connect(&server.socket(), structured);
        let size = client.size;
        assert_eq!(client.call(0, READ, size, 1, &[]), Reply::Failed(22));
        assert_eq!(client.call(0, READ, u64::MAX, 4096, &[]), Reply::Failed(22));
        assert_eq!(client.call(0, WRITE, size - 1, 2, &[9; 2]), Reply::Failed(28));
        assert_eq!(client.call(0, WRITE_ZEROES, size - 1, 2, &[]), Reply::Failed(28));
        assert_eq!(client.call(NO_HOLE, WRITE_ZEROES, size - 1, 2, &[]), Reply::Failed(28));
        assert_eq!(client.call(0, CACHE, size - 1, 2, &[]), Reply::Failed(22));
        assert_eq!(client.call(0, TRIM, 0, u32::MAX, &[]), Reply::Failed(22));
        assert_eq!(client.call(0, 77, 0, 1, &[]), Reply::Failed(22));
        assert_eq!(client.call(0x8000, FLUSH, 0, 0, &[]), Reply::Failed(22));
        assert_eq!(client.call(REQ_ONE, WRITE, 0, 5, b"drain"), Reply::Failed(22));
        assert_eq!(client.call(0, READ, 0, (64 << 20) + 1, &[]), Reply::Failed(22));
        let too_long = vec![0x25; (64 << 20) + 1];
        assert_eq!(client.call(0, WRITE, 0, too_long.len() as u32, &too_long), Reply::Failed(22));
        let df = client.call(DF, READ, 0, 512, &[]);
        assert_eq!(df, if structured { Reply::Data(vec![0; 512]) } else { Reply::Failed(22) });
        assert!(heard.lock().unwrap().is_empty(), "nonsense from a client is not the disk's failure");
        disk.bad_block.store(5, Ordering::SeqCst);
        assert_eq!(client.call(0, READ, 4 * 4096, 8192, &[]), Reply::Failed(5));
        assert_eq!(client.call(0, WRITE, 5 * 4096, 10, &[0; 10]), Reply::Failed(5));
        assert_eq!(
            heard.lock().unwrap()[0],
            "export \"\": Read 8192 bytes at 16384: a block does not verify"
        );
        assert_eq!(client.read(0, 0), b"");
        assert_eq!(client.read(6 * 4096, 3), [0; 3]);
        client.write(7, b"");
        assert!(disk.contents().iter().all(|b| *b == 0));
    }
}

#[test]
fn the_longest_request_is_served() {
    // At least one request of that length finds memory at every level.
    let disks = [GatedDisk::new(17_000), GatedDisk::new(17_000)];
    let exports = Exports::levels(disks.iter().map(harness::GatedDisk::byte_disk));
    let server = ServerThread::unix(exports, ServerSettings::default());
    let data = noise(5, 64 << 20);
    for export in ["0", "1"] {
        let mut client = RawClient::greet(&server.socket(), 3).unwrap();
        client.go(export);
        client.write(4096 + 17, &data);
        assert!(client.read(4096 + 17, 64 << 20) == data);
    }
    let mut client = RawClient::connect(&server.socket(), true);
    assert!(client.call(DF, READ, 4096 + 17, 64 << 20, &[]) == Reply::Data(data));
}

#[test]
fn flush_and_fua_reach_the_disk_before_the_reply() {
    let (disk, _server, mut client) = served(16, false);
    client.write(0, b"x");
    assert_eq!(disk.flushes.load(Ordering::SeqCst), 0);
    let mut flushed = 0;
    for (flags, command, length) in [
        (0, FLUSH, 0),
        (FUA, WRITE, 4),
        (FUA, TRIM, 4096),
        (FUA, WRITE_ZEROES, 4096),
        (FUA | NO_HOLE, WRITE_ZEROES, 9),
    ] {
        let payload = if command == WRITE { &b"data"[..] } else { &[] };
        assert_eq!(client.call(flags, command, 0, length, payload), Reply::Done);
        flushed += 1;
        assert_eq!(disk.flushes.load(Ordering::SeqCst), flushed);
    }
    assert_eq!(client.call(FUA, READ, 0, 4, &[]), Reply::Data(vec![0; 4]));
}

#[test]
fn slow_flushes_do_not_hold_up_reads() {
    let disk = GatedDisk::new(16);
    let server =
        ServerThread::unix(disk.exports(), ServerSettings { workers: 2, ..ServerSettings::default() });
    let mut client = RawClient::connect(&server.socket(), true);
    disk.open_gate(false);
    for _ in 0..15 {
        client.send(0, FLUSH, 0, 0, &[]);
    }
    wait_until("fifteen flushes at once", || disk.at_gate.load(Ordering::SeqCst) == 15);
    // The sixteenth thread still answers.
    let cookie = client.send(0, READ, 0, 4096, &[]);
    assert_eq!(client.receive(|_| Some(4096)), (cookie, Reply::Data(vec![0; 4096])));
    disk.open_gate(true);
    for _ in 0..15 {
        assert_eq!(client.receive(|_| None).1, Reply::Done);
    }
    for _ in 0..200 {
        client.write(0, b"and afterwards as before");
    }
}

#[test]
fn a_write_is_visible_to_other_connections() {
    let disk = GatedDisk::new(16);
    let server = ServerThread::unix(disk.exports(), ServerSettings::default());
    let mut clients: Vec<_> = (0..8).map(|i| RawClient::connect(&server.socket(), i % 2 == 0)).collect();
    assert_ne!(clients[0].flags & (1 << 8), 0, "multiple connections are promised");
    for round in 0..100u64 {
        let data = noise(round, 300);
        clients[round as usize % 8].write(round * 11, &data);
        assert_eq!(clients[(round as usize * 5 + 3) % 8].read(round * 11, 300), data);
    }
}
