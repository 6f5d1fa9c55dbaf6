//! Checks of nodes removed while open: they live until their last handle is closed.

use super::check_dir::{
    CheckDir, by_handle, fails, fails_among, mode, open, pattern, stat, stored, sync_and_drop_cache,
};
use super::mapping::MemoryMap;
use super::{ConformanceCheck, checks};
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    removed_file_is_read,
    removed_file_is_written,
    removed_file_grows_and_shrinks,
    removed_file_has_no_links,
    removed_file_has_attributes,
    removed_file_takes_attributes,
    removed_file_takes_extended_attributes,
    removed_file_is_mapped,
    removed_file_is_synced,
    removed_file_opens_again_by_its_handle,
    removed_file_survives_the_first_of_two_handles,
    removed_file_leaves_its_name_free,
    removed_file_is_copied_from,
    removed_file_of_a_path_handle,
    removed_large_file,
    removed_directory_of_a_handle,
    removed_directory_takes_nothing,
    removed_directory_lists_nothing,
    removed_directory_and_its_parent,
    removed_symlink_of_a_handle,
    many_removed_files,
    removed_by_another_thread,
];

fn removed(at: &CheckDir, content: &[u8]) -> File {
    let file = at.handle("file", content);
    fs::remove_file(at.path("file")).unwrap();
    file
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; rustix::fs::fstat(file).unwrap().st_size as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn removed_file_is_read(at: &CheckDir) {
    let file = removed(at, &pattern(1, 50_000));
    assert_eq!(content(&file), pattern(1, 50_000));
    sync_and_drop_cache(&file);
    assert_eq!(content(&file), pattern(1, 50_000));
}

fn removed_file_is_written(at: &CheckDir) {
    let file = removed(at, b"");
    file.write_all_at(&pattern(2, 50_000), 0).unwrap();
    sync_and_drop_cache(&file);
    assert_eq!(content(&file), pattern(2, 50_000));
    file.write_all_at(&pattern(3, 5000), 10_001).unwrap();
    sync_and_drop_cache(&file);
    assert_eq!(content(&file)[10_001..15_001], pattern(3, 5000));
}

fn removed_file_grows_and_shrinks(at: &CheckDir) {
    let file = removed(at, &pattern(1, 20_000));
    file.set_len(5000).unwrap();
    file.set_len(30_000).unwrap();
    sync_and_drop_cache(&file);
    let now = content(&file);
    assert_eq!((now.len(), &now[..5000]), (30_000, &pattern(1, 20_000)[..5000]));
    assert!(now[5000..].iter().all(|byte| *byte == 0));
}

fn removed_file_has_no_links(at: &CheckDir) {
    let file = removed(at, b"x");
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
    sync_and_drop_cache(&file);
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
}

fn removed_file_has_attributes(at: &CheckDir) {
    let file = at.handle("file", b"twelve bytes");
    let before = rustix::fs::fstat(&file).unwrap();
    fs::remove_file(at.path("file")).unwrap();
    let after = rustix::fs::fstat(&file).unwrap();
    assert_eq!(
        (after.st_ino, after.st_mode, after.st_uid, after.st_size, after.st_mtime),
        (before.st_ino, before.st_mode, before.st_uid, 12, before.st_mtime)
    );
}

fn removed_file_takes_attributes(at: &CheckDir) {
    let file = removed(at, b"x");
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o602)).unwrap();
    std::os::unix::fs::fchown(&file, Some(11), Some(12)).unwrap();
    let past = Timespec { tv_sec: 1_000_000, tv_nsec: 7 };
    rustix::fs::futimens(&file, &Timestamps { last_access: past, last_modification: past }).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    assert_eq!((stat.st_mode & 0o7777, stat.st_uid, stat.st_gid), (0o602, 11, 12));
    assert_eq!((stat.st_mtime, stat.st_mtime_nsec), (1_000_000, 7));
}

