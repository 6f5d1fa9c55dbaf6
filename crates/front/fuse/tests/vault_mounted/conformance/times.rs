//! Checks of time stamps: which calls set them, which do not, their order and range. No check
//! compares one with a clock.

use super::check_dir::{
    ALICE, BOB, CheckDir, as_user, chmod, fails, pattern, set_owner_and_group, stat, stored,
    sync_and_drop_cache,
};
use super::{ConformanceCheck, checks};
use crate::fixture::{VaultFixture, skip_if};
use crate::machine::{lacking, run};
use crate::serving::MountMode;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, OFlags, StatxFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags, futimens, statx, utimensat,
};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    times_are_kept_to_the_nanosecond,
    omitted_time_stays,
    now_is_another_time,
    times_before_1970,
    times_far_away,
    times_of_a_directory,
    times_of_a_symlink,
    times_through_a_symlink,
    times_of_a_handle_that_wrote,
    times_set_after_a_write_stay,
    times_set_before_a_write_go,
    time_of_change_is_stable,
    content_changes_set_the_time,
    attribute_changes_leave_the_time,
    everything_sets_the_change_time,
    names_set_the_time_of_their_directory,
    reading_leaves_the_time_of_change,
    failed_changes_leave_times,
    birth_time_stays,
    access_time_follows_a_read,
    owner_sets_times,
    writer_sets_the_present,
    copies_with_times,
    links_share_times,
    times_of_server_and_kernel_are_in_order,
];

/// A time long ago.
pub(super) const PAST: i64 = 1_000_000_000;
/// Longer than the resolution of the clocks that stamp files.
const TICK: Duration = Duration::from_millis(12);

fn moment(tv_sec: i64, tv_nsec: i64) -> Timespec {
    Timespec { tv_sec, tv_nsec }
}

fn both(last_access: Timespec, last_modification: Timespec) -> Timestamps {
    Timestamps { last_access, last_modification }
}

