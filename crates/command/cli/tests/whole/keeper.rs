//! Servers that die and are started again by their keeper, with all acknowledged writes.

use crate::harness::{Scene, Serving, Signal, send, wait_until};
use crate::nbd_client::Client;
use crate::write_verifier::{WriteVerifier, Xorshift};
use lacuna_testkit::env_number;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCKS: u64 = 6000;

/// Starts a server of `disk.img` with a keeper, whose process the result holds.
pub(crate) fn serve_kept(scene: &Scene, options: &[&str]) -> Serving {
    serve_location(scene, "disk.img", options)
}

fn serve_location(scene: &Scene, location: &str, options: &[&str]) -> Serving {
    let args = ["serve", location, "--socket", "nbd.sock", "--key-file", "key"];
    scene.serve_kept(&mut scene.command(&[&args[..], options].concat()))
}

/// The process of the server that a keeper has started.
pub(crate) fn server_of(keeper: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok()
}

/// Kills the servers of a keeper while clients write, and compares the disk after each kill. Each
/// client reconnects at once: its connection waits until the next server accepts it. `what` names
/// the disk in messages.
pub(crate) fn kill_while_writing(serving: &Serving, writers: &mut [WriteVerifier], kills: u64, what: &str) {
    let (keeper, seed) = (serving.process(), env_number("LACUNA_SEED", 1));
    writers.iter_mut().for_each(WriteVerifier::keep_acknowledged);
    for kill in 0..kills {
        let mut dice = Xorshift(seed * 1000 + kill + 1);
        let server = server_of(keeper).expect("a server");
        let (acknowledged, enough) = (AtomicU64::new(0), 20 + dice.below(400));
        std::thread::scope(|scope| {
            for (writer, at) in writers.iter_mut().zip(1..) {
                let (socket, acknowledged) = (&serving.socket, &acknowledged);
                let mut dice = Xorshift(seed * 1000 + kill * 10 + at);
                scope.spawn(move || writer.write_until_death(socket, &mut dice, acknowledged));
            }
            while acknowledged.load(Ordering::Relaxed) < enough {
                std::thread::yield_now();
            }
            send(Signal::KILL, server);
        });
        verify_all(&serving.socket, writers, &format!("{what}, seed {seed}, kill {kill}"));
        assert!(server_of(keeper).is_some_and(|now| now != server));
    }
}

/// Compares the blocks of all writers with the disk of a server.
pub(crate) fn verify_all(socket: &Path, writers: &mut [WriteVerifier], what: &str) {
    let mut client = Client::connect(socket).unwrap();
    writers.iter_mut().for_each(|writer| writer.verify(&mut client, what));
}

/// Kills servers while clients write, and closes the disk.
fn kill_servers(location: &str, create: &[&str], options: &[&str]) {
    let scene = Scene::new();
    scene.create(location, &[&["--size", "96M"], create].concat()).code(0);
    let serving = serve_location(&scene, location, options);
    let what = format!("{location} {}", [create, options].concat().join(" "));
    let mut writers =
        [0..BLOCKS, BLOCKS..2 * BLOCKS, 2 * BLOCKS..3 * BLOCKS].map(|all| WriteVerifier::new("", all, 600));
    kill_while_writing(&serving, &mut writers, env_number("LACUNA_KILLS", 10), &what);
    assert_eq!(serving.stop(), 0);
    // Closing made everything durable: the memory is gone, and the blocks are the same.
    let serving = scene.serve_disk(location, &[]);
    verify_all(&serving.socket, &mut writers, &format!("{what}, closed"));
    assert_eq!(serving.stop(), 0);
    scene.lacuna(&["check", location, "--key-file", "key"]).code(0);
}

#[test]
fn killed_servers_keep_acknowledged_writes_with_xts_random() {
    kill_servers("disk.img", &["--cipher", "xts-random"], &[]);
}

#[test]
fn killed_servers_keep_acknowledged_writes_with_gcm() {
    kill_servers("disk.img", &["--cipher", "gcm"], &["--cache", "2M"]);
}

