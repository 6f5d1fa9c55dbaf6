//! Checks of names: their length and bytes, their place in a path, and existing names.

use super::check_dir::{CheckDir, fails, fails_among, open, stat};
use super::{ConformanceCheck, checks};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    longest_name_works_everywhere,
    longer_name_is_refused_everywhere,
    longest_name_of_wide_characters,
    every_byte_in_a_name,
    names_differ_by_case_and_form,
    odd_names,
    dot_and_dot_dot_cannot_be_made_or_removed,
    dot_dot_leads_up,
    paths_longer_than_the_limit_are_refused,
    deep_directories,
    nothing_replaces_an_old_name,
    nothing_is_made_in_a_missing_directory,
    nothing_is_made_in_a_file,
    slashes_after_directories,
    slashes_after_files,
    removed_names_are_free_again,
    names_come_and_go,
    thousands_of_names,
    name_that_was_missing_appears,
    name_of_another_kind_appears,
];

fn listed(dir: &Path) -> BTreeSet<Vec<u8>> {
    fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect()
}

fn longest_name_works_everywhere(at: &CheckDir) {
    let (one, two) = ("a".repeat(255), "b".repeat(255));
    at.file(&one, b"content");
    fs::rename(at.path(&one), at.path(&two)).unwrap();
    fs::hard_link(at.path(&two), at.path(&one)).unwrap();
    assert_eq!(listed(&at.dir), BTreeSet::from([one.clone().into_bytes(), two.clone().into_bytes()]));
    fs::remove_file(at.path(&one)).unwrap();
    assert_eq!(fs::read(at.path(&two)).unwrap(), b"content");
    fs::remove_file(at.path(&two)).unwrap();
    at.dir(&one);
    symlink("x", at.path(&one).join(&two)).unwrap();
    fs::remove_file(at.path(&one).join(&two)).unwrap();
    fs::remove_dir(at.path(&one)).unwrap();
    assert!(listed(&at.dir).is_empty());
}

fn longer_name_is_refused_everywhere(at: &CheckDir) {
    let long = at.path("a".repeat(256));
    let file = at.file("file", b"");
    fails(open(&long, OFlags::WRONLY | OFlags::CREATE), Errno::NAMETOOLONG);
    fails(open(&long, OFlags::RDONLY), Errno::NAMETOOLONG);
    fails(fs::create_dir(&long), Errno::NAMETOOLONG);
    fails(symlink("x", &long), Errno::NAMETOOLONG);
    fails(fs::hard_link(&file, &long), Errno::NAMETOOLONG);
    fails(fs::hard_link(&long, at.path("b")), Errno::NAMETOOLONG);
    fails(fs::rename(&file, &long), Errno::NAMETOOLONG);
    fails(fs::rename(&long, &file), Errno::NAMETOOLONG);
    fails(rustix::fs::lstat(&long), Errno::NAMETOOLONG);
    fails(fs::remove_file(&long), Errno::NAMETOOLONG);
    fails(fs::remove_dir(&long), Errno::NAMETOOLONG);
    fails(fs::read_link(&long), Errno::NAMETOOLONG);
    fails(rustix::fs::mknodat(CWD, &long, FileType::Fifo, Mode::RUSR, 0), Errno::NAMETOOLONG);
    fails(rustix::fs::lstat(long.join("x")), Errno::NAMETOOLONG);
}

fn longest_name_of_wide_characters(at: &CheckDir) {
    let name = "語".repeat(85);
    at.file(&name, b"wide");
    assert_eq!(listed(&at.dir), BTreeSet::from([name.into_bytes()]));
    fails(at.open("語".repeat(86), OFlags::WRONLY | OFlags::CREATE), Errno::NAMETOOLONG);
}

fn every_byte_in_a_name(at: &CheckDir) {
    let bytes = || (1..=255u8).filter(|byte| *byte != b'/');
    let name = |byte: u8| at.path(OsStr::from_bytes(&[b'x', byte, b'y']));
    for byte in bytes() {
        fs::write(name(byte), [byte]).unwrap();
    }
    assert_eq!(listed(&at.dir), bytes().map(|byte| vec![b'x', byte, b'y']).collect());
    for byte in bytes() {
        assert_eq!(fs::read(name(byte)).unwrap(), [byte]);
        fs::remove_file(name(byte)).unwrap();
    }
    assert!(listed(&at.dir).is_empty());
}

fn names_differ_by_case_and_form(at: &CheckDir) {
    let names = ["name", "Name", "NAME", "\u{e9}", "e\u{301}", "stra\u{df}e", "strasse"];
    for name in names {
        at.file(name, name.as_bytes());
    }
    for name in names {
        assert_eq!(fs::read(at.path(name)).unwrap(), name.as_bytes());
    }
    assert_eq!(listed(&at.dir).len(), names.len());
}

