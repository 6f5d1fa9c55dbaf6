//! Tests that the simulated folder keeps synced data, loses other data, and repeats a run with the
//! same seed.

use lacuna_contracts::Kind;
use lacuna_medium::{Folder, FolderFile};
use lacuna_sim::{CrashFolder, FolderImage, FolderOp, MediumImage, Rng};
use std::collections::BTreeSet;
use std::sync::Arc;

fn content(image: &FolderImage, name: &str) -> Option<Vec<u8>> {
    image.files.get(name).map(MediumImage::to_vec)
}

fn write(folder: &CrashFolder, name: &str, data: &[u8]) -> Arc<dyn FolderFile> {
    let file = folder.create(name).unwrap();
    file.write_at(0, data).unwrap();
    file
}

#[test]
fn synced_files_and_names_survive_a_cut() {
    let folder = CrashFolder::new();
    write(&folder, "ab/one", b"first").sync().unwrap();
    folder.sync_names("ab").unwrap();
    let file = write(&folder, "two", b"second");
    folder.sync_names("").unwrap();
    folder.cut_now();
    assert_eq!(file.sync().unwrap_err().kind(), Kind::Io);
    let mut seconds = BTreeSet::new();
    for seed in 0..200 {
        let left = folder.after_cut(&mut Rng::new(seed));
        assert_eq!(content(&left, "ab/one").unwrap(), b"first");
        seconds.insert(content(&left, "two").unwrap());
    }
    // Nothing, the length alone, or everything.
    assert_eq!(seconds, [b"".to_vec(), vec![0; 6], b"second".to_vec()].into());
}

#[test]
fn each_change_of_a_name_may_be_lost_alone() {
    let folder = CrashFolder::new();
    write(&folder, "a", b"a").sync().unwrap();
    write(&folder, "b", b"b").sync().unwrap();
    folder.sync_all().unwrap();
    folder.remove("a").unwrap();
    folder.rename("b", "c").unwrap();
    write(&folder, "d", b"d").sync().unwrap();
    let mut seen = BTreeSet::new();
    for seed in 0..500 {
        let left = folder.after_cut(&mut Rng::new(seed));
        seen.insert(left.names().map(str::to_owned).collect::<Vec<_>>().concat());
    }
    let all = ["ab", "abd", "ac", "acd", "b", "bd", "c", "cd"];
    assert_eq!(seen, all.map(str::to_owned).into());
}

#[test]
fn a_removed_name_may_come_back_with_its_file() {
    let folder = CrashFolder::new();
    write(&folder, "a", b"old").sync().unwrap();
    folder.sync_all().unwrap();
    write(&folder, "a", b"newer").sync().unwrap();
    let left: BTreeSet<_> =
        (0..100).map(|seed| content(&folder.after_cut(&mut Rng::new(seed)), "a").unwrap()).collect();
    assert_eq!(left, [b"old".to_vec(), b"newer".to_vec()].into());
}

#[test]
fn scheduled_failures_occur() {
    let folder = CrashFolder::new();
    let file = write(&folder, "a", &[1; 5000]);
    folder.fail(FolderOp::Write, 1, Kind::Io, false);
    file.write_at(0, b"x").unwrap();
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), Kind::Io);
    file.write_at(0, b"x").unwrap();
    folder.fail(FolderOp::Read, 0, Kind::Io, true);
    assert!(file.read_at(0, &mut [0]).is_err() && file.read_at(0, &mut [0]).is_err());
    folder.heal();
    file.read_at(0, &mut [0]).unwrap();
    folder.set_capacity(folder.used());
    assert_eq!(file.write_at(8192, b"x").unwrap_err().kind(), Kind::NoSpace);
    file.write_at(100, b"x").unwrap();
    folder.set_read_only(true);
    assert_eq!(folder.create("b").err().map(|e| e.kind()), Some(Kind::ReadOnly));
}

#[test]
fn a_bad_page_fails_every_read_of_it_until_it_is_written() {
    let folder = CrashFolder::new();
    let file = write(&folder, "a", &[1; 3 * 4096]);
    write(&folder, "b", &[1; 3 * 4096]);
    folder.spoil_page("a", 1);
    let reads = |name: &str, offset| folder.open(name).unwrap().read_at(offset, &mut [0; 4096]);
    for offset in [1, 4096, 8191] {
        assert_eq!(reads("a", offset).unwrap_err().kind(), Kind::Io, "{offset}");
    }
    for (name, offset) in [("a", 0), ("a", 8192), ("b", 4096)] {
        reads(name, offset).unwrap();
    }
    file.write_at(4096, &[2; 100]).unwrap();
    assert!(reads("a", 4096).is_err(), "a part of the page was written");
    file.write_at(4096, &[2; 4096]).unwrap();
    reads("a", 0).and(reads("a", 4096)).unwrap();
    folder.spoil_page("a", 0);
    folder.heal();
    reads("a", 0).unwrap();
}

