//! Checks of hard links, link counts, and removing names.

use super::check_dir::{CheckDir, chmod, fails, fails_among, mode, pattern, stat, stored};
use super::{ConformanceCheck, checks};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, linkat};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    link_is_the_same_file,
    link_shares_content,
    link_shares_attributes,
    link_to_a_written_file_has_its_pages,
    link_to_a_directory_is_refused,
    link_to_a_missing_file_is_refused,
    link_to_a_symlink_links_the_symlink,
    link_can_follow_a_symlink,
    link_to_special_files,
    link_across_directories,
    removing_a_link_keeps_the_file,
    removing_all_links_removes_the_file,
    thousand_links,
    link_to_an_open_file_by_its_handle,
    directories_count_directories,
    root_counts_directories,
    unlink_refuses_a_directory,
    rmdir_needs_a_directory,
    rmdir_refuses_a_full_directory,
    rmdir_counts_hidden_names,
    removal_of_a_missing_name,
    remove_a_tree,
    links_made_and_removed_at_once,
    link_count_after_failures,
];

fn link_is_the_same_file(at: &CheckDir) {
    let one = at.file("one", b"content");
    let two = at.path("two");
    assert_eq!(stat(&one).st_nlink, 1);
    fs::hard_link(&one, &two).unwrap();
    let (a, b) = (stat(&one), stat(&two));
    assert_eq!((a.st_ino, a.st_nlink, a.st_size, a.st_mode), (b.st_ino, 2, b.st_size, b.st_mode));
    assert_eq!(b.st_nlink, 2);
}

fn link_shares_content(at: &CheckDir) {
    let one = at.file("one", b"content");
    fs::hard_link(&one, at.path("two")).unwrap();
    at.open("two", OFlags::RDWR).unwrap().write_all_at(b"CON", 0).unwrap();
    assert_eq!(fs::read(&one).unwrap(), b"CONtent");
    assert_eq!(stored(&one), b"CONtent");
    at.open("one", OFlags::RDWR | OFlags::APPEND).unwrap().write_at(b"s", 0).unwrap();
    assert_eq!(stored(at.path("two")), b"CONtents");
}

fn link_shares_attributes(at: &CheckDir) {
    let one = at.file("one", b"");
    fs::hard_link(&one, at.path("two")).unwrap();
    chmod(&one, 0o604);
    super::check_dir::set_owner_and_group(at.path("two"), 7, 8);
    let (a, b) = (stat(&one), stat(at.path("two")));
    assert_eq!((a.st_uid, a.st_gid, mode(at.path("two"))), (7, 8, 0o604));
    assert_eq!(a.st_ctime, b.st_ctime);
}

fn link_to_a_written_file_has_its_pages(at: &CheckDir) {
    let file = at.handle("one", b"");
    file.write_all_at(&pattern(1, 100_000), 0).unwrap();
    fs::hard_link(at.path("one"), at.path("two")).unwrap();
    assert_eq!(stat(at.path("two")).st_size, 100_000);
    fs::remove_file(at.path("one")).unwrap();
    drop(file);
    assert_eq!(stored(at.path("two")), pattern(1, 100_000));
}

fn link_to_a_directory_is_refused(at: &CheckDir) {
    let dir = at.dir("dir");
    fails(fs::hard_link(&dir, at.path("link")), Errno::PERM);
}

fn link_to_a_missing_file_is_refused(at: &CheckDir) {
    fails(fs::hard_link(at.path("none"), at.path("link")), Errno::NOENT);
}

fn link_to_a_symlink_links_the_symlink(at: &CheckDir) {
    symlink("nowhere", at.path("symlink")).unwrap();
    linkat(CWD, at.path("symlink"), CWD, at.path("second"), AtFlags::empty()).unwrap();
    assert_eq!(stat(at.path("second")).st_ino, stat(at.path("symlink")).st_ino);
    assert_eq!(stat(at.path("symlink")).st_nlink, 2);
    fs::remove_file(at.path("symlink")).unwrap();
    assert_eq!(fs::read_link(at.path("second")).unwrap().to_str(), Some("nowhere"));
}

