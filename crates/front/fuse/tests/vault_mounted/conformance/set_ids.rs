//! Checks of set-user-ID and set-group-ID: when they are cleared, and directories that pass on
//! their group.

use super::check_dir::{ALICE, BOB, CheckDir, STAFF, as_user, chmod, mode, open, set_owner_and_group, stat};
use super::mapping::MemoryMap;
use super::{ConformanceCheck, checks};
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, copy_file_range, fallocate};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    write_by_a_user_clears,
    write_by_root_keeps,
    truncation_by_a_user_clears,
    opening_with_truncation_by_a_user_clears,
    mapped_write_by_a_user,
    allocation_by_a_user_clears,
    copy_by_a_user_clears,
    chown_clears,
    chown_of_a_directory_keeps,
    chmod_of_a_foreign_group_clears,
    reading_keeps,
    group_without_execution_is_no_set_id,
    punch_and_zero_outside_of_the_group_clear,
    directory_hands_down_its_group,
    directory_hands_down_to_directories,
    directory_without_the_bit_does_not,
    directory_hands_down_to_every_kind,
    moved_into_the_directory_keeps_its_group,
    linked_into_the_directory_keeps_its_group,
    new_file_of_a_foreign_group_loses_the_bit,
    deep_tree_of_one_group,
];

/// A file that BOB may write, with set-user-ID of ALICE and set-group-ID of STAFF.
fn program(at: &CheckDir) -> PathBuf {
    let file = at.file("program", b"content");
    set_owner_and_group(&file, ALICE, STAFF);
    chmod(&file, 0o6777);
    file
}

fn write_by_a_user_clears(at: &CheckDir) {
    let file = program(at);
    as_user(BOB, &[], || open(&file, OFlags::WRONLY).unwrap().write_all_at(b"X", 0).unwrap());
    assert_eq!(mode(&file), 0o777);
    chmod(&file, 0o6777);
    // The owner's own write clears as well.
    as_user(ALICE, &[], || open(&file, OFlags::WRONLY).unwrap().write_all_at(b"Y", 0).unwrap());
    assert_eq!(mode(&file), 0o777);
    assert_eq!(super::check_dir::stored(&file), b"Yontent");
    assert_eq!(mode(&file), 0o777);
}

fn write_by_root_keeps(at: &CheckDir) {
    let file = program(at);
    open(&file, OFlags::WRONLY).unwrap().write_all_at(b"X", 0).unwrap();
    assert_eq!(super::check_dir::stored(&file), b"Xontent");
    assert_eq!(mode(&file), 0o6777);
}

fn truncation_by_a_user_clears(at: &CheckDir) {
    let file = program(at);
    as_user(BOB, &[], || open(&file, OFlags::WRONLY).unwrap().set_len(3).unwrap());
    assert_eq!(mode(&file), 0o777);
}

fn opening_with_truncation_by_a_user_clears(at: &CheckDir) {
    let file = program(at);
    as_user(BOB, &[], || drop(open(&file, OFlags::WRONLY | OFlags::TRUNC).unwrap()));
    assert_eq!((mode(&file), stat(&file).st_size), (0o777, 0));
}

fn mapped_write_by_a_user(at: &CheckDir) {
    // Linux does not clear the bits here; the check is that the write arrives.
    let file = program(at);
    as_user(BOB, &[], || {
        let handle = open(&file, OFlags::RDWR).unwrap();
        let map = MemoryMap::shared(&handle, 0, 7).unwrap();
        map.write(0, b"mapped!");
        map.sync().unwrap();
    });
    assert_eq!(super::check_dir::stored(&file), b"mapped!");
}

fn allocation_by_a_user_clears(at: &CheckDir) {
    let file = program(at);
    as_user(BOB, &[], || {
        let handle = open(&file, OFlags::WRONLY).unwrap();
        fallocate(&handle, FallocateFlags::ZERO_RANGE, 0, 10_000).unwrap();
    });
    assert_eq!((mode(&file), stat(&file).st_size), (0o777, 10_000));
}

