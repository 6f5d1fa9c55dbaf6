//! Servers of disks in a pool that die and are started again by their keeper: with all acknowledged
//! writes, unless another client has had the disk meanwhile.
//!
//! `LACUNA_KILLS` sets how often the server of each combination is killed, `LACUNA_SEED` the seed.

use crate::harness::{Scene, Serving, Signal, noise, send, wait_until};
use crate::keeper::{kill_while_writing, server_of, verify_all};
use crate::nbd_client::Client;
use crate::pool::{Cluster, PoolDisk};
use crate::write_verifier::WriteVerifier;
use lacuna_testkit::env_number;
use std::fs;

/// Number of blocks of each of three writers.
const EACH: u64 = 2000;

/// Starts a server with a keeper. The result holds the process of the keeper.
fn serve_kept(disk: &PoolDisk, options: &[&str]) -> Serving {
    let words = disk.words(&["serve"], &["--socket", "nbd.sock", "--key-file", "key"]);
    disk.scene.serve_kept(disk.scene.command(&words).args(options))
}

/// Kills servers while clients write, and closes the disk.
fn kill_servers(cipher: &str, layout: &str, options: &[&str]) {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "24M", "--cipher", cipher, "--layout", layout]);
    let serving = serve_kept(&disk, options);
    let what = format!("{cipher} {layout}");
    let mut writers = [0, 1, 2].map(|writer| WriteVerifier::new("", writer * EACH..(writer + 1) * EACH, 300));
    kill_while_writing(&serving, &mut writers, env_number("LACUNA_KILLS", 4), &what);
    assert_eq!(serving.stop(), 0);
    assert_eq!(disk.lockers(), 0);
    // Closing made everything durable: the memory is gone, and the blocks are the same.
    let serving = disk.serve(&[]);
    verify_all(&serving.socket, &mut writers, &format!("{what}, closed"));
    assert_eq!(serving.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
}

#[test]
fn killed_servers_keep_acknowledged_writes_with_gcm() {
    kill_servers("gcm", "adaptive", &[]);
}

#[test]
fn killed_servers_keep_acknowledged_writes_with_xts_random() {
    kill_servers("xts-random", "segment-end", &["--cache", "2M"]);
}

#[test]
fn killed_servers_with_write_through_are_started_again() {
    kill_servers("gcm", "segment-end", &["--write-through"]);
}

#[test]
fn a_server_in_the_background_is_started_again_and_closed() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    disk.keyed(&["serve"], &["--socket", "nbd.sock", "--fork", "--pid-file", "pid"]).code(0);
    let keeper: u32 = fs::read_to_string(disk.scene.path("pid")).unwrap().trim().parse().unwrap();
    let socket = disk.scene.path("nbd.sock");
    let mut client = Client::connect(&socket).unwrap();
    client.write_at(8192, &noise(7, 4096)).unwrap();
    // The server changes the header for its own user, and its successor opens the disk all the
    // same.
    disk.keyed(&["key", "refresh"], &["--yes", "--keep", "1"]).code(0);
    client.write_at(16384, &noise(8, 4096)).unwrap();
    send(Signal::KILL, server_of(keeper).unwrap());
    let mut client = Client::connect(&socket).unwrap();
    assert!(client.read_at(8192, 4096).unwrap() == noise(7, 4096));
    assert!(client.read_at(16384, 4096).unwrap() == noise(8, 4096));
    drop(client);
    disk.verb(&["close"], &[]).code(0);
    wait_until("the end of the keeper", || !fs::exists(format!("/proc/{keeper}")).unwrap());
    assert!(!fs::exists(&socket).unwrap() && !fs::exists(disk.scene.path("pid")).unwrap());
    assert_eq!(disk.lockers(), 0);
}

/// The keeper sleeps while its server dies and another client takes the disk. No older write may
/// replace the data of that client, whether it has the disk still or no more.
fn successor_is_refused(has_closed: bool) {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let serving = serve_kept(&disk, &[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(0, &noise(1, 4096)).unwrap();
    send(Signal::STOP, serving.process());
    send(Signal::KILL, server_of(serving.process()).unwrap());
    drop(client);
    let other = Scene::new();
    let between = disk.serve_in(&other, &disk.location, &[]);
    let mut client = Client::connect(&between.socket).unwrap();
    client.write_at(0, &noise(2, 4096)).unwrap();
    drop(client);
    let mut between = Some(between);
    if has_closed {
        assert_eq!(between.take().unwrap().stop(), 0);
    }
    send(Signal::CONT, serving.process());
    assert_eq!(serving.wait(), 5);
    between.into_iter().for_each(|between| assert_eq!(between.stop(), 0));
    assert_eq!(disk.lockers(), 0);
    let server = disk.serve(&["--read-only"]);
    assert!(Client::connect(&server.socket).unwrap().read_at(0, 4096).unwrap() == noise(2, 4096));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_successor_is_refused_after_another_client() {
    successor_is_refused(true);
}

#[test]
fn a_successor_is_refused_while_another_client_has_the_disk() {
    successor_is_refused(false);
}

#[test]
fn a_server_that_lost_the_disk_is_not_started_again() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let serving = serve_kept(&disk, &[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(0, &noise(1, 4096)).unwrap();
    disk.keyed(&["check"], &["--steal"]).code(0);
    assert_eq!(serving.wait(), 5);
    assert_eq!(disk.lockers(), 0);
}
