//! A backing directory that fills up: no acknowledged change is lost, files can be removed, and the
//! vault continues when there is space.

mod vault_harness;

use lacuna_integrity::Choice;
use lacuna_medium::Folder;
use lacuna_sim::Rng;
use lacuna_vault::store::JournalSize;
use lacuna_vault::{FileKind, FsError, NewNode, ROOT, Vault};
use vault_harness::VaultHarness;
use vault_harness::dump::{assert_same, of_model, of_vault};
use vault_harness::model::FsModel;
use vault_harness::ops::work;

fn is_full(e: &FsError) -> bool {
    e.errno() == libc::ENOSPC
}

#[test]
fn a_full_directory_loses_nothing_and_works_again_with_space() {
    let mut failures = 0;
    for seed in 0..12 {
        let mut world = VaultHarness::new(seed);
        let mut rng = Rng::new(seed);
        let vault = world.create(Choice::Auto);
        let mut model = FsModel::default();
        assert_eq!(work(&vault, &mut model, &mut rng, 100), 0);
        for round in 0..4 {
            let context = format!("seed {seed}, round {round}");
            vault.sync().unwrap();
            world.folder.set_capacity(world.folder.used() + rng.below(40) * 4096);
            // A failed operation changes nothing, and a short write is there up to its length.
            failures += work(&vault, &mut model, &mut rng, 60);
            assert_same(&of_vault(&vault), &of_model(&model), &context);
            world.folder.set_capacity(u64::MAX);
            vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(work(&vault, &mut model, &mut rng, 60), 0, "{context}");
            let report = vault.check(&mut |_, _| ()).unwrap();
            assert!(report.bad.is_empty(), "{context}: {:?}", report.bad);
        }
        let vault = world.reopen(vault);
        assert_same(&of_vault(&vault), &of_model(&model.reopened()), &format!("seed {seed}"));
        assert!(world.log.lock().is_empty(), "{:?}", world.log.lock());
    }
    assert!(failures > 50, "only {failures} operations failed");
}

#[test]
fn files_are_removed_from_a_full_directory() {
    let mut world = VaultHarness::new(1);
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"large", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![7; 1 << 20]).unwrap();
    vault.sync().unwrap();
    let other = vault.create_node(ROOT, b"other", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.sync().unwrap();
    world.folder.set_capacity(world.folder.used());
    assert!(is_full(&vault.create_node(ROOT, b"third", NewNode::File, 0o644, 0, 0).unwrap_err()));
    let mut failed = 0;
    for n in 0..10 {
        failed += u64::from(vault.write(other, n << 16, &vec![1; 1 << 16]).is_err_and(|e| is_full(&e)));
    }
    assert_eq!(failed, 10);
    vault.unlink(ROOT, b"large").unwrap();
    vault.sync().unwrap();
    vault.write(other, 0, &vec![2; 1 << 16]).unwrap();
    vault.sync().unwrap();
    let vault = world.reopen(vault);
    assert_eq!(vault.lookup(ROOT, b"large").unwrap_err().errno(), libc::ENOENT);
    assert_eq!(vault_harness::dump::content(&vault, other, 1 << 16), vec![2; 1 << 16]);
}

/// Makes small files until there is no space, and returns their number. Calls `others` before each.
fn fill(world: &VaultHarness, vault: &Vault, round: u64, others: &mut dyn FnMut(&VaultHarness, u64)) -> u64 {
    for n in 0.. {
        others(world, n);
        let name = format!("file {round} {n}");
        let written = vault
            .create_node(ROOT, name.as_bytes(), NewNode::File, 0o644, 0, 0)
            .and_then(|attr| vault.write(attr.ino, 0, &[n as u8; 20]));
        if let Err(e) = written {
            assert!(is_full(&e), "{e}");
            return n + 1;
        }
    }
    unreachable!()
}

/// Small, never synced files fill all space; all of them can be committed and then removed,
/// repeatedly.
#[test]
fn small_files_that_fill_a_directory_are_committed_and_removed() {
    let small = VaultHarness::new(0).journal;
    for (journal, commits, space) in [
        (JournalSize::default(), false, 8 << 20),
        (JournalSize::default(), true, 12 << 20),
        (small, false, 12 << 20),
        (small, true, 8 << 20),
    ] {
        let mut world = VaultHarness::new(space);
        world.journal = journal;
        let mut vault = world.create(Choice::Auto);
        world.folder.set_capacity(world.folder.used() + space);
        let mut made = vec![];
        for round in 0..4 {
            let context = format!("journal {journal:?}, {space} bytes, commits: {commits}, round {round}");
            made.push(fill(&world, &vault, round, &mut |_, _| ()));
            assert!(made[round as usize] > 50, "{context}: {made:?}");
            if commits {
                vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
            }
            if round == 2 {
                vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
                drop(vault);
                vault = world.open().unwrap();
            }
            for n in 0..made[round as usize] {
                match vault.unlink(ROOT, format!("file {round} {n}").as_bytes()) {
                    // A file that found no space may have no name.
                    Err(e) if n + 1 == made[round as usize] => assert_eq!(e.errno(), libc::ENOENT),
                    done => done.unwrap_or_else(|e| panic!("{context}, file {n}: {e}")),
                }
            }
            vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        println!("journal {journal:?}, {space} bytes, commits: {commits}: {made:?} files");
        // Removed files freed their space.
        assert!(made[3] > made[0] / 2, "journal {journal:?}, {space} bytes: {made:?}");
        let vault = world.reopen(vault);
        assert_eq!(vault.lookup(ROOT, b"file 3 0").unwrap_err().errno(), libc::ENOENT);
        assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty());
    }
}

