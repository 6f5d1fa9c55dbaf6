//! What a file or block device does as a medium.

use super::*;

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
