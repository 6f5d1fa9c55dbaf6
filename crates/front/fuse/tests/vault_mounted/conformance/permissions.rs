//! Checks of permissions: for the owner, for members of the group, and for other users.

use super::check_dir::{
    ALICE, BOB, CheckDir, STAFF, as_user, chmod, fails, fails_among, mode, open, set_owner_and_group, stat,
};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::{Access, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    opening_follows_the_mode,
    directories_follow_the_mode,
    groups_beyond_the_first_count,
    the_owner_class_alone_applies_to_the_owner,
    root_reads_and_writes_everything,
    root_executes_with_any_execute_bit,
    every_directory_of_the_path_needs_search,
    making_needs_write_and_search,
    removing_needs_the_directory_alone,
    sticky_directory,
    sticky_directory_and_renames,
    chmod_is_for_the_owner,
    chown_is_for_root,
    group_is_changed_by_the_owner,
    unchanged_owner_needs_no_right,
    modes_are_kept,
    modes_of_directories_are_kept,
    chmod_of_a_handle,
    new_files_belong_to_their_maker,
    mask_of_new_files,
    linking_needs_the_directory,
    symlinks_follow_the_target,
    devices_are_for_root,
    programs_run,
    scripts_need_permission,
    open_handle_outlives_permission,
    truncating_needs_write_permission,
    access_asks_for_the_real_user,
    noatime_is_for_the_owner,
    renaming_a_directory_of_another,
];

/// User, groups, and the shift of the three mode bits that apply to this user.
const CLASSES: [(u32, &[u32], u32); 3] = [(ALICE, &[], 6), (BOB, &[STAFF], 3), (BOB, &[], 0)];

fn opening_follows_the_mode(at: &CheckDir) {
    let file = at.file("file", b"content");
    set_owner_and_group(&file, ALICE, STAFF);
    for (user, groups, shift) in CLASSES {
        for bits in 0..8 {
            // The other classes get the opposite bits.
            chmod(&file, (0o777 ^ (7 << shift)) & !(bits << shift) | (bits << shift));
            as_user(user, groups, || {
                for (flags, needed) in [(OFlags::RDONLY, 4), (OFlags::WRONLY, 2), (OFlags::RDWR, 6)] {
                    let opened = open(&file, flags);
                    if bits & needed == needed {
                        opened.unwrap_or_else(|e| panic!("{bits:o} {flags:?}: {e}"));
                    } else {
                        fails(opened, Errno::ACCESS);
                    }
                }
            });
        }
    }
}

fn directories_follow_the_mode(at: &CheckDir) {
    let dir = at.dir("dir");
    at.file("dir/file", b"");
    set_owner_and_group(&dir, ALICE, STAFF);
    for (user, groups, shift) in CLASSES {
        for bits in 0..8 {
            chmod(&dir, bits << shift);
            as_user(user, groups, || {
                let check = |allowed: bool, result: std::io::Result<()>, what: &str| match result {
                    Ok(()) => assert!(allowed, "{bits:o}: could {what}"),
                    Err(e) => {
                        assert!(!allowed, "{bits:o}: could not {what}: {e}");
                        assert_eq!(e.raw_os_error(), Some(libc::EACCES));
                    }
                };
                check(bits & 4 != 0, fs::read_dir(&dir).map(drop), "list");
                check(bits & 1 != 0, fs::metadata(dir.join("file")).map(drop), "search");
                check(bits & 3 == 3, fs::create_dir(dir.join("new")), "make");
                check(bits & 3 == 3, fs::rename(dir.join("file"), dir.join("moved")), "rename");
                if bits & 3 == 3 {
                    fs::rename(dir.join("moved"), dir.join("file")).unwrap();
                    fs::remove_dir(dir.join("new")).unwrap();
                }
            });
        }
    }
}

fn groups_beyond_the_first_count(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, 0, STAFF);
    chmod(&file, 0o060);
    as_user(ALICE, &[1, 2, STAFF, 3], || open(&file, OFlags::RDWR)).unwrap();
    as_user(ALICE, &[1, 2, 3], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
}

fn the_owner_class_alone_applies_to_the_owner(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, STAFF);
    chmod(&file, 0o077);
    as_user(ALICE, &[STAFF], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
    chmod(&file, 0o007);
    as_user(BOB, &[STAFF], || fails(open(&file, OFlags::RDONLY), Errno::ACCESS));
    as_user(BOB, &[], || open(&file, OFlags::RDONLY)).unwrap();
}

