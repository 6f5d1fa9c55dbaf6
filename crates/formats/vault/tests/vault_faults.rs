//! A backing directory that fails or disappears: writing ends after a failure, and synced changes
//! are there after the next opening. Full directories are in `vault_full`.

mod vault_harness;

use lacuna_contracts::Kind;
use lacuna_integrity::Choice;
use lacuna_medium::Folder;
use lacuna_sim::{CrashFolder, FolderImage, FolderOp, Rng};
use lacuna_vault::store::{Anchor, AnchorState, FILES, MemoryAnchor, PAGE};
use lacuna_vault::{FileKind, NewNode, ROOT, Vault};
use std::sync::Arc;
use vault_harness::VaultHarness;
use vault_harness::dump::{assert_same, of_model, of_vault};
use vault_harness::model::{FsModel, Node};
use vault_harness::ops::work;

/// A vault with one synced file, and its model.
fn one_file(world: &mut VaultHarness) -> (Vault, u64, FsModel) {
    let vault = world.create(Choice::Auto);
    let mut model = FsModel::default();
    let ino = vault.create_node(ROOT, b"file", NewNode::File, 0o644, 0, 0).unwrap().ino;
    model.make(ino, ROOT, b"file", Node::new(FileKind::File, 0o644, ROOT));
    let data = Rng::new(5).bytes(200_000);
    vault.write(ino, 0, &data).unwrap();
    model.write(ino, 0, &data).unwrap();
    vault.sync().unwrap();
    (vault, ino, model)
}

#[test]
fn a_failed_write_or_sync_ends_writing_and_keeps_synced_data() {
    for (op, writes) in [(FolderOp::Write, true), (FolderOp::Sync, false), (FolderOp::Create, true)] {
        let mut world = VaultHarness::new(2);
        let (vault, ino, model) = one_file(&mut world);
        world.folder.fail(op, 0, Kind::Io, false);
        let mut failed = vec![];
        for n in 0..40u64 {
            let name = format!("new {n}");
            let done = vault.create_node(ROOT, name.as_bytes(), NewNode::File, 0o644, 0, 0);
            let done = done.and_then(|attr| vault.write(attr.ino, 0, &[1; 9000]));
            failed.extend(done.err());
            failed.extend(vault.sync().err());
        }
        assert!(failed.len() >= 40, "{op:?}: {} failures", failed.len());
        assert!(failed.iter().all(|e| e.errno() == libc::EIO), "{op:?}: {:?}", failed[0]);
        let refused = failed.last().unwrap().to_string();
        assert!(refused.contains("a failure that the test scheduled"), "{op:?}: {refused}");
        // Reads still work.
        assert_eq!(vault.attr(ino).unwrap().size, 200_000);
        assert_eq!(vault_harness::dump::content(&vault, ino, 200_000), *model.nodes[&ino].data);
        assert!(vault.close().is_err());
        drop(vault);
        world.folder.heal();
        let _ = writes;
        let vault = world.open().unwrap();
        let found = of_vault(&vault);
        for (path, shown) in of_model(&model).iter().filter(|(path, _)| *path != "/") {
            assert_eq!(found.get(path), Some(shown), "{op:?}");
        }
    }
}

#[test]
fn a_failed_read_is_an_error_of_that_read_alone() {
    let mut world = VaultHarness::new(3);
    let (vault, ino, model) = one_file(&mut world);
    world.folder.fail(FolderOp::Read, 0, Kind::Io, false);
    let mut buf = vec![0; 200_000];
    let failed = vault.read(ino, 0, &mut buf).unwrap_err();
    assert_eq!(failed.errno(), libc::EIO);
    assert_eq!(vault_harness::dump::content(&vault, ino, 200_000), *model.nodes[&ino].data);
    let log = world.log.lock().clone();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains("block 0 of /file (backing file "), "{log:?}");
    vault.write(ino, 0, b"goes on").unwrap();
    vault.close().unwrap();
}

/// The vault of a killed process on a medium with one bad page. No two openings may draw the same
/// random numbers, so each world has its own seed.
fn world_with_bad_page(
    seed: u64,
    image: &FolderImage,
    anchor: Option<AnchorState>,
    bad: Option<(&str, u64)>,
) -> VaultHarness {
    let mut world = VaultHarness::new(seed);
    world.folder = CrashFolder::from_image(image);
    world.memory = Arc::new(MemoryAnchor::new(anchor));
    if let Some((name, page)) = bad {
        world.folder.spoil_page(name, page);
    }
    world
}

