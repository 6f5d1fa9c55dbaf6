//! What a change reserves before it begins is there for the commit that makes it durable, and a refused commit is none.

mod world;

use lacuna_integrity::Choice;
use lacuna_sim::Rng;
use lacuna_vault::{NewNode, ROOT, SetXattr, Vault, XATTR_MAX};
use world::World;

fn counter(vault: &Vault, name: &str) -> u64 {
    let status = vault.status();
    status.items.iter().find(|item| item.name == name).unwrap().value
}

/// A vault with so much in its journal that a checkpoint is due before the next change, and a file of it.
fn with_a_due_checkpoint() -> (World, Vault, u64) {
    let mut world = World::new(5);
    let vault = world.create(Choice::Auto);
    let file = vault.make(ROOT, b"file", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(file, 0, &vec![1; 100 << 12]).unwrap();
    // Both files of the journal have little space of their own after this.
    vault.close().unwrap();
    drop(vault);
    let vault = world.open().unwrap();
    vault.write(file, 0, &vec![2; 100 << 12]).unwrap();
    assert!(counter(&vault, "journal_used") >= world.journal.due);
    (world, vault, file)
}

/// The checkpoint that is due before the change goes on in the other file of the journal: the change has its space there.
#[test]
fn a_change_after_a_due_checkpoint_is_committed_although_others_fill_the_directory() {
    let (mut world, vault, file) = with_a_due_checkpoint();
    let checkpoints = counter(&vault, "checkpoints");
    let value = Rng::new(1).bytes(XATTR_MAX);
    vault.set_xattr(file, b"user.large", &value, SetXattr::Any).unwrap();
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
