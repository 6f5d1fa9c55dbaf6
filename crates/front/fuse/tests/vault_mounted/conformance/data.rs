//! Checks of reading and writing: positions, alignments, appending from several handles, direct
//! input and output, and concurrency.

use super::check_dir::{CheckDir, open, pattern, stat, stored, sync_and_drop_cache};
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    written_data_is_read,
    every_alignment_of_a_write,
    every_alignment_of_a_read,
    write_of_nothing,
    read_at_the_end,
    large_write_in_one_call,
    scattered_and_gathered,
    handles_see_each_other,
    processes_see_each_other,
    append_from_two_handles,
    append_from_many_threads,
    append_from_another_process,
    append_after_a_truncation,
    direct_write_and_read,
    direct_and_cached_agree,
    direct_append,
    direct_past_the_end,
    direct_of_any_length,
    direct_from_many_threads,
    writers_of_different_parts,
    readers_of_one_file,
    writer_and_readers,
    overwritten_many_times,
    many_small_files,
    small_writes_in_random_order,
    content_of_every_kind,
];

fn written_data_is_read(at: &CheckDir) {
    let mut file = at.handle("file", b"");
    file.write_all(b"hello ").unwrap();
    file.write_all(b"world").unwrap();
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), stored(at.path("file"))), ("hello world", b"hello world".to_vec()));
}

/// Offsets and lengths around the ends of blocks.
const EDGES: [usize; 9] = [0, 1, 511, 4095, 4096, 4097, 8191, 8192, 12_289];

fn every_alignment_of_a_write(at: &CheckDir) {
    let mut model = pattern(1, 30_000);
    let file = at.handle("file", &model);
    for (seed, offset) in EDGES.into_iter().enumerate() {
        for len in EDGES.into_iter().filter(|len| *len > 0) {
            let data = pattern((seed * 100 + len) as u64, len);
            file.write_all_at(&data, offset as u64).unwrap();
            model[offset..offset + len].copy_from_slice(&data);
            assert!(stored(at.path("file")) == model, "{len} bytes at {offset}");
        }
    }
}

fn every_alignment_of_a_read(at: &CheckDir) {
    let model = pattern(1, 30_000);
    let file = at.handle("file", &model);
    for offset in EDGES {
        for len in EDGES {
            let mut out = vec![0; len];
            sync_and_drop_cache(&file);
            file.read_exact_at(&mut out, offset as u64).unwrap();
            assert!(out == model[offset..offset + len], "{len} bytes at {offset}");
        }
    }
}

fn write_of_nothing(at: &CheckDir) {
    let file = at.handle("file", b"abc");
    assert_eq!(file.write_at(b"", 100).unwrap(), 0);
    assert_eq!(stat(at.path("file")).st_size, 3);
}

fn read_at_the_end(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 5000));
    let mut out = [7; 100];
    assert_eq!(file.read_at(&mut out, 5000).unwrap(), 0);
    assert_eq!(file.read_at(&mut out, 1 << 40).unwrap(), 0);
    assert_eq!(file.read_at(&mut out, 4990).unwrap(), 10);
    assert_eq!((&out[..10], &out[10..]), (&pattern(1, 5000)[4990..], &[7; 90][..]));
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
}

fn large_write_in_one_call(at: &CheckDir) {
    let content = pattern(1, (9 << 20) + 3);
    let mut file = at.handle("file", b"");
    file.seek(SeekFrom::Start(777)).unwrap();
    file.write_all(&content).unwrap();
    let back = stored(at.path("file"));
    assert!(back[..777].iter().all(|byte| *byte == 0) && back[777..] == content);
}

fn scattered_and_gathered(at: &CheckDir) {
    let mut file = at.handle("file", b"");
    let parts = [&b"one "[..], b"", b"two ", b"three"];
    let written = file.write_vectored(&parts.map(IoSlice::new)).unwrap();
    assert_eq!(written, 13);
    let (mut a, mut b) = ([0; 5], [0; 20]);
    let read = rustix::io::preadv(&file, &mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 2).unwrap();
    assert_eq!((read, &a, &b[..6]), (11, b"e two", &b" three"[..]));
    rustix::io::pwritev(&file, &[IoSlice::new(b"ON"), IoSlice::new(b"E")], 0).unwrap();
    assert_eq!(stored(at.path("file")), b"ONE two three");
}

