//! A cluster that loses OSDs, and objects that an adversary has modified.

use crate::harness::{CHEAP, Serving, is_program_available, noise, skip_unless, skipped, wait_until};
use crate::nbd_client::Client;
use crate::pool::{Cluster, POOL, PoolDisk};
use std::fs;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
const LAYOUTS: [&str; 4] = ["adaptive", "segment-end", "interleaved", "kv"];

/// The cluster with some OSDs killed; all are started again on drop.
struct DegradedCluster<'a>(&'a Cluster, Vec<&'static str>);

impl<'a> DegradedCluster<'a> {
    fn kill(cluster: &'a Cluster, osds: &[&'static str]) -> Self {
        osds.iter().for_each(|osd| cluster.script("kill-osd", &[osd]));
        DegradedCluster(cluster, osds.to_vec())
    }

    fn restart_osds(mut self) {
        // The system takes a moment to release the resources of a dead process.
        self.1.drain(..).for_each(|osd| wait_until("an OSD", || self.0.try_script("start-osd", &[osd])));
    }
}

impl Drop for DegradedCluster<'_> {
    fn drop(&mut self) {
        for osd in self.1.drain(..) {
            let _ = self.0.try_script("start-osd", &[osd]);
        }
    }
}

#[test]
fn an_osd_that_dies_and_comes_back_is_not_noticed() {
    skip_unless!(is_program_available("fio"));
    let engines = Command::new("fio").arg("--enghelp").output().unwrap();
    if !String::from_utf8_lossy(&engines.stdout).split_whitespace().any(|engine| engine == "nbd") {
        skipped("this machine has no fio with the nbd engine");
        return;
    }
    let Some(cluster) = Cluster::exclusive() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "128M", "--cipher", "gcm"]);
    let server = disk.serve(&[]);
    let uri = format!("--uri={}", server.uri);
    for (osd, block_size) in [("0", "--bs=4k"), ("1", "--bs=64k"), ("2", "--bsrange=4k-1m")] {
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite", block_size, "--size=96m"]);
        fio.args(["--verify=crc32c", "--do_verify=1", "--iodepth=16", "--randseed=7", "--end_fsync=1"]);
        // Slow enough that the OSD dies and returns during the writes.
        fio.args(["--rate=,8m", "--output=fio.log"]).current_dir(disk.scene.path("."));
        let mut fio = fio.stdout(Stdio::null()).spawn().unwrap();
        let written = || disk.objects(&disk.data_prefix()).len();
        wait_until("the first objects", || written() > 4 || fio.try_wait().unwrap().is_some());
        let wounded = DegradedCluster::kill(&disk.cluster, &[osd]);
        wounded.restart_osds();
        let code = fio.wait().unwrap().code();
        assert_eq!(code, Some(0), "{}", fs::read_to_string(disk.scene.path("fio.log")).unwrap_or_default());
    }
    assert_eq!(server.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
}

#[test]
fn requests_wait_while_two_of_three_osds_are_down() {
    let Some(cluster) = Cluster::exclusive() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M"]);
    let server = disk.serve(&[]);
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &noise(1, 8 << 20)).unwrap();
    client.flush().unwrap();
    let wounded = DegradedCluster::kill(&disk.cluster, &["1", "2"]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            client.write_at(4 * MIB, &noise(2, 8 << 20))?;
            client.flush()?;
            client.read_at(0, 12 << 20)
        });
        // The test only checks that the write has not ended; it asserts no durations.
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert!(!waiting.is_finished(), "written to one OSD of three");
        wounded.restart_osds();
        let data = waiting.join().unwrap().expect("writes that waited fail");
        assert!(data[..4 << 20] == noise(1, 8 << 20)[..4 << 20] && data[4 << 20..] == noise(2, 8 << 20));
    });
    assert_eq!(server.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
}

