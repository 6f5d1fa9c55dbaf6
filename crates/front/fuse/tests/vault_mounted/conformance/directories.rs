//! Checks of directories: their entries, the order, and listings during changes.

use super::check_dir::{CheckDir, fails, fails_among, open, stat};
use super::{ConformanceCheck, checks};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirEntryExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    empty_directory_lists_the_dots,
    dots_lead_to_the_right_inodes,
    entries_tell_kind_and_inode,
    long_directory_is_listed_once,
    small_buffers,
    positions_are_kept,
    rewinding_shows_the_present,
    two_readers,
    removed_while_read,
    all_removed_while_read,
    added_while_read,
    renamed_while_read,
    replaced_while_read,
    listed_after_a_change,
    moved_while_read,
    made_by_many_threads,
    listed_while_it_changes,
    made_and_removed_by_threads,
    listing_of_a_file_is_enotdir,
    directories_of_every_mode,
    directory_in_directory_in_directory,
    remade_directory_is_empty,
    sizes_of_directories,
    wide_tree,
    names_of_one_length,
];

fn dir(path: &Path) -> File {
    open(path, OFlags::RDONLY | OFlags::DIRECTORY).unwrap()
}

fn names(path: &Path) -> BTreeSet<String> {
    fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

/// Reads a directory through a small buffer. `between` is called with each name except the dots as
/// soon as it is read.
fn read_slowly(path: &Path, room: usize, mut between: impl FnMut(&str)) -> Vec<String> {
    let handle = dir(path);
    let mut buffer = vec![MaybeUninit::uninit(); room];
    let mut list = RawDir::new(&handle, &mut buffer);
    let mut names = vec![];
    while let Some(entry) = list.next() {
        let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
        if !matches!(name.as_str(), "." | "..") {
            between(&name);
            names.push(name);
        }
    }
    names
}

fn fill(at: &CheckDir, count: usize) -> BTreeSet<String> {
    let names: BTreeSet<String> = (0..count).map(|n| format!("entry {n}")).collect();
    for name in &names {
        at.open(name, OFlags::WRONLY | OFlags::CREATE).unwrap();
    }
    names
}

fn once(names: &[String]) -> BTreeSet<String> {
    let set: BTreeSet<String> = names.iter().cloned().collect();
    assert_eq!(set.len(), names.len(), "a name came twice");
    set
}

fn empty_directory_lists_the_dots(at: &CheckDir) {
    let mut list = Dir::new(dir(&at.dir)).unwrap();
    let mut names = BTreeSet::new();
    while let Some(entry) = list.read() {
        let entry = entry.unwrap();
        assert_eq!(entry.file_type(), FileType::Directory);
        names.insert(entry.file_name().to_str().unwrap().to_owned());
    }
    assert_eq!(names, BTreeSet::from([".".to_owned(), "..".to_owned()]));
}

fn dots_lead_to_the_right_inodes(at: &CheckDir) {
    at.dir("inner");
    let mut list = Dir::new(dir(&at.path("inner"))).unwrap();
    let mut found = BTreeMap::new();
    while let Some(entry) = list.read() {
        let entry = entry.unwrap();
        found.insert(entry.file_name().to_str().unwrap().to_owned(), entry.ino());
    }
    assert_eq!((found["."], found[".."]), (stat(at.path("inner")).st_ino, stat(&at.dir).st_ino));
}

fn entries_tell_kind_and_inode(at: &CheckDir) {
    at.file("file", b"");
    at.dir("dir");
    symlink("x", at.path("symlink")).unwrap();
    let special = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice, FileType::BlockDevice];
    for kind in special {
        rustix::fs::mknodat(CWD, at.path(format!("{kind:?}")), kind, Mode::RUSR, 0).unwrap();
    }
    let mut count = 0;
    for entry in fs::read_dir(&at.dir).unwrap() {
        let entry = entry.unwrap();
        let stat = stat(entry.path());
        assert_eq!(entry.ino(), stat.st_ino);
        assert_eq!(entry.file_type().unwrap(), fs::symlink_metadata(entry.path()).unwrap().file_type());
        count += 1;
    }
    assert_eq!(count, 7);
}