fn removed_file_takes_extended_attributes(at: &CheckDir) {
    let file = removed(at, b"x");
    rustix::fs::fsetxattr(&file, "user.a", b"value", XattrFlags::empty()).unwrap();
    let mut value = [0; 16];
    let len = rustix::fs::fgetxattr(&file, "user.a", &mut value).unwrap();
    assert_eq!(&value[..len], b"value");
}

fn removed_file_is_mapped(at: &CheckDir) {
    let file = removed(at, &pattern(1, 20_000));
    let map = MemoryMap::shared(&file, 0, 20_000).unwrap();
    assert_eq!(map.read(0, 20_000), pattern(1, 20_000));
    map.write(9000, b"mapped");
    map.sync().unwrap();
    drop(map);
    sync_and_drop_cache(&file);
    assert_eq!(&content(&file)[9000..9006], b"mapped");
}

fn removed_file_is_synced(at: &CheckDir) {
    let file = removed(at, b"x");
    file.write_all_at(&pattern(1, 10_000), 0).unwrap();
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    rustix::fs::syncfs(&file).unwrap();
}

fn removed_file_opens_again_by_its_handle(at: &CheckDir) {
    let file = removed(at, b"content");
    let again = open(&by_handle(&file), OFlags::RDWR).unwrap();
    again.write_all_at(b"CON", 0).unwrap();
    drop(file);
    assert_eq!(content(&again), b"CONtent");
    let last = open(&by_handle(&again), OFlags::RDWR | OFlags::TRUNC).unwrap();
    assert_eq!(content(&last), b"");
}

fn removed_file_survives_the_first_of_two_handles(at: &CheckDir) {
    let first = at.handle("file", b"content");
    let second = at.open("file", OFlags::RDONLY).unwrap();
    fs::remove_file(at.path("file")).unwrap();
    first.write_all_at(b"CON", 0).unwrap();
    drop(first);
    rustix::fs::syncfs(&second).unwrap();
    sync_and_drop_cache(&second);
    assert_eq!(content(&second), b"CONtent");
}

fn removed_file_leaves_its_name_free(at: &CheckDir) {
    let old = removed(at, b"old");
    let path = at.file("file", b"new one");
    assert_ne!(rustix::fs::fstat(&old).unwrap().st_ino, stat(&path).st_ino);
    old.write_all_at(b"OLD", 0).unwrap();
    assert_eq!((content(&old), stored(&path)), (b"OLD".to_vec(), b"new one".to_vec()));
    drop(old);
    assert_eq!(stored(&path), b"new one");
}

fn removed_file_is_copied_from(at: &CheckDir) {
    let from = removed(at, &pattern(1, 100_000));
    let to = at.handle("copy", b"");
    let mut done = 0;
    while done < 100_000 {
        let copied = rustix::fs::copy_file_range(&from, None, &to, None, 100_000 - done).unwrap();
        assert!(copied > 0);
        done += copied;
    }
    assert_eq!(stored(at.path("copy")), pattern(1, 100_000));
}

fn removed_file_of_a_path_handle(at: &CheckDir) {
    at.file("file", b"content");
    let handle = at.open("file", OFlags::PATH).unwrap();
    fs::remove_file(at.path("file")).unwrap();
    let stat = rustix::fs::fstat(&handle).unwrap();
    assert_eq!((stat.st_nlink, stat.st_size), (0, 7));
}

fn removed_large_file(at: &CheckDir) {
    let file = at.handle("file", b"");
    let piece = pattern(1, 1 << 20);
    for n in 0..16 {
        file.write_all_at(&piece, n << 20).unwrap();
    }
    file.sync_all().unwrap();
    fs::remove_file(at.path("file")).unwrap();
    sync_and_drop_cache(&file);
    let mut back = vec![0; 1 << 20];
    for n in (0..16).rev() {
        file.read_exact_at(&mut back, n << 20).unwrap();
        assert!(back == piece);
    }
}

fn removed_directory_of_a_handle(at: &CheckDir) {
    at.dir("dir");
    let dir = at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    chmod_handle(&dir);
    fs::remove_dir(at.path("dir")).unwrap();
    let stat = rustix::fs::fstat(&dir).unwrap();
    assert_eq!((stat.st_nlink, stat.st_mode), (0, 0o040_711));
    dir.sync_all().unwrap();
}

