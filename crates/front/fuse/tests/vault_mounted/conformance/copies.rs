//! Checks of `copy_file_range`, between files and within one, and of copies by programs.

use super::check_dir::{CheckDir, pattern, stored, sync_and_drop_cache};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::OFlags;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    copy_of_a_range,
    copy_into_the_middle,
    copy_within_a_file,
    copy_past_the_end,
    copy_of_dirty_pages,
    copy_to_a_process,
];

fn copy_all(from: &File, mut from_at: u64, to: &File, mut to_at: u64, len: usize) -> usize {
    let mut done = 0;
    while done < len {
        match rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len - done).unwrap()
        {
            0 => break,
            copied => done += copied,
        }
    }
    done
}

fn copy_of_a_range(at: &CheckDir) {
    let content = pattern(1, 200_000);
    let from = at.handle("from", &content);
    let to = at.handle("to", b"");
    assert_eq!(copy_all(&from, 0, &to, 0, 200_000), 200_000);
    assert!(stored(at.path("to")) == content);
    let (mut a, mut b) = (100, 5);
    assert_eq!(rustix::fs::copy_file_range(&from, Some(&mut a), &to, Some(&mut b), 1000).unwrap(), 1000);
    assert_eq!((a, b), (1100, 1005));
    assert!(stored(at.path("to"))[5..1005] == content[100..1100]);
}

fn copy_into_the_middle(at: &CheckDir) {
    let from = at.handle("from", &pattern(1, 50_000));
    let mut model = pattern(2, 100_000);
    let to = at.handle("to", &model);
    for (from_at, to_at, len) in
        [(0, 4096, 8192), (1, 20_000, 10_000), (4096, 33_333, 4096), (49_000, 99_500, 1000)]
    {
        assert_eq!(copy_all(&from, from_at, &to, to_at, len), len);
        let (a, b) = (from_at as usize, to_at as usize);
        model.resize(model.len().max(b + len), 0);
        model[b..b + len].copy_from_slice(&pattern(1, 50_000)[a..a + len]);
    }
    assert!(stored(at.path("to")) == model);
}

fn copy_within_a_file(at: &CheckDir) {
    let mut model = pattern(1, 60_000);
    let file = at.handle("file", &model);
    assert_eq!(copy_all(&file, 100, &file, 30_000, 20_000), 20_000);
    model.copy_within(100..20_100, 30_000);
    assert!(stored(at.path("file")) == model);
    let (mut a, mut b) = (0, 100);
    let overlapping = rustix::fs::copy_file_range(&file, Some(&mut a), &file, Some(&mut b), 1000);
    super::check_dir::fails(overlapping, rustix::io::Errno::INVAL);
}

fn copy_past_the_end(at: &CheckDir) {
    let from = at.handle("from", b"short");
    let to = at.handle("to", b"");
    assert_eq!(copy_all(&from, 2, &to, 0, 1000), 3);
    assert_eq!(copy_all(&from, 5, &to, 0, 10), 0);
    assert_eq!(copy_all(&from, 0, &to, 10_000, 5), 5);
    let content = stored(at.path("to"));
    assert_eq!((&content[..3], &content[10_000..]), (&b"ort"[..], &b"short"[..]));
}

fn copy_of_dirty_pages(at: &CheckDir) {
    let from = at.handle("from", &pattern(1, 100_000));
    sync_and_drop_cache(&from);
    let to = at.handle("to", &pattern(2, 100_000));
    from.write_all_at(b"dirty source", 50_000).unwrap();
    to.write_all_at(b"dirty target", 10).unwrap();
    assert_eq!(copy_all(&from, 40_000, &to, 40_000, 30_000), 30_000);
    let content = stored(at.path("to"));
    assert_eq!((&content[50_000..50_012], &content[10..22]), (&b"dirty source"[..], &b"dirty target"[..]));
}

fn copy_to_a_process(at: &CheckDir) {
    at.file("from", &pattern(1, 300_001));
    let out = Command::new("cat").arg(at.path("from")).output().unwrap();
    assert!(out.stdout == pattern(1, 300_001));
    run(Command::new("cp").arg(at.path("from")).arg(at.path("to")));
    assert!(stored(at.path("to")) == pattern(1, 300_001));
    let to = at.handle("sent", b"");
    let from = at.open("from", OFlags::RDONLY).unwrap();
    let mut sent = 0;
    while sent < 300_001 {
        sent += rustix::fs::sendfile(&to, &from, None, 300_001 - sent).unwrap();
    }
    assert!(stored(at.path("sent")) == pattern(1, 300_001));
}
