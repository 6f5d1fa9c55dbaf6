//! Conversion of files to the chosen or suitable scheme, while they are in use and afterwards; and
//! removal of large files in pieces.

mod vault_harness;

use lacuna_contracts::Kind;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::FolderOp;
use lacuna_vault::{INTEGRITY_XATTR, NewNode, ROOT, SetXattrMode, Vault};
use std::time::{Duration, Instant};
use vault_harness::VaultHarness;

const SIZE: usize = 5 << 20;

fn text() -> Vec<u8> {
    b"lines of text that compress well, and look like nothing random\n"
        .iter()
        .copied()
        .cycle()
        .take(SIZE)
        .collect()
}

fn make(vault: &Vault, name: &[u8]) -> u64 {
    let ino = vault.create_node(ROOT, name, NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(ino, 0, &text()).unwrap();
    ino
}

fn scheme(vault: &Vault, ino: u64) -> Scheme {
    vault.file_stat(ino).unwrap().scheme
}

fn assert_read(vault: &Vault, ino: u64) {
    let mut found = vec![0; SIZE];
    assert_eq!(vault.read(ino, 0, &mut found).unwrap(), SIZE);
    assert!(found == text());
}

fn ask(vault: &Vault, ino: u64, choice: &str) {
    vault.set_xattr(ino, INTEGRITY_XATTR, choice.as_bytes(), SetXattrMode::Any).unwrap();
}

/// Opens and closes a file, as programs do.
fn open_and_close(vault: &Vault, ino: u64) {
    vault.acquire_handle(ino).unwrap();
    vault.release_handle(ino);
}

/// Opens, reads and closes a file.
fn use_once(vault: &Vault, ino: u64) {
    vault.acquire_handle(ino).unwrap();
    assert_read(vault, ino);
    vault.release_handle(ino);
}

fn wait_for(what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_file_gets_the_scheme_that_its_attribute_names() {
    let mut world = VaultHarness::new(1);
    let vault = world.create(Choice::Auto);
    let ino = make(&vault, b"file");
    vault.sync().unwrap();
    for (choice, expected) in
        [("comp", Scheme::Comp), ("rand", Scheme::Rand), ("mt", Scheme::Mt), ("comp", Scheme::Comp)]
    {
        ask(&vault, ino, choice);
        vault.convert(ino).unwrap();
        assert_eq!(scheme(&vault, ino), expected);
        assert_read(&vault, ino);
    }
    // The choice is in the record, whether or not the file was open when it was made.
    ask(&vault, ino, "rand");
    let vault = world.reopen(vault);
    vault.convert(ino).unwrap();
    assert_eq!(scheme(&vault, ino), Scheme::Rand);
    assert_read(&vault, ino);
    assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty());
}

#[test]
fn an_open_vault_converts_files_in_the_background() {
    let mut world = VaultHarness::new(2);
    drop(world.create(Choice::Auto));
    let threads = Some(Duration::from_millis(20));
    let vault = world.open_with(|options| options.commit_period = threads).unwrap();
    let (asked, read) = (make(&vault, b"asked"), make(&vault, b"read"));
    ask(&vault, asked, "rand");
    use_once(&vault, asked);
    wait_for("the requested scheme", || scheme(&vault, asked) == Scheme::Rand);
    assert_read(&vault, asked);
    // `auto` by its samples: compressible, and read far more often than written.
    (0..70).for_each(|_| use_once(&vault, read));
    wait_for("what suits", || scheme(&vault, read) == Scheme::Comp);
    use_once(&vault, read);
    let vault = world.reopen(vault);
    assert_eq!((scheme(&vault, asked), scheme(&vault, read)), (Scheme::Rand, Scheme::Comp));
    assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty());
}

/// A sparse file with a tree of very many pages.
fn make_large(vault: &Vault) -> u64 {
    let ino = vault.create_node(ROOT, b"large", NewNode::File, 0o644, 0, 0).unwrap().ino;
    // Each block has a page of its own, and the file counts as large.
    for n in 0..4000u64 {
        vault.write(ino, n << 20, &[n as u8; 4096]).unwrap();
    }
    vault.sync().unwrap();
    ino
}

#[test]
fn a_large_file_is_removed_in_pieces_and_after_a_crash() {
    for (crash, threads) in [(false, true), (true, true), (true, false)] {
        let mut world = VaultHarness::new(3);
        world.journal = lacuna_vault::store::JournalSize::default();
        drop(world.create(Choice::Auto));
        let period = threads.then(|| Duration::from_millis(20));
        let vault = world.open_with(|options| options.commit_period = period).unwrap();
        make_large(&vault);
        vault.unlink(ROOT, b"large").unwrap();
        assert!(vault.lookup(ROOT, b"large").is_err());
        let gone = |vault: &Vault| vault.check(&mut |_, _| ()).unwrap().files == 0;
        if crash {
            vault.sync().unwrap();
            drop(vault);
        } else {
            wait_for("the removal", || gone(&vault));
            vault.close().unwrap();
            drop(vault);
        }
        let vault = world.open_with(|options| options.commit_period = period).unwrap();
        wait_for("the removal after the opening", || gone(&vault));
        let report = vault.check(&mut |_, _| ()).unwrap();
        assert_eq!((report.files, report.bad_count), (0, 0));
        vault.close().unwrap();
    }
}

