//! The file keeps the last advance, whatever a power cut leaves in the slot being written.

use super::*;

const UUID: [u8; 16] = [5; 16];

fn state(number: u64) -> AnchorState {
    AnchorState {
        uuid: UUID,
        machine: [1; 16],
        number,
        digest: [number as u8; 32],
        time: 1_700_000_000 + number,
    }
}

#[test]
fn the_anchor_file_keeps_the_last_state_and_never_goes_back() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("deep/er/anchor");
    let anchor = FileAnchor::open(&path, UUID, false).unwrap();
    assert_eq!(anchor.load().unwrap(), None);
    anchor.advance(None, &state(1)).unwrap();
    assert_eq!(anchor.advance(None, &state(2)).unwrap_err().kind(), Kind::Changed);
    assert_eq!(anchor.advance(Some(&state(1)), &state(1)).unwrap_err().kind(), Kind::Usage);
    for number in 2..6 {
        anchor.advance(Some(&state(number - 1)), &state(number)).unwrap();
    }
    assert_eq!(FileAnchor::open(&path, UUID, false).err().map(|e| e.kind()), Some(Kind::Busy));
    let looking = FileAnchor::open(&path, UUID, true).unwrap();
    assert_eq!(looking.load().unwrap(), Some(state(5)));
    assert_eq!(looking.advance(Some(&state(5)), &state(6)).unwrap_err().kind(), Kind::ReadOnly);
    drop(anchor);
    let about = std::fs::metadata(&path).unwrap();
    assert_eq!((about.mode() & 0o777, about.len()), (0o600, 1024));
    assert_eq!(FileAnchor::open(&path, [6; 16], false).err().map(|e| e.kind()), Some(Kind::Usage));
    assert_eq!(FileAnchor::open(&path, UUID, false).unwrap().load().unwrap(), Some(state(5)));
}

#[test]
fn every_directory_made_for_the_anchor_is_synced() {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("deep")).unwrap();
    let synced = parent_folders(&home.path().join("deep/er/still"));
    let expected = [("deep/er", false), ("deep", false), ("", true)];
    let expected = expected.map(|(name, was_there)| (home.path().join(name), was_there));
    assert_eq!(synced[..3], expected);
    assert!(synced[3..].iter().all(|(_, was_there)| *was_there));
    assert_eq!(synced.last().unwrap().0, Path::new("/"));
    assert_eq!(parent_folders(Path::new("a")), [(PathBuf::from("."), false)]);
}

#[test]
fn a_torn_slot_leaves_the_other() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("anchor");
    let anchor = FileAnchor::open(&path, UUID, false).unwrap();
    anchor.advance(None, &state(1)).unwrap();
    anchor.advance(Some(&state(1)), &state(2)).unwrap();
    drop(anchor);
    let good = std::fs::read(&path).unwrap();
    for at in 0..SLOT {
        let mut torn = good.clone();
        // Slot 0 holds state 2.
        torn[at..SLOT].iter_mut().for_each(|byte| *byte ^= 0x55);
        std::fs::write(&path, &torn).unwrap();
        let found = FileAnchor::open(&path, UUID, true).unwrap().load().unwrap();
        assert_eq!(found, Some(state(if at < CHECKSUMMED_LEN + 32 { 1 } else { 2 })), "{at}");
    }
    for bad in [&b""[..], b"short", &[7; 1024], &[0; 1023], &[0; 1025]] {
        std::fs::write(&path, bad).unwrap();
        assert_eq!(FileAnchor::open(&path, UUID, true).err().map(|e| e.kind()), Some(Kind::Corrupt));
    }
    std::fs::write(&path, [0; 1024]).unwrap();
    assert_eq!(FileAnchor::open(&path, UUID, true).unwrap().load().unwrap(), None);
}

/// A link to a file of zeros, which looks like an anchor before its first advance, a pipe and a
/// directory: each is refused at once, for reading and for writing.
#[test]
fn only_a_regular_file_is_an_anchor() {
    let home = tempfile::tempdir().unwrap();
    let [path, precious] = ["anchor", "precious"].map(|name| home.path().join(name));
    std::fs::write(&precious, [0; 1024]).unwrap();
    let refused = |found: &str| {
        for read_only in [false, true] {
            let e = FileAnchor::open(&path, UUID, read_only).err().expect(found);
            assert!(e.kind() == Kind::Usage && e.summary().contains(found), "{found}: {e}");
        }
    };
    for target in [&precious, &home.path().join("nothing")] {
        std::os::unix::fs::symlink(target, &path).unwrap();
        refused("a symbolic link");
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(std::fs::read(&precious).unwrap(), [0; 1024]);
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    refused("a pipe");
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    refused("a directory");
    // A directory on the way may be a link.
    let [real, link] = ["real", "link"].map(|name| home.path().join(name));
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    FileAnchor::open(&link.join("anchor"), UUID, false).unwrap().advance(None, &state(1)).unwrap();
    assert_eq!(FileAnchor::open(&real.join("anchor"), UUID, true).unwrap().load().unwrap(), Some(state(1)));
}

#[test]
fn a_symlink_at_the_temporary_name_is_not_followed() {
    let home = tempfile::tempdir().unwrap();
    let (path, precious) = (home.path().join("anchor"), home.path().join("precious"));
    std::fs::write(&precious, b"precious").unwrap();
    std::os::unix::fs::symlink(&precious, home.path().join("anchor.new")).unwrap();
    FileAnchor::open(&path, UUID, false).unwrap().advance(None, &state(1)).unwrap();
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    // A file that a crash left.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(home.path().join("anchor.new"), b"half").unwrap();
    FileAnchor::open(&path, UUID, false).unwrap().advance(None, &state(2)).unwrap();
    assert_eq!(FileAnchor::open(&path, UUID, true).unwrap().load().unwrap(), Some(state(2)));
}

#[test]
fn a_state_directory_of_another_user_is_recognised() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    assert!(!is_of_another_user(&state.join("lacuna")).unwrap());
    std::fs::create_dir(&state).unwrap();
    assert!(!is_of_another_user(&state.join("lacuna")).unwrap());
    // Only root can give a directory away.
    if std::os::unix::fs::chown(&state, Some(54_321), None).is_ok() {
        assert!(is_of_another_user(&state).unwrap() && is_of_another_user(&state.join("lacuna/x")).unwrap());
    }
}
