//! Checks of renaming beyond the matrix of kinds: the same name, links of one file, directories
//! into each other, open files, and concurrent renames.

use super::check_dir::{CheckDir, fails, fails_among, stat, stored};
use super::{ConformanceCheck, checks};
use rustix::fs::{CWD, FileType, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    to_the_same_name,
    links_of_one_file_both_stay,
    exchange_with_itself,
    directory_into_itself,
    directory_over_its_parent,
    exchange_with_a_descendant,
    directory_through_a_symlink,
    symlink_moves_itself,
    flags_that_contradict,
    whiteout_takes_the_old_name,
    whiteout_of_a_directory,
    whiteout_over_other_names,
    replaced_file_loses_a_link,
    link_counts_of_directories_follow,
    open_file_is_not_disturbed,
    replaced_open_file_lives,
    replaced_open_directory_lives,
    written_file_keeps_its_pages,
    directory_in_use_moves,
    long_chain_of_moves,
    reader_never_misses_a_replaced_name,
    two_directories_never_hold_each_other,
    many_rename_over_one_name,
];

fn to_the_same_name(at: &CheckDir) {
    let file = at.file("file", b"kept");
    let dir = at.dir("dir");
    let before = (stat(&file).st_ino, stat(&dir).st_ino);
    fs::rename(&file, &file).unwrap();
    fs::rename(&dir, &dir).unwrap();
    fails(renameat_with(CWD, &file, CWD, &file, RenameFlags::NOREPLACE), Errno::EXIST);
    assert_eq!((stat(&file).st_ino, stat(&dir).st_ino), before);
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

fn links_of_one_file_both_stay(at: &CheckDir) {
    let one = at.file("one", b"kept");
    let two = at.path("two");
    fs::hard_link(&one, &two).unwrap();
    fs::rename(&one, &two).unwrap();
    assert_eq!((stat(&one).st_ino, stat(&one).st_nlink), (stat(&two).st_ino, 2));
}

fn exchange_with_itself(at: &CheckDir) {
    let one = at.file("one", b"kept");
    renameat_with(CWD, &one, CWD, &one, RenameFlags::EXCHANGE).unwrap();
    let two = at.path("two");
    fs::hard_link(&one, &two).unwrap();
    renameat_with(CWD, &one, CWD, &two, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((stat(&one).st_nlink, stat(&two).st_nlink), (2, 2));
}

fn directory_into_itself(at: &CheckDir) {
    let dir = at.dir("dir");
    at.dir("dir/sub");
    fails(fs::rename(&dir, at.path("dir/new")), Errno::INVAL);
    fails(fs::rename(&dir, at.path("dir/sub")), Errno::INVAL);
    fails(fs::rename(&dir, at.path("dir/sub/new")), Errno::INVAL);
    assert!(at.path("dir/sub").exists());
}

fn directory_over_its_parent(at: &CheckDir) {
    at.dir("dir");
    at.dir("dir/sub");
    at.dir("dir/sub/deep");
    fails(fs::rename(at.path("dir/sub"), at.path("dir")), Errno::NOTEMPTY);
    fails(fs::rename(at.path("dir/sub/deep"), at.path("dir")), Errno::NOTEMPTY);
}

fn exchange_with_a_descendant(at: &CheckDir) {
    let dir = at.dir("dir");
    at.dir("dir/sub");
    fails(renameat_with(CWD, &dir, CWD, at.path("dir/sub"), RenameFlags::EXCHANGE), Errno::INVAL);
    fails(renameat_with(CWD, at.path("dir/sub"), CWD, &dir, RenameFlags::EXCHANGE), Errno::INVAL);
}

fn directory_through_a_symlink(at: &CheckDir) {
    at.dir("dir");
    at.dir("other");
    symlink("other", at.path("link")).unwrap();
    fs::rename(at.path("dir"), at.path("link/moved")).unwrap();
    assert!(at.path("other/moved").is_dir());
    // The symlink itself is not a directory.
    fails(fs::rename(at.path("other/moved"), at.path("link")), Errno::NOTDIR);
}

fn symlink_moves_itself(at: &CheckDir) {
    at.file("target", b"kept");
    symlink("target", at.path("link")).unwrap();
    fs::rename(at.path("link"), at.path("moved")).unwrap();
    assert_eq!(fs::read_link(at.path("moved")).unwrap().to_str(), Some("target"));
    fs::rename(at.path("moved"), at.path("target")).unwrap();
    fails(fs::read(at.path("target")), Errno::LOOP);
}

fn flags_that_contradict(at: &CheckDir) {
    let (one, two) = (at.file("one", b""), at.path("two"));
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    fails(renameat_with(CWD, &one, CWD, &two, both), Errno::INVAL);
    fails(renameat_with(CWD, &one, CWD, &two, RenameFlags::WHITEOUT | RenameFlags::EXCHANGE), Errno::INVAL);
    assert!(one.exists() && !two.exists());
}

/// Renames and leaves a whiteout. `false` where a plain directory does not support that.
fn leave_whiteout(at: &CheckDir, from: &Path, to: &Path) -> bool {
    match renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT) {
        Err(Errno::INVAL) if !at.vault => return false,
        done => done.unwrap(),
    }
    let left = stat(from);
    assert_eq!(FileType::from_raw_mode(left.st_mode), FileType::CharacterDevice);
    assert_eq!((left.st_rdev, left.st_nlink, left.st_mode & 0o7777), (0, 1, 0));
    true
}

fn whiteout_takes_the_old_name(at: &CheckDir) {
    let (one, two, dir) = (at.file("one", b"moved"), at.path("two"), at.dir("dir"));
    let ino = stat(&one).st_ino;
    if !leave_whiteout(at, &one, &two) {
        return;
    }
    assert_eq!((stat(&two).st_ino, stored(&two)), (ino, b"moved".to_vec()));
    assert!(leave_whiteout(at, &two, &dir.join("three")));
    assert_eq!(stored(dir.join("three")), b"moved");
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 3);
    // A whiteout is an ordinary name for every other call.
    fs::rename(dir.join("three"), &two).unwrap();
    fs::remove_file(&one).unwrap();
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 2);
}