fn set(path: &Path, access: Timespec, change: Timespec) {
    utimensat(CWD, path, &both(access, change), AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

fn set_past_of(path: &Path) {
    set(path, moment(PAST, 0), moment(PAST, 0));
}

/// Sets both times of an open file to [`PAST`].
pub(super) fn set_past(file: impl AsFd) {
    futimens(file, &both(moment(PAST, 0), moment(PAST, 0))).unwrap();
}

fn modified(path: &Path) -> (i64, i64) {
    let stat = stat(path);
    (stat.st_mtime, stat.st_mtime_nsec as i64)
}

fn accessed(path: &Path) -> (i64, i64) {
    let stat = stat(path);
    (stat.st_atime, stat.st_atime_nsec as i64)
}

fn changed(path: &Path) -> (i64, i64) {
    let stat = stat(path);
    (stat.st_ctime, stat.st_ctime_nsec as i64)
}

fn times_are_kept_to_the_nanosecond(at: &CheckDir) {
    let file = at.file("file", b"x");
    for nanos in [0, 1, 999, 123_456_789, 999_999_999] {
        set(&file, moment(1_234_567_890, nanos), moment(1_700_000_000, 999_999_999 - nanos));
        assert_eq!(accessed(&file), (1_234_567_890, nanos));
        assert_eq!(modified(&file), (1_700_000_000, 999_999_999 - nanos));
    }
}

fn omitted_time_stays(at: &CheckDir) {
    let file = at.file("file", b"x");
    set(&file, moment(11, 1), moment(22, 2));
    set(&file, moment(0, UTIME_OMIT), moment(33, 3));
    assert_eq!((accessed(&file), modified(&file)), ((11, 1), (33, 3)));
    set(&file, moment(44, 4), moment(0, UTIME_OMIT));
    assert_eq!((accessed(&file), modified(&file)), ((44, 4), (33, 3)));
    set(&file, moment(0, UTIME_OMIT), moment(0, UTIME_OMIT));
    assert_eq!((accessed(&file), modified(&file)), ((44, 4), (33, 3)));
}

fn now_is_another_time(at: &CheckDir) {
    let file = at.file("file", b"x");
    set_past_of(&file);
    set(&file, moment(0, UTIME_NOW), moment(0, UTIME_OMIT));
    assert!(accessed(&file).0 != PAST && modified(&file).0 == PAST);
    set(&file, moment(0, UTIME_OMIT), moment(0, UTIME_NOW));
    assert!(modified(&file).0 != PAST);
}

fn times_before_1970(at: &CheckDir) {
    let file = at.file("file", b"x");
    for (secs, nanos) in [(-1, 0), (-1, 500_000_000), (-1_000_000_000, 1), (-2_000_000_000, 999_999_999)] {
        set(&file, moment(secs, nanos), moment(secs, nanos));
        assert_eq!((accessed(&file), modified(&file)), ((secs, nanos), (secs, nanos)));
    }
}

fn times_far_away(at: &CheckDir) {
    let file = at.file("file", b"x");
    for secs in [0, i64::from(i32::MAX) + 1, 1 << 33] {
        set(&file, moment(secs, 7), moment(secs, 8));
        assert_eq!((accessed(&file), modified(&file)), ((secs, 7), (secs, 8)));
    }
}

fn times_of_a_directory(at: &CheckDir) {
    let dir = at.dir("dir");
    set(&dir, moment(100, 1), moment(200, 2));
    assert_eq!((accessed(&dir), modified(&dir)), ((100, 1), (200, 2)));
    at.file("dir/file", b"");
    assert_ne!(modified(&dir), (200, 2));
}

fn times_of_a_symlink(at: &CheckDir) {
    let file = at.file("file", b"x");
    set_past_of(&file);
    symlink("file", at.path("link")).unwrap();
    set(&at.path("link"), moment(5, 0), moment(6, 0));
    assert_eq!((modified(&at.path("link")), modified(&file)), ((6, 0), (PAST, 0)));
}

fn times_through_a_symlink(at: &CheckDir) {
    let file = at.file("file", b"x");
    symlink("file", at.path("link")).unwrap();
    let link = modified(&at.path("link"));
    utimensat(CWD, at.path("link"), &both(moment(5, 0), moment(6, 0)), AtFlags::empty()).unwrap();
    assert_eq!((modified(&file), modified(&at.path("link"))), ((6, 0), link));
}

fn times_of_a_handle_that_wrote(at: &CheckDir) {
    // The sequence of `cp -p` and `tar`: write, set the times, close.
    let path = at.path("file");
    let mut file = at.open("file", OFlags::WRONLY | OFlags::CREATE).unwrap();
    file.write_all(&pattern(1, 100_000)).unwrap();
    set_past(&file);
    drop(file);
    assert_eq!(modified(&path), (PAST, 0));
    assert!(stored(&path) == pattern(1, 100_000));
    assert_eq!(modified(&path), (PAST, 0));
}

fn times_set_after_a_write_stay(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.write_all_at(&pattern(1, 50_000), 0).unwrap();
    set_past_of(&at.path("file"));
    sync_and_drop_cache(&file);
    rustix::fs::syncfs(&file).unwrap();
    assert_eq!(modified(&at.path("file")), (PAST, 0));
}

fn times_set_before_a_write_go(at: &CheckDir) {
    let file = at.handle("file", b"");
    set_past(&file);
    file.write_all_at(b"x", 0).unwrap();
    assert_ne!(modified(&at.path("file")).0, PAST);
    sync_and_drop_cache(&file);
    assert_ne!(modified(&at.path("file")).0, PAST);
}

fn time_of_change_is_stable(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.write_all_at(&pattern(1, 200_000), 0).unwrap();
    let before = (modified(&at.path("file")), changed(&at.path("file")));
    std::thread::sleep(TICK);
    sync_and_drop_cache(&file);
    drop(file);
    rustix::fs::syncfs(File::open(&at.dir).unwrap()).unwrap();
    fs::read(at.path("file")).unwrap();
    assert_eq!((modified(&at.path("file")), changed(&at.path("file"))), before);
}

type FileChange = (&'static str, fn(&CheckDir, &File));

fn content_changes_set_the_time(at: &CheckDir) {
    let acts: [FileChange; 8] = [
        ("write", |_, file| file.write_all_at(b"y", 3).unwrap()),
        ("append", |_, file| file.write_all_at(b"y", 20_000).unwrap()),
        ("cut", |_, file| file.set_len(100).unwrap()),
        ("extend", |_, file| file.set_len(50_000).unwrap()),
        ("empty", |at, _| drop(at.open("file", OFlags::WRONLY | OFlags::TRUNC).unwrap())),
        ("fill", |_, file| file.write_all_at(&[1; 20_000], 0).unwrap()),
        ("punch", |_, file| {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, how, 0, 4096).unwrap();
        }),
        ("zero", |_, file| rustix::fs::fallocate(file, FallocateFlags::ZERO_RANGE, 0, 8192).unwrap()),
    ];
    let file = at.handle("file", &pattern(1, 10_000));
    for (name, act) in acts {
        set_past(&file);
        act(at, &file);
        assert_ne!(modified(&at.path("file")).0, PAST, "{name}");
        sync_and_drop_cache(&file);
        assert_ne!(modified(&at.path("file")).0, PAST, "{name}, stored");
    }
}

fn attribute_changes_leave_the_time(at: &CheckDir) {
    let file = at.handle("file", b"content");
    set_past(&file);
    let path = at.path("file");
    chmod(&path, 0o600);
    set_owner_and_group(&path, 5, 6);
    rustix::fs::setxattr(&path, "user.a", b"x", XattrFlags::empty()).unwrap();
    fs::hard_link(&path, at.path("link")).unwrap();
    fs::remove_file(at.path("link")).unwrap();
    fs::rename(&path, at.path("moved")).unwrap();
    fs::read(at.path("moved")).unwrap();
    sync_and_drop_cache(&file);
    assert_eq!(modified(&at.path("moved")), (PAST, 0));
}

fn everything_sets_the_change_time(at: &CheckDir) {
    let acts: [FileChange; 9] = [
        ("write", |_, file| file.write_all_at(b"y", 0).unwrap()),
        ("truncate", |_, file| file.set_len(3).unwrap()),
        ("chmod", |at, _| chmod(at.path("file"), 0o640)),
        ("chown", |at, _| set_owner_and_group(at.path("file"), 5, 6)),
        ("times", |_, file| set_past(file)),
        ("link", |at, _| fs::hard_link(at.path("file"), at.path("link")).unwrap()),
        ("unlink", |at, _| fs::remove_file(at.path("link")).unwrap()),
        ("attribute", |at, _| {
            rustix::fs::setxattr(at.path("file"), "user.a", b"x", XattrFlags::empty()).unwrap();
        }),
        ("no attribute", |at, _| rustix::fs::removexattr(at.path("file"), "user.a").unwrap()),
    ];
    let file = at.handle("file", b"content");
    for (name, act) in acts {
        let before = changed(&at.path("file"));
        std::thread::sleep(TICK);
        act(at, &file);
        let after = changed(&at.path("file"));
        assert!(after > before, "{name}: {before:?}, then {after:?}");
    }
}

fn names_set_the_time_of_their_directory(at: &CheckDir) {
    type Act = fn(&CheckDir);
    let acts: [(&str, Act); 10] = [
        ("create", |at| drop(at.file("dir/file", b""))),
        ("mkdir", |at| drop(at.dir("dir/sub"))),
        ("symlink", |at| symlink("x", at.path("dir/symlink")).unwrap()),
        ("link", |at| fs::hard_link(at.path("dir/file"), at.path("dir/link")).unwrap()),
        ("rename within", |at| fs::rename(at.path("dir/link"), at.path("dir/other")).unwrap()),
        ("rename out", |at| fs::rename(at.path("dir/other"), at.path("outside")).unwrap()),
        ("rename in", |at| fs::rename(at.path("outside"), at.path("dir/inside")).unwrap()),
        ("unlink", |at| fs::remove_file(at.path("dir/file")).unwrap()),
        ("rmdir", |at| fs::remove_dir(at.path("dir/sub")).unwrap()),
        ("replace", |at| {
            let new = at.file("new", b"");
            fs::rename(new, at.path("dir/inside")).unwrap();
        }),
    ];
    let dir = at.dir("dir");
    for (name, act) in acts {
        set_past_of(&dir);
        let before = changed(&dir);
        std::thread::sleep(TICK);
        act(at);
        assert_ne!(modified(&dir).0, PAST, "{name}");
        assert!(changed(&dir) > before, "{name}");
    }
}

fn reading_leaves_the_time_of_change(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 10_000));
    let dir = at.dir("dir");
    at.file("dir/file", b"x");
    set_past(&file);
    set_past_of(&dir);
    sync_and_drop_cache(&file);
    let before = (changed(&at.path("file")), changed(&dir));
    std::thread::sleep(TICK);
    fs::read(at.path("file")).unwrap();
    fs::read_dir(&dir).unwrap().for_each(drop);
    at.open("dir/file", OFlags::RDWR).unwrap();
    at.open("dir/file", OFlags::RDWR | OFlags::CREATE).unwrap();
    assert_eq!((modified(&at.path("file")).0, modified(&dir).0), (PAST, PAST));
    assert_eq!((changed(&at.path("file")), changed(&dir)), before);
}

