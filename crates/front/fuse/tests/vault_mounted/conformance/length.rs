//! Checks of file length: truncation and extension, also during writes.

use super::check_dir::{CheckDir, fails, fails_among, open, pattern, stat, stored, sync_and_drop_cache};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    every_length_to_every_length,
    every_length_through_zero,
    cut_bytes_do_not_come_back,
    cut_bytes_do_not_come_back_by_a_write,
    extended_file_reads_as_zeros,
    cut_while_dirty,
    cut_in_a_dirty_block,
    extended_while_dirty,
    to_the_same_length,
    one_tebibyte,
    beyond_the_largest_file,
    truncating_a_directory_is_eisdir,
    truncating_a_missing_file_is_enoent,
    truncating_through_symlinks,
    truncation_needs_a_regular_file,
    truncated_by_another_process,
    truncated_by_name_while_open,
    sizes_are_known_at_once,
    grown_and_cut_in_turns,
    cut_and_written_by_threads,
    blocks_are_given_back,
];

const SIZES: [usize; 11] = [0, 1, 100, 4095, 4096, 4097, 8192, 8200, 20_480, 32_768, 40_001];

fn zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn resized(content: &[u8], len: usize) -> Vec<u8> {
    let mut content = content.to_vec();
    content.resize(len, 0);
    content
}

fn every_length_to_every_length(at: &CheckDir) {
    for from in SIZES {
        for to in SIZES {
            let content = pattern(from as u64, from);
            let name = format!("{from}-{to}");
            let file = at.handle(&name, &content);
            if to % 2 == 0 {
                sync_and_drop_cache(&file);
            }
            file.set_len(to as u64).unwrap();
            assert_eq!(stat(at.path(&name)).st_size, to as i64);
            assert!(fs::read(at.path(&name)).unwrap() == resized(&content, to), "{from} to {to}");
            assert!(stored(at.path(&name)) == resized(&content, to), "{from} to {to}");
        }
    }
}

fn every_length_through_zero(at: &CheckDir) {
    for size in SIZES {
        let file = at.handle("file", &pattern(1, 40_001));
        sync_and_drop_cache(&file);
        file.set_len(0).unwrap();
        file.set_len(size as u64).unwrap();
        assert!(zeros(&stored(at.path("file"))), "{size}");
    }
}

fn cut_bytes_do_not_come_back(at: &CheckDir) {
    for cut in [0, 1, 4000, 4096, 5000, 8192, 12_000] {
        let content = pattern(1, 16_384);
        let file = at.handle("file", &content);
        sync_and_drop_cache(&file);
        file.set_len(cut as u64).unwrap();
        sync_and_drop_cache(&file);
        file.set_len(16_384).unwrap();
        assert!(stored(at.path("file")) == resized(&content[..cut], 16_384), "{cut}");
    }
}

fn cut_bytes_do_not_come_back_by_a_write(at: &CheckDir) {
    for cut in [1, 4000, 4096, 5000] {
        let content = pattern(1, 16_384);
        let file = at.handle("file", &content);
        sync_and_drop_cache(&file);
        file.set_len(cut as u64).unwrap();
        file.write_all_at(b"end", 16_000).unwrap();
        let mut expected = resized(&content[..cut], 16_003);
        expected[16_000..].copy_from_slice(b"end");
        assert!(stored(at.path("file")) == expected, "{cut}");
    }
}

fn extended_file_reads_as_zeros(at: &CheckDir) {
    let file = at.handle("file", b"start");
    file.set_len(10_000_000).unwrap();
    let content = stored(at.path("file"));
    assert!(content.len() == 10_000_000 && &content[..5] == b"start" && zeros(&content[5..]));
}

fn cut_while_dirty(at: &CheckDir) {
    let file = at.handle("file", b"");
    for cut in [100, 4096, 50_000, 99_999] {
        file.write_all_at(&pattern(cut, 100_000), 0).unwrap();
        file.set_len(cut).unwrap();
        assert!(stored(at.path("file")) == pattern(cut, 100_000)[..cut as usize], "{cut}");
    }
}

fn cut_in_a_dirty_block(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 8192));
    sync_and_drop_cache(&file);
    file.write_all_at(&[9; 100], 4100).unwrap();
    file.set_len(4150).unwrap();
    file.set_len(8192).unwrap();
    let mut expected = resized(&pattern(1, 8192)[..4100], 4150);
    expected[4100..].fill(9);
    assert!(stored(at.path("file")) == resized(&expected, 8192));
}

fn extended_while_dirty(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.write_all_at(&pattern(1, 5000), 0).unwrap();
    file.set_len(50_000).unwrap();
    file.write_all_at(&pattern(2, 100), 30_000).unwrap();
    let mut expected = resized(&pattern(1, 5000), 50_000);
    expected[30_000..30_100].copy_from_slice(&pattern(2, 100));
    assert!(stored(at.path("file")) == expected);
}

fn to_the_same_length(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 5000));
    file.set_len(5000).unwrap();
    sync_and_drop_cache(&file);
    file.set_len(5000).unwrap();
    assert!(stored(at.path("file")) == pattern(1, 5000));
}

fn one_tebibyte(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.set_len(1 << 40).unwrap();
    assert_eq!(stat(at.path("file")).st_size, 1 << 40);
    file.write_all_at(b"middle", 1 << 39).unwrap();
    file.write_all_at(b"end", (1 << 40) - 3).unwrap();
    sync_and_drop_cache(&file);
    let mut out = [0; 8192];
    file.read_exact_at(&mut out, (1 << 39) - 4096).unwrap();
    assert!(zeros(&out[..4096]) && &out[4096..4102] == b"middle" && zeros(&out[4102..]));
    file.read_exact_at(&mut out, (1 << 40) - 8192).unwrap();
    assert!(zeros(&out[..8189]) && &out[8189..] == b"end");
    let stat = stat(at.path("file"));
    assert!(stat.st_blocks < 2048, "{} blocks of 512 bytes", stat.st_blocks);
    file.set_len((1 << 39) + 6).unwrap();
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, (1 << 39) + 6);
    file.set_len(3).unwrap();
    assert_eq!(stored(at.path("file")), [0; 3]);
}