fn odd_names(at: &CheckDir) {
    let names = [
        "...", "....", " ", " . ", "-", "--help", "\n", "\t", "*", "?", "~", "#a#", "a\\b", "con", "$x",
        "\u{feff}",
    ];
    for name in names {
        at.file(name, b"");
    }
    assert_eq!(listed(&at.dir), names.iter().map(|name| name.as_bytes().to_vec()).collect());
}

fn dot_and_dot_dot_cannot_be_made_or_removed(at: &CheckDir) {
    at.dir("dir");
    at.file("file", b"");
    for name in ["dir/.", "dir/.."] {
        let path = at.dir.as_os_str().to_owned().into_string().unwrap() + "/" + name;
        fails(rustix::fs::mkdir(&path, Mode::RWXU), Errno::EXIST);
        fails(rustix::fs::symlink("x", &path), Errno::EXIST);
        fails(rustix::fs::link(at.path("file"), &path), Errno::EXIST);
        fails_among(rustix::fs::unlink(&path), &[Errno::ISDIR, Errno::PERM]);
        fails(rustix::fs::rename(&path, at.path("new")), Errno::BUSY);
        fails(rustix::fs::rename(at.path("dir"), &path), Errno::BUSY);
    }
    let text = at.dir.to_str().unwrap();
    fails(rustix::fs::rmdir(format!("{text}/dir/.")), Errno::INVAL);
    fails(rustix::fs::rmdir(format!("{text}/dir/..")), Errno::NOTEMPTY);
}

fn dot_dot_leads_up(at: &CheckDir) {
    at.dir("a");
    at.dir("a/b");
    let text = at.dir.to_str().unwrap();
    assert_eq!(stat(format!("{text}/a/b/..")).st_ino, stat(at.path("a")).st_ino);
    assert_eq!(stat(format!("{text}/a/b/../..")).st_ino, stat(&at.dir).st_ino);
    assert_eq!(stat(format!("{text}/a/./b/.")).st_ino, stat(at.path("a/b")).st_ino);
}

fn paths_longer_than_the_limit_are_refused(at: &CheckDir) {
    let long: PathBuf = std::iter::repeat_n("aaaaaaa", 600).collect();
    fails(rustix::fs::lstat(at.path(&long)), Errno::NAMETOOLONG);
    fails(at.open(&long, OFlags::WRONLY | OFlags::CREATE), Errno::NAMETOOLONG);
}

fn deep_directories(at: &CheckDir) {
    const DEPTH: usize = 300;
    let mut dirs = vec![File::open(&at.dir).unwrap()];
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    for _ in 0..DEPTH {
        let here = dirs.last().unwrap();
        rustix::fs::mkdirat(here, "a long name of a directory", Mode::RWXU).unwrap();
        let below = rustix::fs::openat(here, "a long name of a directory", flags, Mode::empty()).unwrap();
        dirs.push(below.into());
    }
    let up = rustix::fs::openat(dirs.last().unwrap(), "..", flags, Mode::empty()).unwrap();
    let ino = |fd: &File| rustix::fs::fstat(fd).unwrap().st_ino;
    assert_eq!(ino(&up.into()), ino(&dirs[DEPTH - 1]));
    dirs.pop();
    for here in dirs.iter().rev() {
        rustix::fs::unlinkat(here, "a long name of a directory", AtFlags::REMOVEDIR).unwrap();
    }
    assert!(listed(&at.dir).is_empty());
}

/// Makes one node of each kind; returns their names.
fn one_of_each(at: &CheckDir) -> [PathBuf; 6] {
    symlink("nowhere", at.path("dangling")).unwrap();
    symlink("file", at.path("link")).unwrap();
    rustix::fs::mknodat(CWD, at.path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    at.dir("full");
    at.file("full/x", b"");
    [
        at.file("file", b"kept"),
        at.dir("dir"),
        at.path("full"),
        at.path("link"),
        at.path("dangling"),
        at.path("fifo"),
    ]
}

fn nothing_replaces_an_old_name(at: &CheckDir) {
    let olds = one_of_each(at);
    let source = at.file("source", b"");
    for old in &olds {
        let before = stat(old);
        fails(fs::create_dir(old), Errno::EXIST);
        fails(symlink("x", old), Errno::EXIST);
        fails(fs::hard_link(&source, old), Errno::EXIST);
        for kind in [FileType::Fifo, FileType::RegularFile, FileType::Socket, FileType::CharacterDevice] {
            fails(rustix::fs::mknodat(CWD, old, kind, Mode::RUSR, 0), Errno::EXIST);
        }
        assert_eq!((stat(old).st_ino, stat(old).st_mode), (before.st_ino, before.st_mode));
    }
}

/// Every call that makes a name must fail there with this number.
fn cannot_make(at: &CheckDir, path: &Path, expected: Errno) {
    let source = at.path("source");
    fails(open(path, OFlags::WRONLY | OFlags::CREATE), expected);
    fails(fs::create_dir(path), expected);
    fails(symlink("x", path), expected);
    fails(fs::hard_link(&source, path), expected);
    fails(fs::rename(&source, path), expected);
    fails(rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR, 0), expected);
    fails(fs::remove_file(path), expected);
    fails(fs::remove_dir(path), expected);
    fails(rustix::fs::lstat(path), expected);
}

