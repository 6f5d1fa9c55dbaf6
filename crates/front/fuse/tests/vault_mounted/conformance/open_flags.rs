//! Checks of opening: flags, creating files, and the operations that a handle allows.

use super::check_dir::{CheckDir, by_handle, fails, mode, open, pattern, stat, stored};
use super::{ConformanceCheck, checks};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::sync::Barrier;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    missing_file_is_enoent,
    create_makes_an_empty_file,
    create_keeps_existing_content,
    create_takes_all_permission_bits,
    create_without_permissions_gives_a_working_handle,
    exclusive_refuses_a_file,
    exclusive_refuses_a_directory,
    exclusive_refuses_a_symlink,
    exclusive_refuses_a_dangling_symlink,
    exclusive_has_one_winner,
    create_goes_through_a_dangling_symlink,
    nofollow_refuses_a_symlink,
    nofollow_opens_a_file,
    directory_flag_refuses_a_file,
    directory_opens_for_reading_alone,
    create_refuses_a_directory,
    truncating_empties,
    truncating_keeps_inode_and_mode,
    truncating_through_a_symlink,
    truncating_forgets_dirty_pages,
    slash_after_a_file_is_enotdir,
    slash_after_a_new_name_is_eisdir,
    file_as_a_directory_is_enotdir,
    symlink_loop_is_eloop,
    reading_handle_refuses_writes,
    writing_handle_refuses_reads,
    reading_handle_refuses_truncation,
    path_handle_allows_attributes_alone,
    path_handle_of_a_symlink,
    path_handle_opens_again,
    unnamed_file_works_or_is_refused,
    duplicates_share_a_position,
    openings_have_positions_of_their_own,
    position_behind_the_end,
    negative_position_is_einval,
    appending_can_be_switched_on,
    appending_ignores_the_position,
    synchronous_writes_are_stored,
    open_relative_to_a_moved_directory,
    many_handles_at_once,
    access_follows_existence,
    noatime_opens_for_the_owner,
];

fn missing_file_is_enoent(at: &CheckDir) {
    fails(at.open("none", OFlags::RDONLY), Errno::NOENT);
    fails(at.open("none", OFlags::RDWR), Errno::NOENT);
    fails(at.open("none/none", OFlags::RDWR | OFlags::CREATE), Errno::NOENT);
    fails(at.open("", OFlags::RDONLY | OFlags::CREATE), Errno::ISDIR);
    fails(rustix::fs::open("", OFlags::RDONLY, Mode::empty()), Errno::NOENT);
}

fn create_makes_an_empty_file(at: &CheckDir) {
    let file = at.open("new", OFlags::RDWR | OFlags::CREATE).unwrap();
    let stat = stat(at.path("new"));
    assert_eq!((stat.st_size, stat.st_nlink, stat.st_mode), (0, 1, 0o100_644));
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_ino, stat.st_ino);
    assert_eq!(fs::read(at.path("new")).unwrap(), b"");
}

fn create_keeps_existing_content(at: &CheckDir) {
    let path = at.file("old", b"content");
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o600)).unwrap();
    let ino = stat(&path).st_ino;
    at.open("old", OFlags::RDWR | OFlags::CREATE).unwrap();
    assert_eq!(
        (fs::read(&path).unwrap(), mode(&path), stat(&path).st_ino),
        (b"content".to_vec(), 0o600, ino)
    );
}

fn create_takes_all_permission_bits(at: &CheckDir) {
    for bits in [0o000, 0o400, 0o600, 0o644, 0o700, 0o755, 0o1644, 0o2755, 0o4755, 0o7777] {
        let path = at.path(format!("{bits:o}"));
        rustix::fs::open(&path, OFlags::RDWR | OFlags::CREATE, Mode::from_raw_mode(bits)).unwrap();
        assert_eq!(mode(&path), bits & !0o022, "{bits:o}");
    }
}

fn create_without_permissions_gives_a_working_handle(at: &CheckDir) {
    let path = at.path("closed");
    let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, Mode::empty()).unwrap();
    let file = File::from(file);
    file.write_all_at(b"written", 0).unwrap();
    let mut back = [0; 7];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!((&back, mode(&path)), (b"written", 0));
}

fn exclusive_refuses_a_file(at: &CheckDir) {
    at.file("there", b"kept");
    fails(at.open("there", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL), Errno::EXIST);
    fails(at.open("there", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC), Errno::EXIST);
    assert_eq!(fs::read(at.path("there")).unwrap(), b"kept");
}

fn exclusive_refuses_a_directory(at: &CheckDir) {
    at.dir("there");
    fails(at.open("there", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL), Errno::EXIST);
}

