//! The superblock after power failures, refusals and the loss of its files.

use super::*;
use lacuna_contracts::Secret;
use lacuna_crypto::SeededRandom;
use lacuna_sim::CrashFolder;

const ROOT: Option<&[u8]> = Some(b"root");

/// The parts that files in a folder need: the keys are always the same, and so are the first
/// random bytes.
fn parts(folder: &CrashFolder) -> (Arc<dyn Folder>, Arc<StoreKeys>, Arc<dyn RandomSource>) {
    let keys = StoreKeys::derive(&Secret::copy_from(&[1; 32]), &[2; 16]);
    (Arc::new(folder.clone()), Arc::new(keys), Arc::new(SeededRandom::new(1)))
}

fn created(folder: &CrashFolder) -> SuperblockFiles {
    let (folder, keys, random) = parts(folder);
    SuperblockFiles::create(folder, keys, random).unwrap()
}

fn state() -> (Commit, CommitState) {
    let commit = Commit { machine: [3; 16], number: 4, digest: [5; 32], previous_digest: [6; 32] };
    let facts = CommitState { machine: [3; 16], next_object: 9, object_limit: 9, ..CommitState::default() };
    (commit, facts)
}

fn opened(folder: &CrashFolder) -> Result<(SuperblockFiles, NewestSuperblock)> {
    let (folder, keys, random) = parts(folder);
    SuperblockFiles::open(folder, keys, random, true, ThirdFile::Maintained)
}

#[test]
fn an_unreadable_superblock_is_not_written_and_hides_no_other() {
    let folder = CrashFolder::new();
    let (commit, facts) = state();
    let beyond = CommitState { appendable: vec![(4, u64::MAX)], ..facts.clone() };
    let mut files = created(&folder);
    files.write(&commit, &facts, ROOT, 1).unwrap();
    let refused = files.write(&commit, &beyond, None, 0).unwrap_err();
    assert_eq!(refused.kind(), Kind::Corrupt);
    let (mut files, newest) = opened(&folder).unwrap();
    assert!(newest.fault.is_none() && files.is_in_both());
    // Another program wrote it all the same, to one file.
    let kept = folder.snapshot().files[NAMES[1]].clone();
    files.write_text(&super_to_bytes(&commit, &beyond, None, 0)).unwrap();
    folder.replace_file(NAMES[1], Some(&kept));
    let (mut files, newest) = opened(&folder).unwrap();
    assert_eq!((newest.found.root.as_deref(), newest.fault.is_some()), (ROOT, true));
    files.write_text(b"nonsense").unwrap();
    assert_eq!(opened(&folder).err().map(|e| e.kind()), Some(Kind::Corrupt));
}

/// The write of either file is refused: the durable state stays the newest, and the write may
/// be tried again.
#[test]
fn a_refused_write_leaves_the_durable_superblock_and_can_be_retried() {
    for after in [0, 1] {
        let folder = CrashFolder::new();
        let (commit, facts) = state();
        let mut files = created(&folder);
        files.write(&commit, &facts, ROOT, 1).unwrap();
        let next = Commit { number: 5, ..commit.clone() };
        folder.fail(lacuna_sim::FolderOp::Write, after, Kind::NoSpace, false);
        let refused = files.write(&next, &facts, ROOT, 0).unwrap_err();
        assert!(refused.kind().is_refusal() && !files.is_in_both(), "{refused}");
        let newest = || opened(&folder).unwrap().1;
        assert_eq!(newest().found.commit.number, 4 + after);
        files.write_rest().unwrap();
        assert_eq!((newest().found.commit.number, newest().fault), (4 + after, None));
        files.write(&next, &facts, ROOT, 0).unwrap();
        assert_eq!((newest().found.commit.number, newest().fault), (5, None));
    }
}

#[test]
fn an_opening_between_the_two_writes_returns_the_older_superblock_too() {
    let folder = CrashFolder::new();
    let (commit, facts) = state();
    let next = Commit { number: 5, ..commit.clone() };
    let mut files = created(&folder);
    files.write(&commit, &facts, ROOT, 1).unwrap();
    files.write_first(&next, &facts, ROOT, 0).unwrap();
    drop(files);
    let (mut files, newest) = opened(&folder).unwrap();
    let older = newest.older.map(|older| older.commit.number);
    assert_eq!((newest.found.commit.number, older, files.is_in_both()), (5, Some(4), false));
    // It is not rewritten in place, because the other file still has the previous state.
    folder.fail(lacuna_sim::FolderOp::Write, 0, Kind::Io, false);
    files.write_first(&next, &facts, ROOT, 0).unwrap();
    folder.heal();
    files.write_rest().unwrap();
    let (files, newest) = opened(&folder).unwrap();
    assert!(files.is_in_both() && newest.older.is_none() && newest.fault.is_none());
}