/// The number of blocks of a file that cannot be read; the others have this content.
fn lost_blocks(vault: &Vault, ino: u64, content: &[u8]) -> usize {
    let mut lost = 0;
    for (nth, block) in (0..).zip(content.chunks(PAGE)) {
        let mut found = vec![0; block.len()];
        match vault.read(ino, nth * PAGE as u64, &mut found) {
            Ok(read) => assert!(read == block.len() && found == block, "block {nth}"),
            Err(_) => lost += 1,
        }
    }
    lost
}

/// After a kill a block of a file cannot be read in the journal. Commits go on, and no checkpoint
/// is finished: the block may become readable again. Only a repair gives it up, and loses it alone.
#[test]
fn a_journal_page_that_cannot_be_read_is_given_up_by_a_repair_alone() {
    let mut world = VaultHarness::new(6);
    let (vault, ino, model) = one_file(&mut world);
    drop(vault);
    let (image, anchor) = (world.folder.snapshot(), world.memory.load().unwrap());
    let content = model.nodes[&ino].data.clone();
    let mut given_up = 0;
    let pages = |name: &'static str| image.files[name].written_pages().map(move |page| (name, page));
    for bad in FILES[2..4].iter().copied().flat_map(pages) {
        let context = format!("{bad:?}");
        let mut world = world_with_bad_page(60, &image, anchor.clone(), Some(bad));
        // Without the page of a record it is not opened.
        let Ok(vault) = world.open() else { continue };
        let lost = lost_blocks(&vault, ino, &content);
        assert!(lost <= 1, "{context}: {lost}");
        let other = vault.create_node(ROOT, b"other", NewNode::File, 0o644, 0, 0).unwrap().ino;
        vault.write(other, 0, b"other").unwrap();
        vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
        let closed = vault.close();
        drop(vault);
        if lost == 0 {
            closed.unwrap_or_else(|e| panic!("{context}: {e}"));
            continue;
        }
        let refused = closed.unwrap_err().to_string();
        assert!(
            refused.contains("cannot finish a checkpoint") && refused.contains("vault::repair"),
            "{refused}"
        );
        let (left, anchor) = (world.folder.snapshot(), world.memory.load().unwrap());
        // It was not given up.
        let mut world = world_with_bad_page(61, &left, anchor.clone(), None);
        let vault = world.open().unwrap();
        assert_eq!(lost_blocks(&vault, ino, &content), 0, "{context}");
        vault.close().unwrap();
        drop(vault);
        let mut world = world_with_bad_page(62, &left, anchor, Some(bad));
        let vault = world.open().unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(vault.close().is_err(), "{context}: without a request");
        drop(vault);
        let vault = world.open().unwrap_or_else(|e| panic!("{context}: {e}"));
        assert!(vault.check(&mut |_, _| ()).unwrap().bad_count > 0, "{context}");
        vault.repair().unwrap_or_else(|e| panic!("{context}: {e}"));
        vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        drop(vault);
        let vault = world.open().unwrap();
        assert_eq!(lost_blocks(&vault, ino, &content), 1, "{context}");
        assert_eq!(lost_blocks(&vault, other, b"other"), 0, "{context}");
        assert_eq!(vault.check(&mut |_, _| ()).unwrap().bad_count, 1, "{context}");
        vault.close().unwrap();
        given_up += 1;
    }
    assert!(given_up > 5, "{given_up}");
}

#[test]
fn a_lost_directory_is_an_error_and_never_panics() {
    for seed in 0..5 {
        let mut world = VaultHarness::new(seed);
        let mut rng = Rng::new(seed);
        let vault = world.create(Choice::Auto);
        let mut model = FsModel::default();
        work(&vault, &mut model, &mut rng, 100);
        vault.sync().unwrap();
        let names: Vec<String> = world.folder.snapshot().names().map(str::to_owned).collect();
        names.iter().for_each(|name| world.folder.replace_file(name, None));
        for op in [FolderOp::Write, FolderOp::Create, FolderOp::Sync, FolderOp::SyncAll, FolderOp::SyncNames]
        {
            world.folder.fail(op, 0, Kind::NotFound, true);
        }
        let mut model = model.clone();
        for _ in 0..50 {
            // Reads of missing files are errors; a failed write leaves the model unchanged.
            let done = std::panic::AssertUnwindSafe(|| vault.sync());
            let _ = done();
            let ino = 2 + rng.below(20);
            let mut buf = vec![0; 10_000];
            if let (Ok(read), Ok(expected)) = (vault.read(ino, 0, &mut buf), model.read(ino, 0, 10_000)) {
                assert!(buf[..read] == expected[..read], "inode {ino}");
            }
            let _ = vault.write(ino, 0, &[1; 5000]).map(|_| model.write(ino, 0, &[1; 5000]));
        }
        assert!(vault.close().is_err());
    }
}

