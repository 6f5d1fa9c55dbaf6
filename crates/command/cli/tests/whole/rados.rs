//! The life of a disk in RADOS, verb by verb, and invalid requests.

use crate::harness::{CHEAP, CloseOnDrop, Scene, noise, wait_until};
use crate::nbd_client::Client;
use crate::pool::{Cluster, POOL, PoolDisk};
use std::fs;

const LAYOUTS: [&str; 4] = ["adaptive", "segment-end", "interleaved", "kv"];

fn write(disk: &PoolDisk, options: &[&str], offset: u64, data: &[u8]) {
    disk.serve(options).used_by(|client| client.write_at(offset, data).unwrap());
}

fn read(disk: &PoolDisk, offset: u64, len: usize) -> Vec<u8> {
    disk.serve(&["--read-only"]).used_by(|client| client.read_at(offset, len).unwrap())
}

fn read_at(disk: &PoolDisk, snapshot: &str, offset: u64, len: usize) -> Vec<u8> {
    let server = disk.serve_at(snapshot, &[]);
    let mut client = Client::connect(&server.socket).unwrap();
    let data = client.read_at(offset, len).unwrap();
    assert!(client.write_at(offset, &[0; 4096]).is_err(), "a snapshot took a write");
    assert_eq!(server.stop(), 0);
    data
}

#[test]
fn a_pool_disk_is_created_used_and_deleted() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M", "--cipher", "gcm"]);
    let info = disk.verb(&["info"], &["--json"]).code(0).json();
    assert_eq!(info["location"], *disk.location);
    assert_eq!((&info["cipher"], &info["layout"]), (&"gcm".into(), &"adaptive".into()));
    assert_eq!(info["header"]["format"], "sealed on objects");
    assert_eq!(info["size"], 64 << 20);
    assert_eq!(info["snapshots"].as_array().unwrap().len(), 0);
    let text = disk.verb(&["info"], &[]).code(0).stdout;
    assert!(text.contains(info["header"]["uuid"].as_str().unwrap()), "{text}");

    // Sparse: unwritten segments have no object.
    let prefix = disk.data_prefix();
    assert!(prefix.strip_suffix(".data").is_some());
    assert_eq!(disk.objects(&prefix).len(), 0);
    write(&disk, &[], 5 << 20, &noise(1, 3 << 20));
    assert_eq!(disk.objects(&prefix).len(), 1);
    assert!(read(&disk, 5 << 20, 3 << 20) == noise(1, 3 << 20));
    assert!(read(&disk, 0, 5 << 20).iter().all(|byte| *byte == 0));
    let check = disk.keyed(&["check"], &["--json"]).code(0).json();
    assert_eq!((&check["good"], &check["bad"]), (&768.into(), &0.into()));

    // It grows.
    disk.keyed(&["resize"], &["--size", "32M"]).code(1);
    disk.keyed(&["resize"], &["--size", "32T"]).code(1);
    disk.keyed(&["resize"], &["--size", "64M"]).code(0);
    disk.keyed(&["resize"], &["--size", "200M"]).code(0);
    assert_eq!(disk.verb(&["info"], &["--json"]).json()["size"], 200 << 20);
    write(&disk, &["--write-through"], 190 << 20, &noise(2, 1 << 20));
    assert!(read(&disk, 190 << 20, 1 << 20) == noise(2, 1 << 20));
    assert!(read(&disk, 5 << 20, 3 << 20) == noise(1, 3 << 20));

    // Passphrases are added and removed.
    fs::write(disk.scene.path("second"), "second\n").unwrap();
    let yes = ["--yes", "--keep", "1", "--new-key-file", "second"];
    disk.keyed(&["key", "add"], &yes).code(0);
    disk.verb(&["check"], &["--key-file", "second"]).code(0);
    disk.verb(&["key", "refresh"], &["--key-file", "second", "--yes", "--keep", "1"]).code(0);
    disk.keyed(&["check"], &[]).code(2);
    disk.verb(&["check"], &["--key-file", "second"]).code(0);

    // Deletion removes all objects.
    disk.verb(&["delete"], &[]).code(1);
    disk.verb(&["delete"], &["--yes"]).code(0);
    let uuid = prefix.strip_suffix("data").unwrap();
    assert_eq!(disk.objects(uuid).len(), 0);
    let name = disk.location.rsplit('/').next().unwrap();
    assert_eq!(disk.objects(&format!("lacuna.{name}.")).len(), 0);
    disk.verb(&["info"], &[]).code(4);
    disk.verb(&["delete"], &["--yes"]).code(4);
}