#[test]
fn killed_servers_keep_acknowledged_writes_with_xts() {
    kill_servers("disk.img", &["--cipher", "xts"], &["--cache", "8M"]);
}

#[test]
fn killed_servers_keep_acknowledged_writes_on_flash() {
    kill_servers("nand:chip.img", &["--chip", "page=2K,pages=32,bad=10"], &["--purge-above", "1M"]);
}

#[test]
fn a_killed_server_on_flash_keeps_writes_discards_and_sensitive_places() {
    let scene = Scene::new();
    scene.create("nand:chip.img", &["--size", "32M"]).code(0);
    let options = ["--sensitive", "0-64K", "--purge-period", "0"];
    let serving = serve_location(&scene, "nand:chip.img", &options);
    let (keeper, socket) = (serving.process(), serving.socket.clone());
    let mut client = Client::connect(&socket).unwrap();
    client.write_at(0, &[4; 4096]).unwrap();
    client.write_at(1 << 20, &[1; 8192]).unwrap();
    client.flush().unwrap();
    client.discard(1 << 20, 4096).unwrap();
    client.write_at((1 << 20) + 4096, &[2; 8192]).unwrap();
    client.discard((1 << 20) + 8192, 4096).unwrap();
    send(Signal::KILL, server_of(keeper).unwrap());
    let mut client = Client::connect(&socket).unwrap();
    let expected = [[0_u8; 4096], [2; 4096], [0; 4096]].concat();
    assert_eq!(client.read_at(1 << 20, 12288).unwrap(), expected);
    assert_eq!(client.read_at(0, 4096).unwrap(), [4; 4096]);
    // Not purged yet, and then purged at once by a write to a sensitive place.
    assert!(recoverable(&scene) > 0);
    client.write_at(0, &[5; 4096]).unwrap();
    assert_eq!(recoverable(&scene), 0);
    drop(client);
    assert_eq!(serving.stop(), 0);
}

/// The blocks that are recoverable on the served chip.
fn recoverable(scene: &Scene) -> u64 {
    let status = scene.lacuna(&["status", "nand:chip.img", "--json"]).code(0).json();
    let items = status["servers"][0]["items"].as_array().unwrap();
    items.iter().find(|item| item["name"] == "recoverable").unwrap()["value"].as_u64().unwrap()
}

#[test]
fn a_server_in_the_background_is_started_again_and_closed() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let args =
        ["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key", "--fork", "--pid-file", "pid"];
    scene.lacuna(&args).code(0);
    let keeper: u32 = fs::read_to_string(scene.path("pid")).unwrap().trim().parse().unwrap();
    let socket = scene.path("nbd.sock");
    let mut client = Client::connect(&socket).unwrap();
    client.write_at(8192, &[7; 4096]).unwrap();
    send(Signal::KILL, server_of(keeper).unwrap());
    let mut client = Client::connect(&socket).unwrap();
    assert_eq!(client.read_at(8192, 4096).unwrap(), [7; 4096]);
    drop(client);
    scene.lacuna(&["status", "disk.img"]).code(0);
    scene.lacuna(&["close", "disk.img"]).code(0);
    wait_until("the end of the keeper", || !fs::exists(format!("/proc/{keeper}")).unwrap());
    assert!(!fs::exists(&socket).unwrap() && !fs::exists(scene.path("pid")).unwrap());
}

