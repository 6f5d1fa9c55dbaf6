//! Data that other programs' clients write to a disk in RADOS is read back unchanged: images over
//! NBD in every layout, and file trees on a mounted ext4 with snapshots.

use crate::clients::{ext4_image, fio_verifies};
use crate::harness::{CloseOnDrop, can_mount_ext4, cases, is_program_available, noise, skip_unless};
use crate::pool::{Cluster, PoolDisk};
use std::fs;
use std::path::Path;

fn image_survives(options: &[&str]) {
    skip_unless!(["qemu-img", "nbdcopy", "nbdinfo", "mke2fs"].into_iter().all(is_program_available));
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &[&["--size", "64M"], options].concat());
    let image = ext4_image(&disk.scene);
    let server = disk.serve(&[]);
    disk.scene.tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "ext4.img", &server.uri]);
    assert_eq!(server.stop(), 0);
    let server = disk.serve(&["--read-only"]);
    disk.scene.tool("nbdcopy", &[&server.uri, "out.img"]);
    assert_eq!(server.stop(), 0);
    assert!(
        fs::read(disk.scene.path("out.img")).unwrap() == image,
        "{options:?}: the image came back altered"
    );

    // Written by the other client, over several connections at once, and compared by the first.
    let server = disk.serve(&["--cache", "8M"]);
    disk.scene.tool("nbdcopy", &["ext4.img", &server.uri]);
    disk.scene.tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", "ext4.img", &server.uri]);
    assert_eq!(server.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
    let server = disk.serve(&["--cache", "4M"]);
    fio_verifies(&disk.scene, &server.uri, "--size=8m");
    assert_eq!(server.stop(), 0);
    let server = disk.serve(&["--write-through"]);
    fio_verifies(&disk.scene, &server.uri, "--size=2m");
    assert_eq!(server.stop(), 0);
    disk.keyed(&["check"], &[]).code(0);
}

cases! {
    xts => image_survives(&["--cipher", "xts"]);
    hctr2 => image_survives(&["--cipher", "hctr2"]);
    xts_random_adaptive => image_survives(&[]);
    xts_random_at_segment_end => image_survives(&["--layout", "segment-end"]);
    xts_random_interleaved => image_survives(&["--layout", "interleaved"]);
    xts_random_in_keys => image_survives(&["--layout", "kv"]);
    gcm_adaptive => image_survives(&["--cipher", "gcm"]);
    gcm_at_segment_end => image_survives(&["--cipher", "gcm", "--layout", "segment-end"]);
    gcm_interleaved => image_survives(&["--cipher", "gcm", "--layout", "interleaved"]);
    gcm_in_keys => image_survives(&["--cipher", "gcm", "--layout", "kv"]);
}

/// Copies a tree of real files, limited to keep the test short.
fn real_tree(disk: &PoolDisk, to: &str) {
    let take = "{ find /usr/share/doc /usr/share/zoneinfo /usr/lib/python3 -xdev -type f -size -300k 2>/dev/null || true; } \
                | head -n 3000 | tar -cf - -T - 2>/dev/null | tar -xf - -C \"$0\"";
    fs::create_dir_all(disk.scene.path(to)).unwrap();
    disk.scene.tool("sh", &["-c", take, to]);
    fs::write(disk.scene.path(to).join("large"), noise(5, 20 << 20)).unwrap();
}

/// Changes a tree in typical ways.
fn change(tree: &Path) {
    let mut large = fs::read(tree.join("large")).unwrap();
    large[7 << 20..9 << 20].copy_from_slice(&noise(6, 2 << 20));
    fs::write(tree.join("large"), large).unwrap();
    fs::rename(tree.join("usr"), tree.join("moved")).unwrap();
    fs::create_dir(tree.join("new")).unwrap();
    for file in 0..300u64 {
        fs::write(tree.join(format!("new/{file}")), noise(file + 1, 1000 * (file as usize % 50))).unwrap();
    }
}

