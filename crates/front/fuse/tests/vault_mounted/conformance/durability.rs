//! Checks of the sync calls: they succeed wherever Linux lets them, and change nothing.

use super::check_dir::{CheckDir, fails, fails_among, pattern, stat, stored};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    sync_of_a_file,
    sync_of_a_file_that_was_only_read,
    sync_of_a_directory,
    sync_of_an_empty_file,
    sync_of_the_file_system,
    sync_of_special_files,
    sync_after_every_write,
    sync_by_another_handle,
    sync_by_many_threads,
    sync_while_others_write,
    sync_of_new_names,
    sync_by_programs,
    replace_by_rename_as_editors_do,
    log_of_synced_lines,
];

fn sync_of_a_file(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.write_all_at(&pattern(1, 100_000), 0).unwrap();
    file.sync_all().unwrap();
    file.write_all_at(b"more", 100_000).unwrap();
    file.sync_data().unwrap();
    file.sync_data().unwrap();
    assert_eq!(stored(at.path("file")), [pattern(1, 100_000), b"more".to_vec()].concat());
}

fn sync_of_a_file_that_was_only_read(at: &CheckDir) {
    at.file("file", b"content");
    let file = at.open("file", OFlags::RDONLY).unwrap();
    file.sync_all().unwrap();
    file.sync_data().unwrap();
}

fn sync_of_a_directory(at: &CheckDir) {
    at.dir("dir");
    let dir = at.open("dir", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    dir.sync_all().unwrap();
    at.file("dir/file", b"");
    dir.sync_data().unwrap();
    fs::remove_file(at.path("dir/file")).unwrap();
    dir.sync_all().unwrap();
}

fn sync_of_an_empty_file(at: &CheckDir) {
    at.open("file", OFlags::WRONLY | OFlags::CREATE).unwrap().sync_all().unwrap();
    assert_eq!(stat(at.path("file")).st_size, 0);
}

fn sync_of_the_file_system(at: &CheckDir) {
    for n in 0..20 {
        at.file(format!("{n}"), &pattern(n, 10_000));
    }
    rustix::fs::syncfs(File::open(&at.dir).unwrap()).unwrap();
    for n in 0..20 {
        assert!(stored(at.path(format!("{n}"))) == pattern(n, 10_000));
    }
}

fn sync_of_special_files(at: &CheckDir) {
    rustix::fs::mknodat(CWD, at.path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let fifo = at.open("fifo", OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    fails_among(fifo.sync_all(), &[Errno::INVAL, Errno::ROFS]);
    at.file("file", b"");
    fails(at.open("file", OFlags::PATH).unwrap().sync_all(), Errno::BADF);
}

fn sync_after_every_write(at: &CheckDir) {
    let file = at.handle("file", b"");
    for n in 0..60u64 {
        file.write_all_at(&pattern(n, 1000), n * 900).unwrap();
        file.sync_all().unwrap();
    }
    let content = stored(at.path("file"));
    assert!((0..60usize).all(|n| content[n * 900..][..900] == pattern(n as u64, 1000)[..900]));
}

fn sync_by_another_handle(at: &CheckDir) {
    let writer = at.handle("file", b"");
    let other = at.open("file", OFlags::RDONLY).unwrap();
    for n in 0..20 {
        writer.write_all_at(&pattern(n, 5000), n * 5000).unwrap();
        other.sync_all().unwrap();
    }
    assert_eq!(stored(at.path("file")).len(), 100_000);
}

fn sync_by_many_threads(at: &CheckDir) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let file = at.handle(&format!("{thread}"), b"");
                for n in 0..40 {
                    file.write_all_at(&pattern(thread * 100 + n, 3000), n * 3000).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    for thread in 0..4 {
        let content = stored(at.path(format!("{thread}")));
        for (n, piece) in content.chunks(3000).enumerate() {
            assert!(piece == pattern(thread * 100 + n as u64, 3000));
        }
    }
}

fn sync_while_others_write(at: &CheckDir) {
    let file = at.handle("file", b"");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..300 {
                file.write_all_at(&pattern(n, 4000), n * 4000).unwrap();
            }
        });
        for _ in 0..20 {
            file.sync_all().unwrap();
        }
    });
    for (n, piece) in stored(at.path("file")).chunks(4000).enumerate() {
        assert!(piece == pattern(n as u64, 4000));
    }
}

fn sync_of_new_names(at: &CheckDir) {
    for n in 0..20 {
        let file = at.handle("temporary", &pattern(n, 2000));
        file.sync_all().unwrap();
        fs::rename(at.path("temporary"), at.path("name")).unwrap();
        at.open("", OFlags::RDONLY | OFlags::DIRECTORY).unwrap().sync_all().unwrap();
        assert!(stored(at.path("name")) == pattern(n, 2000));
    }
}

fn sync_by_programs(at: &CheckDir) {
    at.file("file", b"content");
    run(Command::new("sync").arg(at.path("file")));
    run(Command::new("sync").arg("--data").arg(at.path("file")));
    run(Command::new("sync").arg("--file-system").arg(&at.dir));
    let (from, to) =
        (format!("if={}", at.path("file").display()), format!("of={}", at.path("copy").display()));
    run(Command::new("dd").args([&from, &to]).args(["conv=fsync", "bs=3", "status=none"]));
    run(Command::new("dd").args([&from, &to]).args(["oflag=sync", "bs=2", "status=none"]));
    assert_eq!(stored(at.path("copy")), b"content");
}

fn replace_by_rename_as_editors_do(at: &CheckDir) {
    at.file("document", b"version 0");
    for n in 1..30 {
        fs::hard_link(at.path("document"), at.path("document~")).unwrap();
        let new = at.handle("#document#", format!("version {n}").as_bytes());
        new.sync_all().unwrap();
        drop(new);
        fs::rename(at.path("#document#"), at.path("document")).unwrap();
        assert_eq!(fs::read(at.path("document~")).unwrap(), format!("version {}", n - 1).as_bytes());
        fs::remove_file(at.path("document~")).unwrap();
        assert_eq!(stored(at.path("document")), format!("version {n}").as_bytes());
    }
}

fn log_of_synced_lines(at: &CheckDir) {
    use std::io::Write;
    let mut log = at.open("log", OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND).unwrap();
    let mut model = String::new();
    for n in 0..80 {
        let line = format!("line {n}: {}\n", "x".repeat(n));
        log.write_all(line.as_bytes()).unwrap();
        log.sync_data().unwrap();
        model += &line;
    }
    assert_eq!(stored(at.path("log")), model.as_bytes());
}