#[test]
fn every_cipher_in_every_layout_comes_back() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M", "--cipher", "xts"]);
    assert_eq!(disk.verb(&["info"], &["--json"]).json()["layout"], "segment-end");
    for cipher in ["xts", "hctr2", "xts-random", "gcm"] {
        for layout in LAYOUTS {
            let bare = matches!(cipher, "xts" | "hctr2");
            if bare && layout != "segment-end" {
                continue;
            }
            let made =
                ["--size", "64M", "--force", "--cipher", cipher, "--layout", layout, "--key-file", "key"];
            disk.verb(&["create"], &[&made[..], &CHEAP].concat()).code(0);
            assert!(read(&disk, 0, 8 << 20).iter().all(|byte| *byte == 0), "{cipher} {layout}: not new");
            // Across two objects, and a single block.
            write(&disk, &["--cache", "2M"], (4 << 20) - 8192, &noise(7, 1 << 20));
            write(&disk, &[], 20 << 20, &noise(8, 4096));
            assert!(read(&disk, (4 << 20) - 8192, 1 << 20) == noise(7, 1 << 20), "{cipher} {layout}");
            assert!(read(&disk, 20 << 20, 4096) == noise(8, 4096), "{cipher} {layout}");
            let check = disk.keyed(&["check"], &["--json", "--read-only"]).code(0).json();
            // Without metadata, single unwritten blocks in an existing object are unknown.
            assert_eq!(check["good"], if bare { 3 * 1024 } else { 257 }, "{cipher} {layout}");
        }
    }
}

#[test]
fn snapshots_keep_what_was_and_rollback_brings_it_back() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let snapshot = |verb: &str, name: &str| disk.keyed(&["snapshot", verb], &[name]);
    let listed = || {
        let listed = disk.verb(&["snapshot", "list"], &["--json"]).code(0).json();
        let names = listed["snapshots"].as_array().unwrap().iter();
        names.map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for layout in LAYOUTS {
        for cipher in ["xts-random", "gcm"] {
            let made =
                ["--size", "64M", "--force", "--cipher", cipher, "--layout", layout, "--key-file", "key"];
            disk.verb(&["create"], &[&made[..], &CHEAP].concat()).code(0);
            assert!(listed().is_empty());
            write(&disk, &[], 0, &noise(1, 2 << 20));
            snapshot("create", "first").code(0);
            write(&disk, &[], 1 << 20, &noise(2, 6 << 20));
            snapshot("create", "second.2").code(0);
            assert_eq!(listed(), ["first", "second.2"]);
            write(&disk, &[], 0, &noise(3, 4096));

            let what = format!("{cipher} {layout}");
            assert!(read_at(&disk, "first", 0, 2 << 20) == noise(1, 2 << 20), "{what}");
            assert!(read_at(&disk, "first", 2 << 20, 8 << 20).iter().all(|byte| *byte == 0), "{what}");
            assert!(read_at(&disk, "second.2", 1 << 20, 6 << 20) == noise(2, 6 << 20), "{what}");
            assert!(read_at(&disk, "second.2", 0, 4096) == noise(1, 4096), "{what}");
            assert!(read(&disk, 0, 4096) == noise(3, 4096), "{what}");
            assert_eq!(disk.keyed_at("first", &["check"], &["--json"]).code(0).json()["good"], 512, "{what}");

            snapshot("rollback", "first").code(0);
            assert!(read(&disk, 0, 2 << 20) == noise(1, 2 << 20), "{what}");
            assert!(read(&disk, 2 << 20, 8 << 20).iter().all(|byte| *byte == 0), "{what}");
            assert!(read_at(&disk, "second.2", 1 << 20, 6 << 20) == noise(2, 6 << 20), "{what}");
            disk.keyed(&["check"], &[]).code(0);
            write(&disk, &[], 0, &noise(4, 1 << 20));
            assert!(read_at(&disk, "first", 0, 2 << 20) == noise(1, 2 << 20), "{what}");
            snapshot("remove", "first").code(0);
            assert_eq!(listed(), ["second.2"]);
            disk.keyed_at("first", &["check"], &[]).code(4);
            snapshot("rollback", "second.2").code(0);
            assert!(read(&disk, 1 << 20, 6 << 20) == noise(2, 6 << 20), "{what}");
            disk.keyed(&["check"], &[]).code(0);
        }
    }
}

