//! Tests of files and block devices as media.

use super::*;
use crate::file_open::open_for_inspection;
use std::time::Duration;

#[test]
fn a_file_keeps_its_content_and_a_discard_punches_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let medium = FileMedium::create(&path, 1 << 20).unwrap();
    assert_eq!(medium.len(), 1 << 20);
    medium.write_durable(&[WriteExtent { offset: 8192, data: &[3; 65536] }]).unwrap();
    medium.write_at(0, b"start").unwrap();
    medium.discard(8192, 65536).unwrap();
    medium.sync().unwrap();
    let mut back = vec![1; 65536];
    medium.read_at(8192, &mut back).unwrap();
    assert!(back.iter().all(|&b| b == 0));
    assert!(medium.file.metadata().unwrap().blocks() * 512 < 65536);
    assert_eq!(medium.read_at((1 << 20) - 1, &mut back).unwrap_err().kind(), Kind::Io);
}

#[test]
fn a_range_that_is_written_back_early_keeps_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let medium = FileMedium::create(&dir.path().join("m"), 1 << 20).unwrap();
    let mut back = [0; 8192];
    // The second range exceeds the end, and the third has no page.
    for (byte, offset, len) in [(1, 4096, 8192), (2, 4096, 2 << 20), (3, 65536, 0)] {
        medium.write_at(4096, &[byte; 8192]).unwrap();
        medium.will_sync(offset, len);
        medium.sync().unwrap();
        medium.forget_cached().unwrap();
        medium.read_at(4096, &mut back).unwrap();
        assert_eq!(back, [byte; 8192]);
    }
}

#[test]
fn a_fully_allocated_file_stays_allocated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let medium = FileMedium::create(&path, 1 << 20).unwrap();
    assert!(medium.allocate(0, 1 << 20).unwrap());
    drop(medium);
    // The allocation of the file decides, not the history of this process.
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    medium.write_at(8192, &[3; 65536]).unwrap();
    medium.discard(8192, 65536).unwrap();
    medium.set_len(2 << 20).unwrap();
    medium.sync().unwrap();
    let mut back = vec![1; 65536];
    medium.read_at(8192, &mut back).unwrap();
    assert!(back.iter().all(|&b| b == 0));
    assert!(medium.file.metadata().unwrap().blocks() * 512 >= 2 << 20);
}

#[test]
fn adjacent_extents_are_read_and_written_as_if_each_alone() {
    let dir = tempfile::tempdir().unwrap();
    let medium = FileMedium::create(&dir.path().join("m"), 1 << 20).unwrap();
    let data: Vec<[u8; 64]> = (0..200).map(|n| [n as u8; 64]).collect();
    // One gap, and one step back.
    let offset = |at: usize| match at {
        0..100 => at * 64,
        100..150 => at * 64 + 512,
        _ => 65536 - (at - 149) * 64,
    };
    let extents = data.iter().enumerate();
    let writes: Vec<_> = extents.map(|(at, data)| WriteExtent { offset: offset(at) as u64, data }).collect();
    medium.write(&writes).unwrap();
    let mut whole = vec![0; 65536];
    medium.read_at(0, &mut whole).unwrap();
    let mut back = vec![[0; 64]; 200];
    let extents = back.iter_mut().enumerate();
    let mut reads: Vec<_> = extents.map(|(at, buf)| ReadExtent { offset: offset(at) as u64, buf }).collect();
    medium.read(&mut reads).unwrap();
    for (at, data) in data.iter().enumerate() {
        assert!(whole[offset(at)..][..64] == data[..] && back[at] == *data, "{at}");
    }
    // The error names the extent that exceeds the end.
    let (mut inside, mut beyond) = ([0; 64], [0; 64]);
    let end = (1 << 20) - 64;
    let mut reads =
        [ReadExtent { offset: end, buf: &mut inside }, ReadExtent { offset: end + 64, buf: &mut beyond }];
    let e = medium.read(&mut reads).unwrap_err();
    assert!(e.to_string().contains(&format!("at byte {}", 1 << 20)), "{e}");
}