#[test]
fn a_timeout_fails_requests_and_loses_no_data() {
    let Some(cluster) = Cluster::exclusive() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "64M", "--cipher", "gcm"]);
    let words = disk.words(&["serve"], &["--socket", "nbd.sock", "--key-file", "key", "--timeout", "3"]);
    let said = fs::File::create(disk.scene.path("said")).unwrap();
    let server = disk.scene.serve_command_logging_to(&mut disk.scene.command(&words), said.into());
    let mut client = Client::connect(&server.socket).unwrap();
    client.write_at(0, &noise(1, 8 << 20)).unwrap();
    client.flush().unwrap();
    let wounded = DegradedCluster::kill(&disk.cluster, &["0", "1"]);
    let failed = client.write_at(MIB, &noise(2, 8 << 20)).and_then(|()| client.flush());
    assert!(failed.is_err(), "acknowledged by one OSD of three");
    // Fail-stop: this server takes no more writes.
    assert!(client.write_at(0, &noise(3, 4096)).and_then(|()| client.flush()).is_err());
    let ran = disk.keyed(&["check"], &["--timeout", "3", "--steal"]);
    assert_ne!(ran.code, 0);
    wounded.restart_osds();
    drop(client);
    assert_eq!(server.stop(), 20);
    let said = fs::read_to_string(disk.scene.path("said")).unwrap();
    assert!(said.contains("no answer") || said.contains("time"), "{said}");

    disk.serve(&["--steal"]).used_by(|client| {
        for block in 0..2048u64 {
            let bytes = client.read_at(block * 4096, 4096).unwrap();
            let old = &noise(1, 8 << 20)[block as usize * 4096..][..4096];
            let new =
                (block >= 256).then(|| noise(2, 8 << 20)[(block as usize - 256) * 4096..][..4096].to_vec());
            assert!(
                bytes == old || new.is_some_and(|new| bytes == new),
                "block {block} is neither old nor new"
            );
        }
        client.write_at(0, &noise(4, 4096)).unwrap();
        client.flush().unwrap();
    });
    disk.keyed(&["check"], &[]).code(0);
}

/// A `gcm` disk with data in three objects, and the names of these objects.
fn three_objects(layout: &str) -> Option<(PoolDisk, Vec<String>)> {
    let disk =
        PoolDisk::create(Cluster::shared()?, &["--size", "64M", "--cipher", "gcm", "--layout", layout]);
    disk.serve(&[]).used_by(|client| {
        for segment in 0..3 {
            client.write_at(segment * 4 * MIB, &noise(segment + 1, 1 << 20)).unwrap();
        }
    });
    disk.keyed(&["check"], &[]).code(0);
    let objects = disk.objects(&disk.data_prefix());
    assert_eq!(objects.len(), 3);
    Some((disk, objects))
}

/// Counts unreadable blocks in segment 1, and checks that the other segments are intact.
fn bad_in_the_middle(disk: &PoolDisk, server: &Serving) -> usize {
    let mut client = Client::connect(&server.socket).unwrap();
    for segment in [0, 2] {
        assert!(client.read_at(segment * 4 * MIB, 1 << 20).unwrap() == noise(segment + 1, 1 << 20));
    }
    let good = noise(2, 1 << 20);
    let bad = (0..256).filter(|block| match client.read_at(4 * MIB + block * 4096, 4096) {
        Ok(data) => {
            assert!(data == good[*block as usize * 4096..][..4096], "{}: unverified data", disk.location);
            false
        }
        Err(e) => {
            assert_eq!(e.raw_os_error(), Some(libc::EIO));
            true
        }
    });
    bad.count()
}

/// Checks that a change `what` of the middle object is detected, with at least `at_least` bad
/// blocks.
fn noticed(disk: &PoolDisk, object: &str, what: &str, at_least: usize) {
    let ran = disk.keyed(&["check"], &["--read-only"]).code(10);
    assert!(ran.stdout.contains(object), "{what}: {}", ran.stdout);
    let report = disk.keyed(&["check"], &["--json", "--read-only"]).code(10).json();
    let bad = report["bad_blocks"].as_array().unwrap();
    assert!(bad.len() >= at_least && bad.iter().all(|bad| bad["object"] == *object), "{what}: {report}");
    assert_eq!(report["good"].as_u64().unwrap() + bad.len().min(256) as u64, 768, "{what}: {report}");
    let server = disk.serve_damaged();
    assert!(bad_in_the_middle(disk, &server) >= at_least, "{what}");
    assert_eq!(server.stop(), 0);
}

#[test]
fn an_object_that_was_removed_or_cut_is_named() {
    for layout in LAYOUTS {
        let Some((disk, objects)) = three_objects(layout) else { return };
        let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
        rados(&["cp", &objects[1], "kept"]);
        rados(&["truncate", &objects[1], "40960"]);
        noticed(&disk, &objects[1], &format!("{layout}: cut"), 200);
        rados(&["rm", &objects[1]]);
        noticed(&disk, &objects[1], &format!("{layout}: removed"), 256);
        // After the object is restored, the disk is intact again.
        rados(&["cp", "kept", &objects[1]]);
        rados(&["rm", "kept"]);
        disk.keyed(&["check"], &[]).code(0);
    }
}