#[test]
fn a_snapshot_is_read_only_and_names_are_checked() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let snapshot = |verb: &str, name: &str| disk.keyed(&["snapshot", verb], &[name]);
    snapshot("create", "a").code(0);
    snapshot("create", "a").code(5);
    snapshot("create", "a/b").code(1);
    snapshot("create", "").code(1);
    for verb in ["remove", "rollback"] {
        snapshot(verb, "missing").code(4);
    }
    disk.keyed_at("missing", &["check"], &[]).code(4);
    disk.keyed_at("missing", &["serve"], &["--socket", "s"]).code(4);
    disk.keyed_at("a", &["resize"], &["--size", "128M"]).code(1);
    disk.keyed_at("a", &["key", "refresh"], &["--yes", "--keep", "1"]).code(1);
    disk.keyed_at("a", &["snapshot", "create"], &["b"]).code(1);
    disk.keyed_at("a", &["check"], &["--steal"]).code(1);
    disk.keyed_at("a", &["create"], &["--size", "64M"]).code(1);
    let location = format!("{}@a", disk.location);
    let conf = disk.cluster.conf.to_str().unwrap();
    assert!(
        disk.scene.lacuna(&["info", &location, "--ceph-conf", conf]).code(0).stdout.contains("snapshots")
    );
    disk.scene.lacuna(&["info", &format!("{location}x"), "--ceph-conf", conf]).code(4);
    disk.scene.lacuna(&["delete", &location, "--yes", "--ceph-conf", conf]).code(1);
    // Several servers may read the snapshot at a time, also in parallel with the disk.
    let (one, two) = (Scene::new(), Scene::new());
    let servers = [disk.serve_in(&one, &location, &[]), disk.serve_in(&two, &location, &[])];
    write(&disk, &[], 0, &noise(1, 4096));
    assert!(servers.into_iter().all(|server| server.stop() == 0));
}

#[test]
fn an_existing_disk_is_not_created_again() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    write(&disk, &[], 0, &noise(1, 4096));
    disk.keyed(&["snapshot", "create"], &["kept"]).code(0);
    let old = disk.data_prefix();
    let create =
        |options: &[&str]| disk.verb(&["create"], &[&["--key-file", "key"], &CHEAP[..], options].concat());
    let ran = create(&["--size", "64M"]).code(1);
    assert!(ran.stderr.contains("exists already") && ran.stderr.contains("--force"), "{}", ran.stderr);
    create(&[]).code(1);
    create(&["--size", "5", "--force"]).code(1);
    create(&["--size", "64M", "--cipher", "xts", "--layout", "kv", "--force"]).code(1);
    assert!(read(&disk, 0, 4096) == noise(1, 4096));
    create(&["--size", "64M", "--force"]).code(0);
    assert_ne!(disk.data_prefix(), old);
    // The store lists a removed object until it has removed the object's snapshot copies.
    wait_until("that no object of the old disk is left", || {
        disk.objects(old.strip_suffix("data").unwrap()).is_empty()
    });
    assert!(read(&disk, 0, 4096).iter().all(|byte| *byte == 0));
    assert!(disk.verb(&["snapshot", "list"], &[]).code(0).stdout.is_empty());
}