fn failed_changes_leave_times(at: &CheckDir) {
    let dir = at.dir("dir");
    at.file("dir/file", b"");
    at.dir("dir/sub");
    at.file("dir/sub/x", b"");
    set_past_of(&dir);
    fails(fs::create_dir(at.path("dir/sub")), Errno::EXIST);
    fails(fs::remove_dir(at.path("dir/sub")), Errno::NOTEMPTY);
    fails(fs::remove_file(at.path("dir/none")), Errno::NOENT);
    fails(fs::hard_link(at.path("dir/file"), at.path("dir/sub")), Errno::EXIST);
    fails(fs::rename(at.path("dir/file"), at.path("dir/sub")), Errno::ISDIR);
    assert_eq!(modified(&dir), (PAST, 0));
}

fn birth_time_stays(at: &CheckDir) {
    let file = at.handle("file", b"");
    let born = || {
        let stat = statx(CWD, at.path("file"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
        let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        known.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
    };
    let before = born();
    std::thread::sleep(TICK);
    file.write_all_at(b"x", 0).unwrap();
    set_past(&file);
    chmod(at.path("file"), 0o600);
    assert_eq!(born(), before);
}

fn access_time_follows_a_read(at: &CheckDir) {
    if !at.vault {
        // A plain directory may be mounted without access times.
        return;
    }
    let file = at.handle("file", &pattern(1, 10_000));
    set(&at.path("file"), moment(PAST, 0), moment(PAST + 5, 0));
    // Within a tick the read and the change before it have one time, and the next read counts too.
    std::thread::sleep(TICK);
    sync_and_drop_cache(&file);
    file.read_exact_at(&mut [0; 5000], 0).unwrap();
    let after = accessed(&at.path("file"));
    assert_ne!(after.0, PAST);
    // As with `relatime`, the next read does not change it: it is newer than the last modification,
    // and recent.
    std::thread::sleep(TICK);
    sync_and_drop_cache(&file);
    file.read_exact_at(&mut [0; 5000], 0).unwrap();
    assert_eq!(accessed(&at.path("file")), after);
}

fn owner_sets_times(at: &CheckDir) {
    let file = at.file("file", b"x");
    set_owner_and_group(&file, ALICE, ALICE);
    chmod(&file, 0o644);
    let past = both(moment(PAST, 0), moment(PAST, 0));
    as_user(ALICE, &[], || utimensat(CWD, &file, &past, AtFlags::empty())).unwrap();
    assert_eq!(modified(&file), (PAST, 0));
    as_user(BOB, &[], || {
        fails(utimensat(CWD, &file, &past, AtFlags::empty()), Errno::PERM);
        let now = both(moment(0, UTIME_NOW), moment(0, UTIME_NOW));
        fails(utimensat(CWD, &file, &now, AtFlags::empty()), Errno::ACCESS);
    });
}

fn writer_sets_the_present(at: &CheckDir) {
    let file = at.file("file", b"x");
    chmod(&file, 0o666);
    set_past_of(&file);
    as_user(BOB, &[], || {
        let one = both(moment(0, UTIME_OMIT), moment(0, UTIME_NOW));
        fails(utimensat(CWD, &file, &one, AtFlags::empty()), Errno::PERM);
        let now = both(moment(0, UTIME_NOW), moment(0, UTIME_NOW));
        utimensat(CWD, &file, &now, AtFlags::empty()).unwrap();
    });
    assert_ne!(modified(&file).0, PAST);
}

fn copies_with_times(at: &CheckDir) {
    at.dir("from");
    for n in 0..20 {
        let file = at.file(format!("from/{n}"), &pattern(n, 5000));
        set(&file, moment(PAST + n as i64, 1), moment(PAST - n as i64, 999_999_999));
    }
    set(&at.path("from"), moment(PAST, 0), moment(PAST, 5));
    run(Command::new("cp").arg("-a").arg(at.path("from")).arg(at.path("to")));
    for n in 0..20 {
        assert_eq!(modified(&at.path(format!("to/{n}"))), (PAST - n, 999_999_999));
    }
    assert_eq!(modified(&at.path("to")), (PAST, 5));
}

fn links_share_times(at: &CheckDir) {
    let file = at.file("file", b"x");
    fs::hard_link(&file, at.path("link")).unwrap();
    set(&at.path("link"), moment(1, 2), moment(3, 4));
    assert_eq!((accessed(&file), modified(&file)), ((1, 2), (3, 4)));
    let mut content = vec![];
    File::open(&file).unwrap().read_to_end(&mut content).unwrap();
    assert_eq!(content, b"x");
}

fn times_of_server_and_kernel_are_in_order(at: &CheckDir) {
    // A new file gets its times from the vault's server, a written one from the kernel's cache.
    let written = at.handle("written", b"");
    for n in 0..200 {
        let new = at.file(format!("{n}"), b"");
        written.write_all_at(b"x", 0).unwrap();
        assert!(modified(&at.path("written")) >= modified(&new), "file {n}");
    }
}

/// Calls truncate(2) for seven bytes, which gets no open file.
const TRUNCATE: &str = "import os, sys; os.truncate(sys.argv[1], 7)";

/// The kernel leaves the times if truncate(2) gives a file the length that it has, and sets them if
/// ftruncate(2) does. The vault must store what the kernel shows.
#[test]
fn times_shown_after_a_truncation_to_the_same_length_are_stored() {
    skip_if!(lacking());
    if !lacuna_testkit::is_program_available("python3") {
        return;
    }
    let place = VaultFixture::new();
    let server = place.mount(MountMode::Create);
    let [name, handle] = ["name", "handle"].map(|name| place.mountpoint().join(name));
    for file in [&name, &handle] {
        fs::write(file, b"content").unwrap();
        set_past_of(file);
    }
    std::thread::sleep(TICK);
    run(Command::new("python3").args(["-c", TRUNCATE]).arg(&name));
    File::options().write(true).open(&handle).unwrap().set_len(7).unwrap();
    let times = || [&name, &handle].map(|file| (modified(file), changed(file)));
    let shown = times();
    place.unmount(server);
    let server = place.mount(MountMode::Open);
    assert_eq!(times(), shown);
    place.unmount_and_verify(server);
}
