//! Checks of mapped files (`mmap`): they agree with reads, writes and truncations, and reach the
//! storage.

use super::check_dir::{CheckDir, fails, pattern, stat, stored, sync_and_drop_cache};
use super::mapping::MemoryMap;
use super::{ConformanceCheck, checks};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::FileExt;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    mapping_shows_the_file,
    written_mapping_reaches_the_file,
    written_mapping_is_read_at_once,
    writes_show_in_a_mapping,
    two_mappings_are_one,
    private_mapping_leaves_the_file_alone,
    mapping_lives_without_a_handle,
    mapping_lives_without_a_name,
    mapping_of_a_hole,
    mapping_of_a_part,
    reading_handle_maps_for_reading_alone,
    mapping_of_nothing_is_refused,
    mapping_of_a_directory_is_refused,
    cut_and_extended_under_a_mapping,
    truncated_bytes_do_not_come_back,
    mapping_written_after_growth,
    mapping_synced_in_turns,
    mapping_of_a_large_file,
    mapping_and_direct_write,
    mapping_written_by_threads,
    time_of_change_follows_a_mapping,
];

fn mapping_shows_the_file(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 50_000));
    sync_and_drop_cache(&file);
    let map = MemoryMap::reading(&file, 0, 50_000).unwrap();
    assert!(map.read(0, 50_000) == pattern(1, 50_000));
    // The rest of the last page reads as zeros.
    let map = MemoryMap::reading(&file, 0, 53_248).unwrap();
    assert!(map.read(50_000, 3248).iter().all(|byte| *byte == 0));
}

fn written_mapping_reaches_the_file(at: &CheckDir) {
    let file = at.handle("file", &[0; 20_000]);
    let map = MemoryMap::shared(&file, 0, 20_000).unwrap();
    map.write(3, &pattern(1, 15_000));
    map.sync().unwrap();
    let mut expected = vec![0; 20_000];
    expected[3..15_003].copy_from_slice(&pattern(1, 15_000));
    assert!(stored(at.path("file")) == expected);
    map.write(19_990, b"0123456789");
    drop(map);
    assert_eq!(&stored(at.path("file"))[19_990..], b"0123456789");
}

fn written_mapping_is_read_at_once(at: &CheckDir) {
    let file = at.handle("file", &[0; 20_000]);
    let map = MemoryMap::shared(&file, 0, 20_000).unwrap();
    for n in 0..50 {
        map.write(n * 300, &[n as u8 + 1; 100]);
        let mut out = [0; 100];
        file.read_exact_at(&mut out, n as u64 * 300).unwrap();
        assert_eq!(out, [n as u8 + 1; 100]);
    }
}

fn writes_show_in_a_mapping(at: &CheckDir) {
    let file = at.handle("file", &[0; 20_000]);
    let map = MemoryMap::reading(&file, 0, 20_000).unwrap();
    for n in 0..50 {
        file.write_all_at(&[n as u8 + 1; 100], n as u64 * 300).unwrap();
        assert_eq!(map.read(n * 300, 100), [n as u8 + 1; 100]);
        if n % 10 == 0 {
            sync_and_drop_cache(&file);
        }
    }
}

fn two_mappings_are_one(at: &CheckDir) {
    let one = at.handle("file", &[0; 8192]);
    let two = at.open("file", OFlags::RDWR).unwrap();
    let (a, b) = (MemoryMap::shared(&one, 0, 8192).unwrap(), MemoryMap::shared(&two, 4096, 4096).unwrap());
    a.write(4100, b"here");
    assert_eq!(b.read(4, 4), b"here");
    b.write(4000, b"there");
    assert_eq!(a.read(8096, 5), b"there");
}

fn private_mapping_leaves_the_file_alone(at: &CheckDir) {
    let file = at.handle("file", b"original");
    let map = MemoryMap::private(&file, 0, 8).unwrap();
    map.write(0, b"CHANGED!");
    assert_eq!((map.read(0, 8), stored(at.path("file"))), (b"CHANGED!".to_vec(), b"original".to_vec()));
}

