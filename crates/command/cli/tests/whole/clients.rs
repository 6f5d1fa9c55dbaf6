//! Data written by other programs' clients is read back unchanged, with every cipher.

use crate::harness::{Scene, cases, is_program_available, noise, skip_unless, skipped};
use std::fs;
use std::process::Command;

/// A real ext4 image of 64 MiB with a small tree in it.
pub(crate) fn ext4_image(scene: &Scene) -> Vec<u8> {
    let tree = scene.path("tree");
    for dir in 0..20 {
        let dir = tree.join(format!("d{dir}"));
        fs::create_dir_all(&dir).unwrap();
        for file in 0..20u64 {
            fs::write(dir.join(format!("f{file}")), noise(file + 1, 3000 * file as usize)).unwrap();
        }
    }
    fs::write(tree.join("large"), noise(99, 9 << 20)).unwrap();
    scene.tool("mke2fs", &["-q", "-t", "ext4", "-d", "tree", "ext4.img", "64M"]);
    fs::read(scene.path("ext4.img")).unwrap()
}

fn image_survives(options: &[&str]) {
    skip_unless!(["qemu-img", "nbdcopy", "nbdinfo", "mke2fs"].into_iter().all(is_program_available));
    let scene = Scene::new();
    let image = ext4_image(&scene);
    scene.create("disk.img", &[&["--size", "64M"], options].concat()).code(0);
    let server = scene.serve(&[]);
    scene.tool("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "ext4.img", &server.uri]);
    let facts = scene.tool("nbdinfo", &["--json", &server.uri]).json();
    let export = &facts["exports"][0];
    assert_eq!(export["export-size"], 64 << 20);
    assert_eq!(export["block_minimum"].as_u64().or(export["block_size_minimum"].as_u64()), Some(4096));
    for can in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"] {
        assert_eq!(export[can], true, "{can} in {facts}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(server.stop(), 0);

    // Reads it back from a server that starts from the medium alone.
    let server = scene.serve(&["--read-only"]);
    scene.tool("nbdcopy", &[&server.uri, "out.img"]);
    assert_eq!(server.stop(), 0);
    assert!(fs::read(scene.path("out.img")).unwrap() == image, "{options:?}: the image came back altered");

    // Writes it with the other client, over several connections at once.
    let server = scene.serve(&[]);
    scene.tool("nbdcopy", &["ext4.img", &server.uri]);
    assert_eq!(server.stop(), 0);
    let server = scene.serve(&["--read-only"]);
    scene.tool("nbdcopy", &[&server.uri, "again.img"]);
    assert_eq!(server.stop(), 0);
    assert!(fs::read(scene.path("again.img")).unwrap() == image);
    let server = scene.serve(&["--cache", "4M"]);
    fio_verifies(&scene, &server.uri, "--size=24m");
    assert_eq!(server.stop(), 0);
}

/// Whether fio can be an NBD client here; prints a message if not.
pub(crate) fn has_fio_with_nbd() -> bool {
    let engines = Command::new("fio").arg("--enghelp").output();
    let is_there = |engines: &[u8]| String::from_utf8_lossy(engines).split_whitespace().any(|e| e == "nbd");
    let has_it = engines.is_ok_and(|out| is_there(&out.stdout));
    if !has_it {
        skipped("this machine has no fio with the nbd engine");
    }
    has_it
}

/// Random writes, verified by fio itself. They overwrite the first `size` bytes of the disk.
pub(crate) fn fio_verifies(scene: &Scene, uri: &str, size: &str) {
    skip_unless!(has_fio_with_nbd());
    let uri = format!("--uri={uri}");
    for block_size in ["--bs=4k", "--bs=64k"] {
        let args = ["--name=verify", "--ioengine=nbd", &uri, "--rw=randwrite", block_size, size];
        let more = ["--verify=crc32c", "--do_verify=1", "--iodepth=16", "--randseed=7", "--end_fsync=1"];
        scene.tool("fio", &[&args[..], &more].concat());
    }
}

cases! {
    xts => image_survives(&["--cipher", "xts"]);
    hctr2 => image_survives(&["--cipher", "hctr2"]);
    xts_random => image_survives(&["--cipher", "xts-random"]);
    gcm => image_survives(&["--cipher", "gcm"]);
}