/// A header that was copied to another name leads to the data of the original disk.
#[test]
fn a_copied_header_takes_no_data_with_it() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    write(&disk, &[], 0, &noise(1, 1 << 20));
    let name = disk.location.rsplit('/').next().unwrap();
    let copy = format!("{name}-copy");
    let object = |name: &str, n: usize| format!("lacuna.{name}.{n:016x}");
    let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
    (0..2).for_each(|n| drop(rados(&["cp", &object(name, n), &object(&copy, n)])));
    let location = format!("rados:{POOL}/{copy}");
    let conf = disk.cluster.conf.to_str().unwrap();
    let at = |location: &str, verb: &str, options: &[&str]| {
        disk.scene.lacuna(&[&[verb, location, "--ceph-conf", conf], options].concat())
    };
    let create = [&["--force", "--size", "64M", "--key-file", "key"][..], &CHEAP[..]].concat();
    for (verb, options) in [("delete", &["--yes"][..]), ("erase", &["--yes"][..]), ("create", &create[..])] {
        for (location, one, other) in
            [(&location[..], &copy[..], name), (&disk.location[..], name, &copy[..])]
        {
            let said = at(location, verb, options).code(1).stderr;
            assert!(said.contains(&format!("under the name {other}:")), "{verb}: {said}");
            let remedy = format!("rm {} {}", object(one, 0), object(one, 1));
            assert!(said.contains(&remedy), "{verb}: {said}");
        }
    }
    assert!(read(&disk, 0, 1 << 20) == noise(1, 1 << 20));
    (0..2).for_each(|n| drop(rados(&["rm", &object(&copy, n)])));
    disk.verb(&["delete"], &["--yes"]).code(0);
}

#[test]
fn disks_in_different_namespaces_are_separate() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    disk.verb(&["info"], &["--namespace", "other"]).code(4);
    let made = ["--size", "32M", "--namespace", "other", "--key-file", "key"];
    disk.verb(&["create"], &[&made[..], &CHEAP].concat()).code(0);
    assert_eq!(disk.verb(&["info"], &["--json", "--namespace", "other"]).json()["size"], 32 << 20);
    assert_eq!(disk.verb(&["info"], &["--json"]).json()["size"], 64 << 20);
    // An open disk in one namespace is not taken for the disk in the other.
    let server = disk.serve(&[]);
    fs::create_dir(disk.scene.path("mnt")).unwrap();
    let _closing = CloseOnDrop(&disk.scene, &["mnt"]);
    disk.keyed(&["open"], &["mnt", "--raw", "--namespace", "other"]).code(0);
    fs::write(disk.scene.path("second"), "second").unwrap();
    disk.keyed(&["key", "add"], &["--new-key-file", "second"]).code(0);
    let close = |options: &[&str]| disk.scene.lacuna(&[&["close", &disk.location], options].concat());
    let refused = close(&[]).code(1).stderr;
    assert!(refused.contains("--namespace ''") && refused.contains("--namespace other"), "{refused}");
    close(&["--namespace", "third"]).code(4);
    disk.scene.lacuna(&["close", "mnt", "--namespace", "other"]).code(1);
    let erase = disk.verb(&["erase"], &["--yes", "--namespace", "other"]).code(5).stderr;
    assert!(
        erase.contains("--namespace other` first") || erase.contains("--namespace other --ceph-conf"),
        "{erase}"
    );
    // Nor are two disks that are opened with different configuration files.
    let second = disk.scene.path("second.conf");
    fs::copy(&disk.cluster.conf, &second).unwrap();
    close(&["--namespace", "other", "--ceph-conf", "second.conf"]).code(4);
    close(&["--namespace", "other"]).code(0);
    let by_second = ["open", &disk.location, "mnt", "--raw", "--namespace", "other", "--key-file", "key"];
    disk.scene.lacuna(&[&by_second[..], &["--ceph-conf", "second.conf"]].concat()).code(0);
    let refused = close(&[]).code(1).stderr;
    assert!(refused.contains(&format!("--ceph-conf {}", second.display())), "{refused}");
    let mut by_variable = disk.scene.command(&["close", &disk.location, "--namespace", "third"]);
    by_variable.env("CEPH_CONF", &disk.cluster.conf);
    assert_eq!(by_variable.output().unwrap().status.code(), Some(4));
    let mut by_variable = disk.scene.command(&["close", &disk.location]);
    by_variable.env("CEPH_CONF", &second);
    assert!(by_variable.output().unwrap().status.success());
    assert!(!disk.scene.path("mnt/disk").exists());
    close(&[]).code(0);
    assert_eq!(server.wait(), 0);
    disk.verb(&["check"], &["--key-file", "second"]).code(0);
    disk.verb(&["check"], &["--key-file", "second", "--namespace", "other"]).code(2);
    disk.verb(&["delete"], &["--yes", "--namespace", "other"]).code(0);
    disk.verb(&["info"], &[]).code(0);
}