fn root_reads_and_writes_everything(at: &CheckDir) {
    let file = at.file("file", b"x");
    set_owner_and_group(&file, ALICE, ALICE);
    chmod(&file, 0);
    open(&file, OFlags::RDWR).unwrap();
    let dir = at.dir("dir");
    chmod(&dir, 0);
    at.file("dir/file", b"");
    fs::read_dir(dir).unwrap();
}

fn root_executes_with_any_execute_bit(at: &CheckDir) {
    let file = at.file("file", b"");
    chmod(&file, 0o644);
    fails(rustix::fs::access(&file, Access::EXEC_OK), Errno::ACCESS);
    chmod(&file, 0o001);
    rustix::fs::access(&file, Access::EXEC_OK).unwrap();
}

fn every_directory_of_the_path_needs_search(at: &CheckDir) {
    at.dir("a");
    at.dir("a/b");
    let file = at.file("a/b/file", b"");
    chmod(&file, 0o666);
    chmod(at.path("a/b"), 0o777);
    chmod(at.path("a"), 0o766);
    as_user(ALICE, &[], || {
        fails(open(&file, OFlags::RDONLY), Errno::ACCESS);
        fails(rustix::fs::lstat(&file), Errno::ACCESS);
        fails(fs::remove_file(&file), Errno::ACCESS);
        fails(rustix::fs::lstat(at.path("a/none")), Errno::ACCESS);
    });
    chmod(at.path("a"), 0o711);
    as_user(ALICE, &[], || open(&file, OFlags::RDWR)).unwrap();
}

fn making_needs_write_and_search(at: &CheckDir) {
    let dir = at.dir("dir");
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, ALICE);
    chmod(&dir, 0o755);
    as_user(ALICE, &[], || {
        let new = dir.join("new");
        fails(open(&new, OFlags::WRONLY | OFlags::CREATE), Errno::ACCESS);
        fails(fs::create_dir(&new), Errno::ACCESS);
        fails(symlink("x", &new), Errno::ACCESS);
        fails(fs::hard_link(&file, &new), Errno::ACCESS);
        fails(fs::rename(&file, &new), Errno::ACCESS);
        fails(rustix::fs::mknodat(CWD, &new, FileType::Fifo, Mode::RUSR, 0), Errno::ACCESS);
    });
    chmod(&dir, 0o777);
    as_user(ALICE, &[], || {
        open(&dir.join("file"), OFlags::WRONLY | OFlags::CREATE).unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        symlink("x", dir.join("link")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    });
}

fn removing_needs_the_directory_alone(at: &CheckDir) {
    let dir = at.dir("dir");
    at.file("dir/file", b"");
    at.dir("dir/sub");
    chmod(at.path("dir/file"), 0);
    set_owner_and_group(&dir, ALICE, ALICE);
    as_user(BOB, &[], || {
        fails(fs::remove_file(dir.join("file")), Errno::ACCESS);
        fails(fs::remove_dir(dir.join("sub")), Errno::ACCESS);
    });
    as_user(ALICE, &[], || {
        fs::remove_file(dir.join("file")).unwrap();
        fs::remove_dir(dir.join("sub")).unwrap();
    });
}

/// A directory where all users may create entries, and each may remove only its own.
fn sticky(at: &CheckDir) -> std::path::PathBuf {
    let dir = at.dir("sticky");
    chmod(&dir, 0o1777);
    as_user(ALICE, &[], || {
        fs::write(dir.join("of alice"), b"x").unwrap();
        fs::create_dir(dir.join("dir of alice")).unwrap();
    });
    dir
}

fn sticky_directory(at: &CheckDir) {
    let dir = sticky(at);
    as_user(BOB, &[], || {
        fails(fs::remove_file(dir.join("of alice")), Errno::PERM);
        fails(fs::remove_dir(dir.join("dir of alice")), Errno::PERM);
        fs::write(dir.join("of bob"), b"x").unwrap();
        fs::remove_file(dir.join("of bob")).unwrap();
    });
    as_user(ALICE, &[], || fs::remove_file(dir.join("of alice"))).unwrap();
    set_owner_and_group(&dir, BOB, BOB);
    as_user(BOB, &[], || fs::remove_dir(dir.join("dir of alice"))).unwrap();
}

fn sticky_directory_and_renames(at: &CheckDir) {
    let dir = sticky(at);
    as_user(BOB, &[], || {
        fs::write(dir.join("of bob"), b"x").unwrap();
        fails(fs::rename(dir.join("of alice"), dir.join("mine")), Errno::PERM);
        fails(fs::rename(dir.join("of bob"), dir.join("of alice")), Errno::PERM);
        fs::rename(dir.join("of bob"), dir.join("still of bob")).unwrap();
    });
}