fn nothing_is_made_in_a_missing_directory(at: &CheckDir) {
    at.file("source", b"");
    cannot_make(at, &at.path("none/name"), Errno::NOENT);
    symlink("nowhere", at.path("dangling")).unwrap();
    cannot_make(at, &at.path("dangling/name"), Errno::NOENT);
}

fn nothing_is_made_in_a_file(at: &CheckDir) {
    at.file("source", b"");
    at.file("file", b"");
    symlink("file", at.path("link")).unwrap();
    cannot_make(at, &at.path("file/name"), Errno::NOTDIR);
    cannot_make(at, &at.path("link/name"), Errno::NOTDIR);
}

fn slashes_after_directories(at: &CheckDir) {
    rustix::fs::mkdir(at.path("dir/"), Mode::RWXU).unwrap();
    rustix::fs::mkdir(at.path("dir//sub///"), Mode::RWXU).unwrap();
    assert_eq!(stat(at.path("dir/")).st_ino, stat(at.path("dir")).st_ino);
    rustix::fs::rename(at.path("dir/sub/"), at.path("dir/moved/")).unwrap();
    rustix::fs::rmdir(at.path("dir/moved/")).unwrap();
    rustix::fs::rmdir(at.path("dir/")).unwrap();
}

fn slashes_after_files(at: &CheckDir) {
    at.file("file", b"");
    fails(rustix::fs::unlink(at.path("file/")), Errno::NOTDIR);
    fails(rustix::fs::rmdir(at.path("file/")), Errno::NOTDIR);
    fails(rustix::fs::rename(at.path("file/"), at.path("new")), Errno::NOTDIR);
    fails(rustix::fs::rename(at.path("file"), at.path("new/")), Errno::NOTDIR);
    fails(rustix::fs::mkdir(at.path("file/"), Mode::RWXU), Errno::EXIST);
}

fn removed_names_are_free_again(at: &CheckDir) {
    let path = at.file("name", b"first");
    fs::remove_file(&path).unwrap();
    fails(rustix::fs::lstat(&path), Errno::NOENT);
    fs::create_dir(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    symlink("x", &path).unwrap();
    fs::remove_file(&path).unwrap();
    at.open("name", OFlags::WRONLY | OFlags::CREATE).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

fn names_come_and_go(at: &CheckDir) {
    for round in 0..300u32 {
        let path = at.path(format!("{}", round % 7));
        match fs::remove_file(&path) {
            Ok(()) => assert!(!path.exists()),
            Err(_) => fs::write(&path, round.to_le_bytes()).unwrap(),
        }
        assert_eq!(listed(&at.dir).contains(format!("{}", round % 7).as_bytes()), path.exists());
    }
}

fn thousands_of_names(at: &CheckDir) {
    let name = |n: u32| format!("entry number {n}");
    for n in 0..3000 {
        drop(at.open(name(n), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).unwrap());
    }
    assert_eq!(listed(&at.dir), (0..3000).map(|n| name(n).into_bytes()).collect());
    for n in (0..3000).filter(|n| n % 3 != 0) {
        fs::remove_file(at.path(name(n))).unwrap();
    }
    assert_eq!(listed(&at.dir), (0..3000).step_by(3).map(|n| name(n).into_bytes()).collect());
}

fn name_that_was_missing_appears(at: &CheckDir) {
    // A missing name is cached; creating it must invalidate the cache.
    type Make = fn(&Path);
    let makes: [(&str, Make); 5] = [
        ("file", |path| drop(File::create(path).unwrap())),
        ("dir", |path| fs::create_dir(path).unwrap()),
        ("link", |path| symlink("x", path).unwrap()),
        ("hard", |path| fs::hard_link(path.with_file_name("file"), path).unwrap()),
        ("moved", |path| fs::rename(path.with_file_name("hard"), path).unwrap()),
    ];
    for (name, make) in makes {
        fails(rustix::fs::lstat(at.path(name)), Errno::NOENT);
        make(&at.path(name));
        stat(at.path(name));
    }
    fails(rustix::fs::lstat(at.path("hard")), Errno::NOENT);
}

fn name_of_another_kind_appears(at: &CheckDir) {
    let path = at.dir("name");
    fs::write(path.join("inside"), b"x").unwrap();
    assert!(path.join("inside").exists());
    fs::rename(&path, at.path("away")).unwrap();
    at.file("name", b"file");
    fails(rustix::fs::lstat(path.join("inside")), Errno::NOTDIR);
    rustix::fs::renameat_with(CWD, &path, CWD, at.path("away"), rustix::fs::RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(path.join("inside")).unwrap(), b"x");
    assert_eq!(fs::read(at.path("away")).unwrap(), b"file");
}