fn exclusive_refuses_a_symlink(at: &CheckDir) {
    at.file("target", b"");
    symlink("target", at.path("link")).unwrap();
    fails(at.open("link", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL), Errno::EXIST);
}

fn exclusive_refuses_a_dangling_symlink(at: &CheckDir) {
    symlink("target", at.path("link")).unwrap();
    fails(at.open("link", OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL), Errno::EXIST);
    assert!(!at.path("target").exists());
}

fn exclusive_has_one_winner(at: &CheckDir) {
    for round in 0..20 {
        let barrier = Barrier::new(6);
        let name = format!("{round}");
        let won = std::thread::scope(|scope| {
            let try_it = || {
                barrier.wait();
                at.open(&name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL).is_ok()
            };
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(try_it)).collect();
            threads.into_iter().map(|t| u32::from(t.join().unwrap())).sum::<u32>()
        });
        assert_eq!(won, 1);
    }
}

fn create_goes_through_a_dangling_symlink(at: &CheckDir) {
    symlink("target", at.path("link")).unwrap();
    at.open("link", OFlags::WRONLY | OFlags::CREATE).unwrap().write_all(b"through").unwrap();
    assert_eq!(fs::read(at.path("target")).unwrap(), b"through");
}

fn nofollow_refuses_a_symlink(at: &CheckDir) {
    at.file("target", b"");
    symlink("target", at.path("link")).unwrap();
    fails(at.open("link", OFlags::RDONLY | OFlags::NOFOLLOW), Errno::LOOP);
    fails(at.open("link", OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CREATE), Errno::LOOP);
}

fn nofollow_opens_a_file(at: &CheckDir) {
    at.dir("dir");
    symlink("dir", at.path("link")).unwrap();
    at.file("dir/file", b"x");
    at.open("link/file", OFlags::RDONLY | OFlags::NOFOLLOW).unwrap();
}

fn directory_flag_refuses_a_file(at: &CheckDir) {
    at.file("file", b"");
    fails(at.open("file", OFlags::RDONLY | OFlags::DIRECTORY), Errno::NOTDIR);
    at.dir("dir");
    at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
}

fn directory_opens_for_reading_alone(at: &CheckDir) {
    at.dir("dir");
    fails(at.open("dir", OFlags::WRONLY), Errno::ISDIR);
    fails(at.open("dir", OFlags::RDWR), Errno::ISDIR);
    fails(at.open("dir", OFlags::WRONLY | OFlags::TRUNC), Errno::ISDIR);
    let mut dir = at.open("dir", OFlags::RDONLY).unwrap();
    fails(dir.read(&mut [0; 8]), Errno::ISDIR);
    fails(dir.write(b"x"), Errno::BADF);
}

fn create_refuses_a_directory(at: &CheckDir) {
    at.dir("dir");
    fails(at.open("dir", OFlags::RDONLY | OFlags::CREATE), Errno::ISDIR);
    fails(at.open("dir", OFlags::RDWR | OFlags::CREATE), Errno::ISDIR);
}

fn truncating_empties(at: &CheckDir) {
    let path = at.file("file", &pattern(1, 70_000));
    let file = at.open("file", OFlags::RDWR | OFlags::TRUNC).unwrap();
    assert_eq!((stat(&path).st_size, stored(&path).len()), (0, 0));
    file.write_all_at(b"x", 9000).unwrap();
    assert!(stored(&path)[..9000].iter().all(|byte| *byte == 0));
}

fn truncating_keeps_inode_and_mode(at: &CheckDir) {
    let path = at.file("file", b"content");
    rustix::fs::chmod(&path, Mode::from_raw_mode(0o640)).unwrap();
    let before = stat(&path);
    at.open("file", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC).unwrap();
    let after = stat(&path);
    assert_eq!((after.st_ino, after.st_mode, after.st_size), (before.st_ino, before.st_mode, 0));
}

fn truncating_through_a_symlink(at: &CheckDir) {
    let path = at.file("target", b"content");
    symlink("target", at.path("link")).unwrap();
    at.open("link", OFlags::WRONLY | OFlags::TRUNC).unwrap();
    assert_eq!(stat(&path).st_size, 0);
    assert!(stat(at.path("link")).st_mode & 0o170_000 == 0o120_000);
}

fn truncating_forgets_dirty_pages(at: &CheckDir) {
    let first = at.open("file", OFlags::RDWR | OFlags::CREATE).unwrap();
    for round in 0..20 {
        first.write_all_at(&pattern(round, 200_000), 0).unwrap();
        at.open("file", OFlags::WRONLY | OFlags::TRUNC).unwrap();
        first.write_all_at(b"end", 100_000).unwrap();
        let content = stored(at.path("file"));
        assert_eq!(content.len(), 100_003);
        assert!(content[..100_000].iter().all(|byte| *byte == 0));
    }
}