fn chmod_is_for_the_owner(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, STAFF);
    chmod(&file, 0o666);
    as_user(ALICE, &[], || rustix::fs::chmod(&file, Mode::from_raw_mode(0o640))).unwrap();
    as_user(BOB, &[STAFF], || fails(rustix::fs::chmod(&file, Mode::from_raw_mode(0o777)), Errno::PERM));
    assert_eq!(mode(&file), 0o640);
}

fn chown_is_for_root(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, ALICE);
    as_user(ALICE, &[], || {
        fails(std::os::unix::fs::chown(&file, Some(BOB), None), Errno::PERM);
        fails(std::os::unix::fs::chown(&file, Some(0), None), Errno::PERM);
    });
    set_owner_and_group(&file, BOB, BOB);
    assert_eq!((stat(&file).st_uid, stat(&file).st_gid), (BOB, BOB));
}

fn group_is_changed_by_the_owner(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, ALICE);
    let change = |group| std::os::unix::fs::chown(&file, None, Some(group));
    as_user(ALICE, &[STAFF], || {
        change(STAFF).unwrap();
        change(ALICE).unwrap();
        fails(change(BOB), Errno::PERM);
    });
    as_user(BOB, &[STAFF], || fails(change(STAFF), Errno::PERM));
    assert_eq!(stat(&file).st_gid, ALICE);
}

fn unchanged_owner_needs_no_right(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, STAFF);
    std::os::unix::fs::chown(&file, None, None).unwrap();
    as_user(ALICE, &[], || std::os::unix::fs::chown(&file, Some(ALICE), None)).unwrap();
    assert_eq!((stat(&file).st_uid, stat(&file).st_gid), (ALICE, STAFF));
}

fn modes_are_kept(at: &CheckDir) {
    let file = at.file("file", b"");
    for bits in (0..0o10_000).step_by(37) {
        chmod(&file, bits);
        assert_eq!(stat(&file).st_mode, 0o100_000 | bits, "{bits:o}");
    }
}

fn modes_of_directories_are_kept(at: &CheckDir) {
    let dir = at.dir("dir");
    for bits in (0..0o10_000).step_by(41) {
        chmod(&dir, bits);
        assert_eq!(stat(&dir).st_mode, 0o040_000 | bits, "{bits:o}");
    }
}

fn chmod_of_a_handle(at: &CheckDir) {
    let file = at.handle("file", b"");
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o421)).unwrap();
    assert_eq!(mode(at.path("file")), 0o421);
    std::os::unix::fs::fchown(&file, Some(4), Some(5)).unwrap();
    assert_eq!((stat(at.path("file")).st_uid, stat(at.path("file")).st_gid), (4, 5));
}

fn new_files_belong_to_their_maker(at: &CheckDir) {
    let dir = at.dir("dir");
    chmod(&dir, 0o777);
    as_user(ALICE, &[STAFF], || {
        fs::write(dir.join("file"), b"").unwrap();
        fs::create_dir(dir.join("dir")).unwrap();
        symlink("x", dir.join("link")).unwrap();
        rustix::fs::mknodat(CWD, dir.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    });
    for name in ["file", "dir", "link", "fifo"] {
        let stat = stat(dir.join(name));
        assert_eq!((stat.st_uid, stat.st_gid), (ALICE, ALICE), "{name}");
    }
}

fn mask_of_new_files(at: &CheckDir) {
    for (mask, file, dir) in
        [("000", 0o666, 0o777), ("077", 0o600, 0o700), ("027", 0o640, 0o750), ("777", 0, 0)]
    {
        let script = format!("umask {mask}; : > f{mask}; mkdir d{mask}; mkfifo p{mask}");
        run(Command::new("sh").args(["-c", &script]).current_dir(&at.dir));
        assert_eq!(mode(at.path(format!("f{mask}"))), file);
        assert_eq!(mode(at.path(format!("d{mask}"))), dir);
        assert_eq!(mode(at.path(format!("p{mask}"))), file);
    }
}

fn linking_needs_the_directory(at: &CheckDir) {
    let dir = at.dir("dir");
    chmod(&dir, 0o777);
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, ALICE);
    as_user(ALICE, &[], || fs::hard_link(&file, dir.join("link"))).unwrap();
    chmod(&dir, 0o555);
    as_user(ALICE, &[], || fails(fs::hard_link(&file, dir.join("more")), Errno::ACCESS));
    assert_eq!(stat(&file).st_nlink, 2);
}