#[test]
fn a_conversion_that_finds_no_space_half_way_loses_nothing() {
    let mut failures = 0;
    for room in 0..40 {
        let mut world = VaultHarness::new(4);
        let vault = world.create(Choice::Auto);
        let ino = make(&vault, b"file");
        let vault = world.reopen(vault);
        ask(&vault, ino, "comp");
        vault.sync().unwrap();
        world.folder.set_capacity(world.folder.used() + room * (96 << 10));
        let failed = vault.convert(ino).is_err();
        failures += u64::from(failed);
        world.folder.set_capacity(u64::MAX);
        // Only the commit accesses the file before it is read again.
        vault.sync().unwrap();
        drop(vault);
        let vault = world.open().unwrap();
        assert_read(&vault, ino);
        assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty(), "room {room}, failed: {failed}");
    }
    assert!(failures > 5, "{failures}");
}

/// One block of a file cannot be read while it is converted: the vault goes on, the file too, and
/// the conversion ends once the block can be read.
#[test]
fn a_block_that_cannot_be_read_postpones_only_its_conversion() {
    let mut failures = 0;
    for reads in [0, 3, 17, 30] {
        let mut world = VaultHarness::new(7);
        let vault = world.create(Choice::Auto);
        let ino = make(&vault, b"file");
        vault.sync().unwrap();
        for (choice, wanted) in [("comp", Scheme::Comp), ("mt", Scheme::Mt)] {
            let context = format!("read {reads} of the conversion to {choice}");
            ask(&vault, ino, choice);
            world.folder.fail(FolderOp::Read, reads, Kind::Io, false);
            failures += u64::from(vault.convert(ino).is_err());
            world.folder.heal();
            vault.write(ino, 0, &text()[..5000]).unwrap_or_else(|e| panic!("{context}: {e}"));
            vault.sync().unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_read(&vault, ino);
            vault.convert(ino).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(scheme(&vault, ino), wanted, "{context}");
            assert_read(&vault, ino);
        }
        let vault = world.reopen(vault);
        assert_read(&vault, ino);
        assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty(), "read {reads}");
    }
    assert!(failures > 5, "{failures}");
}

/// A bad block ends the conversion of its file until the next opening: commits do not start it
/// again and again.
#[test]
fn a_conversion_that_meets_a_bad_block_is_tried_once_in_the_background() {
    let mut world = VaultHarness::new(8);
    drop(world.create(Choice::Auto));
    // Commits are only those of `sync`.
    let threads = Some(Duration::from_secs(600));
    let vault = world.open().unwrap();
    let (bad, good) = (make(&vault, b"bad"), make(&vault, b"good"));
    // Everything is in its place now.
    vault.close().unwrap();
    drop(vault);
    let vault = world.open_with(|options| options.commit_period = threads).unwrap();
    world.folder.spoil_page(&vault.file_stat(bad).unwrap().backing.unwrap(), 700);
    let postponed =
        || world.log.lock().iter().filter(|line| line.contains("work on /bad is postponed")).count();
    ask(&vault, bad, "comp");
    open_and_close(&vault, bad);
    wait_for("the failure", || postponed() == 1);
    for choice in ["comp", "mt", "comp"] {
        // Files are taken in their order: the next attempt at the first one would come before.
        vault.sync().unwrap();
        open_and_close(&vault, bad);
        ask(&vault, good, choice);
        open_and_close(&vault, good);
        wait_for("the other file", || scheme(&vault, good).name() == choice);
    }
    assert_eq!(postponed(), 1);
    world.folder.heal();
    let vault = world.reopen(vault);
    vault.convert(bad).unwrap();
    assert_eq!(scheme(&vault, bad), Scheme::Comp);
    assert_read(&vault, bad);
}

#[test]
fn a_file_being_removed_cannot_be_opened_or_written() {
    let mut world = VaultHarness::new(6);
    world.journal = lacuna_vault::store::JournalSize::default();
    drop(world.create(Choice::Auto));
    // Commits are rare, so only by chance is the file gone by then: either way it cannot be found.
    let vault = world.open_with(|options| options.commit_period = Some(Duration::from_secs(600))).unwrap();
    let ino = make_large(&vault);
    vault.unlink(ROOT, b"large").unwrap();
    assert!(vault.acquire_handle(ino).is_err());
    assert!(vault.write(ino, 0, b"again").is_err());
    assert!(vault.read(ino, 0, &mut [0; 16]).is_err());
    assert!(vault.attr(ino).is_err());
    vault.close().unwrap();
}
