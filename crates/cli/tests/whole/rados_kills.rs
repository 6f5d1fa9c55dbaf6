//! Clients killed at random moments under load: every block is then one whole version of itself, in every layout,
//! at least as new as what was flushed.
//!
//! `LACUNA_KILLS` says how often each combination is killed, for the long run; `LACUNA_SEED` where the randomness
//! begins.

use crate::nbd_client::Client;
use crate::pool::{Cluster, PoolDisk};
use crate::scene::Serving;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks of the disk, and of the part of it that each writer has for itself.
const BLOCKS: u64 = 4096;
const WRITERS: u64 = 4;
const EACH: u64 = BLOCKS / WRITERS;
/// Kills of each combination in a short run.
const KILLS: u64 = 6;

/// A block that says what it is: its address, the version, and a sum of all of it.
fn content(block: u64, version: u64) -> Vec<u8> {
    let mut state =
        block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xd6e8_feb8_6659_fd93) | 1;
    let mut bytes = Vec::with_capacity(BLOCK);
    bytes.extend(block.to_le_bytes());
    bytes.extend(version.to_le_bytes());
    while bytes.len() < BLOCK {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// The version that a block holds, 0 if it was never written; `None` for a mixture.
fn version_in(block: u64, bytes: &[u8]) -> Option<u64> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let whole = if version == 0 { bytes.iter().all(|b| *b == 0) } else { bytes == content(block, version) };
    whole.then_some(version)
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What a writer knows of its blocks: the last version sent of each, and the last one flushed.
struct Book {
    first: u64,
    sent: Vec<u64>,
    flushed: Vec<u64>,
    version: u64,
}

impl Book {
    fn new(first: u64) -> Book {
        Book { first, sent: vec![0; EACH as usize], flushed: vec![0; EACH as usize], version: 0 }
    }

    /// Writes runs of blocks, small and large, and flushes now and then, until the server dies.
    fn write_until_death(&mut self, server: &Serving, dice: &mut Dice, acknowledged: &AtomicU64) {
        let Ok(mut client) = Client::connect(&server.socket) else { return };
        loop {
            let most = if dice.below(8) == 0 { 300 } else { 6 };
            let count = 1 + dice.below(most);
            let at = dice.below(EACH - count + 1);
            self.version += 1;
            let mut data = Vec::with_capacity(count as usize * BLOCK);
            for block in at..at + count {
                data.extend(content(self.first + block, self.version));
                self.sent[block as usize] = self.version;
            }
            if client.write_at((self.first + at) * BLOCK as u64, &data).is_err() {
                return;
            }
            if dice.below(12) == 0 {
                // What is flushed is what was acknowledged before: all of it, in this thread.
                if client.flush().is_err() {
                    return;
                }
                self.flushed.copy_from_slice(&self.sent);
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Every block holds one whole version that it may hold; from here on, that one is the flushed one.
    fn verify(&mut self, client: &mut Client, what: &str) {
        for (at, blocks) in (0..EACH).step_by(256).map(|at| (at, 256.min(EACH - at))) {
            let first = self.first + at;
            let data = client.read_at(first * BLOCK as u64, blocks as usize * BLOCK).unwrap();
            for (block, bytes) in (at..).zip(data.chunks_exact(BLOCK)) {
                let (sent, flushed) = (self.sent[block as usize], self.flushed[block as usize]);
                let name = self.first + block;
                let version = version_in(name, bytes);
                let version = version.unwrap_or_else(|| panic!("{what}: block {name} is a mixture"));
                assert!(
                    (flushed..=sent).contains(&version),
                    "{what}: block {name} holds version {version}; flushed was {flushed}, sent {sent}"
                );
                self.flushed[block as usize] = version;
                self.sent[block as usize] = version;
            }
        }
    }
}

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect(variable))
}

fn killed(cipher: &str, layout: &str) {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "16M", "--cipher", cipher, "--layout", layout]);
    let seed = number("LACUNA_SEED", 1);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut books: Vec<Book> = (0..WRITERS).map(|writer| Book::new(writer * EACH)).collect();
    for kill in 0..number("LACUNA_KILLS", KILLS) {
        let what = format!("{cipher} {layout}, kill {kill} of seed {seed}");
        // A snapshot now and then: what is overwritten after it is copied by the store first.
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
                        (&server, &acknowledged, Dice(dice.below(u64::MAX) | 1));
                    scope.spawn(move || book.write_until_death(server, &mut dice, acknowledged))
                })
                .collect();
            // In the middle of the work, wherever that happens to be.
            while acknowledged.load(Ordering::Relaxed) == 0 && !writers.iter().all(|w| w.is_finished()) {
                std::thread::yield_now();
            }
            std::thread::sleep(pause);
            server.kill_now();
        });
        server.kill();
    }
    let server = disk.serve(&["--steal"]);
    let mut client = Client::connect(&server.socket).unwrap();
    books.iter_mut().for_each(|book| book.verify(&mut client, cipher));
    drop(client);
    assert_eq!(server.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
}

#[test]
fn xts() {
    killed("xts", "segment-end");
}

#[test]
fn xts_random_adaptive() {
    killed("xts-random", "adaptive");
}

#[test]
fn xts_random_at_segment_end() {
    killed("xts-random", "segment-end");
}

#[test]
fn xts_random_interleaved() {
    killed("xts-random", "interleaved");
}

#[test]
fn xts_random_in_keys() {
    killed("xts-random", "kv");
}

#[test]
fn gcm_adaptive() {
    killed("gcm", "adaptive");
}

#[test]
fn gcm_at_segment_end() {
    killed("gcm", "segment-end");
}

#[test]
fn gcm_interleaved() {
    killed("gcm", "interleaved");
}

#[test]
fn gcm_in_keys() {
    killed("gcm", "kv");
}
