//! An adversary that writes to the pool, on a real cluster: removed snapshots, and objects that are
//! removed, truncated or restored to an older state. (`hostile_pool` of `games` covers all of it,
//! in memory.)

use crate::harness::{CHEAP, noise};
use crate::nbd_client::Client;
use crate::pool::{Cluster, POOL, PoolDisk};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;

/// A pool of its own, deleted on drop.
struct OwnPool<'a>(&'a PoolDisk, String);

impl OwnPool<'_> {
    fn new<'a>(disk: &'a PoolDisk, what: &str) -> OwnPool<'a> {
        let pool = format!("{}-{what}", disk.location.rsplit('/').next().unwrap());
        disk.cluster.tool("ceph", &["osd", "pool", "create", &pool, "8", "8"]);
        OwnPool(disk, pool)
    }
}

impl Drop for OwnPool<'_> {
    fn drop(&mut self) {
        self.0
            .cluster
            .tool("ceph", &["osd", "pool", "rm", &self.1, &self.1, "--yes-i-really-really-mean-it"]);
    }
}

#[test]
fn a_pool_that_is_copied_object_by_object_has_no_snapshots() {
    for cipher in ["xts-random", "xts", "gcm"] {
        let Some(cluster) = Cluster::shared() else { return };
        let disk = PoolDisk::unmade(cluster);
        let (from, to) = (OwnPool::new(&disk, "from"), OwnPool::new(&disk, "to"));
        let conf = disk.cluster.conf.to_str().unwrap();
        let lacuna = |verb: &[&str], location: &str, options: &[&str]| {
            let rest = [options, &["--key-file", "key", "--ceph-conf", conf]].concat();
            disk.scene.lacuna(&[verb, &[location], &rest].concat())
        };
        let write = |location: &str, data: &[u8]| {
            disk.serve_in(&disk.scene, location, &[]).used_by(|client| client.write_at(0, data).unwrap());
        };
        let read = |location: &str, len: usize| {
            disk.serve_in(&disk.scene, location, &["--read-only"])
                .used_by(|client| client.read_at(0, len).unwrap())
        };
        let (original, copy) = (format!("rados:{}/disk", from.1), format!("rados:{}/disk", to.1));
        let made = [&["--size", "64M", "--cipher", cipher][..], &CHEAP].concat();
        lacuna(&["create"], &original, &made).code(0);
        write(&original, &noise(1, 2 * MIB));
        lacuna(&["snapshot", "create"], &original, &["s"]).code(0);
        write(&original, &noise(2, MIB));
        disk.cluster.tool("rados", &["cppool", &from.1, &to.1, "--yes-i-really-mean-it"]);

        let at = |location: &str, name: &str| format!("{location}@{name}");
        let listed = disk.scene.lacuna(&["snapshot", "list", &copy, "--ceph-conf", conf]).code(0).stdout;
        assert!(listed.starts_with("s "), "{cipher}: {listed}");
        let lost = lacuna(&["check"], &at(&copy, "s"), &[]).code(10).stderr;
        assert!(lost.contains("not in the store any more"), "{cipher}: {lost}");
        let lost = lacuna(&["snapshot", "rollback"], &copy, &["s"]).code(10).stderr;
        assert!(lost.contains("not in the store any more"), "{cipher}: {lost}");
        assert!(read(&copy, MIB) == noise(2, MIB), "{cipher}");
        lacuna(&["check"], &copy, &[]).code(0);
        // The remedy that the message names.
        lacuna(&["snapshot", "remove"], &copy, &["s"]).code(0);
        lacuna(&["snapshot", "create"], &copy, &["t"]).code(0);
        write(&copy, &noise(3, MIB));
        assert!(read(&at(&copy, "t"), MIB) == noise(2, MIB), "{cipher}");
        assert!(read(&copy, MIB) == noise(3, MIB), "{cipher}");
        // The original is unchanged.
        assert!(read(&at(&original, "s"), 2 * MIB) == noise(1, 2 * MIB), "{cipher}");
        lacuna(&["snapshot", "rollback"], &original, &["s"]).code(0);
        assert!(read(&original, 2 * MIB) == noise(1, 2 * MIB), "{cipher}");
    }
}

/// Single changes to the objects of a disk. With gcm every successful read returns the right data;
/// with every cipher the program ends with a proper exit code.
#[test]
fn removed_truncated_and_older_objects_are_detected() {
    for (cipher, layout) in [("gcm", "adaptive"), ("gcm", "segment-end"), ("xts-random", "adaptive")] {
        let Some(cluster) = Cluster::shared() else { return };
        let disk = PoolDisk::create(cluster, &["--size", "64M", "--cipher", cipher, "--layout", layout]);
        let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
        let uuid = disk.data_prefix().strip_suffix("data").unwrap().to_owned();
        let objects: Vec<String> = [("data", 0), ("data", 1), ("book", 0), ("book", 1)]
            .map(|(f, n)| format!("{uuid}{f}.{n:016x}"))
            .into();
        let objects = if cipher == "gcm" { &objects[..] } else { &objects[..3] };
        let keep =
            |suffix: &str| objects.iter().for_each(|o| drop(rados(&["cp", o, &format!("{o}-{suffix}")])));
        // Two sessions that both write to both objects.
        let holds = [(0, 1), (200, 2), (1024, 3), (1500, 4)];
        for session in [10, 0] {
            disk.serve(&[]).used_by(|client| {
                for (block, seed) in holds {
                    client.write_at(block * BLOCK as u64, &noise(seed + session, BLOCK)).unwrap();
                }
            });
            keep(if session == 10 { "old" } else { "new" });
        }
        for object in objects {
            let (old, new) = (format!("{object}-old"), format!("{object}-new"));
            for act in [&["rm", object][..], &["truncate", object, "50"][..], &["cp", &old, object][..]] {
                rados(act);
                let what = format!("{cipher} {layout} {act:?}");
                let ran = disk.keyed(&["check"], &["--json", "--read-only"]);
                // The snapshot table was not changed between the sessions, so the restored one is
                // the same.
                let same = act[0] == "cp" && object.ends_with("book.0000000000000000");
                assert!(
                    ran.code == 10 || ran.code == 0 && (cipher != "gcm" || same),
                    "{what}: {} {}",
                    ran.code,
                    ran.stderr
                );
                if ran.stdout.starts_with('{') {
                    let server = disk.serve_damaged();
                    let mut client = Client::connect(&server.socket).unwrap();
                    for (block, seed) in holds {
                        let read = client.read_at(block * BLOCK as u64, BLOCK);
                        assert!(
                            cipher != "gcm" || read.is_err() || read.unwrap() == noise(seed, BLOCK),
                            "{what}: {block}"
                        );
                    }
                    drop(client);
                    server.stop();
                }
                rados(&["cp", &new, object]);
            }
        }
        disk.keyed(&["check"], &[]).code(0);
        for object in objects {
            ["old", "new"].iter().for_each(|suffix| drop(rados(&["rm", &format!("{object}-{suffix}")])));
        }
    }
}