/// The number of pages of a file in the system's cache, from `fincore`; `None` without that tool.
fn resident(path: &Path) -> Option<u64> {
    let ran =
        std::process::Command::new("fincore").args(["--noheadings", "--output", "PAGES"]).arg(path).output();
    let ran = ran.ok().filter(|ran| ran.status.success())?;
    String::from_utf8(ran.stdout).unwrap().trim().parse().ok()
}

#[test]
fn discreet_reads_leave_nothing_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 9) as u8 ^ at as u8).collect();
    std::fs::write(&path, &data).unwrap();
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    medium.forget_cached().unwrap();
    medium.expect_discreet_reads().unwrap();
    // On tmpfs the pages always stay; a file system without discreet reads falls back to ordinary
    // ones.
    let evicted = resident(&path).filter(|pages| *pages == 0);
    let mut block = [0; 4096];
    // Includes neighbouring blocks, where the system would read ahead.
    for at in [5, 6, 7, 8, 40, 200, 42, 41, 0, 255] {
        let offset = at * 4096;
        medium.read_discreetly(&mut [ReadExtent { offset, buf: &mut block }]).unwrap();
        assert!(block[..] == data[offset as usize..][..4096], "{at}");
    }
    let refused = medium.discreet.is_refused();
    assert!(refused || evicted.is_none() || resident(&path) == Some(0), "{:?}", resident(&path));
    // Pages that were in the cache before stay there.
    medium.read_at(40 * 4096, &mut block).unwrap();
    let before = resident(&path);
    medium.read_discreetly(&mut [ReadExtent { offset: 40 * 4096, buf: &mut block }]).unwrap();
    assert!(refused || resident(&path) == before);
    let e = medium.read_discreetly(&mut [ReadExtent { offset: 1 << 20, buf: &mut block }]).unwrap_err();
    assert!(e.to_string().contains("the end of the file"), "{e}");
}

/// The unit of tracking: a write makes its whole piece unsynced.
const PIECE: u64 = 2 << 20;

/// A file of eight pieces that begins with a MiB of pseudorandom bytes: its path, that MiB, and a
/// medium on it that expects discreet reads.
fn expecting(dir: &Path) -> (PathBuf, Vec<u8>, FileMedium) {
    let path = dir.join("m");
    let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&path, &data).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(8 * PIECE).unwrap();
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    medium.expect_discreet_reads().unwrap();
    medium.forget_cached().unwrap();
    (path, data, medium)
}

/// Whether a range is read past the cache. `medium.direct.is_refused()` tells whether the system
/// refuses.
fn reads_past_the_cache(medium: &FileMedium, offset: u64, len: usize) -> bool {
    let mut buf = vec![0; len];
    let mut run = [ReadExtent { offset, buf: &mut buf }];
    medium.direct.read(|| medium.open_discreet(OFlags::DIRECT), &mut run)
}

#[test]
fn discreet_reads_of_any_alignment_return_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let (path, data, medium) = expecting(dir.path());
    let evicted = resident(&path).filter(|pages| *pages == 0);
    // Aligned and unaligned ranges, adjacent and with gaps, within a page and across pages.
    let places: [(u64, usize); 9] = [
        (4096, 4096),
        (8192, 8192),
        (24576, 64),
        (24640, 4160),
        (40960, 4096),
        (131_584, 9000),
        (500_000, 1),
        (524_288, 131_072),
        ((1 << 20) - 64, 64),
    ];
    for shift in [0, 8] {
        let mut memory = vec![0u8; 1 << 18];
        let first = memory.as_ptr().align_offset(4096) + shift;
        let (mut rest, mut batch) = (&mut memory[first..], Vec::new());
        for (offset, len) in places {
            let (buf, further) = std::mem::take(&mut rest).split_at_mut(len.next_multiple_of(4096));
            batch.push(ReadExtent { offset, buf: &mut buf[..len] });
            rest = further;
        }
        medium.read_discreetly(&mut batch).unwrap();
        for ReadExtent { offset, buf } in batch {
            assert!(buf[..] == data[offset as usize..][..buf.len()], "byte {offset}, shift {shift}");
        }
    }
    assert!(reads_past_the_cache(&medium, 4096, 4096) || medium.direct.is_refused());
    let refused = medium.direct.is_refused() && medium.discreet.is_refused();
    assert!(refused || evicted.is_none() || resident(&path) == Some(0), "{:?}", resident(&path));
    let mut beyond = [0; 128];
    let batch = &mut [ReadExtent { offset: 8 * PIECE - 64, buf: &mut beyond }];
    let e = medium.read_discreetly(batch).unwrap_err();
    assert!(e.to_string().contains("the end of the file"), "{e}");
}