/// If a power cut tears the file being written, the other one verifies; afterwards either file
/// alone is enough.
#[test]
fn one_file_is_enough_and_the_only_good_file_is_never_written() {
    for lost in NAMES {
        for torn in [None, Some(0), Some(1)] {
            let folder = CrashFolder::new();
            let (commit, facts) = state();
            let mut files = created(&folder);
            files.write(&commit, &facts, ROOT, 1).unwrap();
            drop(files);
            folder.replace_file(lost, torn.map(|_| lacuna_sim::MediumImage::new(SLOT as u64)).as_ref());
            let (mut files, newest) = opened(&folder).unwrap();
            assert!(newest.fault.unwrap().starts_with(lost) && !files.is_in_both());
            assert_eq!(newest.found.root.as_deref(), ROOT);
            files.recreate_lost().unwrap();
            // The lost file is written first: the write fails, and the other file is unchanged.
            folder.fail(lacuna_sim::FolderOp::Sync, 0, Kind::Io, false);
            let next = Commit { number: 5, ..commit.clone() };
            files.write(&next, &facts, ROOT, 0).unwrap_err();
            let kept = folder.snapshot().files[NAMES[usize::from(lost == NAMES[0])]].clone();
            let alone = CrashFolder::new();
            alone.replace_file(NAMES[usize::from(lost == NAMES[0])], Some(&kept));
            let (_, newest) = opened(&alone).unwrap();
            assert_eq!(newest.found.commit.number, 4);
            folder.heal();
            files.write(&next, &facts, ROOT, 0).unwrap();
            let (files, newest) = opened(&folder).unwrap();
            assert!(newest.fault.is_none() && files.is_in_both() && newest.found.commit.number == 5);
        }
    }
}

/// A normal opening fails without the first two files; reading a damaged store starts at the
/// third, if it verifies.
#[test]
fn the_third_file_is_used_only_to_read_damaged_stores() {
    let folder = CrashFolder::new();
    let (commit, facts) = state();
    let mut files = created(&folder);
    files.write(&commit, &facts, ROOT, 1).unwrap();
    // It was lost before and recreated.
    folder.replace_file(THIRD, None);
    let (mut files, _) = opened(&folder).unwrap();
    files.recreate_lost().unwrap();
    files.write_rest().unwrap();
    let nothing = lacuna_sim::MediumImage::new(SLOT as u64);
    NAMES.iter().for_each(|name| folder.replace_file(name, Some(&nothing)));
    let look = |third| {
        let (folder, keys, random) = parts(&folder);
        SuperblockFiles::open(folder, keys, random, false, third).map(|(_, newest)| newest)
    };
    for third in [ThirdFile::Unread, ThirdFile::Maintained] {
        assert_eq!(look(third).err().map(|e| e.kind()), Some(Kind::Corrupt));
    }
    let newest = look(ThirdFile::Fallback).unwrap();
    assert_eq!((newest.found.commit, newest.is_by_third), (commit, true));
    folder.replace_file(THIRD, Some(&nothing));
    assert_eq!(look(ThirdFile::Fallback).err().map(|e| e.kind()), Some(Kind::Corrupt));
}

/// If one of the first two files is lost, the third counts beside the other one: its superblock may
/// be newer or older.
#[test]
fn the_third_file_is_used_beside_a_lost_one() {
    for (lost, is_third_new, expected) in [
        (NAMES[0], false, (5, Some(4))),
        (NAMES[1], true, (5, Some(4))),
        (NAMES[0], true, (5, None)),
        (NAMES[1], false, (4, None)),
    ] {
        let folder = CrashFolder::new();
        let (commit, facts) = state();
        let next = Commit { number: 5, ..commit.clone() };
        let mut files = created(&folder);
        files.write(&commit, &facts, ROOT, 1).unwrap();
        // The second file gets the next one.
        files.write_first(&next, &facts, ROOT, 0).unwrap();
        if is_third_new {
            files.complete_third().unwrap();
        }
        drop(files);
        folder.replace_file(lost, Some(&lacuna_sim::MediumImage::new(SLOT as u64)));
        let (folder, keys, random) = parts(&folder);
        let (_, newest) = SuperblockFiles::open(folder, keys, random, false, ThirdFile::Fallback).unwrap();
        let older = newest.older.map(|older| older.commit.number);
        let context = format!("without {lost}, the next one in the third file: {is_third_new}");
        assert_eq!((newest.found.commit.number, older), expected, "{context}");
        assert!(!newest.is_by_third && newest.fault.is_some(), "{context}");
    }
}