fn long_directory_is_listed_once(at: &CheckDir) {
    let all = fill(at, 3000);
    assert_eq!(once(&read_slowly(&at.dir, 32_768, |_| {})), all);
    assert_eq!(names(&at.dir), all);
}

fn small_buffers(at: &CheckDir) {
    let all = fill(at, 500);
    for room in [300, 1000, 4096] {
        assert_eq!(once(&read_slowly(&at.dir, room, |_| {})), all, "{room} bytes");
    }
}

fn positions_are_kept(at: &CheckDir) {
    fill(at, 300);
    let mut list = Dir::new(dir(&at.dir)).unwrap();
    let mut seen = vec![];
    while let Some(entry) = list.read() {
        let entry = entry.unwrap();
        seen.push((entry.offset(), entry.file_name().to_owned()));
    }
    for n in [0, 1, 7, 100, 250] {
        list.seek(seen[n].0).unwrap();
        let next = list.read().unwrap().unwrap();
        assert_eq!(next.file_name(), seen[n + 1].1.as_c_str(), "after entry {n}");
    }
}

fn rewinding_shows_the_present(at: &CheckDir) {
    let mut all = fill(at, 100);
    let mut list = Dir::new(dir(&at.dir)).unwrap();
    let mut read = || {
        let mut names = BTreeSet::new();
        list.rewind();
        while let Some(entry) = list.read() {
            names.insert(entry.unwrap().file_name().to_str().unwrap().to_owned());
        }
        names.retain(|name| !matches!(name.as_str(), "." | ".."));
        names
    };
    assert_eq!(read(), all);
    at.file("new", b"");
    fs::remove_file(at.path("entry 50")).unwrap();
    all.insert("new".to_owned());
    all.remove("entry 50");
    assert_eq!(read(), all);
}

fn two_readers(at: &CheckDir) {
    let all = fill(at, 400);
    let mut inner = vec![];
    let outer = read_slowly(&at.dir, 2000, |name| {
        if name.ends_with("77") {
            inner.push(once(&read_slowly(&at.dir, 500, |_| {})));
        }
    });
    assert_eq!(once(&outer), all);
    assert!(!inner.is_empty() && inner.iter().all(|names| *names == all));
}

fn removed_while_read(at: &CheckDir) {
    let all = fill(at, 1000);
    // Every second name that is read causes the removal of another, which may have been read or
    // not.
    let mut gone = BTreeSet::new();
    let read = read_slowly(&at.dir, 1500, |name| {
        let n: usize = name["entry ".len()..].parse().unwrap();
        let other = format!("entry {}", (n + 500) % 1000);
        if n.is_multiple_of(2) && !gone.contains(name) && gone.insert(other.clone()) {
            fs::remove_file(at.path(other)).unwrap();
        }
    });
    let read = once(&read);
    let stayed: BTreeSet<String> = all.difference(&gone).cloned().collect();
    assert!(stayed.is_subset(&read), "what stayed was not listed");
    assert!(read.is_subset(&all));
    assert_eq!(names(&at.dir), stayed);
}

fn all_removed_while_read(at: &CheckDir) {
    let all = fill(at, 1500);
    let read = read_slowly(&at.dir, 2000, |name| fs::remove_file(at.path(name)).unwrap());
    assert_eq!(once(&read), all);
    assert!(names(&at.dir).is_empty());
}

fn added_while_read(at: &CheckDir) {
    let all = fill(at, 500);
    let mut count = 0;
    let read = read_slowly(&at.dir, 1500, |_| {
        if count < 500 {
            at.file(format!("new {count}"), b"");
            count += 1;
        }
    });
    let read = once(&read);
    assert!(all.is_subset(&read), "the entries that existed were not listed");
    assert_eq!(names(&at.dir).len(), 1000);
}