fn beyond_the_largest_file(at: &CheckDir) {
    let file = at.handle("file", b"kept");
    if at.vault {
        fails(file.set_len(1 << 44), Errno::FBIG);
        file.set_len((1 << 44) - 4096).unwrap();
        file.set_len(4).unwrap();
    }
    fails_among(rustix::fs::ftruncate(&file, 1 << 63), &[Errno::INVAL, Errno::FBIG]);
    fails_among(rustix::fs::ftruncate(&file, i64::MAX as u64), &[Errno::INVAL, Errno::FBIG]);
    assert_eq!(stored(at.path("file")), b"kept");
}

fn truncating_a_directory_is_eisdir(at: &CheckDir) {
    let dir = at.dir("dir");
    fails(open(&dir, OFlags::WRONLY | OFlags::TRUNC), Errno::ISDIR);
    let cut = Command::new("truncate").args(["-s", "0"]).arg(&dir).output().unwrap();
    assert!(!cut.status.success());
}

fn truncating_a_missing_file_is_enoent(at: &CheckDir) {
    fails(at.open("none", OFlags::WRONLY | OFlags::TRUNC), Errno::NOENT);
    run(Command::new("truncate").args(["--no-create", "-s", "0"]).arg(at.path("none")));
    assert!(!at.path("none").exists());
}

fn truncating_through_symlinks(at: &CheckDir) {
    let path = at.file("file", &pattern(1, 9000));
    symlink("file", at.path("one")).unwrap();
    symlink("one", at.path("two")).unwrap();
    run(Command::new("truncate").args(["-s", "5000"]).arg(at.path("two")));
    assert!(stored(path) == pattern(1, 9000)[..5000]);
}

fn truncation_needs_a_regular_file(at: &CheckDir) {
    rustix::fs::mknodat(CWD, at.path("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let fifo = at.open("fifo", OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    fails(fifo.set_len(10), Errno::INVAL);
    assert_eq!(stat(at.path("fifo")).st_size, 0);
}

fn truncated_by_another_process(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 30_000));
    run(Command::new("truncate").args(["-s", "10000"]).arg(at.path("file")));
    assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 10_000);
    assert_eq!(file.read_at(&mut [0; 10], 10_000).unwrap(), 0);
    run(Command::new("truncate").args(["-s", "+500"]).arg(at.path("file")));
    let mut out = [1; 500];
    file.read_exact_at(&mut out, 10_000).unwrap();
    assert!(zeros(&out));
}

fn truncated_by_name_while_open(at: &CheckDir) {
    let file = at.handle("file", b"");
    for n in 0..30u8 {
        file.write_all_at(&[n + 1; 9000], 0).unwrap();
        at.open("file", OFlags::WRONLY | OFlags::TRUNC).unwrap();
        assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 0);
    }
    assert_eq!(stored(at.path("file")), b"");
}

fn sizes_are_known_at_once(at: &CheckDir) {
    let file = at.handle("file", b"");
    for n in 1..50 {
        file.write_all_at(&[1; 333], (n - 1) * 333).unwrap();
        assert_eq!(stat(at.path("file")).st_size, n as i64 * 333);
    }
    sync_and_drop_cache(&file);
    assert_eq!(stat(at.path("file")).st_size, 49 * 333);
}

fn grown_and_cut_in_turns(at: &CheckDir) {
    let mut random = lacuna_sim::Rng::new(4);
    let file = at.handle("file", b"");
    let mut model: Vec<u8> = vec![];
    for n in 0..300 {
        if random.chance(1, 2) {
            let len = random.below(60_000) as usize;
            file.set_len(len as u64).unwrap();
            model.resize(len, 0);
        } else {
            let (offset, len) = (random.below(50_000) as usize, random.below(5000) as usize + 1);
            let data = random.bytes(len);
            file.write_all_at(&data, offset as u64).unwrap();
            model.resize(model.len().max(offset + len), 0);
            model[offset..offset + len].copy_from_slice(&data);
        }
        if n % 10 == 0 {
            assert!(stored(at.path("file")) == model, "step {n}");
        }
    }
    assert!(stored(at.path("file")) == model);
}

fn cut_and_written_by_threads(at: &CheckDir) {
    let file = at.handle("file", b"");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200 {
                file.set_len(n * 331 % 50_000).unwrap();
            }
        });
        for byte in [1, 2] {
            let file = &file;
            scope.spawn(move || {
                for n in 0..200 {
                    file.write_all_at(&[byte; 3000], n * 277 % 50_000).unwrap();
                }
            });
        }
    });
    sync_and_drop_cache(&file);
    assert!(stored(at.path("file")).iter().all(|byte| *byte < 3));
}

fn blocks_are_given_back(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 1 << 20));
    sync_and_drop_cache(&file);
    let full = stat(at.path("file")).st_blocks;
    assert!(full >= 2048, "{full}");
    file.set_len(4096).unwrap();
    sync_and_drop_cache(&file);
    let cut = stat(at.path("file")).st_blocks;
    assert!(cut <= 16, "{cut}");
    file.set_len(0).unwrap();
    sync_and_drop_cache(&file);
    assert_eq!(stat(at.path("file")).st_blocks, 0);
}
