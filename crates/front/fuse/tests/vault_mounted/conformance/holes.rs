//! Checks of sparse files: holes, `SEEK_DATA` and `SEEK_HOLE`, and the modes of `fallocate`.

use super::check_dir::{CheckDir, fails, fails_among, pattern, stat, stored, sync_and_drop_cache};
use super::mapping::MemoryMap;
use super::{ConformanceCheck, checks};
use crate::machine::run;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

pub(super) const CHECKS: &[ConformanceCheck] = checks![
    hole_reads_as_zeros,
    seek_finds_data_and_holes,
    seek_in_a_file_without_holes,
    seek_in_a_file_without_data,
    seek_in_an_empty_file,
    seek_past_the_end,
    seek_moves_the_position,
    seek_knows_dirty_pages,
    seek_knows_mapped_pages,
    seek_at_the_last_bytes,
    many_holes,
    hole_is_filled,
    punched_range_reads_as_zeros,
    punched_range_is_a_hole,
    punched_dirty_pages,
    punched_past_the_end,
    punched_within_a_block,
    punched_whole,
    punched_and_written_again,
    punching_needs_keep_size,
    punched_blocks_are_given_back,
    zeroed_range_reads_as_zeros,
    zeroed_range_grows_the_file,
    zeroed_range_keeps_the_size,
    space_that_cannot_be_kept_is_refused,
    allocation_of_nothing_is_einval,
    allocation_needs_a_writing_handle,
    allocation_needs_a_regular_file,
    unknown_modes_are_refused,
    every_edge_of_a_punch,
    copies_keep_holes,
    sparse_copy_by_cp,
    sparse_file_of_many_islands,
];

const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

fn zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The ranges of data, as the file system reports them.
fn data_ranges(file: &File) -> Vec<(u64, u64)> {
    let mut ranges = vec![];
    let mut at = 0;
    loop {
        match seek(file, SeekFrom::Data(at)) {
            Err(e) => {
                assert_eq!(e, Errno::NXIO);
                return ranges;
            }
            Ok(data) => {
                at = seek(file, SeekFrom::Hole(data)).unwrap();
                assert!(at > data);
                ranges.push((data, at));
            }
        }
    }
}

/// A file with data at 0 to 4096, 64 KiB to 68 KiB and 1 MiB to 1 MiB + 8 KiB, and a length of 2
/// MiB.
fn islands(at: &CheckDir, name: &str) -> File {
    let file = at.handle(name, b"");
    file.write_all_at(&pattern(1, 4096), 0).unwrap();
    file.write_all_at(&pattern(2, 4096), 65_536).unwrap();
    file.write_all_at(&pattern(3, 8192), 1 << 20).unwrap();
    file.set_len(2 << 20).unwrap();
    file
}

fn hole_reads_as_zeros(at: &CheckDir) {
    let file = islands(at, "file");
    sync_and_drop_cache(&file);
    let content = stored(at.path("file"));
    assert_eq!(content.len(), 2 << 20);
    assert!(
        zeros(&content[4096..65_536])
            && zeros(&content[69_632..1 << 20])
            && zeros(&content[(1 << 20) + 8192..])
    );
    assert!(content[65_536..69_632] == pattern(2, 4096));
}

fn seek_finds_data_and_holes(at: &CheckDir) {
    let file = islands(at, "file");
    let expected = [(0, 4096), (65_536, 69_632), (1 << 20, (1 << 20) + 8192)];
    assert_eq!(data_ranges(&file), expected);
    sync_and_drop_cache(&file);
    assert_eq!(data_ranges(&file), expected);
    assert_eq!(seek(&file, SeekFrom::Data(100)).unwrap(), 100);
    assert_eq!(seek(&file, SeekFrom::Data(5000)).unwrap(), 65_536);
    assert_eq!(seek(&file, SeekFrom::Hole(5000)).unwrap(), 5000);
    assert_eq!(seek(&file, SeekFrom::Hole(66_000)).unwrap(), 69_632);
    fails(seek(&file, SeekFrom::Data((1 << 20) + 8192)), Errno::NXIO);
}

fn seek_in_a_file_without_holes(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 10_000));
    for _ in 0..2 {
        assert_eq!(data_ranges(&file), [(0, 10_000)]);
        assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 10_000);
        assert_eq!(seek(&file, SeekFrom::Data(9999)).unwrap(), 9999);
        sync_and_drop_cache(&file);
    }
}

fn seek_in_a_file_without_data(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.set_len(100_000).unwrap();
    fails(seek(&file, SeekFrom::Data(0)), Errno::NXIO);
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 0);
    assert_eq!(seek(&file, SeekFrom::Hole(99_999)).unwrap(), 99_999);
    fails(seek(&file, SeekFrom::Hole(100_000)), Errno::NXIO);
}

