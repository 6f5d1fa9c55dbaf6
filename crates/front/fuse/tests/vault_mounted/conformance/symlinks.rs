//! Checks of symbolic links: their targets, path resolution, and their own attributes.

use super::check_dir::{CheckDir, fails, fails_among, set_owner_and_group, stat};
use super::{ConformanceCheck, checks};
use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    target_is_kept,
    targets_of_every_length,
    longest_target,
    empty_target_is_enoent,
    targets_of_any_bytes,
    attributes_of_a_symlink,
    relative_target,
    absolute_target,
    target_with_dots,
    dangling_symlink,
    symlink_to_a_directory,
    symlink_in_the_middle_of_a_path,
    chain_of_forty,
    chain_of_forty_one_is_eloop,
    loops_are_eloop,
    small_buffer_cuts_the_target,
    readlink_needs_a_symlink,
    removing_leaves_the_target,
    owner_of_a_symlink,
    mode_of_a_symlink_is_fixed,
    replaced_target,
    thousand_symlinks,
    slash_after_a_symlink,
];

fn target(at: &CheckDir, name: &str) -> Vec<u8> {
    fs::read_link(at.path(name)).unwrap().as_os_str().as_bytes().to_vec()
}

fn target_is_kept(at: &CheckDir) {
    symlink("some/where else", at.path("link")).unwrap();
    assert_eq!(target(at, "link"), b"some/where else");
}

fn targets_of_every_length(at: &CheckDir) {
    for len in [1, 2, 15, 59, 60, 61, 200, 255, 256, 1000, 4000] {
        let name = format!("{len}");
        symlink("t".repeat(len), at.path(&name)).unwrap();
        assert_eq!((target(at, &name).len(), stat(at.path(&name)).st_size), (len, len as i64));
    }
}

fn longest_target(at: &CheckDir) {
    symlink("t".repeat(4095), at.path("link")).unwrap();
    assert_eq!(target(at, "link"), "t".repeat(4095).into_bytes());
    fails(symlink("t".repeat(4096), at.path("longer")), Errno::NAMETOOLONG);
    fails(fs::read(at.path("link")), Errno::NAMETOOLONG);
}

fn empty_target_is_enoent(at: &CheckDir) {
    fails(symlink("", at.path("link")), Errno::NOENT);
    fails(rustix::fs::lstat(at.path("link")), Errno::NOENT);
}

fn targets_of_any_bytes(at: &CheckDir) {
    let all: Vec<u8> = (1..=255).collect();
    symlink(OsStr::from_bytes(&all), at.path("link")).unwrap();
    assert_eq!(target(at, "link"), all);
}

fn attributes_of_a_symlink(at: &CheckDir) {
    symlink("target", at.path("link")).unwrap();
    let stat = stat(at.path("link"));
    assert_eq!((stat.st_mode, stat.st_size, stat.st_nlink), (0o120_777, 6, 1));
}

fn relative_target(at: &CheckDir) {
    at.dir("dir");
    at.file("dir/file", b"here");
    symlink("file", at.path("dir/link")).unwrap();
    symlink("dir/link", at.path("outer")).unwrap();
    assert_eq!(fs::read(at.path("outer")).unwrap(), b"here");
    fs::rename(at.path("dir"), at.path("moved")).unwrap();
    assert_eq!(fs::read(at.path("moved/link")).unwrap(), b"here");
    fails(fs::read(at.path("outer")), Errno::NOENT);
}

fn absolute_target(at: &CheckDir) {
    let file = at.file("file", b"here");
    at.dir("dir");
    symlink(&file, at.path("dir/link")).unwrap();
    assert_eq!(fs::read(at.path("dir/link")).unwrap(), b"here");
    symlink("/", at.path("root")).unwrap();
    assert_eq!(rustix::fs::stat(at.path("root")).unwrap().st_ino, stat("/").st_ino);
}

fn target_with_dots(at: &CheckDir) {
    at.dir("a");
    at.dir("a/b");
    at.file("file", b"here");
    symlink("../../file", at.path("a/b/up")).unwrap();
    symlink("./../b/./up", at.path("a/b/around")).unwrap();
    assert_eq!(fs::read(at.path("a/b/around")).unwrap(), b"here");
}

fn dangling_symlink(at: &CheckDir) {
    symlink("nowhere", at.path("link")).unwrap();
    fails(fs::read(at.path("link")), Errno::NOENT);
    fails(rustix::fs::stat(at.path("link")), Errno::NOENT);
    stat(at.path("link"));
    at.file("nowhere", b"now here");
    assert_eq!(fs::read(at.path("link")).unwrap(), b"now here");
}

fn symlink_to_a_directory(at: &CheckDir) {
    at.dir("dir");
    symlink("dir", at.path("link")).unwrap();
    at.file("link/file", b"x");
    assert!(at.path("dir/file").exists());
    assert_eq!(fs::read_dir(at.path("link")).unwrap().count(), 1);
    fails(fs::remove_dir(at.path("link")), Errno::NOTDIR);
    fs::remove_file(at.path("link")).unwrap();
    assert!(at.path("dir/file").exists());
}