/// Shows that an unsynced range is not read past the cache: the system would write it before the
/// read.
#[test]
fn unsynced_ranges_are_read_through_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (_, _, medium) = expecting(dir.path());
    let other = medium.open_again().unwrap();
    let contents = [(PIECE + 700, 1), (2 * PIECE, 2), (3 * PIECE, 0), (4 * PIECE, 4)];
    let has_contents = || {
        for (offset, byte) in contents {
            let mut buf = [9; 8];
            medium.read_discreetly(&mut [ReadExtent { offset, buf: &mut buf }]).unwrap();
            assert_eq!(buf, [byte; 8], "byte {offset}");
        }
    };
    let may_pass = |piece: u64| reads_past_the_cache(&medium, piece * PIECE + 40960, 4096);
    medium.write_at(PIECE + 700, &[1; 8]).unwrap();
    medium.write_durable(&[WriteExtent { offset: 2 * PIECE, data: &[2; 4096] }]).unwrap();
    medium.discard(3 * PIECE, 4096).unwrap();
    other.write_at(4 * PIECE, &[4; 4096]).unwrap();
    assert!((1..5).all(|piece| !may_pass(piece)));
    assert!([0, 5, 6, 7].iter().all(|piece| may_pass(*piece)) || medium.direct.is_refused());
    has_contents();
    other.sync().unwrap();
    assert!((0..8).all(may_pass) || medium.direct.is_refused());
    has_contents();
    medium.set_len(PIECE).unwrap();
    assert!(!reads_past_the_cache(&medium, 0, 4096));
}

#[test]
fn nothing_is_read_past_the_cache_before_it_is_synced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let medium = FileMedium::create(&path, 1 << 20).unwrap();
    medium.write_at(0, &[7; 4096]).unwrap();
    assert!(!reads_past_the_cache(&medium, 0, 4096), "discreet reads are not asked for");
    medium.expect_discreet_reads().unwrap();
    assert!(!reads_past_the_cache(&medium, 0, 4096), "earlier writes are in the cache only");
    medium.forget_cached().unwrap();
    assert!(reads_past_the_cache(&medium, 0, 4096) || medium.direct.is_refused());
}

#[test]
fn a_failed_reopen_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, [7; 8192]).unwrap();
    let reader = DontCacheReader::default();
    let none = || -> std::io::Result<File> { Err(Errno::MFILE.into()) };
    let mut block = [0; 4096];
    assert!(reader.prepare(none).is_err());
    assert!(!reader.read(none, &mut ReadExtent { offset: 0, buf: &mut block }).unwrap());
    assert!(reader.prepare(|| File::open(&path)).is_ok());
    let read = reader.read(none, &mut ReadExtent { offset: 4096, buf: &mut block }).unwrap();
    // A file system without discreet reads refuses them.
    assert!(if read { block == [7; 4096] } else { reader.is_refused() });
    let reader = DirectReader::default();
    let mut memory = vec![0; 3];
    let mut run = [ReadExtent { offset: 4095, buf: &mut memory }];
    assert!(reader.prepare(8192, none).is_err());
    reader.begin_sync().unwrap().end(true);
    assert!(!reader.read(none, &mut run));
    let open = || OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path);
    let read = reader.read(open, &mut run);
    assert!(if read { memory == [7; 3] } else { reader.is_refused() });
}

#[test]
fn reading_leaves_no_access_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    drop(FileMedium::create(&path, 1 << 20).unwrap());
    // Older than the modification time, so that even `relatime` would update it.
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_times(std::fs::FileTimes::new().set_accessed(old)).unwrap();
    for access in [Access::Read, Access::Write] {
        let medium = FileMedium::open(&path, access).unwrap();
        assert!(!medium.updates_access_time());
        medium.read_at(4096, &mut [0; 4096]).unwrap();
    }
    let mut looked = open_for_inspection(&path, LinkPolicy::Followed).unwrap();
    std::io::Read::read_exact(&mut looked, &mut [0; 4096]).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().accessed().unwrap(), old);
}