/// After a checkpoint was refused for lack of space, and there is space again, checkpoints
/// continue: the journal does not fill up.
#[test]
fn a_refused_checkpoint_is_tried_again_once_there_is_space() {
    let mut world = VaultHarness::new(9);
    world.journal = JournalSize { checkpoint_at: 1 << 20, max: 8 << 20 };
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"file", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![1; 4 << 20]).unwrap();
    vault.sync().unwrap();
    vault.write(file, 0, &[2; 4096]).unwrap();
    world.folder.set_capacity(world.folder.used());
    vault.sync().unwrap();
    assert!(is_full(&vault.create_node(ROOT, b"new", NewNode::File, 0o644, 0, 0).unwrap_err()));
    world.folder.set_capacity(u64::MAX);
    for round in 3..10 {
        vault.write(file, 0, &vec![round; 4 << 20]).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
    vault.sync().unwrap();
    drop(vault);
    let vault = world.open().unwrap();
    assert!(vault_harness::dump::content(&vault, file, 4 << 20) == vec![9; 4 << 20]);
}

/// Overwrites one of the two superblocks.
fn lose_superblock(world: &VaultHarness, slot: u64) {
    let file = world.folder.open(&format!("super.{slot}")).unwrap();
    file.write_at(0, &vec![0x55; file.len().unwrap() as usize]).unwrap();
}

/// After a full directory made the vault shrink a journal file, either superblock is still enough.
#[test]
fn either_superblock_may_be_lost_after_the_journal_shrank() {
    let mut given_back = 0;
    for (slot, free) in (4..14).flat_map(|half| [(0, half << 19), (1, half << 19)]) {
        let mut world = VaultHarness::new(3);
        world.journal = JournalSize::default();
        let vault = world.create(Choice::Auto);
        for n in 0..600u64 {
            let name = format!("file {n}");
            let ino = vault.create_node(ROOT, name.as_bytes(), NewNode::File, 0o644, 0, 0).unwrap().ino;
            vault.write(ino, 0, &[n as u8; 5000]).unwrap();
        }
        vault.sync().unwrap();
        world.folder.set_capacity(world.folder.used() + free);
        let lens = || ["journal.0", "journal.1"].map(|name| world.folder.open(name).unwrap().len().unwrap());
        let before = lens();
        let _refused = vault.create_node(ROOT, b"one more", NewNode::File, 0o644, 0, 0);
        let gave_back = before.iter().zip(lens()).any(|(before, now)| now < *before);
        drop(vault);
        // Otherwise a checkpoint may be in progress, and then the newest superblock is needed.
        if !gave_back {
            continue;
        }
        given_back += 1;
        world.folder.set_capacity(u64::MAX);
        lose_superblock(&world, slot);
        let context = format!("slot {slot}, {free} bytes free");
        let vault = world.open().unwrap_or_else(|e| panic!("{context}: {e}"));
        for n in 0..600 {
            let attr = vault.lookup(ROOT, format!("file {n}").as_bytes());
            assert_eq!(attr.unwrap_or_else(|e| panic!("{context}, file {n}: {e}")).size, 5000);
        }
        assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty(), "{context}");
    }
    assert!(given_back > 2, "{given_back}");
}

/// The same after an orderly close, which shrinks the journal as well.
#[test]
fn either_superblock_may_be_lost_after_an_orderly_close() {
    for slot in 0..2 {
        let (mut world, vault) = with_a_large_file(slot);
        vault.close().unwrap();
        drop(vault);
        lose_superblock(&world, slot);
        let vault = world.open().unwrap_or_else(|e| panic!("slot {slot}: {e}"));
        assert_eq!(vault.lookup(ROOT, b"large").unwrap().size, 1 << 20);
        assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty(), "slot {slot}");
    }
}