fn whiteout_of_a_directory(at: &CheckDir) {
    let (above, moved) = (at.dir("above"), at.dir("above/moved"));
    at.file("above/moved/file", b"kept");
    let links = || (stat(&at.dir).st_nlink, stat(&above).st_nlink);
    let before = links();
    if !leave_whiteout(at, &moved, &at.path("elsewhere")) {
        return;
    }
    assert_eq!(stored(at.path("elsewhere/file")), b"kept");
    // Some file systems do not count.
    if before.1 == 3 {
        assert_eq!(links(), (before.0 + 1, 2));
    }
}

fn whiteout_over_other_names(at: &CheckDir) {
    let (one, two) = (at.file("one", b"one"), at.file("two", b"two"));
    let only_free = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    fails_among(renameat_with(CWD, &one, CWD, &two, only_free), &[Errno::EXIST, Errno::INVAL]);
    let kept = at.open("two", OFlags::RDONLY).unwrap();
    if !leave_whiteout(at, &one, &two) {
        return;
    }
    assert_eq!((stored(&two), rustix::fs::fstat(&kept).unwrap().st_nlink), (b"one".to_vec(), 0));
    renameat_with(CWD, &two, CWD, at.path("three"), only_free).unwrap();
    assert_eq!(stored(at.path("three")), b"one");
    assert_eq!(FileType::from_raw_mode(stat(&two).st_mode), FileType::CharacterDevice);
    fails(renameat_with(CWD, at.path("none"), CWD, at.path("new"), RenameFlags::WHITEOUT), Errno::NOENT);
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 3);
}

fn replaced_file_loses_a_link(at: &CheckDir) {
    let old = at.file("old", b"old");
    fs::hard_link(&old, at.path("other name")).unwrap();
    let new = at.file("new", b"new");
    fs::rename(&new, &old).unwrap();
    assert_eq!((stat(at.path("other name")).st_nlink, stat(&old).st_nlink), (1, 1));
    assert_eq!((fs::read(&old).unwrap(), stored(at.path("other name"))), (b"new".to_vec(), b"old".to_vec()));
}