fn link_can_follow_a_symlink(at: &CheckDir) {
    let file = at.file("file", b"");
    symlink("file", at.path("symlink")).unwrap();
    linkat(CWD, at.path("symlink"), CWD, at.path("second"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!((stat(&file).st_nlink, stat(at.path("second")).st_ino), (2, stat(&file).st_ino));
}

fn link_to_special_files(at: &CheckDir) {
    for (name, kind) in
        [("fifo", FileType::Fifo), ("socket", FileType::Socket), ("device", FileType::CharacterDevice)]
    {
        rustix::fs::mknodat(CWD, at.path(name), kind, Mode::RUSR, rustix::fs::makedev(1, 3)).unwrap();
        let second = at.path(format!("{name} 2"));
        fs::hard_link(at.path(name), &second).unwrap();
        fs::remove_file(at.path(name)).unwrap();
        assert_eq!((FileType::from_raw_mode(stat(&second).st_mode), stat(&second).st_nlink), (kind, 1));
    }
}

fn link_across_directories(at: &CheckDir) {
    at.dir("a");
    at.dir("a/b");
    let file = at.file("file", b"content");
    fs::hard_link(&file, at.path("a/b/link")).unwrap();
    fs::remove_file(&file).unwrap();
    fs::rename(at.path("a/b"), at.path("moved")).unwrap();
    assert_eq!(stored(at.path("moved/link")), b"content");
}

fn removing_a_link_keeps_the_file(at: &CheckDir) {
    let one = at.file("one", b"content");
    fs::hard_link(&one, at.path("two")).unwrap();
    fs::hard_link(&one, at.path("three")).unwrap();
    fs::remove_file(&one).unwrap();
    assert_eq!(stat(at.path("three")).st_nlink, 2);
    fs::remove_file(at.path("two")).unwrap();
    assert_eq!((stat(at.path("three")).st_nlink, stored(at.path("three"))), (1, b"content".to_vec()));
}

fn removing_all_links_removes_the_file(at: &CheckDir) {
    let one = at.file("one", b"content");
    fs::hard_link(&one, at.path("two")).unwrap();
    fs::remove_file(&one).unwrap();
    fs::remove_file(at.path("two")).unwrap();
    fails(rustix::fs::lstat(&one), Errno::NOENT);
    fails(rustix::fs::lstat(at.path("two")), Errno::NOENT);
}

fn thousand_links(at: &CheckDir) {
    let file = at.file("file", b"content");
    for n in 0..1000u32 {
        fs::hard_link(&file, at.path(format!("{n}"))).unwrap();
    }
    assert_eq!(stat(&file).st_nlink, 1001);
    for n in 0..1000u32 {
        fs::remove_file(at.path(format!("{n}"))).unwrap();
    }
    assert_eq!(stat(&file).st_nlink, 1);
}

fn link_to_an_open_file_by_its_handle(at: &CheckDir) {
    let file = at.handle("file", b"content");
    let by_handle = super::check_dir::by_handle(&file);
    linkat(CWD, &by_handle, CWD, at.path("second"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(stat(at.path("second")).st_nlink, 2);
    fs::remove_file(at.path("file")).unwrap();
    fs::remove_file(at.path("second")).unwrap();
    // A file without a name cannot get a new one.
    fails(linkat(CWD, &by_handle, CWD, at.path("third"), AtFlags::SYMLINK_FOLLOW), Errno::NOENT);
}

fn directories_count_directories(at: &CheckDir) {
    let dir = at.dir("dir");
    let count = || stat(&dir).st_nlink;
    if count() == 1 {
        // This file system does not count.
        return;
    }
    assert_eq!(count(), 2);
    at.file("dir/file", b"");
    symlink("x", at.path("dir/link")).unwrap();
    assert_eq!(count(), 2);
    for n in 0..20 {
        at.dir(format!("dir/{n}"));
    }
    assert_eq!(count(), 22);
    for n in 0..5 {
        fs::remove_dir(at.path(format!("dir/{n}"))).unwrap();
    }
    assert_eq!(count(), 17);
    fails(fs::create_dir(at.path("dir/7")), Errno::EXIST);
    assert_eq!(count(), 17);
}

fn root_counts_directories(at: &CheckDir) {
    let root = at.dir.parent().unwrap();
    let before = stat(root).st_nlink;
    let made = root.join("one more directory");
    fs::create_dir(&made).unwrap();
    let more = stat(root).st_nlink;
    fs::remove_dir(&made).unwrap();
    assert!(before == 1 || more == before + 1, "{before}, then {more}");
    assert_eq!(stat(root).st_nlink, before);
}

fn unlink_refuses_a_directory(at: &CheckDir) {
    let dir = at.dir("dir");
    fails_among(rustix::fs::unlink(&dir), &[Errno::ISDIR, Errno::PERM]);
    assert!(dir.exists());
}

fn rmdir_needs_a_directory(at: &CheckDir) {
    let file = at.file("file", b"");
    at.dir("dir");
    symlink("dir", at.path("link")).unwrap();
    fails(fs::remove_dir(&file), Errno::NOTDIR);
    fails(fs::remove_dir(at.path("link")), Errno::NOTDIR);
    assert!(at.path("dir").exists());
}

fn rmdir_refuses_a_full_directory(at: &CheckDir) {
    let dir = at.dir("dir");
    let file = at.file("dir/file", b"");
    fails(fs::remove_dir(&dir), Errno::NOTEMPTY);
    fs::remove_file(file).unwrap();
    at.dir("dir/sub");
    fails(fs::remove_dir(&dir), Errno::NOTEMPTY);
    fs::rename(at.path("dir/sub"), at.path("moved")).unwrap();
    fs::remove_dir(&dir).unwrap();
}

fn rmdir_counts_hidden_names(at: &CheckDir) {
    let dir = at.dir("dir");
    let hidden = at.file("dir/.hidden", b"");
    fails(fs::remove_dir(&dir), Errno::NOTEMPTY);
    fs::remove_file(hidden).unwrap();
    fs::remove_dir(&dir).unwrap();
    fails(rustix::fs::lstat(&dir), Errno::NOENT);
}

fn removal_of_a_missing_name(at: &CheckDir) {
    fails(fs::remove_file(at.path("none")), Errno::NOENT);
    fails(fs::remove_dir(at.path("none")), Errno::NOENT);
    let file = at.file("file", b"");
    fs::remove_file(&file).unwrap();
    fails(fs::remove_file(&file), Errno::NOENT);
}

fn remove_a_tree(at: &CheckDir) {
    for a in 0..5 {
        for b in 0..5 {
            fs::create_dir_all(at.path(format!("tree/{a}/{b}"))).unwrap();
            for c in 0..8 {
                at.file(format!("tree/{a}/{b}/{c}"), b"x");
            }
            symlink("..", at.path(format!("tree/{a}/{b}/link"))).unwrap();
        }
    }
    fs::remove_dir_all(at.path("tree")).unwrap();
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 0);
}

fn links_made_and_removed_at_once(at: &CheckDir) {
    let file = at.file("file", b"content");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let file = &file;
            scope.spawn(move || {
                for n in 0..50 {
                    let link = at.path(format!("{thread}-{n}"));
                    fs::hard_link(file, &link).unwrap();
                    if n % 2 == 0 {
                        fs::remove_file(link).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(stat(&file).st_nlink, 101);
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 101);
}

fn link_count_after_failures(at: &CheckDir) {
    let file = at.file("file", b"");
    at.file("taken", b"");
    for _ in 0..10 {
        fails(fs::hard_link(&file, at.path("taken")), Errno::EXIST);
        fails(fs::hard_link(&file, at.path("none/link")), Errno::NOENT);
    }
    assert_eq!((stat(&file).st_nlink, stat(at.path("taken")).st_nlink), (1, 1));
}