#[test]
fn a_flipped_bit_costs_one_block() {
    for layout in LAYOUTS {
        let Some((disk, objects)) = three_objects(layout) else { return };
        let object = disk.scene.path("object");
        let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
        rados(&["get", &objects[1], object.to_str().unwrap()]);
        let mut bytes = fs::read(&object).unwrap();
        bytes[10 * 4096 + 2000] ^= 4;
        fs::write(&object, bytes).unwrap();
        rados(&["put", &objects[1], object.to_str().unwrap()]);
        noticed(&disk, &objects[1], &format!("{layout}: a bit"), 1);
        let report = disk.keyed(&["check"], &["--json"]).code(10).json();
        assert_eq!(report["bad"], 1, "{layout}");
        // Rewritten, it is good again.
        let server = disk.serve(&[]);
        let at = report["bad_blocks"][0]["block"].as_u64().unwrap() * 4096;
        Client::connect(&server.socket).unwrap().write_at(at, &noise(5, 4096)).unwrap();
        assert_eq!(server.stop(), 0);
        disk.keyed(&["check"], &[]).code(0);
    }
}

#[test]
fn an_older_version_of_an_object_is_not_taken_for_the_present_one() {
    for layout in LAYOUTS {
        let Some((disk, objects)) = three_objects(layout) else { return };
        let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
        rados(&["cp", &objects[1], "older"]);
        disk.serve(&[]).used_by(|client| client.write_at(4 * MIB, &noise(7, 8192)).unwrap());
        rados(&["cp", &objects[1], "newer"]);
        rados(&["cp", "older", &objects[1]]);
        let ran = disk.keyed(&["check"], &["--read-only"]).code(10);
        assert!(ran.stdout.contains(&objects[1]), "{layout}: {}", ran.stdout);
        disk.serve_damaged().used_by(|client| {
            assert!(client.read_at(4 * MIB, 4096).is_err(), "{layout}: an older version came back");
            assert!(client.read_at(0, 1 << 20).unwrap() == noise(1, 1 << 20));
        });
        rados(&["cp", "newer", &objects[1]]);
        disk.keyed(&["check"], &[]).code(0);
        rados(&["rm", "older", "newer"]);
    }
}

#[test]
fn damaged_headers_and_metadata_objects_are_reported() {
    let Some((disk, objects)) = three_objects("adaptive") else { return };
    let rados = |args: &[&str]| disk.cluster.tool("rados", &[&["-p", POOL], args].concat());
    let file = disk.scene.path("object");
    let file = file.to_str().unwrap();
    let name = disk.location.rsplit('/').next().unwrap();
    let header = format!("lacuna.{name}.{:016x}", 0);
    let flipped = |object: &str, at: &[usize]| {
        rados(&["get", object, file]);
        let mut bytes = fs::read(file).unwrap();
        at.iter().for_each(|at| bytes[*at] ^= 0x10);
        fs::write(file, bytes).unwrap();
        rados(&["put", object, file]);
    };
    let (a, b) = (lacuna_header::COPY_A as usize + 20, lacuna_header::COPY_B as usize + 20);
    flipped(&header, &[a]);
    let ran = disk.keyed(&["check"], &[]).code(0);
    assert!(ran.stderr.contains("header repair"), "{}", ran.stderr);
    disk.keyed(&["header", "repair"], &[]).code(0);
    assert_eq!(disk.verb(&["info"], &[]).code(0).stderr, "");
    let last = format!("lacuna.{name}.{:016x}", 1);
    flipped(&header, &[a, b]);
    disk.keyed(&["check"], &[]).code(0);
    flipped(&last, &[20]);
    disk.keyed(&["check"], &[]).code(10);
    disk.verb(&["info"], &[]).code(10);
    flipped(&header, &[a, b]);
    flipped(&last, &[20]);
    assert_eq!(disk.keyed(&["check"], &[]).code(0).stderr, "");
    // The object with the first two copies and the record of the length is removed.
    rados(&["rm", &header]);
    disk.keyed(&["check"], &[]).code(0);
    disk.keyed(&["header", "repair"], &[]).code(0);
    assert_eq!(disk.keyed(&["check"], &[]).code(0).stderr, "");
    disk.verb(&["header", "backup"], &["backup"]).code(0);
    rados(&["rm", &header, &last]);
    disk.keyed(&["check"], &[]).code(4);
    disk.keyed(&["header", "restore"], &["backup", "--yes"]).code(0);
    assert_eq!(disk.keyed(&["check"], &[]).code(0).stderr, "");

    // The snapshot table is protected by the key; with a damaged table the disk is not opened
    // for writing.
    let table = objects[0].replace(".data.", ".book.");
    disk.keyed(&["snapshot", "create"], &["a"]).code(0);
    flipped(&table, &[10]);
    disk.keyed(&["check"], &[]).code(10);
    flipped(&table, &[10]);
    disk.keyed(&["check"], &[]).code(0);
    // Another disk's header under this name leads to the other disk, not to this disk's data.
    let other = PoolDisk::create(disk.cluster.again(), &["--size", "64M"]);
    let from = format!("lacuna.{}.{:016x}", other.location.rsplit('/').next().unwrap(), 0);
    rados(&["cp", &header, "mine"]);
    rados(&["cp", &from, &header]);
    assert_eq!(disk.keyed(&["check"], &["--json"]).code(0).json()["good"], 0);
    rados(&["cp", "mine", &header]);
    rados(&["rm", "mine"]);
    disk.keyed(&["check"], &[]).code(0);
}