fn seek_in_an_empty_file(at: &CheckDir) {
    let file = at.handle("file", b"");
    fails(seek(&file, SeekFrom::Data(0)), Errno::NXIO);
    fails(seek(&file, SeekFrom::Hole(0)), Errno::NXIO);
}

fn seek_past_the_end(at: &CheckDir) {
    let file = at.handle("file", b"abc");
    for offset in [3, 4, 5000, 1 << 40] {
        fails(seek(&file, SeekFrom::Data(offset)), Errno::NXIO);
        fails(seek(&file, SeekFrom::Hole(offset)), Errno::NXIO);
    }
}

fn seek_moves_the_position(at: &CheckDir) {
    let file = islands(at, "file");
    seek(&file, SeekFrom::Data(10_000)).unwrap();
    let mut out = [0; 4096];
    rustix::io::read(&file, &mut out[..]).unwrap();
    assert!(out[..] == pattern(2, 4096));
    assert_eq!(rustix::fs::tell(&file).unwrap(), 69_632);
    fails(seek(&file, SeekFrom::Data(3 << 20)), Errno::NXIO);
    assert_eq!(rustix::fs::tell(&file).unwrap(), 69_632);
}

fn seek_knows_dirty_pages(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.set_len(1 << 20).unwrap();
    sync_and_drop_cache(&file);
    for n in 0..20u64 {
        file.write_all_at(b"x", n * 40_960).unwrap();
        assert_eq!(seek(&file, SeekFrom::Data(n * 40_960)).unwrap(), n * 40_960);
    }
    assert_eq!(data_ranges(&file), (0..20).map(|n| (n * 40_960, n * 40_960 + 4096)).collect::<Vec<_>>());
    let reader = at.open("file", OFlags::RDONLY).unwrap();
    file.write_all_at(b"y", 900_000).unwrap();
    assert_eq!(seek(&reader, SeekFrom::Data(850_000)).unwrap(), 897_024);
}

fn seek_knows_mapped_pages(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.set_len(1 << 20).unwrap();
    let map = MemoryMap::shared(&file, 0, 1 << 20).unwrap();
    map.write(300_000, b"mapped");
    assert_eq!(seek(&file, SeekFrom::Data(0)).unwrap(), 299_008);
    drop(map);
    sync_and_drop_cache(&file);
    assert_eq!(data_ranges(&file), [(299_008, 303_104)]);
}

fn seek_at_the_last_bytes(at: &CheckDir) {
    let file = at.handle("file", b"");
    file.write_all_at(b"end", 99_997).unwrap();
    for _ in 0..2 {
        assert_eq!(data_ranges(&file), [(98_304, 100_000)]);
        sync_and_drop_cache(&file);
    }
}

fn many_holes(at: &CheckDir) {
    let file = at.handle("file", b"");
    for n in 0..500u64 {
        file.write_all_at(&n.to_le_bytes(), n * 8192).unwrap();
    }
    sync_and_drop_cache(&file);
    let ranges = data_ranges(&file);
    assert_eq!(ranges.len(), 500);
    assert!(ranges.iter().enumerate().all(|(n, (from, _))| *from == n as u64 * 8192));
    let blocks = stat(at.path("file")).st_blocks;
    assert!(blocks < 500 * 8 + 64, "{blocks}");
}

fn hole_is_filled(at: &CheckDir) {
    let file = islands(at, "file");
    sync_and_drop_cache(&file);
    file.write_all_at(&pattern(9, 61_440), 4096).unwrap();
    sync_and_drop_cache(&file);
    assert_eq!(data_ranges(&file)[0], (0, 69_632));
    assert!(stored(at.path("file"))[4096..65_536] == pattern(9, 61_440));
}

fn punched_range_reads_as_zeros(at: &CheckDir) {
    let content = pattern(1, 100_000);
    let file = at.handle("file", &content);
    sync_and_drop_cache(&file);
    fallocate(&file, PUNCH, 10_000, 50_000).unwrap();
    let expected = [&content[..10_000], &[0; 50_000], &content[60_000..]].concat();
    assert!(std::fs::read(at.path("file")).unwrap() == expected);
    assert!(stored(at.path("file")) == expected);
}

fn punched_range_is_a_hole(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 100_000));
    sync_and_drop_cache(&file);
    fallocate(&file, PUNCH, 10_000, 50_000).unwrap();
    assert_eq!(data_ranges(&file), [(0, 12_288), (57_344, 100_000)]);
    assert_eq!(stat(at.path("file")).st_size, 100_000);
}