fn chmod_handle(dir: &File) {
    rustix::fs::fchmod(dir, Mode::from_raw_mode(0o711)).unwrap();
}

fn removed_directory_takes_nothing(at: &CheckDir) {
    at.dir("dir");
    at.file("file", b"");
    let dir = at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::remove_dir(at.path("dir")).unwrap();
    let flags = OFlags::WRONLY | OFlags::CREATE;
    fails(rustix::fs::openat(&dir, "new", flags, Mode::RUSR), Errno::NOENT);
    fails(rustix::fs::mkdirat(&dir, "new", Mode::RWXU), Errno::NOENT);
    fails(rustix::fs::symlinkat("x", &dir, "new"), Errno::NOENT);
    let file = at.path("file");
    fails(rustix::fs::linkat(rustix::fs::CWD, &file, &dir, "new", AtFlags::empty()), Errno::NOENT);
    fails(rustix::fs::renameat(rustix::fs::CWD, &file, &dir, "new"), Errno::NOENT);
    fails(rustix::fs::statat(&dir, "new", AtFlags::empty()), Errno::NOENT);
}

fn removed_directory_lists_nothing(at: &CheckDir) {
    at.dir("dir");
    at.file("dir/file", b"");
    let dir = at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::remove_file(at.path("dir/file")).unwrap();
    fs::remove_dir(at.path("dir")).unwrap();
    let mut list = rustix::fs::Dir::new(dir).unwrap();
    while let Some(entry) = list.read() {
        match entry {
            Ok(entry) => assert!([&b"."[..], b".."].contains(&entry.file_name().to_bytes())),
            Err(e) => {
                assert_eq!(e, Errno::NOENT);
                break;
            }
        }
    }
}

fn removed_directory_and_its_parent(at: &CheckDir) {
    at.dir("outer");
    at.dir("outer/inner");
    let inner = at.open("outer/inner", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::remove_dir(at.path("outer/inner")).unwrap();
    fs::remove_dir(at.path("outer")).unwrap();
    assert_eq!(rustix::fs::fstat(&inner).unwrap().st_nlink, 0);
    fails_among(rustix::fs::mkdirat(&inner, "new", Mode::RWXU), &[Errno::NOENT]);
    at.dir("outer");
    assert_eq!(mode(at.path("outer")), 0o755);
}

fn removed_symlink_of_a_handle(at: &CheckDir) {
    std::os::unix::fs::symlink("nowhere", at.path("link")).unwrap();
    let link = at.open("link", OFlags::PATH | OFlags::NOFOLLOW).unwrap();
    assert_eq!(rustix::fs::readlinkat(&link, "", vec![]).unwrap().as_bytes(), b"nowhere");
    fs::remove_file(at.path("link")).unwrap();
    let stat = rustix::fs::fstat(&link).unwrap();
    assert_eq!((stat.st_nlink, stat.st_size), (0, 7));
}

fn many_removed_files(at: &CheckDir) {
    let files: Vec<File> = (0..100u8)
        .map(|n| {
            let file = at.handle("file", &[n; 6000]);
            fs::remove_file(at.path("file")).unwrap();
            file
        })
        .collect();
    rustix::fs::syncfs(&files[0]).unwrap();
    for (n, file) in files.iter().enumerate() {
        sync_and_drop_cache(file);
        assert!(content(file).iter().all(|byte| *byte == n as u8));
    }
    assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 0);
}

fn removed_by_another_thread(at: &CheckDir) {
    for round in 0..50u8 {
        let path = at.file("file", &[round; 9000]);
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| File::open(&path));
            scope.spawn(|| fs::remove_file(&path).unwrap());
            match opened.join().unwrap() {
                Err(e) => assert_eq!(e.raw_os_error(), Some(Errno::NOENT.raw_os_error())),
                Ok(mut file) => {
                    let mut content = vec![];
                    file.read_to_end(&mut content).unwrap();
                    assert!(content.len() == 9000 && content.iter().all(|byte| *byte == round));
                }
            }
        });
    }
}
