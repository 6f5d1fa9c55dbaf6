//! Servers of disks with levels are killed under load, with a client on each level. Afterwards
//! every block of every level is one whole version of itself, at least as new as the last flush.
//!
//! `LACUNA_KILLS` sets how often each combination is killed, for the long run; `LACUNA_SEED` sets
//! the seed.

use crate::harness::{Scene, cases};
use crate::nbd_client::Client;
use crate::write_verifier::{WriteVerifier, Xorshift};
use lacuna_testkit::env_number;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of blocks of each level that are overwritten repeatedly.
const BLOCKS: u64 = 256;
/// Kills of each combination in a short run.
const KILLS: u64 = 3;
/// Levels, by the names of their exports.
const EXPORTS: [&str; 3] = ["0", "1", "2"];

/// Kills servers of disks with one, two and three levels.
fn killed(shape: &[&str]) {
    for levels in 1..=EXPORTS.len() {
        killed_with(shape, levels);
    }
}

fn killed_with(shape: &[&str], levels: usize) {
    let scene = Scene::new();
    let keys = ["key", "second", "third"];
    keys[1..].iter().for_each(|key| fs::write(scene.path(key), key).unwrap());
    let count = levels.to_string();
    let mut options = [shape, &["--size", "128M", "--levels", &count, "--cover", "20"]].concat();
    options.extend(keys[1..levels].iter().flat_map(|key| ["--key-file", key]));
    scene.create("disk.img", &options).code(0);
    let deepest = keys[levels - 1];
    let seed = env_number("LACUNA_SEED", 1);
    let mut dice = Xorshift(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut books: Vec<WriteVerifier> =
        EXPORTS[..levels].iter().map(|export| WriteVerifier::new(export, 0..BLOCKS, 24)).collect();
    for kill in 0..env_number("LACUNA_KILLS", KILLS) {
        let what = format!("{shape:?}, {levels} levels, kill {kill} of seed {seed}");
        let mut server = scene.serve_with_key(deepest);
        verify(&mut books, &server.socket, &what);
        let pause = Duration::from_micros(dice.below(300_000));
        let acknowledged: Vec<AtomicU64> = books.iter().map(|_| AtomicU64::new(0)).collect();
        std::thread::scope(|scope| {
            let writers: Vec<_> = books
                .iter_mut()
                .zip(&acknowledged)
                .map(|(book, acknowledged)| {
                    let (socket, mut dice) = (&server.socket, Xorshift(dice.below(u64::MAX) | 1));
                    scope.spawn(move || book.write_until_death(socket, &mut dice, acknowledged))
                })
                .collect();
            // During writes on every level.
            let begun = || acknowledged.iter().all(|count| count.load(Ordering::Relaxed) > 0);
            while !begun() && !writers.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                std::thread::yield_now();
            }
            std::thread::sleep(pause);
            server.kill_now();
        });
        server.kill();
    }
    let server = scene.serve_with_key(deepest);
    verify(&mut books, &server.socket, &format!("{shape:?}, {levels} levels"));
    assert_eq!(server.stop(), 0);
    scene.lacuna(&["check", "disk.img", "--key-file", deepest]).code(0);
}

fn verify(books: &mut [WriteVerifier], socket: &std::path::Path, what: &str) {
    for (book, export) in books.iter_mut().zip(EXPORTS) {
        let mut client = Client::connect_to(socket, export).unwrap();
        book.verify(&mut client, &format!("{what}, level {export}"));
    }
}

cases! {
    deniable => killed(&["--format", "deniable"]);
    oblivious => killed(&["--format", "oblivious"]);
    oblivious_and_plausible => killed(&["--format", "oblivious", "--hiding", "plausible"]);
}