/// Another program takes all free space while much is pending.
#[test]
fn admitted_changes_are_committed_in_a_directory_that_fills_up() {
    for at in [0, 10, 500, 3000] {
        let mut world = VaultHarness::new(at);
        world.journal = JournalSize::default();
        let vault = world.create(Choice::Auto);
        world.folder.set_capacity(world.folder.used() + (64 << 20));
        let made = fill(&world, &vault, 0, &mut |world, n| {
            if n == at {
                world.folder.set_capacity(world.folder.used());
            }
        });
        assert!(made > at);
        vault.sync().unwrap_or_else(|e| panic!("after {at} files: {e}"));
        drop(vault);
        let vault = world.open().unwrap();
        for n in 0..at {
            assert_eq!(
                vault.lookup(ROOT, format!("file 0 {n}").as_bytes()).unwrap().size,
                20,
                "file {n} of {at}"
            );
        }
    }
}

/// A vault with the default journal size, and a file `large` of 1 MiB.
fn with_a_large_file(seed: u64) -> (VaultHarness, Vault) {
    let mut world = VaultHarness::new(seed);
    world.journal = JournalSize::default();
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"large", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![7; 1 << 20]).unwrap();
    vault.sync().unwrap();
    (world, vault)
}

#[test]
fn files_can_be_removed_after_a_close_with_little_free_space() {
    for free in [0, 16 << 10, 100 << 10, 400 << 10, 900 << 10] {
        let (mut world, vault) = with_a_large_file(1);
        vault.close().unwrap();
        drop(vault);
        world.folder.set_capacity(world.folder.used() + free);
        let vault = world.open().unwrap();
        vault.unlink(ROOT, b"large").unwrap();
        vault.sync().unwrap_or_else(|e| panic!("{free} bytes free: {e}"));
        assert!(world.folder.used() < 1 << 20, "{free} bytes free");
        let vault = world.reopen(vault);
        assert_eq!(vault.lookup(ROOT, b"large").unwrap_err().errno(), libc::ENOENT);
    }
}

#[test]
fn a_checkpoint_without_space_prevents_no_commit() {
    // With less, the record itself finds no space.
    for step in 2..60 {
        let free = step * (64 << 10);
        let context = format!("{free} bytes free");
        let (mut world, vault) = with_a_large_file(step);
        // A checkpoint; after it the other journal file has little spare space.
        let vault = world.reopen(vault);
        for n in 0..400 {
            vault.create_node(ROOT, format!("file {n}").as_bytes(), NewNode::File, 0o644, 0, 0).unwrap();
        }
        world.folder.set_capacity(world.folder.used() + free);
        // Closing tries a checkpoint first.
        vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(vault);
        let vault = world.open().unwrap();
        vault.unlink(ROOT, b"large").unwrap();
        vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
        vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(vault);
        assert_eq!(world.open().unwrap().lookup(ROOT, b"file 399").unwrap().kind, FileKind::File);
    }
}

/// The same through a vault: some blocks of a file are in place, and the rest are holes.
#[test]
fn no_space_in_a_hole_of_a_file_alters_no_block() {
    let (world, vault) = with_a_large_file(1);
    let file = vault.create_node(ROOT, b"sparse", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.sync().unwrap();
    vault.write(file, 1000 << 12, &vec![9; 1 << 12]).unwrap();
    vault.write(file, 50 << 12, &vec![1; 3 << 12]).unwrap();
    // Other programs take the space after this vault has asked for it.
    world.folder.set_capacity(world.folder.used() + (4 << 12));
    assert!(is_full(&vault.write(file, 50 << 12, &vec![2; 16 << 12]).unwrap_err()));
    world.folder.set_capacity(u64::MAX);
    let expected = [vec![1; 3 << 12], vec![0; 13 << 12]].concat();
    let shown = || vault_harness::dump::content(&vault, file, 1001 << 12);
    assert!(shown()[50 << 12..66 << 12] == expected);
    vault.sync().unwrap();
    assert!(shown()[50 << 12..66 << 12] == expected && shown()[1000 << 12..] == vec![9; 1 << 12]);
    assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty());
}

/// Reads change times of access, and nothing else happens for long: the journal still holds the
/// checkpoint that writes them back.
#[test]
fn times_of_access_do_not_outgrow_the_journal() {
    let mut world = VaultHarness::new(11);
    world.journal = JournalSize { checkpoint_at: 1 << 20, max: 2 << 20 };
    let vault = world.create(Choice::Auto);
    let files: Vec<u64> = (0..6000)
        .map(|n| {
            vault.create_node(ROOT, format!("file {n}").as_bytes(), NewNode::File, 0o644, 0, 0).unwrap().ino
        })
        .collect();
    for round in 0..3 {
        for ino in &files {
            vault.write(*ino, 0, &[round; 10]).unwrap();
        }
        vault.sync().unwrap();
        world.clock.advance(48 * 3600);
        for (n, ino) in files.iter().enumerate() {
            let mut byte = [0];
            vault.read(*ino, 0, &mut byte).unwrap();
            if n % 500 == 0 {
                vault.sync().unwrap();
            }
        }
        vault.sync().unwrap();
    }
    vault.close().unwrap();
    drop(vault);
    assert_eq!(world.open().unwrap().attr(files[5999]).unwrap().size, 10);
}

