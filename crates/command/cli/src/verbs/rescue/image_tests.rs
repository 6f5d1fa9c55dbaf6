//! Tests of the image and its map: continued runs, refused files and the content.

use super::*;

const BLOCK: usize = BLOCK_SIZE;

fn of(blocks: u64) -> RescuedDisk {
    let id = "9564c49adcf33557307745630aa5f7ce".parse().unwrap();
    RescuedDisk { id, level: 0, len: blocks * BLOCK as u64 }
}

/// A killed run loses only the areas that its map does not list; the next run reads only the
/// missing areas.
#[test]
fn a_run_continues_a_killed_run() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("image");
    let open = |force| RescueImage::open(&target, force, FileIdentity::Unknown, &of(9)).unwrap();
    let mut first = open(false);
    first.write_rescued(&[1; 2 * BLOCK]).unwrap();
    first.record_lost().unwrap();
    first.map.save().unwrap();
    // Not yet in the map.
    first.write_rescued(&[1; 3 * BLOCK]).unwrap();
    drop(first);
    let plan =
        |image: &mut RescueImage| std::iter::from_fn(|| image.next_blocks().unwrap()).collect::<Vec<_>>();
    let mut second = open(false);
    assert_eq!(plan(&mut second), [(0..2, true), (2..3, false), (3..9, false)]);
    second.record_kept(2).unwrap();
    second.write_rescued(&[2; BLOCK]).unwrap();
    second.record_lost().unwrap();
    second.record_unwritten(1).unwrap();
    second.map.save().unwrap();
    drop(second);
    let mut third = open(false);
    assert_eq!(plan(&mut third), [(0..3, true), (3..4, false), (4..5, true), (5..9, false)]);
    // Killed at once, it keeps the areas that the second run rescued, also if a power cut
    // truncated its map.
    drop(third);
    let newer = new_map_path(&target);
    let head = std::fs::read(&newer).unwrap();
    std::fs::write(&newer, &head[..head.len() / 2]).unwrap();
    let mut third = open(false);
    assert_eq!(plan(&mut third), [(0..3, true), (3..4, false), (4..5, true), (5..9, false)]);
    third.record_kept(3).unwrap();
    third.record_lost().unwrap();
    third.record_kept(1).unwrap();
    third.write_rescued(&[[0_u8; BLOCK], [3; BLOCK]].concat()).unwrap();
    third.record_unwritten(2).unwrap();
    third.finish().unwrap();
    // Data of the first run in blocks that are now lost, zero or unwritten was zeroed.
    let blocks: Vec<u8> =
        std::fs::read(&target).unwrap().chunks(BLOCK).map(|block| block[BLOCK - 1]).collect();
    assert_eq!(blocks, [1, 1, 2, 0, 0, 0, 3, 0, 0]);
    assert!(!new_map_path(&target).exists());
    let mut fourth = open(false);
    assert_eq!(plan(&mut fourth), [(0..3, true), (3..4, false), (4..9, true)]);
    drop(fourth);
    // The map of an earlier run does not apply to a new image.
    assert!(new_map_path(&target).exists());
    assert_eq!(plan(&mut open(true)), [(0..9, false)]);
    assert!(!new_map_path(&target).exists());
    assert!(std::fs::read(&target).unwrap() == [0; 9 * BLOCK]);
}

#[test]
fn a_run_refuses_the_map_of_another_disk_or_image() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("image");
    let open =
        |subject: &RescuedDisk| RescueImage::open(&target, false, FileIdentity::Unknown, subject).map(|_| ());
    let kind = |subject: &RescuedDisk| open(subject).map_err(|e| e.kind());
    open(&of(9)).unwrap();
    open(&of(9)).unwrap();
    let map = std::fs::read(map_path(&target)).unwrap();
    let other = "637e2584c6024aea20281b8750069b68".parse().unwrap();
    let words = open(&RescuedDisk { id: other, ..of(9) }).unwrap_err().to_string();
    assert!(words.contains("9564c49a") && words.contains("637e2584"), "{words}");
    assert_eq!(kind(&RescuedDisk { level: 1, ..of(9) }), Err(Kind::Usage));
    assert_eq!(kind(&of(10)), Err(Kind::Usage));
    // Another file at the path of the image, of the same length.
    std::fs::rename(&target, dir.path().join("away")).unwrap();
    assert_eq!(kind(&of(9)), Err(Kind::Usage));
    File::create(&target).unwrap().set_len(9 * BLOCK as u64).unwrap();
    assert_eq!(kind(&of(9)), Err(Kind::Usage));
    std::fs::rename(dir.path().join("away"), &target).unwrap();
    assert_eq!(kind(&of(9)), Ok(()));
    std::fs::write(map_path(&target), "mine").unwrap();
    assert_eq!(kind(&of(9)), Err(Kind::Usage));
    assert_eq!(std::fs::read(map_path(&target)).unwrap(), b"mine");
    std::fs::write(map_path(&target), map).unwrap();
    assert_eq!(kind(&of(9)), Ok(()));
}

