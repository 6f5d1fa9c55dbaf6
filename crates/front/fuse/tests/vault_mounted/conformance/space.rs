//! Checks of `statfs` and of inode numbers.

use super::check_dir::{CheckDir, pattern, stat};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::{OFlags, statfs, statvfs};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    statfs_reports_the_space,
    space_is_the_same_everywhere,
    space_of_a_handle,
    pathconf_reports_the_limits,
    kind_of_the_file_system,
    programs_know_the_space,
    inode_numbers_are_unique,
    inode_numbers_stay,
    inode_numbers_are_not_given_again_while_open,
    device_is_the_same_everywhere,
    blocks_follow_the_content,
    sizes_add_up,
];

fn statfs_reports_the_space(at: &CheckDir) {
    let space = statvfs(&at.dir).unwrap();
    assert!(space.f_blocks > 0 && space.f_bfree <= space.f_blocks && space.f_bavail <= space.f_bfree);
    assert!(space.f_bsize >= 512 && space.f_frsize >= 512);
    assert!(space.f_ffree <= space.f_files);
}

fn space_is_the_same_everywhere(at: &CheckDir) {
    at.dir("dir");
    let file = at.file("dir/file", b"");
    let (a, b) = (statvfs(&at.dir).unwrap(), statvfs(file).unwrap());
    assert_eq!((a.f_blocks, a.f_frsize, a.f_fsid), (b.f_blocks, b.f_frsize, b.f_fsid));
}

fn space_of_a_handle(at: &CheckDir) {
    let file = at.handle("file", b"");
    assert_eq!(rustix::fs::fstatvfs(&file).unwrap().f_blocks, statvfs(&at.dir).unwrap().f_blocks);
    fs::remove_file(at.path("file")).unwrap();
    rustix::fs::fstatvfs(&file).unwrap();
}

fn pathconf_reports_the_limits(at: &CheckDir) {
    assert_eq!(statvfs(&at.dir).unwrap().f_namemax, 255);
}

fn kind_of_the_file_system(at: &CheckDir) {
    let kind = statfs(&at.dir).unwrap().f_type;
    assert_eq!(kind == 0x6573_5546, at.vault, "{kind:x}");
    if at.vault {
        assert_eq!(statvfs(&at.dir).unwrap().f_bsize, 4096);
    }
}

fn programs_know_the_space(at: &CheckDir) {
    let output = run(Command::new("df").args(["--output=size,used,avail", "-B4096"]).arg(&at.dir));
    let numbers: Vec<u64> =
        output.lines().nth(1).unwrap().split_whitespace().map(|n| n.parse().unwrap()).collect();
    let space = statvfs(&at.dir).unwrap();
    assert_eq!(numbers[0], space.f_blocks * space.f_frsize / 4096);
}

fn inode_numbers_are_unique(at: &CheckDir) {
    let mut seen = BTreeSet::new();
    for n in 0..1000 {
        let path = at.path(format!("{n}"));
        match n % 3 {
            0 => fs::write(&path, b"").unwrap(),
            1 => fs::create_dir(&path).unwrap(),
            _ => std::os::unix::fs::symlink("x", &path).unwrap(),
        }
        assert!(seen.insert(stat(&path).st_ino));
    }
}

fn inode_numbers_stay(at: &CheckDir) {
    let file = at.handle("file", b"");
    let ino = stat(at.path("file")).st_ino;
    fs::write(at.path("file"), pattern(1, 100_000)).unwrap();
    fs::rename(at.path("file"), at.path("moved")).unwrap();
    super::check_dir::sync_and_drop_cache(&file);
    file.set_len(0).unwrap();
    assert_eq!(stat(at.path("moved")).st_ino, ino);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_ino, ino);
}

fn inode_numbers_are_not_given_again_while_open(at: &CheckDir) {
    let mut open = vec![];
    let mut seen = BTreeSet::new();
    for _ in 0..100 {
        open.push(at.handle("file", b""));
        assert!(seen.insert(stat(at.path("file")).st_ino));
        fs::remove_file(at.path("file")).unwrap();
    }
}

fn device_is_the_same_everywhere(at: &CheckDir) {
    let device = stat(&at.dir).st_dev;
    at.dir("dir");
    at.file("dir/file", b"");
    assert_eq!((stat(at.path("dir")).st_dev, stat(at.path("dir/file")).st_dev), (device, device));
    assert_eq!(stat("/").st_dev == device, !at.vault && stat("/").st_dev == device);
}

fn blocks_follow_the_content(at: &CheckDir) {
    let file = at.handle("file", b"");
    assert_eq!(stat(at.path("file")).st_blocks, 0);
    std::os::unix::fs::FileExt::write_all_at(&file, &pattern(1, 100_000), 0).unwrap();
    // The kernel caches the block count of an open file with cached pages, and asks again when a
    // handle is closed.
    drop(file);
    super::check_dir::stored(at.path("file"));
    let blocks = stat(at.path("file")).st_blocks;
    assert!((196..=400).contains(&blocks), "{blocks}");
    assert!(stat(at.path("file")).st_blksize >= 512);
}

fn sizes_add_up(at: &CheckDir) {
    for n in 0..10 {
        at.file(format!("{n}"), &pattern(n, 10_000));
    }
    rustix::fs::syncfs(File::open(&at.dir).unwrap()).unwrap();
    let output = run(Command::new("du").args(["-s", "--apparent-size", "-B1"]).arg(&at.dir));
    let bytes: u64 = output.split_whitespace().next().unwrap().parse().unwrap();
    assert!(bytes >= 100_000, "{bytes}");
    let opened = at.open("", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    assert!(rustix::fs::fstat(&opened).unwrap().st_nlink >= 1);
}