#[test]
fn a_tree_its_snapshot_and_the_way_back() {
    skip_unless!(can_mount_ext4());
    let Some(cluster) = Cluster::shared() else { return };
    let disk = PoolDisk::create(cluster, &["--size", "1G", "--cipher", "gcm"]);
    let _closing = CloseOnDrop(&disk.scene, &["mnt", "then"]);
    let path = |name: &str| disk.scene.path(name);
    for dir in ["mnt", "then"] {
        fs::create_dir(path(dir)).unwrap();
    }
    let open = |options: &[&str]| disk.keyed(&["open"], &[&["mnt"], options].concat()).code(0);
    let close = |mountpoint: &str| disk.scene.lacuna(&["close", mountpoint]).code(0);
    let same = |one: &str, two: &str| disk.scene.tool("diff", &["-r", "--no-dereference", one, two]);
    real_tree(&disk, "tree");
    open(&["--mkfs", "ext4"]);
    disk.scene.tool("cp", &["-a", "tree", "mnt/tree"]);
    // While it is mounted, other commands cannot change its snapshots; the error gives the reason.
    let ran = disk.keyed(&["snapshot", "create"], &["early"]).code(5);
    assert!(ran.stderr.contains("close it there first"), "{}", ran.stderr);
    let status = disk.scene.lacuna(&["status", &disk.location, "--json"]).code(0).json();
    assert_eq!(status["servers"][0]["location"], *disk.location);
    close("mnt");
    disk.keyed(&["snapshot", "create"], &["before"]).code(0);

    open(&[]);
    same("tree", "mnt/tree");
    disk.scene.tool("cp", &["-a", "tree", "changed"]);
    change(&path("changed"));
    change(&path("mnt/tree"));
    // The snapshot is mounted read-only while the disk is being written.
    disk.keyed_at("before", &["open"], &["then"]).code(0);
    same("tree", "then/tree");
    assert!(fs::write(path("then/tree/no"), b"no").is_err());
    same("changed", "mnt/tree");
    close("then");
    close("mnt");

    disk.keyed(&["snapshot", "create"], &["after"]).code(0);
    disk.keyed(&["snapshot", "rollback"], &["before"]).code(0);
    open(&[]);
    same("tree", "mnt/tree");
    close("mnt");
    disk.keyed_at("after", &["open"], &["then", "--mount-options", "noload"]).code(0);
    same("changed", "then/tree");
    close("then");
    disk.keyed(&["check"], &[]).code(0);
    disk.keyed_at("after", &["check"], &[]).code(0);
    disk.keyed(&["snapshot", "remove"], &["before"]).code(0);
    disk.keyed(&["snapshot", "remove"], &["after"]).code(0);
    disk.keyed(&["check"], &[]).code(0);
}

#[test]
fn trimmed_space_is_given_back_to_the_pool() {
    skip_unless!(can_mount_ext4());
    let Some(cluster) = Cluster::shared() else { return };
    // With gcm an empty object stays: its seal records that it is empty.
    let disk = PoolDisk::create(cluster, &["--size", "256M", "--cipher", "xts-random"]);
    let _closing = CloseOnDrop(&disk.scene, &["mnt", "then"]);
    fs::create_dir(disk.scene.path("mnt")).unwrap();
    disk.keyed(&["open"], &["mnt", "--mkfs", "ext4"]).code(0);
    fs::write(disk.scene.path("mnt/large"), noise(5, 100 << 20)).unwrap();
    disk.scene.tool("sync", &["-f", "mnt"]);
    let objects = || disk.objects(&disk.data_prefix()).len();
    let full = objects();
    assert!(full >= 25, "{full} objects for 100 MiB");
    fs::remove_file(disk.scene.path("mnt/large")).unwrap();
    disk.scene.tool("sync", &["-f", "mnt"]);
    disk.scene.tool("fstrim", &["mnt"]);
    disk.scene.lacuna(&["close", "mnt"]).code(0);
    assert!(objects() + 20 <= full, "fstrim left {} of {full} objects", objects());
}
