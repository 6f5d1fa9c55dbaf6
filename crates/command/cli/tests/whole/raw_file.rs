//! The disk as a file, for programs that expect one.

use crate::harness::{Scene, can_mount, is_program_available, noise, skip_unless};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

/// Linux can map such files since 6.6.
fn kernel_maps() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 6)
}

/// Reads data written by other means, modifies part of it through the mapping, and modifies more
/// after a `pwrite`.
const MAP: &str = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(file, 0)
assert memory[5000:5003] == b'abc'
memory[5000:5003] = b'ABC'
os.pwrite(file, b'xyz', 9000)
assert memory[9000:9003] == b'xyz'
memory[9003:9006] = b'XYZ'
assert os.pread(file, 6, 9000) == b'xyzXYZ'
memory.flush()
";

#[test]
fn programs_map_the_file_of_a_raw_disk() {
    skip_unless!(
        can_mount("/dev/fuse")
            && is_program_available("fusermount3")
            && is_program_available("python3")
            && kernel_maps()
    );
    let scene = Scene::with_disk(&["--size", "64M"]);
    fs::create_dir(scene.path("mnt")).unwrap();
    let open = ["open", "disk.img", "mnt", "--raw", "--key-file", "key"];
    scene.lacuna(&open).code(0);
    let content = noise(1, 16384);
    let disk = || fs::OpenOptions::new().read(true).write(true).open(scene.path("mnt/disk")).unwrap();
    disk().write_all_at(&content, 0).unwrap();
    disk().write_all_at(b"abc", 5000).unwrap();
    let mapped = Command::new("python3").args(["-c", MAP]).arg(scene.path("mnt/disk")).output().unwrap();
    scene.lacuna(&["close", "mnt"]).code(0);
    assert!(mapped.status.success(), "{}", String::from_utf8_lossy(&mapped.stderr));

    scene.lacuna(&open).code(0);
    let mut back = vec![0; content.len()];
    disk().read_exact_at(&mut back, 0).unwrap();
    scene.lacuna(&["close", "mnt"]).code(0);
    let mut expected = content;
    expected[5000..5003].copy_from_slice(b"ABC");
    expected[9000..9006].copy_from_slice(b"xyzXYZ");
    assert!(back == expected);
}
