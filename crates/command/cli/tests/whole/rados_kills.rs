//! Clients are killed at random moments under load. Afterwards every block is one whole version of
//! itself, in every layout, at least as new as the last flush.
//!
//! `LACUNA_KILLS` sets how often each combination is killed, for the long run; `LACUNA_SEED` sets
//! the seed.

use crate::harness::cases;
use crate::nbd_client::Client;
use crate::pool::{Cluster, PoolDisk};
use crate::write_verifier::{WriteVerifier, Xorshift};
use lacuna_testkit::env_number;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of blocks of the disk, of writers, and of blocks per writer.
const BLOCKS: u64 = 4096;
const WRITERS: u64 = 4;
const EACH: u64 = BLOCKS / WRITERS;
/// Kills of each combination in a short run.
const KILLS: u64 = 3;

fn killed(cipher: &str, layout: &str) {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "16M", "--cipher", cipher, "--layout", layout]);
    let seed = env_number("LACUNA_SEED", 1);
    let mut dice = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut books: Vec<WriteVerifier> =
        (0..WRITERS).map(|writer| WriteVerifier::new("", writer * EACH..(writer + 1) * EACH, 300)).collect();
    for kill in 0..env_number("LACUNA_KILLS", KILLS) {
        let what = format!("{cipher} {layout}, kill {kill} of seed {seed}");
        // Occasional snapshots: the store copies the old data before it is overwritten.
        if kill % 4 == 2 {
            let name = format!("s{kill}");
            disk.keyed(&["snapshot", "create"], &[&name, "--steal"]).code(0);
            if kill > 4 {
                disk.keyed(&["snapshot", "remove"], &[&format!("s{}", kill - 4)]).code(0);
            }
        }
        let options: &[&[&str]] = &[&[], &["--cache", "1M"], &["--write-through"]];
        let options = [options[dice.below(3) as usize], &["--steal"]].concat();
        let mut server = disk.serve(&options);
        let mut client = Client::connect(&server.socket).unwrap();
        books.iter_mut().for_each(|book| book.verify(&mut client, &what));
        drop(client);
        let pause = Duration::from_micros(dice.below(300_000));
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let writers: Vec<_> = books
                .iter_mut()
                .map(|book| {
                    let (server, acknowledged, mut dice) =
                        (&server, &acknowledged, Xorshift(dice.below(u64::MAX) | 1));
                    scope.spawn(move || book.write_until_death(&server.socket, &mut dice, acknowledged))
                })
                .collect();
            // During the writes, at any point of them.
            while acknowledged.load(Ordering::Relaxed) == 0
                && !writers.iter().all(std::thread::ScopedJoinHandle::is_finished)
            {
                std::thread::yield_now();
            }
            std::thread::sleep(pause);
            server.kill_now();
        });
        server.kill();
    }
    disk.serve(&["--steal"]).used_by(|client| books.iter_mut().for_each(|book| book.verify(client, cipher)));
    disk.keyed(&["check"], &[]).code(0);
}

cases! {
    xts => killed("xts", "segment-end");
    xts_random_adaptive => killed("xts-random", "adaptive");
    xts_random_at_segment_end => killed("xts-random", "segment-end");
    xts_random_interleaved => killed("xts-random", "interleaved");
    xts_random_in_keys => killed("xts-random", "kv");
    gcm_adaptive => killed("gcm", "adaptive");
    gcm_at_segment_end => killed("gcm", "segment-end");
    gcm_interleaved => killed("gcm", "interleaved");
    gcm_in_keys => killed("gcm", "kv");
}