#[test]
fn an_image_holds_what_was_rescued_and_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("image");
    let content: Vec<u8> = [vec![1; BLOCK], vec![0; 2 * BLOCK], vec![2; BLOCK]].concat();
    let mut image = RescueImage::open(&target, false, FileIdentity::Unknown, &of(9)).unwrap();
    assert_eq!(image.next_blocks().unwrap(), Some((0..9, false)));
    assert_eq!(image.next_blocks().unwrap(), None);
    image.write_rescued(&content).unwrap();
    image.record_lost().unwrap();
    image.record_unwritten(3).unwrap();
    image.write_rescued(&[3; BLOCK]).unwrap();
    image.finish().unwrap();
    let expected = [content, vec![0; 4 * BLOCK], vec![3; BLOCK]].concat();
    assert!(std::fs::read(&target).unwrap() == expected);
    let about = std::fs::metadata(&target).unwrap();
    assert!(about.blocks() * 512 <= 4 * BLOCK as u64, "{} bytes are taken", about.blocks() * 512);
    assert_eq!(about.mode() & 0o777, 0o600);
    let map = std::fs::read_to_string(map_path(&target)).unwrap();
    assert!(map.contains("0x0000004000  0x0000001000  -\n0x0000005000  0x0000004000  +\n"), "{map}");
}

#[test]
fn only_regular_files_of_the_rescue_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let create =
        |name: &str, force| RescueImage::open(&at(name), force, FileIdentity::Unknown, &of(1)).map(|_| ());
    let kind = |name: &str, force| create(name, force).map_err(|e| e.kind());
    std::fs::write(at("there"), "mine").unwrap();
    std::os::unix::fs::symlink(at("there"), at("link")).unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    assert_eq!(kind("there", false), Err(Kind::Usage));
    for name in ["link", "dir"] {
        assert_eq!(kind(name, true), Err(Kind::Usage), "{name}");
    }
    // The map may not be a link either.
    std::os::unix::fs::symlink(at("there"), at("image.map")).unwrap();
    assert_eq!(kind("image", true), Err(Kind::Usage));
    assert!(!at("image").exists());
    std::fs::hard_link(at("there"), at("second")).unwrap();
    assert_eq!(kind("second", true), Err(Kind::Usage));
    assert_eq!(std::fs::read(at("there")).unwrap(), b"mine");
    std::fs::remove_file(at("second")).unwrap();
    // The disk itself, and a file that another program has locked.
    let disk = FileIdentity::of(&std::fs::metadata(at("there")).unwrap());
    assert_eq!(RescueImage::open(&at("there"), true, disk, &of(1)).err().unwrap().kind(), Kind::Usage);
    let held = File::open(at("there")).unwrap();
    held.lock_shared().unwrap();
    assert_eq!(kind("there", true), Err(Kind::Busy));
    drop(held);
    assert_eq!(std::fs::read(at("there")).unwrap(), b"mine");
    create("there", true).unwrap();
    assert_eq!(std::fs::read(at("there")).unwrap(), [0; 4096]);
    // The disk is not taken for the map of an earlier run.
    std::fs::write(at("there.map.new"), "disk").unwrap();
    let disk = FileIdentity::of(&std::fs::metadata(at("there.map.new")).unwrap());
    assert_eq!(RescueImage::open(&at("there"), true, disk, &of(1)).err().unwrap().kind(), Kind::Usage);
    assert_eq!(std::fs::read(at("there.map.new")).unwrap(), b"disk");
}
