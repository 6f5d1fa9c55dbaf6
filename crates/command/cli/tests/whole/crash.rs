//! Tests of the death of the program, and of signals at any time.

use crate::harness::{Scene, Signal, cases, skipped, wait_until};
use crate::nbd_client::Client;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;
/// Number of blocks that are overwritten repeatedly.
const BLOCKS: u64 = 700;

fn block_of(number: u64) -> u64 {
    number * 31 % BLOCKS
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// Writes numbers, with a flush after every eighth, until the server dies. Returns the last flushed
/// and the last sent number.
fn write_until_death(socket: &std::path::Path, progress: &AtomicU64) -> (u64, u64) {
    let mut client = Client::connect(socket).unwrap();
    let mut flushed = 0;
    for number in 1.. {
        let step = |client: &mut Client| -> io::Result<bool> {
            client.write_at(block_of(number) * BLOCK, &content(number))?;
            if number % 8 == 0 {
                client.flush()?;
            }
            Ok(number % 8 == 0)
        };
        match step(&mut client) {
            Ok(true) => flushed = number,
            Ok(false) => {}
            Err(_) => return (flushed, number),
        }
        progress.store(number, Ordering::Relaxed);
    }
    unreachable!()
}

fn survives_kill(cipher: &str) {
    let scene = Scene::with_disk(&["--size", "64M", "--cipher", cipher]);
    let mut server = scene.serve(&["--cache", "2M"]);
    let socket = server.socket.clone();
    let progress = AtomicU64::new(0);
    let (flushed, sent) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until_death(&socket, &progress));
        while progress.load(Ordering::Relaxed) < 3000 && !writer.is_finished() {
            std::thread::yield_now();
        }
        server.kill();
        writer.join().unwrap()
    });
    assert!(flushed >= 2992);
    // The dead server's socket does not prevent the next server.
    scene.serve(&[]).used_by(|client| {
        for block in 0..BLOCKS {
            let data = client.read_at(block * BLOCK, BLOCK as usize).unwrap();
            let found = u64::from_le_bytes(data[..8].try_into().unwrap());
            assert!(data == content(found), "block {block} mixes several versions");
            let least = (1..=flushed).rev().find(|n| block_of(*n) == block).unwrap_or(0);
            assert!(found == 0 || block_of(found) == block);
            assert!(
                (least..=sent).contains(&found),
                "{cipher}: block {block} holds {found}; flushed were {least}, sent {sent}"
            );
        }
    });
    scene.lacuna(&["check", "disk.img", "--key-file", "key"]).code(0);
}

cases! {
    killed_with_xts => survives_kill("xts");
    killed_with_xts_random => survives_kill("xts-random");
    killed_with_gcm => survives_kill("gcm");
}

#[test]
fn a_disk_that_was_not_closed_is_read_and_not_repaired() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let mut server = scene.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &content(7)).unwrap();
    client.flush().unwrap();
    server.kill();
    let before = fs::read(scene.path("disk.img")).unwrap();
    let check = ["check", "disk.img", "--key-file", "key"];
    scene.lacuna(&[&check[..], &["--read-only"]].concat()).code(0);
    let mut reader = scene.serve(&["--read-only"]);
    assert!(Client::connect(&reader.socket).unwrap().read_at(0, content(7).len()).unwrap() == content(7));
    reader.kill();
    assert!(fs::read(scene.path("disk.img")).unwrap() == before, "reading wrote");
    scene.lacuna(&check).code(0);
    assert!(fs::read(scene.path("disk.img")).unwrap() != before, "nothing was to be repaired");
}

#[test]
fn the_socket_of_a_dead_server_is_removed() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let mut server = scene.serve(&[]);
    scene.lacuna(&["status", "disk.img"]).code(0);
    let instance = scene.control("disk.img", "nbd").parent().unwrap().to_owned();
    server.kill();
    // Commands of other tests may open the directory at the same moment and then leave it.
    wait_until("that the remains of a dead server are cleared away", || {
        scene.lacuna(&["status", "disk.img"]).code(4);
        !instance.exists()
    });
}

#[test]
fn signals_flush_and_end_with_0() {
    use Signal as S;
    let scene = Scene::with_disk(&["--size", "64M"]);
    for signals in [&[S::INT][..], &[S::TERM], &[S::HUP], &[S::TERM, S::INT, S::TERM]] {
        if signals[0] == S::HUP && ignores_hup() {
            skipped("these tests were started with HUP ignored");
            continue;
        }
        let server = scene.serve(&["--pid-file", "pid"]);
        assert!(scene.path("pid").exists());
        let mut client = Client::connect(&server.socket).unwrap();
        client.write_at(1 << 20, &content(9)).unwrap();
        // Not flushed, and the client is still connected: the server must end by itself.
        signals.iter().for_each(|signal| server.signal(*signal));
        assert_eq!(server.wait(), 0, "{signals:?}");
        assert!(!scene.path("pid").exists());
        let data =
            scene.serve(&["--read-only"]).used_by(|client| client.read_at(1 << 20, BLOCK as usize).unwrap());
        assert!(data == content(9));
    }
}

/// Whether this process, and so a server that it starts, ignores HUP.
fn ignores_hup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

#[test]
fn a_server_under_nohup_survives_its_terminal() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_lacuna"), "serve", "disk.img"]);
    let server = scene.serve_command(shell.args(["--socket", "nbd.sock", "--key-file", "key"]));
    server.signal(Signal::HUP);
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &content(9)).unwrap();
    client.flush().unwrap();
    assert_eq!(server.stop(), 0);
}