fn symlinks_follow_the_target(at: &CheckDir) {
    let file = at.file("file", b"");
    chmod(&file, 0o600);
    symlink("file", at.path("link")).unwrap();
    as_user(ALICE, &[], || {
        fails(open(&at.path("link"), OFlags::RDONLY), Errno::ACCESS);
        assert_eq!(fs::read_link(at.path("link")).unwrap(), Path::new("file"));
    });
}

fn devices_are_for_root(at: &CheckDir) {
    chmod(&at.dir, 0o777);
    as_user(ALICE, &[], || {
        for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
            let made = rustix::fs::mknodat(CWD, at.path("x"), kind, Mode::RUSR, rustix::fs::makedev(1, 3));
            fails(made, Errno::PERM);
        }
        rustix::fs::mknodat(CWD, at.path("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        rustix::fs::mknodat(CWD, at.path("socket"), FileType::Socket, Mode::RUSR, 0).unwrap();
    });
}

fn programs_run(at: &CheckDir) {
    fs::copy("/bin/true", at.path("program")).unwrap();
    run(&mut Command::new(at.path("program")));
    chmod(at.path("program"), 0o644);
    fails(Command::new(at.path("program")).status(), Errno::ACCESS);
}

fn scripts_need_permission(at: &CheckDir) {
    let script = at.file("script", b"#!/bin/sh\necho ran with $1\n");
    fails(Command::new(&script).status(), Errno::ACCESS);
    chmod(&script, 0o755);
    assert_eq!(run(Command::new(&script).arg("this")), "ran with this\n");
}

fn open_handle_outlives_permission(at: &CheckDir) {
    use std::os::unix::fs::FileExt;
    let file = at.file("file", b"content");
    set_owner_and_group(&file, ALICE, ALICE);
    as_user(ALICE, &[], || {
        let handle = open(&file, OFlags::RDWR).unwrap();
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
        handle.write_all_at(b"CON", 0).unwrap();
        handle.sync_all().unwrap();
        let mut out = [0; 7];
        handle.read_exact_at(&mut out, 0).unwrap();
        assert_eq!(&out, b"CONtent");
        fails(open(&file, OFlags::RDONLY), Errno::ACCESS);
    });
    assert_eq!(super::check_dir::stored(&file), b"CONtent");
}

fn truncating_needs_write_permission(at: &CheckDir) {
    let file = at.file("file", b"kept");
    chmod(&file, 0o444);
    as_user(ALICE, &[], || {
        fails(open(&file, OFlags::RDONLY | OFlags::TRUNC), Errno::ACCESS);
        fails(open(&file, OFlags::WRONLY | OFlags::TRUNC), Errno::ACCESS);
    });
    assert_eq!(fs::read(&file).unwrap(), b"kept");
}

fn access_asks_for_the_real_user(at: &CheckDir) {
    let file = at.file("file", b"");
    set_owner_and_group(&file, ALICE, STAFF);
    chmod(&file, 0o640);
    as_user(ALICE, &[], || rustix::fs::access(&file, Access::READ_OK | Access::WRITE_OK)).unwrap();
    as_user(BOB, &[STAFF], || {
        rustix::fs::access(&file, Access::READ_OK).unwrap();
        fails(rustix::fs::access(&file, Access::WRITE_OK), Errno::ACCESS);
    });
    as_user(BOB, &[], || {
        rustix::fs::access(&file, Access::EXISTS).unwrap();
        fails(rustix::fs::access(&file, Access::READ_OK), Errno::ACCESS);
    });
}

fn noatime_is_for_the_owner(at: &CheckDir) {
    let file = at.file("file", b"");
    chmod(&file, 0o666);
    as_user(BOB, &[], || fails(open(&file, OFlags::RDONLY | OFlags::NOATIME), Errno::PERM));
}

fn renaming_a_directory_of_another(at: &CheckDir) {
    // Moving a directory to another parent changes its "..".
    at.dir("from");
    at.dir("to");
    at.dir("from/of root");
    chmod(at.path("from"), 0o777);
    chmod(at.path("to"), 0o777);
    as_user(ALICE, &[], || {
        fails_among(fs::rename(at.path("from/of root"), at.path("to/moved")), &[Errno::ACCESS]);
        fs::rename(at.path("from/of root"), at.path("from/renamed")).unwrap();
    });
}
