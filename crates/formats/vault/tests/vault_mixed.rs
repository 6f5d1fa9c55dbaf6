//! A copy of the directory that mixes two states: a program that synchronises an open vault copies
//! the journal, then the vault is closed, and then the program copies some of the other files. What
//! opens, stays whole: copies of the later state never come to count.

mod vault_harness;

use lacuna_integrity::Choice;
use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_vault::store::{Anchor, AnchorState, FILES, MemoryAnchor};
use lacuna_vault::{NewNode, ROOT, Vault};
use std::collections::BTreeMap;
use std::sync::Arc;
use vault_harness::VaultHarness;

/// With this number of long names the namespace has several pages of tags.
const NAMES: u64 = 1500;

fn add_names(vault: &Vault, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let name = format!("{number:06}{}", "n".repeat(230));
        vault.create_node(ROOT, name.as_bytes(), NewNode::File, 0o644, 0, 0).unwrap();
    }
}

/// Two states of a vault: while it was open, and closed afterwards; and what another machine
/// remembers, which used it before.
struct TwoStates {
    open: FolderImage,
    closed: FolderImage,
    other_machine: AnchorState,
}

impl TwoStates {
    fn new() -> TwoStates {
        let mut world = VaultHarness::new(1);
        let vault = world.create(Choice::Auto);
        add_names(&vault, 0..NAMES);
        vault.close().unwrap();
        drop(vault);
        let memory = std::mem::take(&mut world.memory);
        world.open().unwrap().close().unwrap();
        let other_machine = std::mem::replace(&mut world.memory, memory).load().unwrap().unwrap();
        let vault = world.open().unwrap();
        add_names(&vault, NAMES..NAMES + 5);
        vault.sync().unwrap();
        let open = world.folder.snapshot();
        add_names(&vault, NAMES + 5..NAMES + 10);
        vault.close().unwrap();
        TwoStates { open, closed: world.folder.snapshot(), other_machine }
    }

    /// The open state with some files of the namespace of the closed one.
    fn mixed(&self, rng: &mut Rng) -> FolderImage {
        // The three files of each object are alike. The files of the vault have no content.
        let mut objects = BTreeMap::<Vec<u8>, Vec<&str>>::new();
        for name in self.closed.names().filter(|name| !FILES.contains(name)) {
            objects.entry(self.closed.files[name].to_vec()).or_default().push(name);
        }
        let mut mixed = self.open.clone();
        for files in objects.values() {
            assert_eq!(files.len(), 3);
            for name in files.iter().filter(|_| rng.chance(1, 3)) {
                mixed.files.insert((*name).to_owned(), self.closed.files[*name].clone());
            }
        }
        mixed
    }
}

/// A machine with this anchor that has this copy of the directory. No two of them may draw the same
/// random numbers, so each has a seed of its own.
fn world_of(image: &FolderImage, anchor: Option<AnchorState>, seed: u64) -> VaultHarness {
    let mut world = VaultHarness::new(seed);
    world.folder = CrashFolder::from_image(image);
    world.memory = Arc::new(MemoryAnchor::new(anchor));
    world
}

/// Opens a mixed copy on a machine with this anchor, writes to it and opens it again. Returns
/// whether the first opening showed everything.
fn use_mixed_copy(image: &FolderImage, anchor: Option<AnchorState>, seed: u64) -> bool {
    let mut world = world_of(image, anchor, seed);
    let Ok(vault) = world.open() else { return false };
    if !vault.check(&mut |_, _| ()).is_ok_and(|report| report.bad_count == 0) {
        return false;
    }
    let context = format!("seed {seed}");
    let later = vault.create_node(ROOT, b"later", NewNode::File, 0o644, 0, 0).unwrap().ino;
    vault.write(later, 0, b"written to the mixed copy").unwrap();
    vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
    drop(vault);
    let vault = world.open().unwrap_or_else(|e| panic!("{context}, again: {e}"));
    let report = vault.check(&mut |_, _| ()).unwrap_or_else(|e| panic!("{context}, again: {e}"));
    assert!(report.bad.is_empty(), "{context}: {:?}", report.bad);
    let mut found = [0; 25];
    vault.read(later, 0, &mut found).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert_eq!(&found, b"written to the mixed copy", "{context}");
    let mut listed = 0;
    vault
        .read_dir(ROOT, 2, &mut |_| {
            listed += 1;
            true
        })
        .unwrap();
    assert_eq!(listed, NAMES + 6, "{context}");
    true
}

/// The power is cut while such a copy is opened, used and closed: the next opening shows
/// everything.
#[test]
fn a_power_cut_in_the_repair_of_a_mixed_copy_costs_nothing() {
    let (states, mut rng) = (TwoStates::new(), Rng::new(2));
    let mixed = loop {
        let mixed = states.mixed(&mut rng);
        if use_mixed_copy(&mixed, None, 500 + rng.below(400)) {
            break mixed;
        }
    };
    let use_and_close = |world: &mut VaultHarness| {
        let vault = world.open()?;
        // After the cut a call fails, and so does the close.
        let _made = vault.create_node(ROOT, b"later", NewNode::File, 0o644, 0, 0);
        vault.close()
    };
    let mut whole = world_of(&mixed, None, 2000);
    use_and_close(&mut whole).unwrap();
    let operations = whole.folder.ops();
    for cut in (0..operations).step_by((operations / 40).max(1) as usize) {
        let mut world = world_of(&mixed, None, 3000 + cut);
        world.folder.cut_after(cut);
        let _cut = use_and_close(&mut world);
        let image = world.folder.after_cut(&mut Rng::new(cut));
        let mut world = world_of(&image, world.memory.load().unwrap(), 9000 + cut);
        let vault = world.open().unwrap_or_else(|e| panic!("cut {cut} of {operations}: {e}"));
        let report = vault.check(&mut |_, _| ()).unwrap();
        assert!(report.bad.is_empty(), "cut {cut} of {operations}: {:?}", report.bad);
    }
}

#[test]
fn a_mixed_copy_that_opens_stays_whole() {
    let (states, mut rng) = (TwoStates::new(), Rng::new(1));
    let (mut whole, mut damaged) = (0, 0);
    for seed in 100..124 {
        let mixed = states.mixed(&mut rng);
        for (nth, anchor) in [None, Some(states.other_machine.clone())].into_iter().enumerate() {
            let is_whole = use_mixed_copy(&mixed, anchor, 2 * seed + nth as u64);
            *(if is_whole { &mut whole } else { &mut damaged }) += 1;
        }
    }
    println!("{whole} whole, {damaged} damaged or refused");
    assert!(whole > 10 && damaged > 0, "{whole}, {damaged}");
}