fn handles_see_each_other(at: &CheckDir) {
    let one = at.handle("file", b"");
    let two = at.open("file", OFlags::RDWR).unwrap();
    for n in 0..100u64 {
        let (writer, reader) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        writer.write_all_at(&n.to_le_bytes(), n * 1000).unwrap();
        let mut back = [0; 8];
        reader.read_exact_at(&mut back, n * 1000).unwrap();
        assert_eq!(u64::from_le_bytes(back), n);
        assert_eq!(rustix::fs::fstat(reader).unwrap().st_size, n as i64 * 1000 + 8);
    }
}

fn processes_see_each_other(at: &CheckDir) {
    let file = at.handle("file", b"from here");
    let path = at.path("file");
    assert_eq!(run(Command::new("cat").arg(&path)), "from here");
    run(Command::new("sh").args(["-c", "printf 'from there' > \"$0\""]).arg(&path));
    let mut text = [0; 10];
    file.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"from there");
}

fn append_from_two_handles(at: &CheckDir) {
    at.file("file", b"");
    let mut one = at.open("file", OFlags::WRONLY | OFlags::APPEND).unwrap();
    let mut two = at.open("file", OFlags::WRONLY | OFlags::APPEND).unwrap();
    let mut model = vec![];
    for n in 0..200 {
        let piece = pattern(n, n as usize * 7 % 300);
        if n % 3 == 0 { &mut one } else { &mut two }.write_all(&piece).unwrap();
        model.extend(piece);
    }
    assert!(stored(at.path("file")) == model);
}

fn append_from_many_threads(at: &CheckDir) {
    at.file("file", b"");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let mut file = at.open("file", OFlags::WRONLY | OFlags::APPEND).unwrap();
                for n in 0..200u8 {
                    file.write_all(&[[thread, n]; 50].concat()).unwrap();
                }
            });
        }
    });
    let content = stored(at.path("file"));
    assert_eq!(content.len(), 4 * 200 * 100);
    let mut next = [0u8; 4];
    for record in content.chunks(100) {
        let (thread, n) = (record[0], record[1]);
        assert!(record.chunks(2).all(|pair| pair == [thread, n]), "a record is torn");
        assert_eq!(n, next[usize::from(thread)], "out of order");
        next[usize::from(thread)] += 1;
    }
}

fn append_from_another_process(at: &CheckDir) {
    let path = at.file("file", b"here\n");
    let mut file = at.open("file", OFlags::WRONLY | OFlags::APPEND).unwrap();
    for _ in 0..3 {
        run(Command::new("sh").args(["-c", "echo there >> \"$0\""]).arg(&path));
        file.write_all(b"here\n").unwrap();
    }
    assert_eq!(stored(&path), b"here\nthere\nhere\nthere\nhere\nthere\nhere\n");
}

fn append_after_a_truncation(at: &CheckDir) {
    let path = at.file("log", b"old lines");
    let mut log = at.open("log", OFlags::WRONLY | OFlags::APPEND).unwrap();
    log.write_all(b", more").unwrap();
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    log.write_all(b"new").unwrap();
    assert_eq!(stored(&path), b"new");
    fs::write(&path, b"x").unwrap();
    log.write_all(b"y").unwrap();
    assert_eq!(stored(&path), b"xy");
}

/// Runs `work` with a buffer that is aligned for direct input and output.
fn aligned<T>(len: usize, work: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut space = vec![0; len + 4096];
    let from = space.as_ptr().align_offset(4096);
    work(&mut space[from..from + len])
}

fn direct_write(file: &File, data: &[u8], offset: u64) {
    aligned(data.len(), |buf| {
        buf.copy_from_slice(data);
        file.write_all_at(buf, offset).unwrap();
    });
}

fn direct_read(file: &File, len: usize, offset: u64) -> Vec<u8> {
    aligned(len, |buf| {
        let mut done = 0;
        while done < len {
            match file.read_at(&mut buf[done..], offset + done as u64).unwrap() {
                0 => break,
                read => done += read,
            }
        }
        buf[..done].to_vec()
    })
}