fn symlink_in_the_middle_of_a_path(at: &CheckDir) {
    at.dir("a");
    at.dir("a/b");
    symlink("a", at.path("one")).unwrap();
    symlink("b", at.path("a/two")).unwrap();
    at.file("one/two/file", b"x");
    assert!(at.path("a/b/file").exists());
    let text = at.dir.to_str().unwrap();
    assert_eq!(rustix::fs::stat(format!("{text}/one/two/..")).unwrap().st_ino, stat(at.path("a")).st_ino);
}

fn chain(at: &CheckDir, length: usize) {
    at.file("0", b"end");
    for n in 1..=length {
        symlink(format!("{}", n - 1), at.path(format!("{n}"))).unwrap();
    }
}

fn chain_of_forty(at: &CheckDir) {
    chain(at, 40);
    assert_eq!(fs::read(at.path("40")).unwrap(), b"end");
}

fn chain_of_forty_one_is_eloop(at: &CheckDir) {
    chain(at, 41);
    fails(fs::read(at.path("41")), Errno::LOOP);
}

fn loops_are_eloop(at: &CheckDir) {
    symlink("self", at.path("self")).unwrap();
    symlink("b", at.path("a")).unwrap();
    symlink("a", at.path("b")).unwrap();
    for name in ["self", "a", "b", "a/x"] {
        fails(rustix::fs::stat(at.path(name)), Errno::LOOP);
        fails(at.open(name, OFlags::RDWR | OFlags::CREATE), Errno::LOOP);
    }
    fails(fs::create_dir(at.path("self")), Errno::EXIST);
    fs::remove_file(at.path("self")).unwrap();
}

fn small_buffer_cuts_the_target(at: &CheckDir) {
    symlink("0123456789", at.path("link")).unwrap();
    let mut out = [std::mem::MaybeUninit::uninit(); 4];
    let (read, _) = rustix::fs::readlinkat_raw(CWD, at.path("link"), &mut out).unwrap();
    assert_eq!(read, b"0123");
}

fn readlink_needs_a_symlink(at: &CheckDir) {
    let file = at.file("file", b"");
    fails(fs::read_link(&file), Errno::INVAL);
    fails(fs::read_link(&at.dir), Errno::INVAL);
    fails(fs::read_link(at.path("none")), Errno::NOENT);
}

fn removing_leaves_the_target(at: &CheckDir) {
    let file = at.file("file", b"kept");
    symlink("file", at.path("link")).unwrap();
    fs::remove_file(at.path("link")).unwrap();
    assert_eq!(fs::read(file).unwrap(), b"kept");
}

fn owner_of_a_symlink(at: &CheckDir) {
    let file = at.file("file", b"");
    symlink("file", at.path("link")).unwrap();
    set_owner_and_group(at.path("link"), 5, 6);
    assert_eq!((stat(at.path("link")).st_uid, stat(at.path("link")).st_gid), (5, 6));
    assert_eq!((stat(&file).st_uid, stat(&file).st_gid), (0, 0));
    std::os::unix::fs::chown(at.path("link"), Some(7), Some(8)).unwrap();
    assert_eq!((stat(at.path("link")).st_uid, stat(&file).st_uid), (5, 7));
}

fn mode_of_a_symlink_is_fixed(at: &CheckDir) {
    let file = at.file("file", b"");
    symlink("file", at.path("link")).unwrap();
    super::check_dir::chmod(at.path("link"), 0o600);
    assert_eq!((super::check_dir::mode(&file), super::check_dir::mode(at.path("link"))), (0o600, 0o777));
}

fn replaced_target(at: &CheckDir) {
    at.file("one", b"1");
    at.file("two", b"2");
    for n in 0..40 {
        let (name, content) = if n % 2 == 0 { ("one", b"1") } else { ("two", b"2") };
        symlink(name, at.path("new")).unwrap();
        fs::rename(at.path("new"), at.path("current")).unwrap();
        assert_eq!(fs::read(at.path("current")).unwrap(), content);
        assert_eq!(target(at, "current"), name.as_bytes());
    }
}

fn thousand_symlinks(at: &CheckDir) {
    for n in 0..1000 {
        symlink(format!("target of {n}"), at.path(format!("{n}"))).unwrap();
    }
    for n in (0..1000).rev() {
        assert_eq!(target(at, &format!("{n}")), format!("target of {n}").into_bytes());
        fs::remove_file(at.path(format!("{n}"))).unwrap();
    }
}

fn slash_after_a_symlink(at: &CheckDir) {
    at.dir("dir");
    at.file("file", b"");
    symlink("dir", at.path("to dir")).unwrap();
    symlink("file", at.path("to file")).unwrap();
    assert_eq!(stat(at.path("to dir/")).st_ino, stat(at.path("dir")).st_ino);
    fails(rustix::fs::lstat(at.path("to file/")), Errno::NOTDIR);
    fails_among(rustix::fs::rmdir(at.path("to dir/")), &[Errno::NOTDIR]);
    fails_among(rustix::fs::unlink(at.path("to dir/")), &[Errno::NOTDIR, Errno::ISDIR]);
}