fn link_counts_of_directories_follow(at: &CheckDir) {
    for name in ["a", "b", "a/one", "a/two", "b/empty"] {
        at.dir(name);
    }
    let counts = || (stat(at.path("a")).st_nlink, stat(at.path("b")).st_nlink);
    if counts() == (1, 1) {
        // This file system does not count.
        return;
    }
    assert_eq!(counts(), (4, 3));
    fs::rename(at.path("a/one"), at.path("b/one")).unwrap();
    assert_eq!(counts(), (3, 4));
    fs::rename(at.path("a/two"), at.path("b/empty")).unwrap();
    assert_eq!(counts(), (2, 4));
    at.file("a/file", b"");
    renameat_with(CWD, at.path("a/file"), CWD, at.path("b/one"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(counts(), (3, 3));
}

fn open_file_is_not_disturbed(at: &CheckDir) {
    let file = at.handle("file", b"before");
    at.dir("dir");
    fs::rename(at.path("file"), at.path("dir/moved")).unwrap();
    file.write_all_at(b"AFTER!", 0).unwrap();
    assert_eq!(stored(at.path("dir/moved")), b"AFTER!");
}

fn replaced_open_file_lives(at: &CheckDir) {
    let old = at.handle("old", b"old content");
    let new = at.file("new", b"new");
    fs::rename(new, at.path("old")).unwrap();
    assert_eq!(rustix::fs::fstat(&old).unwrap().st_nlink, 0);
    old.write_all_at(b"OLD", 0).unwrap();
    old.sync_all().unwrap();
    let mut content = [0; 11];
    old.read_exact_at(&mut content, 0).unwrap();
    assert_eq!((&content, stored(at.path("old"))), (b"OLD content", b"new".to_vec()));
}

fn replaced_open_directory_lives(at: &CheckDir) {
    at.dir("old");
    at.dir("new");
    let old = at.open("old", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::rename(at.path("new"), at.path("old")).unwrap();
    assert_eq!(rustix::fs::fstat(&old).unwrap().st_nlink, 0);
    let made = rustix::fs::mkdirat(&old, "inside", rustix::fs::Mode::RWXU);
    fails(made, Errno::NOENT);
}

fn written_file_keeps_its_pages(at: &CheckDir) {
    let content = super::check_dir::pattern(5, 300_000);
    for round in 0..10 {
        let new = at.file("new", &content[round..]);
        fs::rename(new, at.path("name")).unwrap();
        assert_eq!(stored(at.path("name")), &content[round..]);
    }
}

fn directory_in_use_moves(at: &CheckDir) {
    at.dir("dir");
    at.file("dir/file", b"kept");
    let dir = at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    at.dir("other");
    fs::rename(at.path("dir"), at.path("other/moved")).unwrap();
    let up = rustix::fs::statat(&dir, "..", rustix::fs::AtFlags::empty()).unwrap();
    assert_eq!(up.st_ino, stat(at.path("other")).st_ino);
    assert!(rustix::fs::statat(&dir, "file", rustix::fs::AtFlags::empty()).is_ok());
}

fn long_chain_of_moves(at: &CheckDir) {
    let ino = stat(at.file("0", b"moved")).st_ino;
    for n in 0..500 {
        if n % 50 == 0 {
            at.dir(format!("dir{}", n + 1));
        }
        let from = if n == 0 { at.path("0") } else { at.path(format!("dir{}/{n}", (n - 1) / 50 * 50 + 1)) };
        fs::rename(from, at.path(format!("dir{}/{}", n / 50 * 50 + 1, n + 1))).unwrap();
    }
    let last = at.path("dir451/500");
    assert_eq!((stat(&last).st_ino, stored(&last)), (ino, b"moved".to_vec()));
}

fn reader_never_misses_a_replaced_name(at: &CheckDir) {
    let name = at.file("name", &[b'0'; 5000]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200u32 {
                let new = at.file("new", &[b'0' + (n % 10) as u8; 5000]);
                fs::rename(new, &name).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            let mut content = vec![];
            at.open("name", OFlags::RDONLY).unwrap().read_to_end(&mut content).unwrap();
            assert!(content.len() == 5000 && content.iter().all(|byte| *byte == content[0]), "a mixture");
        }
    });
}

fn two_directories_never_hold_each_other(at: &CheckDir) {
    at.dir("a");
    at.dir("b");
    std::thread::scope(|scope| {
        for (one, two) in [("a", "b"), ("b", "a")] {
            scope.spawn(move || {
                for _ in 0..200 {
                    let inside = at.path(format!("{two}/{one}"));
                    if fs::rename(at.path(one), &inside).is_ok() {
                        fs::rename(&inside, at.path(one)).unwrap();
                    }
                }
            });
        }
    });
    assert!(at.path("a").is_dir() && at.path("b").is_dir());
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 2);
    fs::remove_dir(at.path("a")).unwrap();
    fs::remove_dir(at.path("b")).unwrap();
}

fn many_rename_over_one_name(at: &CheckDir) {
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                for n in 0..60u8 {
                    let mine = at.file(format!("{thread}-{n}"), &[thread, n]);
                    fs::rename(mine, at.path("name")).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 1);
    let last = stored(at.path("name"));
    assert!(last[0] < 4 && last[1] == 59, "{last:?}");
    fails_among(fs::remove_dir(at.path("name")), &[Errno::NOTDIR]);
}
