//! One writer: a second one is refused, takes over from a dead one, or takes over from a live one
//! by force; the live one then stops.

use crate::harness::{Scene, Signal, can_mount, noise, send, skip_unless, wait_until};
use crate::nbd_client::Client;
use crate::pool::{Cluster, PoolDisk};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;

#[test]
fn every_request_of_a_second_client_is_refused() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    disk.keyed(&["snapshot", "create"], &["then"]).code(0);
    let server = disk.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &noise(1, 4096)).unwrap();
    let refused = |verb: &[&str], rest: &[&str]| {
        let ran = disk.keyed(verb, rest).code(5);
        assert!(ran.stderr.contains("--steal"), "{verb:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(&disk.location), "{verb:?}: {}", ran.stderr);
    };
    refused(&["serve"], &["--socket", "other.sock"]);
    refused(&["serve"], &["--socket", "other.sock", "--fork"]);
    refused(&["serve"], &["--socket", "other.sock", "--read-only"]);
    // The server performs these verbs for its own user; a disk in a pool cannot grow while it is
    // open.
    disk.keyed(&["check"], &[]).code(0);
    disk.keyed(&["key", "refresh"], &["--yes", "--keep", "1"]).code(0);
    let ran = disk.keyed(&["resize"], &["--size", "128M"]).code(5);
    assert!(ran.stderr.contains("close it first"), "{}", ran.stderr);
    for verb in ["create", "remove", "rollback"] {
        refused(&["snapshot", verb], &["then"]);
    }
    disk.verb(&["delete"], &["--yes"]).code(5);
    disk.keyed(&["create"], &["--size", "64M", "--force"]).code(5);
    // Verbs that only read neither disturb the writer nor are refused.
    disk.verb(&["info"], &[]).code(0);
    disk.verb(&["snapshot", "list"], &[]).code(0);
    disk.keyed_at("then", &["check"], &[]).code(0);
    client.write_at(4096, &noise(2, 4096)).unwrap();
    client.flush().unwrap();
    drop(client);
    assert_eq!(disk.lockers(), 1);
    assert_eq!(server.stop(), 0);
    // The lock is released, so the next client need not detect a dead holder.
    assert_eq!(disk.lockers(), 0);
    disk.keyed(&["check"], &[]).code(0);
    assert_eq!(disk.lockers(), 0);
}

#[test]
fn a_disk_of_a_dead_client_is_taken_over() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M", "--cipher", "gcm"]);
    let mut server = disk.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &noise(1, 1 << 20)).unwrap();
    client.flush().unwrap();
    server.kill();
    disk.serve(&[]).used_by(|client| assert!(client.read_at(0, 1 << 20).unwrap() == noise(1, 1 << 20)));
    disk.keyed(&["check"], &[]).code(0);
}

/// A takeover reports the client that it shuts out; the cluster keeps a dead client on its
/// blocklist for a shorter time.
#[test]
fn a_fenced_client_is_named() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let shut_out = |options: &[&str], words: &str| {
        let said = disk.keyed(&["check"], options).code(0).stderr;
        let sentence = said.lines().find(|line| line.contains("is shut out of the cluster"));
        let sentence = sentence.unwrap_or_else(|| panic!("{said}"));
        let (client, _) = sentence.split_once(words).unwrap_or_else(|| panic!("{sentence}"));
        let address = client.rsplit(' ').next().unwrap().trim_start_matches("v1:").trim_start_matches("v2:");
        let listed = disk.cluster.tool("ceph", &["osd", "blocklist", "ls"]);
        let entry = listed.lines().find(|line| line.contains(address));
        // When the entry expires: a time that sorts as text.
        entry.unwrap_or_else(|| panic!("{address}: {listed}")).split_once(' ').unwrap().1.to_owned()
    };
    let mut server = disk.serve(&[]);
    server.kill();
    let dead = shut_out(&[], " held it and did not answer;");
    let server = disk.serve(&[]);
    let stolen = shut_out(&["--steal"], " held it;");
    assert_eq!(server.wait(), 5);
    assert!(dead < stolen, "{dead}, {stolen}");
    assert!(!disk.keyed(&["check"], &[]).code(0).stderr.contains("shut out"));
}