#[test]
fn a_missing_cluster_pool_disk_or_key_is_an_error() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::unmade(cluster);
    let conf = disk.cluster.conf.to_str().unwrap().to_owned();
    let ran = disk.keyed(&["check"], &[]).code(4);
    assert!(ran.stderr.contains("no disk of this name"), "{}", ran.stderr);
    let lacuna = |location: &str, options: &[&str]| {
        disk.scene.lacuna(&[&["check", location, "--key-file", "key"], options].concat())
    };
    let ran = lacuna("rados:no-such-pool/x", &["--ceph-conf", &conf]).code(4);
    assert!(ran.stderr.contains("no-such-pool"), "{}", ran.stderr);
    let ran = lacuna(&disk.location, &["--ceph-conf", "missing.conf"]).code(4);
    assert!(ran.stderr.contains("missing.conf"), "{}", ran.stderr);
    // A user that the key ring does not contain.
    lacuna(&disk.location, &["--ceph-conf", &conf, "--ceph-id", "nobody-knows"]).code(2);
    // A key ring with the wrong key.
    fs::write(disk.scene.path("ring"), "[client.admin]\n\tkey = AQAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA==\n")
        .unwrap();
    let ours = fs::read_to_string(&conf).unwrap();
    let wrong = format!("{ours}\n[client.admin]\nkeyring = {}\n", disk.scene.path("ring").display());
    fs::write(disk.scene.path("wrong.conf"), wrong).unwrap();
    let ran = lacuna(&disk.location, &["--ceph-conf", "wrong.conf", "--timeout", "5"]);
    assert!([2, 20].contains(&ran.code), "{}: {}", ran.code, ran.stderr);
    // A cluster that does not run.
    fs::write(
        disk.scene.path("none.conf"),
        "[global]\nmon_host = v2:127.0.0.1:9\nauth_client_required = none\n",
    )
    .unwrap();
    let ran = lacuna(&disk.location, &["--ceph-conf", "none.conf", "--timeout", "2"]).code(20);
    assert!(ran.stderr.contains("127.0.0.1"), "{}", ran.stderr);
}