#[test]
fn a_full_folder_writes_the_pages_that_fit() {
    const PAGE: u64 = 4096;
    let folder = CrashFolder::new();
    let file = folder.create("a").unwrap();
    file.write_at(PAGE, &[1; PAGE as usize]).unwrap();
    file.write_at(9 * PAGE, &[1; PAGE as usize]).unwrap();
    assert_eq!((file.len().unwrap(), folder.used()), (10 * PAGE, 2 * PAGE));
    folder.set_capacity(folder.used() + 2 * PAGE);
    let pages = || {
        let mut bytes = vec![0; 11 * PAGE as usize];
        file.read_at(0, &mut bytes).unwrap();
        bytes.chunks_exact(PAGE as usize).map(|page| page[0]).collect::<Vec<_>>()
    };
    // The pages in the hole are allocated until there is no room; then the write stops.
    assert_eq!(file.write_at(0, &[2; 6 * PAGE as usize]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(pages(), [2, 2, 2, 0, 0, 0, 0, 0, 0, 1, 0]);
    file.write_at(0, &[3; 3 * PAGE as usize]).unwrap();
    assert_eq!(file.write_at(9 * PAGE, &[3; 2 * PAGE as usize]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(pages(), [3, 3, 3, 0, 0, 0, 0, 0, 0, 3, 0]);
    assert_eq!(file.len().unwrap(), 10 * PAGE);
    folder.set_capacity(u64::MAX);
    folder.fail(FolderOp::Write, 0, Kind::NoSpace, false);
    assert_eq!(file.write_at(0, &[4; 3 * PAGE as usize]).unwrap_err().kind(), Kind::NoSpace);
    assert_eq!(pages(), [4, 3, 3, 0, 0, 0, 0, 0, 0, 3, 0]);
    // With no room at all, zeros cannot be written; a punch makes zeros and frees room.
    folder.set_quota(folder.used());
    assert_eq!(file.write_at(0, &[0; PAGE as usize]).unwrap_err().kind(), Kind::NoSpace);
    file.punch(PAGE, 2 * PAGE).unwrap();
    file.punch(9 * PAGE, 9 * PAGE).unwrap();
    file.punch(20 * PAGE, PAGE).unwrap();
    assert_eq!(pages(), [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((file.len().unwrap(), folder.used()), (10 * PAGE, PAGE));
    file.write_at(0, &[5; 3 * PAGE as usize]).unwrap();
    folder.fail(FolderOp::Punch, 0, Kind::Other, false);
    assert_eq!(file.punch(0, PAGE).unwrap_err().kind(), Kind::Other);
    assert_eq!(pages(), [5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn an_adversary_restores_a_snapshot() {
    let folder = CrashFolder::new();
    let file = write(&folder, "a", b"one");
    write(&folder, "x/b", b"b");
    let kept = folder.snapshot();
    file.write_at(0, b"two").unwrap();
    write(&folder, "x/c", b"c");
    folder.remove("x/b").unwrap();
    folder.restore(&kept);
    let mut read = [0; 3];
    file.read_at(0, &mut read).unwrap();
    assert_eq!(&read, b"one");
    assert_eq!(
        (folder.list("").unwrap(), folder.list("x").unwrap()),
        (vec!["a".into(), "x".into()], vec!["b".into()])
    );
    let mut altered = kept.clone();
    assert!(altered.alter("a", |bytes| bytes[1] ^= 1) && !altered.alter("none", |_| ()));
    assert_ne!(altered.digest(), kept.digest());
    folder.replace_file("a", None);
    assert_eq!(folder.open("a").err().map(|e| e.kind()), Some(Kind::NotFound));
}

/// Runs a random workload up to a cut. Returns digests of the folder and of the image after the
/// cut.
fn run_workload(seed: u64) -> (u64, u64) {
    let (folder, mut rng) = (CrashFolder::new(), Rng::new(seed));
    folder.cut_after(rng.below(300));
    while !folder.is_cut() {
        let name = format!("{}/{}", rng.below(3), rng.below(5));
        let _cut = match rng.below(6) {
            0 => folder.create(&name).map(drop),
            1 => folder.remove(&name),
            2 => folder.sync_names(&name[..1]),
            3 => folder.rename(&name, "1/1"),
            _ => folder.open(&name).and_then(|file| {
                file.write_at(rng.below(9000), &rng.bytes(700))?;
                if rng.chance(1, 3) { file.sync() } else { Ok(()) }
            }),
        };
    }
    (folder.digest(), folder.after_cut(&mut rng).digest())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..50 {
        assert_eq!(run_workload(seed), run_workload(seed));
    }
    assert_ne!(run_workload(1), run_workload(2));
}