fn slash_after_a_file_is_enotdir(at: &CheckDir) {
    at.file("file", b"");
    fails(at.open("file/", OFlags::RDONLY), Errno::NOTDIR);
    fails(rustix::fs::stat(at.path("file/")), Errno::NOTDIR);
    fails(at.open("file/.", OFlags::RDONLY), Errno::NOTDIR);
}

fn slash_after_a_new_name_is_eisdir(at: &CheckDir) {
    fails(at.open("new/", OFlags::RDWR | OFlags::CREATE), Errno::ISDIR);
    assert!(!at.path("new").exists());
}

fn file_as_a_directory_is_enotdir(at: &CheckDir) {
    at.file("file", b"");
    fails(at.open("file/x", OFlags::RDONLY), Errno::NOTDIR);
    fails(at.open("file/x", OFlags::RDWR | OFlags::CREATE), Errno::NOTDIR);
}

fn symlink_loop_is_eloop(at: &CheckDir) {
    symlink("b", at.path("a")).unwrap();
    symlink("a", at.path("b")).unwrap();
    symlink("self", at.path("self")).unwrap();
    fails(at.open("a", OFlags::RDONLY), Errno::LOOP);
    fails(at.open("self", OFlags::RDWR | OFlags::CREATE), Errno::LOOP);
    fails(at.open("self/x", OFlags::RDONLY), Errno::LOOP);
}

fn reading_handle_refuses_writes(at: &CheckDir) {
    at.file("file", b"kept");
    let mut file = at.open("file", OFlags::RDONLY).unwrap();
    fails(file.write(b"x"), Errno::BADF);
    fails(file.write_at(b"x", 0), Errno::BADF);
    assert_eq!(fs::read(at.path("file")).unwrap(), b"kept");
}

fn writing_handle_refuses_reads(at: &CheckDir) {
    at.file("file", b"kept");
    let mut file = at.open("file", OFlags::WRONLY).unwrap();
    fails(file.read(&mut [0; 4]), Errno::BADF);
    file.write_all(b"WX").unwrap();
    assert_eq!(fs::read(at.path("file")).unwrap(), b"WXpt");
}

fn reading_handle_refuses_truncation(at: &CheckDir) {
    at.file("file", b"kept");
    fails(at.open("file", OFlags::RDONLY).unwrap().set_len(0), Errno::INVAL);
}

fn path_handle_allows_attributes_alone(at: &CheckDir) {
    at.file("file", b"kept");
    let mut file = at.open("file", OFlags::PATH).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4);
    fails(file.read(&mut [0; 4]), Errno::BADF);
    fails(file.write(b"x"), Errno::BADF);
    fails(file.set_len(0), Errno::BADF);
    fails(rustix::fs::fchmod(&file, Mode::empty()), Errno::BADF);
}

fn path_handle_of_a_symlink(at: &CheckDir) {
    symlink("nowhere", at.path("link")).unwrap();
    let link = at.open("link", OFlags::PATH | OFlags::NOFOLLOW).unwrap();
    assert_eq!(rustix::fs::fstat(&link).unwrap().st_size, 7);
    assert_eq!(rustix::fs::readlinkat(&link, "", vec![]).unwrap().as_bytes(), b"nowhere");
}

fn path_handle_opens_again(at: &CheckDir) {
    at.file("file", b"kept");
    let handle = at.open("file", OFlags::PATH).unwrap();
    fs::rename(at.path("file"), at.path("moved")).unwrap();
    let mut again = open(&by_handle(&handle), OFlags::RDONLY).unwrap();
    let mut content = vec![];
    again.read_to_end(&mut content).unwrap();
    assert_eq!(content, b"kept");
}

fn unnamed_file_works_or_is_refused(at: &CheckDir) {
    match at.open("", OFlags::RDWR | OFlags::TMPFILE) {
        Err(e) => assert_eq!(e, Errno::OPNOTSUPP),
        Ok(file) => {
            file.write_all_at(b"unnamed", 0).unwrap();
            assert_eq!(fs::read_dir(&at.dir).unwrap().count(), 0);
            let path = at.path("named");
            rustix::fs::linkat(CWD, by_handle(&file), CWD, &path, AtFlags::SYMLINK_FOLLOW).unwrap();
            assert_eq!(stored(path), b"unnamed");
        }
    }
}

fn duplicates_share_a_position(at: &CheckDir) {
    let mut one = at.handle("file", b"0123456789");
    let mut two = one.try_clone().unwrap();
    one.read_exact(&mut [0; 4]).unwrap();
    let mut next = [0; 2];
    two.read_exact(&mut next).unwrap();
    assert_eq!(&next, b"45");
    two.write_all(b"XY").unwrap();
    assert_eq!(one.stream_position().unwrap(), 8);
}