#[test]
fn a_live_client_is_fenced_by_force_and_stops() {
    for (layout, write_through) in [("adaptive", false), ("segment-end", true)] {
        let Some(cluster) = Cluster::shared() else { return };
        let disk = PoolDisk::create(cluster, &["--size", "64M", "--cipher", "gcm", "--layout", layout]);
        let said = fs::File::create(disk.scene.path("said")).unwrap();
        let words = disk.words(&["serve"], &["--socket", "nbd.sock", "--key-file", "key"]);
        let mut command = disk.scene.command(&words);
        if write_through {
            command.arg("--write-through");
        }
        let old = disk.scene.serve_command_logging_to(&mut command, Stdio::from(said));
        let mut shut_out = Client::connect(&old.socket).unwrap();
        shut_out.write_at(0, &noise(1, 1 << 20)).unwrap();
        shut_out.flush().unwrap();
        shut_out.write_at(2 << 20, &noise(9, 1 << 20)).unwrap();

        let elsewhere = Scene::new();
        disk.serve_in(&elsewhere, &disk.location, &["--steal"]).used_by(|client| {
            assert!(client.read_at(0, 1 << 20).unwrap() == noise(1, 1 << 20));
            client.write_at(0, &noise(2, 1 << 20)).unwrap();
            client.flush().unwrap();

            // No write of the old server reaches the disk any more, and the server ends with an
            // error.
            let failed = (0..100).any(|n| {
                shut_out.write_at(0, &noise(3 + n, 1 << 20)).and_then(|()| shut_out.flush()).is_err()
            });
            assert!(failed, "{layout}: the old server still acknowledges flushes");
            assert_eq!(old.wait(), 5, "{layout}");
            let said = fs::read_to_string(disk.scene.path("said")).unwrap();
            assert!(said.contains("another client"), "{layout}: {said}");

            assert!(client.read_at(0, 1 << 20).unwrap() == noise(2, 1 << 20), "{layout}");
        });
        let data = disk.serve(&["--read-only"]).used_by(|client| client.read_at(0, 1 << 20).unwrap());
        assert!(data == noise(2, 1 << 20), "{layout}");
        disk.keyed(&["check"], &[]).code(0);
    }
}

#[test]
fn no_client_is_fenced_without_the_passphrase() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    disk.serve(&[]).used_by(|client| {
        fs::write(disk.scene.path("bad"), "not it").unwrap();
        disk.verb(&["check"], &["--key-file", "bad", "--steal"]).code(2);
        disk.verb(&["snapshot", "create"], &["new", "--key-file", "bad", "--steal"]).code(2);
        disk.keyed(&["snapshot", "rollback"], &["nosuch", "--steal"]).code(4);
        disk.keyed(&["snapshot", "remove"], &["nosuch", "--steal"]).code(4);
        client.write_at(0, &noise(1, 1 << 20)).unwrap();
        client.flush().unwrap();
    });
}

#[test]
fn an_idle_fenced_server_ends() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let words = disk.words(&["serve"], &["--socket", "nbd.sock", "--key-file", "key"]);
    let old = disk.scene.serve_command_logging_to(&mut disk.scene.command(&words), Stdio::null());
    disk.keyed(&["check"], &["--steal"]).code(0);
    assert_eq!(old.wait(), 5);
}

#[test]
fn a_mount_of_a_fenced_client_stays_and_fails() {
    skip_unless!(can_mount("/dev/fuse"));
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let mountpoint = disk.scene.path("mnt");
    fs::create_dir(&mountpoint).unwrap();
    disk.keyed(&["open"], &["mnt", "--raw"]).code(0);
    disk.keyed(&["check"], &["--steal"]).code(0);
    let write = || {
        let file = fs::OpenOptions::new().write(true).open(mountpoint.join("disk"));
        file.and_then(|file| file.write_all_at(&noise(1, 1 << 20), 0).and_then(|()| file.sync_all()))
    };
    wait_until("failure", || write().is_err());
    // No data goes into the directory below the mount.
    assert!(mountpoint.join("disk").exists());
    disk.scene.lacuna(&["close", "mnt"]).code(5);
    assert!(!mountpoint.join("disk").exists());
}

#[test]
fn forks_hold_the_disk_themselves() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    for round in 0..5 {
        let serve = ["--socket", "nbd.sock", "--pid-file", "pid", "--fork"];
        disk.keyed(&["serve"], &serve).code(0);
        disk.keyed(&["serve"], &["--socket", "other.sock"]).code(5);
        let mut client = Client::connect(&disk.scene.path("nbd.sock")).unwrap();
        client.write_at(0, &noise(round, 65536)).unwrap();
        drop(client);
        let status = disk.scene.lacuna(&["status", &disk.location, "--json"]).code(0).json();
        assert_eq!(status["servers"][0]["location"], *disk.location);
        let pid = fs::read_to_string(disk.scene.path("pid")).unwrap();
        send(Signal::TERM, &pid);
        wait_until("the end of the server", || !disk.scene.path("pid").exists());
        let data = disk.serve(&["--read-only"]).used_by(|client| client.read_at(0, 65536).unwrap());
        assert!(data == noise(round, 65536));
    }
}