fn punched_dirty_pages(at: &CheckDir) {
    let content = pattern(1, 100_000);
    let file = at.handle("file", b"");
    file.write_all_at(&content, 0).unwrap();
    fallocate(&file, PUNCH, 4096, 40_960).unwrap();
    assert!(zeros(&stored(at.path("file"))[4096..45_056]));
    file.write_all_at(&content, 0).unwrap();
    fallocate(&file, PUNCH, 5000, 1000).unwrap();
    let expected = [&content[..5000], &[0; 1000], &content[6000..]].concat();
    assert!(stored(at.path("file")) == expected);
}

fn punched_past_the_end(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 10_000));
    fallocate(&file, PUNCH, 20_000, 10_000).unwrap();
    fallocate(&file, PUNCH, 9000, 1 << 30).unwrap();
    assert_eq!(stat(at.path("file")).st_size, 10_000);
    assert!(stored(at.path("file")) == [&pattern(1, 10_000)[..9000], &[0; 1000]].concat());
    file.set_len(20_000).unwrap();
    assert!(zeros(&stored(at.path("file"))[9000..]));
}

fn punched_within_a_block(at: &CheckDir) {
    let content = pattern(1, 12_288);
    let file = at.handle("file", &content);
    sync_and_drop_cache(&file);
    fallocate(&file, PUNCH, 5000, 10).unwrap();
    assert!(stored(at.path("file")) == [&content[..5000], &[0; 10], &content[5010..]].concat());
    assert_eq!(data_ranges(&file), [(0, 12_288)]);
}

fn punched_whole(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 100_000));
    sync_and_drop_cache(&file);
    fallocate(&file, PUNCH, 0, 1 << 20).unwrap();
    assert!(zeros(&stored(at.path("file"))));
    fails(seek(&file, SeekFrom::Data(0)), Errno::NXIO);
    assert_eq!(stat(at.path("file")).st_size, 100_000);
}

fn punched_and_written_again(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 65_536));
    let mut model = pattern(1, 65_536);
    for n in 0..40u64 {
        let offset = n * 7919 % 50_000;
        fallocate(&file, PUNCH, offset, 9000).unwrap();
        model[offset as usize..][..9000].fill(0);
        let data = pattern(n, 3000);
        file.write_all_at(&data, offset + 2000).unwrap();
        model[offset as usize + 2000..][..3000].copy_from_slice(&data);
        if n % 4 == 0 {
            assert!(stored(at.path("file")) == model, "step {n}");
        }
    }
    assert!(stored(at.path("file")) == model);
}

fn punching_needs_keep_size(at: &CheckDir) {
    let file = at.handle("file", b"kept");
    fails_among(fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 4), &[Errno::OPNOTSUPP, Errno::INVAL]);
    assert_eq!(stored(at.path("file")), b"kept");
}

fn punched_blocks_are_given_back(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 1 << 20));
    sync_and_drop_cache(&file);
    let before = stat(at.path("file")).st_blocks;
    fallocate(&file, PUNCH, 0, 512 << 10).unwrap();
    sync_and_drop_cache(&file);
    let after = stat(at.path("file")).st_blocks;
    assert!(after + 1000 < before, "{before}, then {after}");
}

fn zeroed_range_reads_as_zeros(at: &CheckDir) {
    let content = pattern(1, 100_000);
    let file = at.handle("file", &content);
    sync_and_drop_cache(&file);
    for (offset, len) in [(0, 4096), (5000, 100), (20_000, 30_001)] {
        fallocate(&file, FallocateFlags::ZERO_RANGE, offset, len).unwrap();
    }
    let now = stored(at.path("file"));
    assert!(zeros(&now[..4096]) && zeros(&now[5000..5100]) && zeros(&now[20_000..50_001]));
    assert!(now[4096..5000] == content[4096..5000] && now[50_001..] == content[50_001..]);
}

fn zeroed_range_grows_the_file(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 10_000));
    fallocate(&file, FallocateFlags::ZERO_RANGE, 9000, 20_000).unwrap();
    let content = stored(at.path("file"));
    assert!(
        content.len() == 29_000 && content[..9000] == pattern(1, 10_000)[..9000] && zeros(&content[9000..])
    );
}

fn zeroed_range_keeps_the_size(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 10_000));
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 9000, 20_000).unwrap();
    let content = stored(at.path("file"));
    assert!(content.len() == 10_000 && zeros(&content[9000..]));
    fallocate(&file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 50_000, 4096).unwrap();
    assert_eq!(stat(at.path("file")).st_size, 10_000);
}

fn space_that_cannot_be_kept_is_refused(at: &CheckDir) {
    let file = at.handle("file", b"abc");
    for how in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE].into_iter().filter(|_| at.vault) {
        fails(fallocate(&file, how, 0, 100_000), Errno::OPNOTSUPP);
        fails(fallocate(&file, how, 0, 3), Errno::OPNOTSUPP);
    }
    assert_eq!(stored(at.path("file")), b"abc");
}

