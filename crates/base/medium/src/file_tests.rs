//! What a file or block device does as a medium.

use super::*;
use crate::opening::open_to_look;
use std::time::Duration;

#[test]
fn keeps_what_it_is_given_and_punches_holes() {
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
fn a_file_that_has_all_of_its_space_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    let medium = FileMedium::create(&path, 1 << 20).unwrap();
    assert!(medium.allocate(0, 1 << 20).unwrap());
    drop(medium);
    // As told by what it has, not by what this process did.
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
    // One that reaches beyond the end is named by itself.
    let (mut inside, mut beyond) = ([0; 64], [0; 64]);
    let end = (1 << 20) - 64;
    let mut reads =
        [ReadExtent { offset: end, buf: &mut inside }, ReadExtent { offset: end + 64, buf: &mut beyond }];
    let e = medium.read(&mut reads).unwrap_err();
    assert!(e.to_string().contains(&format!("at byte {}", 1 << 20)), "{e}");
}

/// Pages of a file in the system's cache, by a tool that looks; none where there is no such tool.
fn resident(path: &Path) -> Option<u64> {
    let told =
        std::process::Command::new("fincore").args(["--noheadings", "--output", "PAGES"]).arg(path).output();
    let told = told.ok().filter(|told| told.status.success())?;
    String::from_utf8(told.stdout).unwrap().trim().parse().ok()
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
    // A file system in memory has nothing else; and one that cannot do it reads all the same.
    let told = resident(&path).filter(|pages| *pages == 0);
    let mut block = [0; 4096];
    // Neighbours too, for which the system would read ahead.
    for at in [5, 6, 7, 8, 40, 200, 42, 41, 0, 255] {
        let offset = at * 4096;
        medium.read_discreetly(&mut [ReadExtent { offset, buf: &mut block }]).unwrap();
        assert!(block[..] == data[offset as usize..][..4096], "{at}");
    }
    let refused = medium.discreet.refused.load(Ordering::Relaxed);
    assert!(refused || told.is_none() || resident(&path) == Some(0), "{:?}", resident(&path));
    // What is there stays there.
    medium.read_at(40 * 4096, &mut block).unwrap();
    let before = resident(&path);
    medium.read_discreetly(&mut [ReadExtent { offset: 40 * 4096, buf: &mut block }]).unwrap();
    assert!(refused || resident(&path) == before);
    let e = medium.read_discreetly(&mut [ReadExtent { offset: 1 << 20, buf: &mut block }]).unwrap_err();
    assert!(e.to_string().contains("the end of the file"), "{e}");
}

#[test]
fn a_file_that_cannot_be_opened_once_more_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, [7; 8192]).unwrap();
    let reader = DiscreetReader::default();
    let none = || -> std::io::Result<File> { Err(Errno::MFILE.into()) };
    let mut block = [0; 4096];
    assert!(reader.prepare(none).is_err());
    assert!(!reader.read(none, &mut ReadExtent { offset: 0, buf: &mut block }).unwrap());
    assert!(reader.prepare(|| File::open(&path)).is_ok());
    let read = reader.read(none, &mut ReadExtent { offset: 4096, buf: &mut block }).unwrap();
    // A file system that cannot do it says so.
    assert!(if read { block == [7; 4096] } else { reader.refused.load(Ordering::Relaxed) });
}

#[test]
fn reading_leaves_no_access_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    drop(FileMedium::create(&path, 1 << 20).unwrap());
    // Older than the modification time, so that even `relatime` would renew it.
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_times(std::fs::FileTimes::new().set_accessed(old)).unwrap();
    for access in [Access::Read, Access::Write] {
        let medium = FileMedium::open(&path, access).unwrap();
        assert!(!medium.touches_access_times());
        medium.read_at(4096, &mut [0; 4096]).unwrap();
    }
    let mut looked = open_to_look(&path, Links::Followed).unwrap();
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
fn a_file_that_is_overwritten_need_not_keep_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m");
    std::fs::write(&path, [1; 65536]).unwrap();
    let medium = FileMedium::open(&path, Access::Write).unwrap();
    medium.forget_space();
    // Nobody has that much: the file is as long, and takes none of it.
    medium.set_len(1 << 42).unwrap();
    medium.discard(0, 65536).unwrap();
    assert_eq!(medium.file.metadata().unwrap().blocks(), 0);
}