fn copy_by_a_user_clears(at: &CheckDir) {
    let (source, file) = (at.file("source", b"copied"), program(at));
    let copy_as_bob = |groups: &[u32]| {
        as_user(BOB, groups, || {
            let (from, to) = (open(&source, OFlags::RDONLY).unwrap(), open(&file, OFlags::WRONLY).unwrap());
            assert_eq!(copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 6).unwrap(), 6);
        });
    };
    copy_as_bob(&[]);
    assert_eq!(mode(&file), 0o777);
    assert_eq!(super::check_dir::stored(&file), b"copiedt");
    // A member of the group as well, if the group may execute.
    chmod(&file, 0o6777);
    copy_as_bob(&[STAFF]);
    assert_eq!(mode(&file), 0o777);
}

fn chown_clears(at: &CheckDir) {
    let file = program(at);
    set_owner_and_group(&file, BOB, BOB);
    assert_eq!(mode(&file), 0o777);
    let file = program(at);
    as_user(ALICE, &[STAFF], || std::os::unix::fs::chown(&file, None, Some(ALICE))).unwrap();
    assert_eq!(mode(&file), 0o777);
}

fn chown_of_a_directory_keeps(at: &CheckDir) {
    let dir = at.dir("dir");
    chmod(&dir, 0o6755);
    set_owner_and_group(&dir, ALICE, STAFF);
    assert_eq!(mode(&dir), 0o6755);
}

fn chmod_of_a_foreign_group_clears(at: &CheckDir) {
    let file = program(at);
    as_user(ALICE, &[], || rustix::fs::chmod(&file, Mode::from_raw_mode(0o6755))).unwrap();
    assert_eq!(mode(&file), 0o4755);
    as_user(ALICE, &[STAFF], || rustix::fs::chmod(&file, Mode::from_raw_mode(0o6755))).unwrap();
    assert_eq!(mode(&file), 0o6755);
}

fn reading_keeps(at: &CheckDir) {
    let file = program(at);
    as_user(BOB, &[], || {
        fs::read(&file).unwrap();
        let handle = open(&file, OFlags::RDWR).unwrap();
        handle.write_all_at(b"", 0).unwrap();
        handle.sync_all().unwrap();
    });
    assert_eq!(mode(&file), 0o6777);
}

fn group_without_execution_is_no_set_id(at: &CheckDir) {
    // Set-group-ID without the group's execute bit has another meaning (mandatory locking) and
    // stays if the writer is in the group.
    let file = program(at);
    chmod(&file, 0o2766);
    as_user(BOB, &[STAFF], || open(&file, OFlags::WRONLY).unwrap().write_all_at(b"X", 0).unwrap());
    assert_eq!(mode(&file), 0o2766);
}

/// Whether Linux clears set-group-ID in this case on other file systems: since 6.2.
fn kernel_clears() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 2)
}

fn punch_and_zero_outside_of_the_group_clear(at: &CheckDir) {
    if !at.vault && !kernel_clears() {
        return;
    }
    let file = program(at);
    for how in [FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::ZERO_RANGE] {
        let change = || fallocate(open(&file, OFlags::WRONLY).unwrap(), how, 0, 4096).unwrap();
        chmod(&file, 0o2766);
        as_user(BOB, &[STAFF], change);
        assert_eq!(mode(&file), 0o2766, "{how:?} by a member");
        as_user(BOB, &[], change);
        assert_eq!(mode(&file), 0o766, "{how:?} by another user");
    }
}

/// A directory that passes on its group STAFF; every user may write there.
fn shared(at: &CheckDir) -> PathBuf {
    let dir = at.dir("shared");
    set_owner_and_group(&dir, 0, STAFF);
    chmod(&dir, 0o2777);
    dir
}