#[test]
fn a_pool_without_keys_takes_the_layouts_that_need_none() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::unmade(cluster);
    let pool = format!("{}-ec", disk.location.rsplit('/').next().unwrap());
    let ceph = |args: &[&str]| disk.cluster.tool("ceph", args);
    ceph(&["osd", "erasure-code-profile", "set", &pool, "k=2", "m=1", "crush-failure-domain=osd"]);
    ceph(&["osd", "pool", "create", &pool, "8", "8", "erasure", &pool]);
    let location = format!("rados:{pool}/disk");
    let conf = disk.cluster.conf.to_str().unwrap();
    let create = |options: &[&str]| {
        let words = ["create", &location, "--size", "32M", "--key-file", "key", "--ceph-conf", conf];
        disk.scene.lacuna(&[&words[..], &CHEAP, options].concat())
    };
    let ran = create(&["--layout", "segment-end"]).code(1);
    assert!(ran.stderr.contains("allow_ec_overwrites"), "{}", ran.stderr);
    ceph(&["osd", "pool", "set", &pool, "allow_ec_overwrites", "true"]);
    for layout in [&["--layout", "kv"][..], &["--layout", "adaptive", "--cipher", "gcm"]] {
        let ran = create(layout).code(1);
        assert!(ran.stderr.contains("segment-end (--layout)"), "{}", ran.stderr);
    }
    // Without `--layout`, a suitable layout is chosen and printed.
    assert!(create(&["--cipher", "gcm"]).code(0).stdout.contains("gcm, segment-end"));
    for options in [
        &["--layout", "segment-end", "--cipher", "gcm", "--force"][..],
        &["--layout", "interleaved", "--force"],
        &["--cipher", "xts", "--force"],
    ] {
        create(options).code(0);
        disk.serve_in(&disk.scene, &location, &[]).used_by(|client| {
            client.write_at(0, &noise(1, 5 << 20)).unwrap();
            client.write_at(8192, &noise(2, 4096)).unwrap();
            client.flush().unwrap();
            assert!(client.read_at(8192, 4096).unwrap() == noise(2, 4096));
            assert!(client.read_at(12288, 1 << 20).unwrap()[..] == noise(1, 5 << 20)[12288..][..1 << 20]);
        });
        disk.scene.lacuna(&["check", &location, "--key-file", "key", "--ceph-conf", conf]).code(0);
    }
    disk.scene.lacuna(&["delete", &location, "--yes", "--ceph-conf", conf]).code(0);
    ceph(&["osd", "pool", "rm", &pool, &pool, "--yes-i-really-really-mean-it"]);
}

#[test]
fn options_for_a_cluster_do_not_go_with_files() {
    let scene = Scene::with_disk(&["--size", "64M"]);
    for options in [
        &["--ceph-conf", "x"][..],
        &["--ceph-id", "x"],
        &["--namespace", "x"],
        &["--timeout", "5"],
        &["--steal"],
    ] {
        let ran = scene.lacuna(&[&["check", "disk.img", "--key-file", "key"], options].concat()).code(1);
        assert!(ran.stderr.contains(options[0]), "{}", ran.stderr);
    }
    scene.lacuna(&["check", "disk.img", "--key-file", "key", "--timeout", "0"]).code(1);
    scene.lacuna(&["snapshot", "create", "disk.img", "a", "--key-file", "key"]).code(1);
    scene.lacuna(&["snapshot", "list", "disk.img"]).code(1);
    scene.lacuna(&["delete", "disk.img", "--yes"]).code(1);
    scene.create("other.img", &["--size", "64M", "--layout", "adaptive"]).code(1);
    assert!(scene.path("disk.img").exists() && !scene.path("other.img").exists());
    for location in ["rados:pool", "rados:/x", "rados:pool/a/b", "rados:pool/a b"] {
        scene.lacuna(&["info", location]).code(1);
    }
    let missing = format!("rados:{POOL}/x");
    scene.lacuna(&["info", &missing, "--ceph-conf", "no-such.conf"]).code(4);
}

#[test]
fn a_snapshot_removed_while_it_is_open_does_not_read_as_zeros() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    write(&disk, &[], 0, &noise(1, 1 << 20));
    disk.keyed(&["snapshot", "create"], &["then"]).code(0);
    let view = disk.serve_at("then", &[]);
    let mut client = Client::connect(&view.socket).unwrap();
    assert!(client.read_at(8 << 20, 4096).unwrap().iter().all(|byte| *byte == 0));
    disk.keyed(&["snapshot", "remove"], &["then"]).code(0);
    assert!(client.read_at(16 << 20, 4096).is_err());
    drop(client);
    view.stop();
}