#[test]
fn one_writer_and_no_silent_overwrite() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let medium = FileMedium::create(&path, 4096).unwrap();
    assert_eq!(FileMedium::open(&path, Access::Write).err().unwrap().kind(), Kind::Busy);
    assert_eq!(FileMedium::open(&path, Access::Read).err().unwrap().kind(), Kind::Busy);
    assert_eq!(FileMedium::create(&path, 4096).err().unwrap().kind(), Kind::Usage);
    medium.write_at(0, b"kept").unwrap();
    drop(medium);
    let medium = FileMedium::open(&path, Access::Read).unwrap();
    let _second_reader = FileMedium::open(&path, Access::Read).unwrap();
    let mut back = [0; 4];
    medium.read_at(0, &mut back).unwrap();
    assert_eq!(&back, b"kept");
    assert_eq!(FileMedium::open(dir.path(), Access::Read).err().unwrap().kind(), Kind::NotFound);
    assert_eq!(FileMedium::open(&dir.path().join("no"), Access::Read).err().unwrap().kind(), Kind::NotFound);
}

#[test]
fn discards_free_space_after_the_allocation_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, [1; 65536]).unwrap();
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    medium.release_allocation();
    // More than any host has: the file gets this length and takes no space.
    medium.set_len(1 << 42).unwrap();
    medium.discard(0, 65536).unwrap();
    assert_eq!(medium.file.metadata().unwrap().blocks(), 0);
}

#[test]
fn cached_pages_stay_only_within_the_range_that_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, vec![7u8; 10 << 20]).unwrap();
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    medium.forget_cached().unwrap();
    // On tmpfs the pages always stay.
    if resident(&path) != Some(0) {
        return;
    }
    let mut all = vec![0; 10 << 20];
    // Whole pieces of 2 MiB stay.
    for (kept, pages) in [((1 << 20) + 5..9 << 20, 6 << 8), (0..4 << 20, 4 << 8), (1 << 20..3 << 20, 0)] {
        medium.read_at(0, &mut all).unwrap();
        medium.forget_cached_outside(kept.clone()).unwrap();
        assert_eq!(resident(&path), Some(pages), "{kept:?}");
    }
}

#[test]
fn each_change_and_each_copy_of_a_file_has_another_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, vec![7u8; 1 << 20]).unwrap();
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    // Of a file on a file system of another kind no stamp is known.
    let Some(first) = medium.settled_stamp().unwrap() else { return };
    medium.read_at(0, &mut [0; 4096]).unwrap();
    medium.forget_cached().unwrap();
    assert_eq!(medium.stamp().unwrap(), Some(first));
    assert_eq!(medium.settled_stamp().unwrap(), Some(first));
    let mut seen = vec![first];
    let mut has_changed = |medium: &FileMedium| {
        let stamp = medium.settled_stamp().unwrap().unwrap();
        let is_new = !seen.contains(&stamp);
        seen.push(stamp);
        is_new
    };
    // Another program writes the same byte again.
    let other = OpenOptions::new().write(true).open(&path).unwrap();
    other.write_all_at(&[7], 5000).unwrap();
    assert!(has_changed(&medium));
    medium.discard(0, 4096).unwrap();
    assert!(has_changed(&medium));
    medium.set_len(2 << 20).unwrap();
    assert!(has_changed(&medium));
    drop(medium);
    let copy = dir.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    assert!(has_changed(&FileMedium::open(&path, Access::Write).unwrap()));
}

#[test]
fn after_a_failed_sync_no_stamp_is_settled() {
    // The system refuses to sync this device.
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").unwrap();
    let medium = FileMedium::of_file(null, PathBuf::from("/dev/null"), false, false).unwrap();
    let other = medium.open_again().unwrap();
    assert!(other.sync().is_err());
    // The failure counts for every handle on the medium.
    assert!(medium.sync_failed.load(Ordering::Relaxed));
    let dir = tempfile::tempdir().unwrap();
    let medium = FileMedium::create(&dir.path().join("m"), 1 << 20).unwrap();
    medium.sync_failed.store(true, Ordering::Relaxed);
    medium.write_at(0, &[1; 4096]).unwrap();
    assert_eq!(medium.settled_stamp().unwrap(), None);
}