fn mapping_lives_without_a_handle(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 10_000));
    sync_and_drop_cache(&file);
    let map = MemoryMap::shared(&file, 0, 10_000).unwrap();
    drop(file);
    assert!(map.read(0, 10_000) == pattern(1, 10_000));
    map.write(5000, b"late");
    drop(map);
    assert_eq!(&stored(at.path("file"))[5000..5004], b"late");
}

fn mapping_lives_without_a_name(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 100_000));
    sync_and_drop_cache(&file);
    let map = MemoryMap::shared(&file, 0, 100_000).unwrap();
    drop(file);
    fs::remove_file(at.path("file")).unwrap();
    map.write(50_000, b"unseen");
    map.sync().unwrap();
    assert!(map.read(0, 50_000) == pattern(1, 100_000)[..50_000]);
    assert_eq!(map.read(50_000, 6), b"unseen");
    assert!(map.read(50_006, 49_994) == pattern(1, 100_000)[50_006..]);
}

fn mapping_of_a_hole(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.set_len(1 << 20).unwrap();
    let map = MemoryMap::shared(&file, 0, 1 << 20).unwrap();
    assert!(map.read(0, 1 << 20).iter().all(|byte| *byte == 0));
    map.write(500_000, b"data");
    map.sync().unwrap();
    let content = stored(at.path("file"));
    assert_eq!(&content[500_000..500_004], b"data");
    assert_eq!(content.iter().filter(|byte| **byte != 0).count(), 4);
}

fn mapping_of_a_part(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 100_000));
    let map = MemoryMap::shared(&file, 40_960, 8192).unwrap();
    assert!(map.read(0, 8192) == pattern(1, 100_000)[40_960..49_152]);
    map.write(0, b"part");
    drop(map);
    assert_eq!(&stored(at.path("file"))[40_960..40_964], b"part");
    fails(MemoryMap::shared(&file, 1, 100), Errno::INVAL);
}

fn reading_handle_maps_for_reading_alone(at: &CheckDir) {
    at.file("file", b"content");
    let file = at.open("file", OFlags::RDONLY).unwrap();
    fails(MemoryMap::shared(&file, 0, 7), Errno::ACCESS);
    assert_eq!(MemoryMap::reading(&file, 0, 7).unwrap().read(0, 7), b"content");
    MemoryMap::private(&file, 0, 7).unwrap().write(0, b"x");
    let writing = at.open("file", OFlags::WRONLY).unwrap();
    fails(MemoryMap::shared(&writing, 0, 7), Errno::ACCESS);
    assert_eq!(stored(at.path("file")), b"content");
}

fn mapping_of_nothing_is_refused(at: &CheckDir) {
    let file = at.handle("file", b"x");
    fails(MemoryMap::reading(&file, 0, 0), Errno::INVAL);
}

fn mapping_of_a_directory_is_refused(at: &CheckDir) {
    let dir = at.open("", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fails(MemoryMap::reading(&dir, 0, 4096), Errno::NODEV);
}

fn cut_and_extended_under_a_mapping(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 40_960));
    let map = MemoryMap::shared(&file, 0, 40_960).unwrap();
    map.write(0, &pattern(2, 40_960));
    file.set_len(10_000).unwrap();
    assert!(map.read(0, 10_000) == pattern(2, 40_960)[..10_000]);
    assert!(map.read(10_000, 2288).iter().all(|byte| *byte == 0));
    file.set_len(40_960).unwrap();
    assert!(map.read(10_000, 30_960).iter().all(|byte| *byte == 0));
    map.write(30_000, b"again");
    map.sync().unwrap();
    let content = stored(at.path("file"));
    assert!(content[..10_000] == pattern(2, 40_960)[..10_000] && &content[30_000..30_005] == b"again");
    assert!(content[10_000..30_000].iter().all(|byte| *byte == 0));
}

fn truncated_bytes_do_not_come_back(at: &CheckDir) {
    let file = at.handle("file", &[]);
    for cut in [1, 4095, 4096, 6000, 8192] {
        file.set_len(12_288).unwrap();
        let map = MemoryMap::shared(&file, 0, 12_288).unwrap();
        map.write(0, &[7; 12_288]);
        file.set_len(cut).unwrap();
        file.set_len(12_288).unwrap();
        let content = stored(at.path("file"));
        let cut = cut as usize;
        assert!(content[..cut].iter().all(|byte| *byte == 7), "{cut}");
        assert!(content[cut..].iter().all(|byte| *byte == 0), "{cut}");
        file.set_len(0).unwrap();
    }
}