fn openings_have_positions_of_their_own(at: &CheckDir) {
    let mut one = at.handle("file", b"0123456789");
    let mut two = at.open("file", OFlags::RDONLY).unwrap();
    one.read_exact(&mut [0; 4]).unwrap();
    let mut first = [0; 2];
    two.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"01");
}

fn position_behind_the_end(at: &CheckDir) {
    let mut file = at.handle("file", b"abc");
    assert_eq!(rustix::fs::seek(&file, SeekFrom::End(5000)).unwrap(), 5003);
    assert_eq!(file.read(&mut [0; 4]).unwrap(), 0);
    assert_eq!(stat(at.path("file")).st_size, 3);
    file.write_all(b"z").unwrap();
    let content = stored(at.path("file"));
    assert_eq!((content.len(), &content[..4], content[5003]), (5004, &b"abc\0"[..], b'z'));
}

fn negative_position_is_einval(at: &CheckDir) {
    let file = at.handle("file", b"abc");
    fails(rustix::fs::seek(&file, SeekFrom::Current(-1)), Errno::INVAL);
    fails(rustix::fs::seek(&file, SeekFrom::End(-4)), Errno::INVAL);
    assert_eq!(rustix::fs::seek(&file, SeekFrom::End(-3)).unwrap(), 0);
}

fn appending_can_be_switched_on(at: &CheckDir) {
    let mut file = at.handle("file", b"abc");
    let flags = rustix::fs::fcntl_getfl(&file).unwrap();
    assert!(!flags.contains(OFlags::APPEND));
    rustix::fs::fcntl_setfl(&file, flags | OFlags::APPEND).unwrap();
    file.write_all(b"def").unwrap();
    assert_eq!(stored(at.path("file")), b"abcdef");
}

fn appending_ignores_the_position(at: &CheckDir) {
    at.file("file", b"abc");
    let mut file = at.open("file", OFlags::RDWR | OFlags::APPEND).unwrap();
    file.rewind().unwrap();
    file.write_all(b"def").unwrap();
    assert_eq!(file.stream_position().unwrap(), 6);
    // On Linux a positioned write to such a handle appends as well.
    file.write_all_at(b"ghi", 0).unwrap();
    assert_eq!(stored(at.path("file")), b"abcdefghi");
}

fn synchronous_writes_are_stored(at: &CheckDir) {
    for (name, flag) in [("sync", OFlags::SYNC), ("dsync", OFlags::DSYNC)] {
        let file = at.open(name, OFlags::RDWR | OFlags::CREATE | flag).unwrap();
        file.write_all_at(&pattern(3, 10_000), 17).unwrap();
        assert_eq!(stored(at.path(name))[17..], pattern(3, 10_000));
    }
}

fn open_relative_to_a_moved_directory(at: &CheckDir) {
    at.dir("dir");
    at.file("dir/file", b"inside");
    let dir = at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fs::rename(at.path("dir"), at.path("moved")).unwrap();
    let mut file = File::from(rustix::fs::openat(&dir, "file", OFlags::RDONLY, Mode::empty()).unwrap());
    let mut content = vec![];
    file.read_to_end(&mut content).unwrap();
    assert_eq!(content, b"inside");
    rustix::fs::openat(&dir, "new", OFlags::WRONLY | OFlags::CREATE, Mode::from_raw_mode(0o644)).unwrap();
    assert!(at.path("moved/new").exists());
}

fn many_handles_at_once(at: &CheckDir) {
    let files: Vec<File> =
        (0..200).map(|n| at.open(format!("{}", n % 50), OFlags::RDWR | OFlags::CREATE).unwrap()).collect();
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&[n as u8; 100], n as u64 * 100).unwrap();
    }
    drop(files);
    for n in 0..50usize {
        let content = stored(at.path(format!("{n}")));
        for part in [n, n + 50, n + 100, n + 150] {
            assert!(content[part * 100..][..100].iter().all(|byte| *byte == part as u8));
        }
    }
}

fn access_follows_existence(at: &CheckDir) {
    use rustix::fs::{Access, access};
    at.file("file", b"");
    access(at.path("file"), Access::EXISTS).unwrap();
    access(at.path("file"), Access::READ_OK | Access::WRITE_OK).unwrap();
    fails(access(at.path("none"), Access::EXISTS), Errno::NOENT);
    fails(access(at.path("file/x"), Access::EXISTS), Errno::NOTDIR);
}

fn noatime_opens_for_the_owner(at: &CheckDir) {
    at.file("file", b"abc");
    let mut content = vec![];
    at.open("file", OFlags::RDONLY | OFlags::NOATIME).unwrap().read_to_end(&mut content).unwrap();
    assert_eq!(content, b"abc");
}