fn renamed_while_read(at: &CheckDir) {
    let all = fill(at, 600);
    let mut count = 0;
    let read = read_slowly(&at.dir, 1500, |_| {
        // One entry changes its name repeatedly; all other entries stay.
        let (from, to) = (format!("wanderer {count}"), format!("wanderer {}", count + 1));
        if count == 0 {
            at.file(&from, b"");
        }
        fs::rename(at.path(from), at.path(to)).unwrap();
        count += 1;
    });
    let stayed: BTreeSet<String> = read.iter().filter(|name| name.starts_with("entry")).cloned().collect();
    assert_eq!(stayed, all);
    assert_eq!(read.iter().filter(|name| name.starts_with("entry")).count(), 600, "a name came twice");
}

fn replaced_while_read(at: &CheckDir) {
    let all = fill(at, 400);
    let mut count = 0;
    let read = read_slowly(&at.dir, 1000, |_| {
        let name = format!("entry {}", count * 37 % 400);
        let new = at.file("temporary", b"new");
        fs::rename(new, at.path(name)).unwrap();
        count += 1;
    });
    let read: Vec<String> = read.into_iter().filter(|name| name != "temporary").collect();
    assert_eq!(once(&read), all);
}

fn listed_after_a_change(at: &CheckDir) {
    let mut all = BTreeSet::new();
    for n in 0..200 {
        let name = format!("{n}");
        match n % 4 {
            0 => drop(at.file(&name, b"")),
            1 => drop(at.dir(&name)),
            2 => symlink("x", at.path(&name)).unwrap(),
            _ => fs::rename(at.path(format!("{}", n - 3)), at.path(&name)).unwrap(),
        }
        all.insert(name);
        if n % 4 == 3 {
            all.remove(&format!("{}", n - 3));
        }
        assert_eq!(names(&at.dir), all, "after step {n}");
    }
}

fn moved_while_read(at: &CheckDir) {
    let inner = CheckDir { dir: at.dir("inner"), vault: at.vault };
    let all = fill(&inner, 500);
    at.dir("other");
    let mut moved = false;
    let read = read_slowly(&inner.dir, 1000, |_| {
        if !moved {
            fs::rename(at.path("inner"), at.path("other/moved")).unwrap();
            moved = true;
        }
    });
    assert_eq!(once(&read), all);
}

fn made_by_many_threads(at: &CheckDir) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for n in 0..150 {
                    match n % 3 {
                        0 => drop(at.file(format!("{thread} {n}"), b"x")),
                        1 => drop(at.dir(format!("{thread} {n}"))),
                        _ => symlink("x", at.path(format!("{thread} {n}"))).unwrap(),
                    }
                }
            });
        }
    });
    let all = (0..4).flat_map(|thread| (0..150).map(move |n| format!("{thread} {n}"))).collect();
    assert_eq!(names(&at.dir), all);
    let links = stat(&at.dir).st_nlink;
    assert!(links == 1 || links == 2 + 4 * 50, "{links}");
}

fn listed_while_it_changes(at: &CheckDir) {
    let all = fill(at, 200);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let done = &done;
            scope.spawn(move || {
                for n in 0..300 {
                    let name = format!("passing {thread} {}", n % 20);
                    at.file(&name, b"");
                    fs::remove_file(at.path(&name)).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
        }
        while !done.load(Ordering::SeqCst) {
            let read = read_slowly(&at.dir, 1000, |_| {});
            let stayed: Vec<String> = read.into_iter().filter(|name| name.starts_with("entry")).collect();
            assert_eq!(once(&stayed), all);
        }
    });
    assert_eq!(names(&at.dir), all);
}