fn directory_hands_down_its_group(at: &CheckDir) {
    let dir = shared(at);
    as_user(ALICE, &[], || fs::write(dir.join("file"), b"")).unwrap();
    fs::write(dir.join("of root"), b"").unwrap();
    let stat_of = |name| stat(dir.join(name));
    assert_eq!((stat_of("file").st_uid, stat_of("file").st_gid), (ALICE, STAFF));
    assert_eq!((stat_of("of root").st_uid, stat_of("of root").st_gid), (0, STAFF));
    assert_eq!(mode(dir.join("file")), 0o644);
}

fn directory_hands_down_to_directories(at: &CheckDir) {
    let dir = shared(at);
    as_user(ALICE, &[], || fs::create_dir(dir.join("sub"))).unwrap();
    assert_eq!((stat(dir.join("sub")).st_gid, mode(dir.join("sub"))), (STAFF, 0o2755));
    as_user(ALICE, &[], || fs::write(dir.join("sub/file"), b"")).unwrap();
    assert_eq!(stat(dir.join("sub/file")).st_gid, STAFF);
    chmod(dir.join("sub"), 0o755);
    as_user(ALICE, &[], || fs::write(dir.join("sub/later"), b"")).unwrap();
    assert_eq!(stat(dir.join("sub/later")).st_gid, ALICE);
}

fn directory_without_the_bit_does_not(at: &CheckDir) {
    let dir = shared(at);
    chmod(&dir, 0o777);
    as_user(ALICE, &[STAFF], || fs::write(dir.join("file"), b"")).unwrap();
    assert_eq!(stat(dir.join("file")).st_gid, ALICE);
}

fn directory_hands_down_to_every_kind(at: &CheckDir) {
    let dir = shared(at);
    as_user(ALICE, &[], || {
        symlink("x", dir.join("link")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        rustix::fs::mknodat(CWD, dir.join("socket"), FileType::Socket, Mode::RUSR, 0).unwrap();
    });
    for name in ["link", "fifo", "socket"] {
        assert_eq!((stat(dir.join(name)).st_uid, stat(dir.join(name)).st_gid), (ALICE, STAFF), "{name}");
    }
}

fn moved_into_the_directory_keeps_its_group(at: &CheckDir) {
    let dir = shared(at);
    let file = at.file("file", b"");
    fs::rename(file, dir.join("file")).unwrap();
    fs::rename(at.dir("sub"), dir.join("sub")).unwrap();
    assert_eq!(
        (stat(dir.join("file")).st_gid, stat(dir.join("sub")).st_gid, mode(dir.join("sub"))),
        (0, 0, 0o755)
    );
}

fn linked_into_the_directory_keeps_its_group(at: &CheckDir) {
    let dir = shared(at);
    let file = at.file("file", b"");
    fs::hard_link(&file, dir.join("file")).unwrap();
    assert_eq!(stat(&file).st_gid, 0);
}

fn new_file_of_a_foreign_group_loses_the_bit(at: &CheckDir) {
    let dir = shared(at);
    let make = |name: &str| {
        let flags = OFlags::WRONLY | OFlags::CREATE;
        drop(rustix::fs::open(dir.join(name), flags, Mode::from_raw_mode(0o2755)).unwrap());
    };
    as_user(ALICE, &[], || make("foreign"));
    as_user(ALICE, &[STAFF], || make("member"));
    assert_eq!((mode(dir.join("foreign")), mode(dir.join("member"))), (0o755, 0o2755));
}

fn deep_tree_of_one_group(at: &CheckDir) {
    let dir = shared(at);
    as_user(ALICE, &[STAFF], || {
        let mut path = dir.clone();
        for n in 0..10 {
            path.push(format!("{n}"));
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), b"").unwrap();
        }
    });
    let mut path = dir;
    for n in 0..10 {
        path.push(format!("{n}"));
        assert_eq!((stat(&path).st_gid, stat(path.join("file")).st_gid), (STAFF, STAFF));
        assert_eq!(mode(&path), 0o2755);
    }
}