fn mapping_written_after_growth(at: &CheckDir) {
    let file = at.handle("file", b"small");
    let map = MemoryMap::shared(&file, 0, 65_536).unwrap();
    file.set_len(65_536).unwrap();
    map.write(60_000, b"far");
    file.write_all_at(b"near", 30_000).unwrap();
    assert_eq!(map.read(30_000, 4), b"near");
    drop(map);
    let content = stored(at.path("file"));
    assert_eq!((&content[..5], &content[30_000..30_004]), (&b"small"[..], &b"near"[..]));
    assert_eq!(&content[60_000..60_003], b"far");
}

fn mapping_synced_in_turns(at: &CheckDir) {
    let file = at.handle("file", &vec![0; 100_000]);
    let map = MemoryMap::shared(&file, 0, 100_000).unwrap();
    let mut model = vec![0; 100_000];
    let mut random = lacuna_sim::Rng::new(3);
    for n in 0..60 {
        let (offset, data) = (random.below(98_000) as usize, random.bytes(2000));
        if n % 3 == 0 {
            file.write_all_at(&data, offset as u64).unwrap();
        } else {
            map.write(offset, &data);
        }
        model[offset..offset + 2000].copy_from_slice(&data);
        match n % 5 {
            0 => map.sync().unwrap(),
            1 => sync_and_drop_cache(&file),
            _ => {}
        }
        assert!(map.read(0, 100_000) == model, "step {n}");
    }
    drop(map);
    assert!(stored(at.path("file")) == model);
}

fn mapping_of_a_large_file(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.set_len(16 << 20).unwrap();
    let map = MemoryMap::shared(&file, 0, 16 << 20).unwrap();
    for piece in 0..16 {
        map.write(piece << 20, &pattern(piece as u64, 1 << 20));
    }
    map.sync().unwrap();
    drop(map);
    let content = stored(at.path("file"));
    for piece in 0..16 {
        assert!(content[piece << 20..(piece + 1) << 20] == pattern(piece as u64, 1 << 20), "MiB {piece}");
    }
}

fn mapping_and_direct_write(at: &CheckDir) {
    let file = at.handle("file", &[1; 16_384]);
    sync_and_drop_cache(&file);
    let map = MemoryMap::reading(&file, 0, 16_384).unwrap();
    assert_eq!(map.read(4096, 10), [1; 10]);
    let direct = at.open("file", OFlags::RDWR | OFlags::DIRECT).unwrap();
    let mut space = vec![2; 8192];
    let from = space.as_ptr().align_offset(4096);
    space[from..from + 4096].fill(3);
    direct.write_all_at(&space[from..from + 4096], 4096).unwrap();
    assert_eq!((map.read(4096, 4096), map.read(0, 4096)), (vec![3; 4096], vec![1; 4096]));
}

fn mapping_written_by_threads(at: &CheckDir) {
    let file = at.handle("file", &vec![0; 1 << 20]);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let file = &file;
            scope.spawn(move || {
                let map = MemoryMap::shared(file, 0, 1 << 20).unwrap();
                for n in 0..64 {
                    map.write((n * 4 + thread) * 4096, &[thread as u8 + 1; 4096]);
                }
                map.sync().unwrap();
            });
        }
    });
    for (n, block) in stored(at.path("file")).chunks(4096).enumerate() {
        assert!(block.iter().all(|byte| usize::from(*byte) == n % 4 + 1), "block {n}");
    }
}

fn time_of_change_follows_a_mapping(at: &CheckDir) {
    let file = at.handle("file", &[0; 4096]);
    sync_and_drop_cache(&file);
    super::times::set_past(&file);
    let map = MemoryMap::shared(&file, 0, 4096).unwrap();
    map.write(0, b"changed");
    map.sync().unwrap();
    assert_ne!(stat(at.path("file")).st_mtime, super::times::PAST);
}
