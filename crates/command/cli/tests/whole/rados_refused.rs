//! Objects that an adversary removes or restores to an older state while a server uses them, the
//! remedies, and a full pool: on a real cluster, in every layout.

use crate::harness::{CHEAP, noise, wait_until};
use crate::nbd_client::Client;
use crate::pool::{Cluster, POOL, PoolDisk};
use std::process::Stdio;

const MIB: u64 = 1 << 20;
const LAYOUTS: [&str; 4] = ["adaptive", "segment-end", "interleaved", "kv"];
/// Length of a block, and of an object.
const BLOCK: usize = 4096;
const OBJECT: usize = 4 << 20;

/// A `gcm` disk of two full objects, and the names of these objects.
fn two_objects(layout: &str) -> Option<(PoolDisk, Vec<String>)> {
    let disk =
        PoolDisk::create(Cluster::shared()?, &["--size", "64M", "--cipher", "gcm", "--layout", layout]);
    disk.serve(&[])
        .used_by(|client| (0..2).for_each(|n| client.write_at(n * 4 * MIB, &noise(n + 1, OBJECT)).unwrap()));
    let objects = disk.objects(&disk.data_prefix());
    assert_eq!(objects.len(), 2);
    Some((disk, objects))
}

/// Number of unreadable blocks of the first object.
fn unreadable(client: &mut Client) -> usize {
    (0..1024).filter(|block| client.read_at(block * BLOCK as u64, BLOCK).is_err()).count()
}

#[test]
fn a_write_to_a_missing_or_older_object_does_not_hide_other_damage() {
    for layout in LAYOUTS {
        let Some((disk, objects)) = two_objects(layout) else { return };
        let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
        rados(&["cp", &objects[0], "older"]);
        for gone in [true, false] {
            // Its messages about failed requests are discarded.
            let words = disk.words(&["serve"], &["--socket", "nbd.sock", "--key-file", "key"]);
            let server = disk.scene.serve_command_logging_to(&mut disk.scene.command(&words), Stdio::null());
            let mut client = Client::connect(&server.socket).unwrap();
            client.write_at(100 * BLOCK as u64, &noise(7, BLOCK)).unwrap();
            client.flush().unwrap();
            let _seen = client.read_at(0, BLOCK).unwrap();
            if gone {
                rados(&["rm", &objects[0]]);
            } else {
                rados(&["cp", "older", &objects[0]]);
            }
            client.write_at(5 * BLOCK as u64, &noise(8, BLOCK)).unwrap();
            client.flush().unwrap();
            assert_eq!(unreadable(&mut client), 1023, "{layout}");
            assert!(client.read_at(5 * BLOCK as u64, BLOCK).unwrap() == noise(8, BLOCK), "{layout}");
            // No other object is affected.
            client.write_at(4 * MIB, &noise(9, BLOCK)).unwrap();
            client.flush().unwrap();
            assert!(client.read_at(4 * MIB, BLOCK).unwrap() == noise(9, BLOCK), "{layout}");
            drop(client);
            assert_eq!(server.stop(), 0);

            let ran = disk.keyed(&["check"], &[]).code(10);
            assert!(
                ran.stdout.contains(&objects[0]) && ran.stderr.contains("a rewritten block is good again"),
                "{layout}"
            );
            let report = disk.keyed(&["check"], &["--json"]).code(10).json();
            assert_eq!(
                (report["bad"].as_u64(), report["good"].as_u64()),
                (Some(1023), Some(1025)),
                "{layout}"
            );
            // The remedy from the message: blocks are rewritten or discarded.
            disk.serve(&[]).used_by(|client| {
                client.discard(0, 512 * BLOCK).unwrap();
                client.write_at(512 * BLOCK as u64, &noise(10, 512 * BLOCK)).unwrap();
                client.flush().unwrap();
                assert_eq!(unreadable(client), 0, "{layout}");
                assert!(client.read_at(0, BLOCK).unwrap().iter().all(|byte| *byte == 0));
            });
            disk.keyed(&["check"], &[]).code(0);
        }
        rados(&["rm", "older"]);
    }
}

#[test]
fn trim_works_on_a_full_pool_and_makes_room() {
    for layout in LAYOUTS {
        let Some(cluster) = Cluster::shared() else { return };
        let disk = PoolDisk::unmade(cluster);
        let pool = format!("{}-trim", disk.location.rsplit('/').next().unwrap());
        let ceph = |args: &[&str]| disk.cluster.tool("ceph", args);
        ceph(&["osd", "pool", "create", &pool, "8", "8"]);
        let location = format!("rados:{pool}/disk");
        let conf = disk.cluster.conf.to_str().unwrap();
        let options = ["--key-file", "key", "--ceph-conf", conf, "--cipher", "gcm", "--layout", layout];
        let create = ["create", &location, "--size", "256M"];
        disk.scene.lacuna(&[&create[..], &options, &CHEAP].concat()).code(0);
        let words = ["serve", &location, "--socket", "nbd.sock", "--key-file", "key", "--ceph-conf", conf];
        let server = disk.scene.serve_command_logging_to(&mut disk.scene.command(&words), Stdio::null());
        let mut client = Client::connect(&server.socket).unwrap();
        (0..8).for_each(|n| client.write_at(n * 4 * MIB, &noise(n + 1, OBJECT)).unwrap());
        client.flush().unwrap();
        ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", "20000000"]);
        let is_full = || {
            let pools = ceph(&["osd", "dump"]);
            pools.lines().any(|l| l.contains(&format!("'{pool}'")) && l.contains("full_quota"))
        };
        wait_until("the quota", is_full);
        // The OSDs learn of the quota a moment later.
        let mut next = 40 * 4 * MIB;
        wait_until("a refusal", || {
            client.write_at(next, &noise(50, BLOCK)).unwrap();
            next += BLOCK as u64;
            client.flush().is_err()
        });
        // Every flush fails in the same way, and the pending data is kept.
        for _ in 0..3 {
            let error = client.flush().expect_err("a full pool takes a new object");
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{layout}: {error}");
        }
        let error = client.write_at(41 * 4 * MIB, &noise(51, 1 << 20)).expect_err("a full pool takes a MiB");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{layout}: {error}");
        assert!(client.read_at(0, OBJECT).unwrap() == noise(1, OBJECT), "{layout}");
        (1..7).for_each(|n| client.discard(n * 4 * MIB, OBJECT).unwrap());
        // The layouts with the seal after the data keep the length of an object, and the quota
        // counts that length.
        if !matches!(layout, "adaptive" | "kv") {
            ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", "0"]);
        }
        wait_until("room", || client.flush().is_ok());
        client.write_at(41 * 4 * MIB, &noise(51, 1 << 20)).unwrap();
        client.flush().unwrap();
        drop(client);
        assert_eq!(server.stop(), 0, "{layout}");
        disk.serve_in(&disk.scene, &location, &[]).used_by(|client| {
            let expected = [(0, noise(1, OBJECT)), (3, vec![0; OBJECT]), (7, noise(8, OBJECT))];
            for (segment, data) in expected {
                assert!(client.read_at(segment * 4 * MIB, OBJECT).unwrap() == data, "{layout}: {segment}");
            }
            assert!(client.read_at(40 * 4 * MIB, BLOCK).unwrap() == noise(50, BLOCK), "{layout}");
        });
        ceph(&["osd", "pool", "rm", &pool, &pool, "--yes-i-really-really-mean-it"]);
    }
}