#[test]
fn a_read_only_opening_changes_nothing() {
    let mut world = VaultHarness::new(4);
    let (vault, ino, model) = one_file(&mut world);
    // Without a close, so the journal is not empty.
    drop(vault);
    let before = world.folder.snapshot().digest();
    world.folder.set_read_only(true);
    let vault = world.open_with(|options| options.read_only = true).unwrap();
    assert_same(&of_vault(&vault), &of_model(&model), "read-only");
    assert_eq!(vault.write(ino, 0, b"x").unwrap_err().errno(), libc::EROFS);
    assert_eq!(vault.unlink(ROOT, b"file").unwrap_err().errno(), libc::EROFS);
    vault.sync().unwrap();
    vault.close().unwrap();
    drop(vault);
    assert_eq!(world.folder.snapshot().digest(), before);
    let folder = CrashFolder::from_image(&world.folder.snapshot());
    world.folder = folder;
    assert_same(&of_vault(&world.open().unwrap()), &of_model(&model), "afterwards");
}

const YEAR: i64 = 365 * 24 * 3600;

#[test]
fn clock_jumps_change_only_times() {
    let mut world = VaultHarness::new(5);
    let (vault, ino, _) = one_file(&mut world);
    vault.sync().unwrap();
    let older = world.folder.snapshot();
    let mut vault = Some(vault);
    for (round, jump) in [-50 * YEAR, 300 * YEAR, -YEAR, -3600].into_iter().enumerate() {
        world.clock.advance(jump);
        let open = vault.take().unwrap();
        open.write(ino, 0, &[round as u8; 5000]).unwrap();
        open.sync().unwrap();
        // Half of the processes end without a close.
        if round % 2 == 0 {
            open.close().unwrap();
        }
        drop(open);
        let open = world.open().unwrap();
        let mut found = [9; 5000];
        assert_eq!(open.read(ino, 0, &mut found).unwrap(), 5000);
        assert_eq!(found, [round as u8; 5000]);
        vault = Some(open);
    }
    drop(vault);
    // The time of a state proves nothing about its age.
    world.folder.restore(&older);
    assert_eq!(world.open().err().map(|e| e.kind()), Some(Kind::RolledBack));
}

#[test]
fn a_lost_backing_file_is_reported_in_one_line() {
    let mut world = VaultHarness::new(5);
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"lost\xe9", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![7; 3000 * 4096]).unwrap();
    let backing = vault.file_stat(file).unwrap().backing.unwrap();
    vault.close().unwrap();
    drop(vault);
    world.folder.remove(&backing).unwrap();
    let vault = world.open_with(|options| options.read_only = true).unwrap();
    let report = vault.check(&mut |_, _| ()).unwrap();
    let [bad] = &report.bad[..] else { panic!("{:?}", report.bad) };
    assert_eq!(
        (report.bad_count, bad.block, bad.blocks, bad.path.as_encoded_bytes()),
        (3000, Some(0), 3000, &b"/lost\xe9"[..])
    );
    assert!(report.lists_all() && bad.reason.starts_with("does not verify"), "{}", bad.reason);
}

/// A read of several blocks fails as a whole: the good blocks beside the bad ones are tried alone.
#[test]
fn unreadable_blocks_are_reported_as_one_range() {
    let mut world = VaultHarness::new(6);
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"torn", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![7; 1000 * 4096]).unwrap();
    let backing = vault.file_stat(file).unwrap().backing.unwrap();
    vault.close().unwrap();
    drop(vault);
    (500..540).for_each(|page| world.folder.spoil_page(&backing, page));
    let vault = world.open_with(|options| options.read_only = true).unwrap();
    let report = vault.check(&mut |_, _| ()).unwrap();
    let [bad] = &report.bad[..] else { panic!("{:?}", report.bad) };
    assert_eq!(
        (report.bad_count, bad.block, bad.blocks, bad.path.to_str()),
        (40, Some(500), 40, Some("/torn"))
    );
    assert!(report.lists_all() && bad.kind == Kind::Io, "{}", bad.reason);
}