fn allocation_of_nothing_is_einval(at: &CheckDir) {
    let file = at.handle("file", b"abc");
    fails(fallocate(&file, FallocateFlags::empty(), 0, 0), Errno::INVAL);
    fails(fallocate(&file, PUNCH, 10, 0), Errno::INVAL);
    fails_among(fallocate(&file, FallocateFlags::empty(), 1 << 62, 1 << 62), &[Errno::FBIG, Errno::INVAL]);
    fails(fallocate(&file, FallocateFlags::ZERO_RANGE, 1 << 60, 4096), Errno::FBIG);
    assert_eq!(stored(at.path("file")), b"abc");
}

fn allocation_needs_a_writing_handle(at: &CheckDir) {
    at.file("file", b"abc");
    let file = at.open("file", OFlags::RDONLY).unwrap();
    fails(fallocate(&file, FallocateFlags::empty(), 0, 100), Errno::BADF);
    fails(fallocate(&file, PUNCH, 0, 100), Errno::BADF);
}

fn allocation_needs_a_regular_file(at: &CheckDir) {
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, at.path("fifo"), FileType::Fifo, mode, 0).unwrap();
    let fifo = at.open("fifo", OFlags::RDWR | OFlags::NONBLOCK).unwrap();
    fails(fallocate(&fifo, FallocateFlags::empty(), 0, 100), Errno::SPIPE);
    let dir = at.open("", OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
    fails_among(fallocate(&dir, FallocateFlags::empty(), 0, 100), &[Errno::BADF, Errno::ISDIR]);
}

fn unknown_modes_are_refused(at: &CheckDir) {
    let file = at.handle("file", &pattern(1, 16_384));
    let modes = [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE, FallocateFlags::UNSHARE_RANGE];
    for mode in modes.into_iter().filter(|_| at.vault) {
        fails(fallocate(&file, mode, 0, 4096), Errno::OPNOTSUPP);
    }
    fails_among(
        fallocate(&file, PUNCH | FallocateFlags::ZERO_RANGE, 0, 4096),
        &[Errno::OPNOTSUPP, Errno::INVAL],
    );
    assert!(stored(at.path("file")) == pattern(1, 16_384));
}

fn every_edge_of_a_punch(at: &CheckDir) {
    const EDGES: [usize; 8] = [0, 1, 4095, 4096, 4097, 8192, 12_000, 16_384];
    for from in EDGES {
        for to in EDGES.into_iter().filter(|to| *to > from) {
            let mut content = pattern(1, 15_000);
            let file = at.handle("file", &content);
            sync_and_drop_cache(&file);
            fallocate(&file, PUNCH, from as u64, (to - from) as u64).unwrap();
            content[from.min(15_000)..to.min(15_000)].fill(0);
            assert!(stored(at.path("file")) == content, "{from} to {to}");
            file.set_len(20_000).unwrap();
            assert!(zeros(&stored(at.path("file"))[15_000..]), "{from} to {to}: the rest");
        }
    }
}

fn copies_keep_holes(at: &CheckDir) {
    let from = islands(at, "from");
    let to = at.handle("to", b"");
    let mut left = 2 << 20;
    while left > 0 {
        left -= rustix::fs::copy_file_range(&from, None, &to, None, left).unwrap();
    }
    assert!(stored(at.path("to")) == stored(at.path("from")));
    if at.vault {
        assert_eq!(data_ranges(&to), data_ranges(&from));
    }
}

fn sparse_copy_by_cp(at: &CheckDir) {
    let from = islands(at, "from");
    from.write_all_at(b"dirty", 1_500_000).unwrap();
    for how in ["auto", "always", "never"] {
        let to = at.path(how);
        run(Command::new("cp").arg(format!("--sparse={how}")).arg(at.path("from")).arg(&to));
        assert!(stored(&to) == stored(at.path("from")), "{how}");
    }
    assert!(stat(at.path("always")).st_blocks < stat(at.path("never")).st_blocks);
}

fn sparse_file_of_many_islands(at: &CheckDir) {
    let file = at.handle("file", b"");
    let mut random = lacuna_sim::Rng::new(2);
    let mut written = std::collections::BTreeMap::new();
    for _ in 0..200 {
        let block = random.below(1 << 28);
        file.write_all_at(&block.to_le_bytes(), block * 4096).unwrap();
        written.insert(block, block);
    }
    sync_and_drop_cache(&file);
    for block in written.keys() {
        let mut out = [0; 8];
        file.read_exact_at(&mut out, block * 4096).unwrap();
        assert_eq!(u64::from_le_bytes(out), *block);
        assert_eq!(seek(&file, SeekFrom::Data(block * 4096)).unwrap(), block * 4096);
    }
    assert!(stat(at.path("file")).st_blocks < 200 * 8 + 1000);
}
