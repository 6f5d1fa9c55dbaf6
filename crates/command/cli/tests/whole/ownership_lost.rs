//! Servers that lose their disk to another client while they write: each ends by itself with exit
//! code 5.

use crate::harness::{Scene, Serving, noise, wait_until};
use crate::nbd_client::Client;
use crate::pool::{Cluster, PoolDisk};
use lacuna_testkit::env_number;
use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Total number of servers that lose their disk; `make test-long` sets a larger one.
const LOST_SERVERS: &str = "LACUNA_ROBBED";
/// Number of clients that write to each server.
const WRITERS: u64 = 4;

/// Serves the disk by force, and discards the server's messages.
fn steal_and_serve(disk: &PoolDisk, scene: &Scene, write_through: bool) -> Serving {
    let words = disk.words(&["serve"], &["--socket", "nbd.sock", "--key-file", "key", "--steal"]);
    let mut command = scene.command(&words);
    if write_through {
        command.arg("--write-through");
    }
    scene.serve_command_logging_to(&mut command, Stdio::null())
}

/// Writes until the server ends, and counts the writes.
fn keep_writing(server: &Serving, seed: u64, written: &AtomicU64) {
    let Ok(mut client) = Client::connect(&server.socket) else { return };
    for n in 0.. {
        let place = (seed * 37 + n * 11) % 900 * 65536;
        let data = noise(seed + n, 65536 << u8::from(n % 5 == 4));
        let done =
            client.write_at(place, &data).and_then(|()| if n % 7 == 6 { client.flush() } else { Ok(()) });
        if done.is_err() {
            return;
        }
        written.fetch_add(1, Ordering::SeqCst);
    }
}

/// Each server of a disk loses it to the next one; returns the exit codes of all except the last.
fn takeover_chain(disk: &PoolDisk, robbed: usize) -> Vec<i32> {
    let scenes = [Scene::new(), Scene::new()];
    let mut server = steal_and_serve(disk, &scenes[0], false);
    let codes = (0..robbed).map(|n| {
        let written = AtomicU64::new(0);
        let next = std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (server, written) = (&server, &written);
                scope.spawn(move || keep_writing(server, n as u64 * WRITERS + writer, written));
            }
            wait_until("writes", || written.load(Ordering::SeqCst) > 20);
            std::thread::sleep(Duration::from_millis(n as u64 * 53 % 600));
            steal_and_serve(disk, &scenes[(n + 1) % 2], n % 3 == 2)
        });
        std::mem::replace(&mut server, next).wait()
    });
    let codes = codes.collect();
    assert_eq!(server.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
    codes
}

#[test]
fn servers_that_lose_their_disk_while_writing_end_with_exit_code_5() {
    let count = env_number(LOST_SERVERS, 12) as usize;
    let mut codes = BTreeMap::<i32, usize>::new();
    std::thread::scope(|scope| {
        // Each thread has its own shared lock on the cluster: none may wait for another's.
        let chains = ["adaptive", "segment-end", "kv"].map(|layout| {
            scope.spawn(move || {
                let Some(cluster) = Cluster::shared() else { return vec![] };
                let options = ["--size", "64M", "--cipher", "gcm", "--layout", layout];
                takeover_chain(&PoolDisk::create(cluster, &options), count.div_ceil(3))
            })
        });
        for chain in chains {
            for code in chain.join().expect("a chain of servers") {
                *codes.entry(code).or_default() += 1;
            }
        }
    });
    println!("exit codes of robbed servers: {codes:?}");
    assert!(codes.keys().all(|code| *code == 5), "{codes:?}");
}
