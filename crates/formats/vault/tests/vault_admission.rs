//! Admission: space that a change reserves is there for the commit that makes it durable, no change
//! is refused while there is space, and a refused commit is not counted.

mod vault_harness;

use lacuna_contracts::Kind;
use lacuna_integrity::Choice;
use lacuna_medium::Folder;
use lacuna_sim::{FolderOp, Rng};
use lacuna_vault::store::JournalSize;
use lacuna_vault::{NewNode, ROOT, SetXattrMode, Vault, XATTR_MAX};
use vault_harness::VaultHarness;

fn counter(vault: &Vault, name: &str) -> u64 {
    let status = vault.status();
    status.items.iter().find(|item| item.name == name).unwrap().value
}

/// A vault with a journal so full that a checkpoint is due before the next change, and a file of
/// it.
fn with_a_due_checkpoint() -> (VaultHarness, Vault, u64) {
    let mut world = VaultHarness::new(5);
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"file", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![1; 100 << 12]).unwrap();
    // Both files of the journal have little spare space after this.
    let vault = world.reopen(vault);
    vault.write(file, 0, &vec![2; 100 << 12]).unwrap();
    assert!(counter(&vault, "journal_used") >= world.journal.checkpoint_at);
    (world, vault, file)
}

/// The due checkpoint before the change switches to the other journal file: the change reserves its
/// space there.
#[test]
fn a_change_after_a_due_checkpoint_is_committed_in_a_directory_that_fills_up() {
    let (mut world, vault, file) = with_a_due_checkpoint();
    let checkpoints = counter(&vault, "checkpoints");
    let value = Rng::new(1).bytes(XATTR_MAX);
    vault.set_xattr(file, b"user.large", &value, SetXattrMode::Any).unwrap();
    assert_eq!(counter(&vault, "checkpoints"), checkpoints + 1);
    world.folder.set_capacity(world.folder.used());
    vault.sync().unwrap();
    drop(vault);
    let vault = world.open().unwrap();
    assert!(vault.get_xattr(file, b"user.large").unwrap() == value);
}

#[test]
fn a_refused_checkpoint_is_not_counted_as_a_commit() {
    let (world, vault, _) = with_a_due_checkpoint();
    let [made, checkpoints] = ["commits_made", "checkpoints"].map(|name| counter(&vault, name));
    // Enough for the record of a commit, and too little for a checkpoint.
    world.folder.set_capacity(world.folder.used() + (128 << 10));
    vault.sync().unwrap();
    let now = ["commits_made", "checkpoints"].map(|name| counter(&vault, name));
    assert_eq!(now, [made + 1, checkpoints]);
}

/// If nothing changed and a checkpoint finds no space, there is no commit, however often the vault
/// tries to free space.
#[test]
fn an_attempt_to_free_space_without_a_commit_is_not_counted() {
    let (world, vault, file) = with_a_due_checkpoint();
    world.folder.set_capacity(world.folder.used() + (128 << 10));
    vault.sync().unwrap();
    let [made, last] = ["commits_made", "last_commit"].map(|name| counter(&vault, name));
    let refused = vault.write(file, 200 << 12, &vec![3; 64 << 12]).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOSPC);
    assert!(counter(&vault, "journal_used") > 0);
    assert_eq!(counter(&vault, "commits_made") - made, counter(&vault, "last_commit") - last);
}

/// All of a write may go to the journal, and the journal never holds that much: there is space all
/// the same.
#[test]
fn a_write_that_is_longer_than_the_journal_is_written() {
    let mut world = VaultHarness::new(6);
    world.journal = JournalSize { checkpoint_at: 512 << 10, max: 4 << 20 };
    let vault = world.create(Choice::Auto);
    let file = vault.create_node(ROOT, b"file", NewNode::File, 0o644, 0, 0).unwrap().ino;
    let data = Rng::new(7).bytes((6 << 20) + 5000);
    for _ in 0..2 {
        assert_eq!(vault.write(file, 3000, &data).unwrap(), data.len());
        vault.sync().unwrap();
    }
    assert_eq!(vault.write(file, 0, &[]).unwrap(), 0);
    drop(vault);
    let vault = world.open().unwrap();
    assert!(vault_harness::dump::content(&vault, file, 3000 + data.len() as u64)[3000..] == data);
}

/// The inactive journal file has space, and the host accepts no more bytes: it gets the file's
/// space back before it is asked again, even if the commit is refused as well.
#[test]
fn a_refused_commit_shrinks_the_inactive_journal_file() {
    let mut world = VaultHarness::new(8);
    world.journal = JournalSize { checkpoint_at: 4 << 20, max: 64 << 20 };
    let vault = world.create(Choice::Auto);
    let make = |name: &[u8]| vault.create_node(ROOT, name, NewNode::File, 0o644, 0, 0).map(|attr| attr.ino);
    let file = make(b"file").unwrap();
    for version in 0..7 {
        vault.write(file, 0, &vec![version; 1 << 20]).unwrap();
        vault.sync().unwrap();
    }
    assert!(counter(&vault, "journal_used") < 4 << 20, "no checkpoint went on in the other file");
    make(b"pending").unwrap();
    let longest = || {
        let lens = ["journal.0", "journal.1"].map(|name| world.folder.open(name).unwrap().len().unwrap());
        lens[0].max(lens[1])
    };
    assert!(longest() >= 4 << 20);
    world.folder.fail(FolderOp::Write, 0, Kind::NoSpace, true);
    // The first write may be admitted and then fail.
    for _ in 0..2 {
        assert_eq!(vault.write(file, 0, &[9; 4096]).unwrap_err().errno(), libc::ENOSPC);
    }
    assert!(longest() < 3 << 20, "{} bytes", longest());
    world.folder.heal();
    make(b"after").unwrap();
    let vault = world.reopen(vault);
    assert!(vault_harness::dump::content(&vault, file, 1 << 20) == vec![6; 1 << 20]);
    for name in [&b"pending"[..], b"after"] {
        vault.lookup(ROOT, name).unwrap();
    }
}