#[test]
fn a_full_pool_is_reported_and_loses_no_flushed_data() {
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::unmade(cluster);
    let pool = format!("{}-full", disk.location.rsplit('/').next().unwrap());
    let ceph = |args: &[&str]| disk.cluster.tool("ceph", args);
    ceph(&["osd", "pool", "create", &pool, "8", "8"]);
    let location = format!("rados:{pool}/disk");
    let conf = disk.cluster.conf.to_str().unwrap();
    let create = ["create", &location, "--size", "256M", "--key-file", "key", "--ceph-conf", conf];
    disk.scene.lacuna(&[&create[..], &CHEAP].concat()).code(0);
    let words = ["serve", &location, "--socket", "nbd.sock", "--key-file", "key", "--ceph-conf", conf];
    let server = disk.scene.serve_command_logging_to(&mut disk.scene.command(&words), Stdio::null());
    let mut client = Client::connect(&server.socket).unwrap();
    for segment in 0..4 {
        client.write_at(segment * 4 * MIB, &noise(segment + 1, 4 << 20)).unwrap();
    }
    client.flush().unwrap();
    ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", "8388608"]);
    // The manager updates the used space only occasionally.
    let pools = || ceph(&["osd", "dump"]);
    wait_until("the quota", || pools().lines().any(|l| l.contains(&pool) && l.contains("full_quota")));
    // Writes that need no more space would still be accepted; these need some.
    let data = noise(9, 4 << 20);
    let mut write = |segment: u64| client.write_at(segment * 4 * MIB, &data).and_then(|()| client.flush());
    let failed = (4..60).find_map(|segment| write(segment).err());
    let error = failed.expect("a full pool takes writes");
    assert!(error.raw_os_error() == Some(libc::ENOSPC), "{error}");
    assert!(client.read_at(12 * MIB, 4 << 20).unwrap() == noise(4, 4 << 20));
    // Acknowledged data that never found space is reported when the server ends.
    client.write_at(61 * 4 * MIB, &noise(61, 4096)).unwrap();
    assert_eq!(client.flush().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    drop(client);
    assert_eq!(server.stop(), 13);
    ceph(&["osd", "pool", "set-quota", &pool, "max_bytes", "0"]);
    let check = ["check", &location, "--key-file", "key", "--ceph-conf", conf];
    wait_until("room in the pool", || disk.scene.lacuna(&check).code == 0);
    disk.serve_in(&disk.scene, &location, &[]).used_by(|client| {
        for segment in 0..4 {
            let data = client.read_at(segment * 4 * MIB, 4 << 20).unwrap();
            assert!(data == noise(segment + 1, 4 << 20), "segment {segment}");
        }
        client.write_at(0, &noise(500, 4096)).unwrap();
        client.flush().unwrap();
    });
    ceph(&["osd", "pool", "rm", &pool, &pool, "--yes-i-really-really-mean-it"]);
}