fn direct(at: &CheckDir, name: &str) -> File {
    at.open(name, OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT).unwrap()
}

fn direct_write_and_read(at: &CheckDir) {
    let file = direct(at, "file");
    let content = pattern(1, 3 << 20);
    direct_write(&file, &content, 0);
    assert!(direct_read(&file, 3 << 20, 0) == content);
    direct_write(&file, &pattern(2, 8192), 65_536);
    assert!(direct_read(&file, 8192, 65_536) == pattern(2, 8192));
    assert!(direct_read(&file, 4096, 61_440) == content[61_440..65_536]);
}

fn direct_and_cached_agree(at: &CheckDir) {
    let cached = at.handle("file", &pattern(1, 100_000));
    let direct = direct(at, "file");
    let mut model = pattern(1, 100_000);
    for n in 0..20u64 {
        let offset = (n * 4096 * 3 % 90_112) as usize;
        let data = pattern(n, 4096);
        if n % 2 == 0 {
            direct_write(&direct, &data, offset as u64);
            let mut back = [0; 4096];
            cached.read_exact_at(&mut back, offset as u64).unwrap();
            assert!(back[..] == data);
        } else {
            cached.write_all_at(&data, offset as u64).unwrap();
            assert!(direct_read(&direct, 4096, offset as u64) == data);
        }
        model[offset..offset + 4096].copy_from_slice(&data);
    }
    assert!(stored(at.path("file")) == model);
}

fn direct_append(at: &CheckDir) {
    at.file("file", &pattern(1, 4096));
    let file = at.open("file", OFlags::WRONLY | OFlags::DIRECT | OFlags::APPEND).unwrap();
    direct_write(&file, &pattern(2, 4096), 0);
    direct_write(&file, &pattern(3, 4096), 0);
    assert!(stored(at.path("file")) == [pattern(1, 4096), pattern(2, 4096), pattern(3, 4096)].concat());
}

fn direct_past_the_end(at: &CheckDir) {
    let file = direct(at, "file");
    direct_write(&file, &pattern(1, 4096), 40_960);
    assert_eq!(stat(at.path("file")).st_size, 45_056);
    assert!(direct_read(&file, 40_960, 0).iter().all(|byte| *byte == 0));
    assert_eq!(direct_read(&file, 8192, 40_960), pattern(1, 4096));
    assert_eq!(direct_read(&file, 4096, 45_056), b"");
}

fn direct_of_any_length(at: &CheckDir) {
    // A plain file system may refuse unaligned access.
    let file = if at.vault { direct(at, "file") } else { at.handle("file", b"") };
    let mut model = vec![0; 30_000];
    for (n, offset) in EDGES.into_iter().enumerate() {
        let data = pattern(n as u64, 5000 + n * 131);
        file.write_all_at(&data, offset as u64).unwrap();
        model[offset..offset + data.len()].copy_from_slice(&data);
    }
    let content = stored(at.path("file"));
    model.truncate(content.len());
    assert!(content == model);
    let mut out = vec![0; 7001];
    file.read_exact_at(&mut out, 333).unwrap();
    assert!(out == model[333..7334]);
}

fn direct_from_many_threads(at: &CheckDir) {
    at.file("file", b"");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let file = direct(at, "file");
                for n in 0..16 {
                    direct_write(&file, &pattern(thread * 100 + n, 16_384), (n * 4 + thread) * 16_384);
                }
            });
        }
    });
    let content = stored(at.path("file"));
    for (n, piece) in content.chunks(16_384).enumerate() {
        assert!(piece == pattern((n as u64 % 4) * 100 + n as u64 / 4, 16_384), "piece {n}");
    }
    assert_eq!(content.len(), 64 * 16_384);
}

fn writers_of_different_parts(at: &CheckDir) {
    let file = at.handle("file", b"");
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let file = &file;
            scope.spawn(move || {
                for n in 0..100 {
                    file.write_all_at(&pattern(thread * 1000 + n, 777), (n * 4 + thread) * 777).unwrap();
                }
            });
        }
    });
    for (n, piece) in stored(at.path("file")).chunks(777).enumerate() {
        assert!(piece == pattern((n as u64 % 4) * 1000 + n as u64 / 4, 777), "piece {n}");
    }
}