fn made_and_removed_by_threads(at: &CheckDir) {
    // All threads use the same few names; each call must either do its work or fail as expected.
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut random = lacuna_sim::Rng::new(thread);
                for _ in 0..300 {
                    let path = at.path(format!("{}", random.below(5)));
                    let made = match random.below(4) {
                        0 => fs::create_dir(&path),
                        1 => File::create_new(&path).map(drop),
                        2 => fs::remove_dir(&path),
                        _ => fs::remove_file(&path),
                    };
                    if let Err(e) = made {
                        let known = [libc::EEXIST, libc::ENOENT, libc::ENOTDIR, libc::EISDIR];
                        assert!(known.contains(&e.raw_os_error().unwrap()), "{e}");
                    }
                }
            });
        }
    });
    for name in names(&at.dir) {
        let path = at.path(name);
        if path.is_dir() { fs::remove_dir(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }
    let links = stat(&at.dir).st_nlink;
    assert!(links == 1 || links == 2, "{links}");
}

fn listing_of_a_file_is_enotdir(at: &CheckDir) {
    let file = at.file("file", b"");
    fails(fs::read_dir(&file), Errno::NOTDIR);
    let handle = File::open(&file).unwrap();
    let mut buffer = [MaybeUninit::uninit(); 512];
    fails(RawDir::new(&handle, &mut buffer).next().unwrap(), Errno::NOTDIR);
}

fn directories_of_every_mode(at: &CheckDir) {
    for bits in [0o000, 0o111, 0o555, 0o700, 0o755, 0o1777, 0o2755, 0o3777] {
        let path = at.path(format!("{bits:o}"));
        rustix::fs::mkdir(&path, Mode::from_raw_mode(bits)).unwrap();
        // Linux takes set-user-ID and set-group-ID of a new directory from its parent alone.
        assert_eq!(stat(&path).st_mode & 0o5777, bits & !0o022 & 0o5777, "{bits:o}");
        super::check_dir::chmod(&path, bits);
        assert_eq!(super::check_dir::mode(&path), bits);
    }
}

fn directory_in_directory_in_directory(at: &CheckDir) {
    let path: std::path::PathBuf = (0..60).map(|n| format!("level {n}")).collect();
    fs::create_dir_all(at.path(&path)).unwrap();
    at.file(path.join("bottom"), b"deep");
    fs::rename(at.path("level 0/level 1"), at.path("moved")).unwrap();
    let rest: std::path::PathBuf = (2..60).map(|n| format!("level {n}")).collect();
    assert_eq!(fs::read(at.path("moved").join(rest).join("bottom")).unwrap(), b"deep");
    fails(rustix::fs::lstat(at.path(path)), Errno::NOENT);
    fs::remove_dir_all(at.path("moved")).unwrap();
}

fn remade_directory_is_empty(at: &CheckDir) {
    for _ in 0..5 {
        at.dir("dir");
        at.file("dir/file", b"");
        at.dir("dir/sub");
        fs::remove_dir_all(at.path("dir")).unwrap();
        at.dir("dir");
        assert!(names(&at.path("dir")).is_empty());
        fails(rustix::fs::lstat(at.path("dir/file")), Errno::NOENT);
        fs::remove_dir(at.path("dir")).unwrap();
    }
    fails_among(fs::read_dir(at.path("dir")), &[Errno::NOENT]);
}

fn sizes_of_directories(at: &CheckDir) {
    at.dir("dir");
    fill(&CheckDir { dir: at.path("dir"), vault: at.vault }, 50);
    let stat = stat(at.path("dir"));
    assert!(stat.st_size >= 0 && stat.st_blksize > 0);
}

fn wide_tree(at: &CheckDir) {
    let mut expected = BTreeSet::new();
    for a in 0..12 {
        for b in 0..6 {
            let path = format!("{a}/{b}");
            fs::create_dir_all(at.path(&path)).unwrap();
            for c in 0..4 {
                at.file(format!("{path}/{c}"), path.as_bytes());
                expected.insert(format!("{path}/{c}"));
            }
        }
    }
    let found = crate::machine::run(
        std::process::Command::new("find").args([".", "-type", "f", "-printf", "%P\\n"]).current_dir(&at.dir),
    );
    assert_eq!(found.lines().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
}

fn names_of_one_length(at: &CheckDir) {
    // Names of the full length that differ in one letter.
    let names_made: BTreeSet<String> =
        (0..100).map(|n| format!("{}{}{}", "a".repeat(n), "b", "a".repeat(254 - n))).collect();
    for name in &names_made {
        at.file(name, &[name.find('b').unwrap() as u8]);
    }
    assert_eq!(names(&at.dir), names_made);
    for name in &names_made {
        assert_eq!(fs::read(at.path(name)).unwrap(), [name.find('b').unwrap() as u8]);
    }
}