#[test]
fn a_server_goes_on_without_its_keeper() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let mut serving = serve_kept(&scene, &[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(0, &[1; 4096]).unwrap();
    serving.kill();
    client.write_at(4096, &[2; 4096]).unwrap();
    client.flush().unwrap();
    drop(client);
    // The server is the only holder of the disk now, and has ended when the close returns.
    scene.lacuna(&["close", "disk.img"]).code(0);
    let serving = scene.serve(&[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    assert_eq!(client.read_at(0, 8192).unwrap(), [[1; 4096], [2; 4096]].concat());
}

/// A `rescue` or a backup may have the file for as long as it likes.
#[test]
fn a_keeper_waits_for_another_program_that_has_the_file() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let manager = UnixDatagram::bind(scene.path("notify")).unwrap();
    manager.set_nonblocking(true).unwrap();
    let mut serve = scene.command(&["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key"]);
    let serving = scene.serve_kept(serve.env("NOTIFY_SOCKET", scene.path("notify")));
    let (keeper, server) = (serving.process(), server_of(serving.process()).unwrap());
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(8192, &[7; 4096]).unwrap();
    serving.signal(Signal::STOP);
    send(Signal::KILL, server);
    let file = fs::File::open(scene.path("disk.img")).unwrap();
    // The dead server has the lock until all its threads have ended.
    file.lock_shared().unwrap();
    serving.signal(Signal::CONT);
    let words = format!("its keeper (process {keeper}) starts it again as soon as it can: ");
    for verb in [&["status", "disk.img"][..], &["list"]] {
        wait_until("that the keeper names the obstacle", || {
            let shown = scene.lacuna(verb).stdout;
            shown.contains(&words) && shown.contains("in use by another process")
        });
    }
    // Servers say nothing without a watchdog: this is the keeper.
    let mut said = [0; 4096];
    wait_until("a sign of life", || {
        manager.recv(&mut said).is_ok_and(|len| said[..len].starts_with(b"WATCHDOG=1"))
    });
    drop((manager, file));
    let mut client = Client::connect(&serving.socket).unwrap();
    assert_eq!(client.read_at(8192, 4096).unwrap(), [7; 4096]);
    drop(client);
    assert!(!scene.lacuna(&["status", "disk.img"]).code(0).stdout.contains("as soon as it can"));
    assert_eq!(serving.stop(), 0);
}

/// Nothing may read the output by then, and a full pipe would stop the server.
#[test]
fn a_server_that_follows_does_not_print_its_address_again() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let printed = || fs::read_to_string(scene.path("out")).unwrap();
    let mut serve = scene.command(&["serve", "disk.img", "--socket", "nbd.sock", "--key-file", "key"]);
    let mut keeper = serve.stdout(fs::File::create(scene.path("out")).unwrap()).spawn().unwrap();
    wait_until("the address", || printed().ends_with('\n'));
    send(Signal::KILL, server_of(keeper.id()).unwrap());
    // The next server accepts this client after it would have printed.
    Client::connect(&scene.path("nbd.sock")).unwrap().read_at(0, 4096).unwrap();
    send(Signal::TERM, keeper.id());
    assert!(keeper.wait().unwrap().success());
    assert_eq!(printed().lines().count(), 1, "{}", printed());
}

/// The keeper finds the death of its server and the signal at once.
#[test]
fn a_signal_that_comes_between_two_servers_ends_the_next_one() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let server = server_of(serving.process()).unwrap();
    serving.signal(Signal::STOP);
    send(Signal::KILL, server);
    wait_until("the death of the server", || {
        fs::read_to_string(format!("/proc/{server}/stat")).unwrap().contains(") Z ")
    });
    serving.signal(Signal::TERM);
    serving.signal(Signal::CONT);
    assert_eq!(serving.wait(), 0);
}

/// The next server gets the writes, and closes the disk.
#[test]
fn a_server_that_cannot_close_the_disk_leaves_its_writes() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    client.write_at(8192, &[7; 4096]).unwrap();
    drop(client);
    // The limit lets the writes of this server to its file fail, and not those of the next one.
    let server = server_of(serving.process()).unwrap();
    let limit = Rlimit { current: Some(1 << 16), maximum: Some(1 << 16) };
    prlimit(Some(Pid::from_raw(server.cast_signed()).unwrap()), Resource::Fsize, limit).unwrap();
    assert_eq!(serving.stop(), 0);
    let serving = scene.serve(&[]);
    let mut client = Client::connect(&serving.socket).unwrap();
    assert_eq!(client.read_at(8192, 4096).unwrap(), [7; 4096]);
}

#[test]
fn a_disk_that_is_damaged_while_its_server_is_dead_ends_the_keeper_with_an_error() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    let serving = serve_kept(&scene, &[]);
    let server = server_of(serving.process()).unwrap();
    fs::File::options().write(true).open(scene.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
    send(Signal::KILL, server);
    assert_eq!(serving.wait(), 10);
}