fn readers_of_one_file(at: &CheckDir) {
    let content = pattern(1, 2 << 20);
    at.file("file", &content);
    sync_and_drop_cache(&at.open("file", OFlags::RDONLY).unwrap());
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let content = &content;
            scope.spawn(move || {
                let file = at.open("file", OFlags::RDONLY).unwrap();
                let mut out = vec![0; 30_000];
                for n in 0..40 {
                    let offset = (n * 7919 * (thread + 1)) % (content.len() - out.len());
                    file.read_exact_at(&mut out, offset as u64).unwrap();
                    assert!(out == content[offset..offset + out.len()]);
                }
            });
        }
    });
}

fn writer_and_readers(at: &CheckDir) {
    // Linux lets a reader see a part of a write, but no byte ever returns to an older value.
    at.file("file", &[0; 64 * 4096]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = at.open("file", OFlags::RDWR).unwrap();
            for n in 1..100u8 {
                for block in 0..64 {
                    file.write_all_at(&[n; 4096], block * 4096).unwrap();
                }
                if n % 10 == 0 {
                    sync_and_drop_cache(&file);
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let file = at.open("file", OFlags::RDONLY).unwrap();
                let (mut block, mut least) = ([0; 4096], [0; 64]);
                for n in 0..3000 {
                    let number = n * 7 % 64;
                    file.read_exact_at(&mut block, number as u64 * 4096).unwrap();
                    assert!(block.iter().all(|byte| (least[number]..100).contains(byte)), "a byte went back");
                    least[number] = block.iter().copied().min().unwrap();
                }
            });
        }
    });
    assert!(stored(at.path("file")).iter().all(|byte| *byte == 99));
}

fn overwritten_many_times(at: &CheckDir) {
    let file = at.handle("file", &[0; 20_000]);
    for n in 0..150u8 {
        file.write_all_at(&[n; 100], 8150).unwrap();
        sync_and_drop_cache(&file);
    }
    let content = stored(at.path("file"));
    assert!(content[8150..8250].iter().all(|byte| *byte == 149));
    assert_eq!(content.iter().map(|byte| usize::from(*byte == 149)).sum::<usize>(), 100);
}

fn many_small_files(at: &CheckDir) {
    for n in 0..500u64 {
        at.file(format!("{n}"), &pattern(n, n as usize * 13 % 9000));
    }
    for n in 0..500u64 {
        assert!(stored(at.path(format!("{n}"))) == pattern(n, n as usize * 13 % 9000), "file {n}");
    }
}

fn small_writes_in_random_order(at: &CheckDir) {
    let mut model = vec![0; 200_000];
    let file = at.handle("file", &model);
    let mut random = lacuna_sim::Rng::new(8);
    for n in 0..600 {
        let len = 1 + random.below(3000) as usize;
        let offset = random.below((model.len() - len) as u64) as usize;
        let data = random.bytes(len);
        file.write_all_at(&data, offset as u64).unwrap();
        model[offset..offset + len].copy_from_slice(&data);
        if n % 60 == 0 {
            assert!(stored(at.path("file")) == model, "after {n} writes");
        }
    }
    assert!(stored(at.path("file")) == model);
}

fn content_of_every_kind(at: &CheckDir) {
    // Zeros, text and noise, each overwritten by each: the protection of a file depends on its
    // content.
    let text: Vec<u8> = b"All work and no play. ".iter().copied().cycle().take(40_960).collect();
    let kinds = [vec![0; 40_960], text, pattern(1, 40_960), vec![0xff; 40_960]];
    for (a, first) in kinds.iter().enumerate() {
        for (b, second) in kinds.iter().enumerate() {
            let name = format!("{a}{b}");
            let file = at.handle(&name, first);
            sync_and_drop_cache(&file);
            file.write_all_at(&second[..20_480], 10_240).unwrap();
            sync_and_drop_cache(&file);
            let expected = [&first[..10_240], &second[..20_480], &first[30_720..]].concat();
            assert!(stored(at.path(&name)) == expected, "{name}");
            let mut again = open(&at.path(&name), OFlags::RDWR | OFlags::TRUNC).unwrap();
            again.write_all(second).unwrap();
            assert!(stored(at.path(&name)) == *second, "{name}");
        }
    }
}