/// With an unreported quota, writes that do not fit are refused, removing works, and synced data
/// stays; also if pieces come out of order, as from a kernel with writeback, and the quota is
/// reached in the hole that one of them fills.
#[test]
fn a_quota_refuses_writes_and_permits_removals() {
    for (seed, swaps) in (0..6).flat_map(|seed| [(seed, false), (seed, true)]) {
        let space = (3 + seed) << 20;
        let context = format!("{space} bytes, out of order: {swaps}");
        let mut world = VaultHarness::new(seed);
        world.journal = JournalSize::default();
        let vault = world.create(Choice::Auto);
        let make = |vault: &Vault, name: &[u8]| {
            vault.create_node(ROOT, name, NewNode::File, 0o644, 0, 0).map(|attr| attr.ino)
        };
        let keep = make(&vault, b"keep").unwrap();
        vault.write(keep, 0, &[7; 100_000]).unwrap();
        let big = make(&vault, b"big").unwrap();
        vault.sync().unwrap();
        world.folder.set_quota(world.folder.used() + space);
        let mut refused = 0;
        for piece in 0..40u64 {
            let data = Rng::new(piece).bytes(1 << 20);
            let at = (piece ^ u64::from(swaps)) << 20;
            let mut done = 0;
            while done < data.len() {
                match vault.write(big, at + done as u64, &data[done..]) {
                    Ok(written) => done += written,
                    Err(e) => {
                        assert!(matches!(e.errno(), libc::EDQUOT | libc::ENOSPC), "{context}: {e}");
                        refused += 1;
                        break;
                    }
                }
            }
            // Intermediate commits; a block that a commit refers to is no longer a hole.
            if piece % 2 == u64::from(swaps)
                && let Err(e) = vault.sync()
            {
                assert!(matches!(e.errno(), libc::EDQUOT | libc::ENOSPC), "{context}: {e}");
                refused += 1;
            }
        }
        assert!(refused > 0, "{context}");
        assert_eq!(vault_harness::dump::content(&vault, keep, 100_000), vec![7; 100_000], "{context}");
        vault.unlink(ROOT, b"big").unwrap_or_else(|e| panic!("{context}: {e}"));
        vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
        let other = make(&vault, b"other").unwrap_or_else(|e| panic!("{context}: {e}"));
        vault.write(other, 0, &[8; 50_000]).unwrap_or_else(|e| panic!("{context}: {e}"));
        vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(vault);
        let vault = world.open().unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_eq!(vault.lookup(ROOT, b"big").unwrap_err().errno(), libc::ENOENT, "{context}");
        assert_eq!(vault_harness::dump::content(&vault, keep, 100_000), vec![7; 100_000], "{context}");
        assert_eq!(vault_harness::dump::content(&vault, other, 50_000), vec![8; 50_000], "{context}");
        assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty(), "{context}");
    }
}

/// One write beyond the host's file size limit, before the file is in a commit and after.
#[test]
fn a_write_beyond_the_size_limit_fails_alone() {
    for (reported, synced) in [(true, true), (true, false), (false, false)] {
        let context = format!("reported: {reported}, synced: {synced}");
        let mut world = VaultHarness::new(2);
        world.folder.set_max_file_len(1 << 30, reported);
        let vault = world.create(Choice::Auto);
        let file = vault.create_node(ROOT, b"sparse", NewNode::File, 0o644, 0, 0).unwrap().ino;
        vault.write(file, 0, &[1; 10_000]).unwrap();
        if synced {
            vault.sync().unwrap();
        }
        let refused = vault.write(file, 1 << 40, &[2; 10_000]).unwrap_err();
        assert_eq!(refused.errno(), libc::EFBIG, "{context}: {refused}");
        assert_eq!(vault.attr(file).unwrap().size, 10_000, "{context}");
        vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
        let other = vault.create_node(ROOT, b"other", NewNode::File, 0o644, 0, 0).unwrap().ino;
        vault.write(other, 0, &[3; 10_000]).unwrap_or_else(|e| panic!("{context}: {e}"));
        vault.unlink(ROOT, b"sparse").unwrap();
        vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(vault);
        let vault = world.open().unwrap();
        assert_eq!(vault_harness::dump::content(&vault, other, 10_000), vec![3; 10_000], "{context}");
    }
}
