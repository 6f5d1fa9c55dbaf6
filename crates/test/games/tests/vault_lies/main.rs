//! A directory that answers two reads of one place differently, with any earlier version of the
//! place, with the content of another, or with a splice of both; and likewise two lookups of one
//! name. With every scheme, every opening shows the latest content of every name in every
//! directory, or an error; nothing is missing without an error.
//!
//! Half of the vaults have a few files with similar changes, so that their records have equal
//! lengths; the other half are trees of directories, links and attributes, made by the operations
//! of the vault's own tests. `mixed.rs` plays the same with directories that mix two copies.
//!
//! `LACUNA_LIES` sets the openings (default 2000, of mixed copies 1000), `LACUNA_SEED` the first
//! seed.

mod comparison;
mod mixed;
#[path = "../../../../formats/vault/tests/vault_harness/mod.rs"]
mod vault_harness;

use comparison::{OpeningCounts, compare};
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::{Lies, Rng, env_number};
use lacuna_vault::store::{Anchor, MemoryAnchor};
use lacuna_vault::{FileKind, NewNode, ROOT, Vault};
use std::sync::Arc;
use vault_harness::VaultHarness;
use vault_harness::model::{FsModel, Node};
use vault_harness::ops;

/// The number of openings of one vault.
const OPENINGS: u64 = 40;
/// The protection of the files of a vault, used in turn.
const CHOICES: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];

/// Uses a vault before lies begin. Returns it with a model of its content.
type PrepareVault = fn(&mut VaultHarness, Choice, &mut Rng) -> (Vault, FsModel);

/// Writes, removes and reopens, and makes each change durable. Records of similar changes have
/// equal lengths.
fn prepare_similar_records(world: &mut VaultHarness, choice: Choice, rng: &mut Rng) -> (Vault, FsModel) {
    let (mut vault, mut model) = (world.create(choice), FsModel::default());
    for step in 0..10 + rng.below(20) {
        let name = vec![b'a' + rng.below(5) as u8];
        let known = model.lookup(ROOT, &name).ok();
        match (rng.below(10), known) {
            (0, Some(_)) => {
                vault.unlink(ROOT, &name).unwrap();
                model.unlink(ROOT, &name).unwrap();
            }
            (1, _) => {
                vault = world.reopen(vault);
            }
            _ => {
                let ino = known.unwrap_or_else(|| {
                    let made = vault.create_node(ROOT, &name, NewNode::File, 0o644, 0, 0).unwrap();
                    model.make(made.ino, ROOT, &name, Node::new(FileKind::File, 0o644, ROOT));
                    made.ino
                });
                let text = format!("{}-{step:03} ", char::from(name[0]));
                let bytes = text.into_bytes().repeat(512 * (1 + rng.below(3) as usize));
                vault.write(ino, 0, &bytes).unwrap();
                model.write(ino, 0, &bytes).unwrap();
            }
        }
        vault.sync().unwrap();
    }
    (vault, model)
}

/// Performs all operations of directories, and reopens.
fn prepare_tree(world: &mut VaultHarness, choice: Choice, rng: &mut Rng) -> (Vault, FsModel) {
    let (mut vault, mut model) = (world.create(choice), FsModel::default());
    for _ in 0..3 + rng.below(4) {
        ops::work(&vault, &mut model, rng, 25);
        vault.sync().unwrap();
        if rng.chance(1, 2) {
            vault = world.reopen(vault);
            model = model.reopened();
        }
    }
    (vault, model.reopened())
}

/// Starts lies about some files, and sometimes about names.
fn start_lying(world: &VaultHarness, opening: u64, rng: &mut Rng) {
    let of_a_thousand = [20, 60, 150, 300, 500][(opening % 5) as usize];
    let lies = Lies { per_mille: of_a_thousand, rng: Rng::new(rng.next_u64()), may_forge: rng.chance(1, 2) };
    let only = *rng.pick(&["", "journal", "super", "/"]);
    // The backing files of objects lie in subfolders.
    let to = |name: &str| if only == "/" { name.contains('/') } else { name.starts_with(only) };
    world.folder.set_lies(Some(&lies), to);
    world.folder.set_name_lies(rng.chance(1, 4).then_some(lies));
}

fn stop_lying(world: &VaultHarness) {
    world.folder.set_lies(None, |_| true);
    world.folder.set_name_lies(None);
}

/// Opens one vault many times.
fn open_one_vault(seed: u64, shown: &mut OpeningCounts) {
    let (mut world, mut rng) = (VaultHarness::new(seed), Rng::new(seed));
    world.folder.keep_history();
    let choice = CHOICES[(seed % 4) as usize];
    let live: PrepareVault =
        if (seed / 4).is_multiple_of(2) { prepare_similar_records } else { prepare_tree };
    let (vault, model) = live(&mut world, choice, &mut rng);
    if rng.chance(1, 2) {
        vault.close().unwrap();
    }
    drop(vault);
    let (image, state) = (world.folder.snapshot(), world.memory.load().unwrap());
    for opening in 0..OPENINGS {
        let context = format!("seed {seed}, {}, opening {opening}", choice.name());
        start_lying(&world, opening, &mut rng);
        let writable = rng.chance(1, 4);
        match world.open_with(|options| options.read_only = !writable) {
            Ok(vault) => compare(&vault, &model, shown, &context),
            Err(_) => shown.refused += 1,
        }
        stop_lying(&world);
        if writable {
            // State that was sealed under lies is correct, or refused.
            match world.open_with(|options| options.read_only = true) {
                Ok(vault) => compare(&vault, &model, shown, &format!("{context}, afterwards")),
                Err(_) => shown.refused += 1,
            }
            world.folder.restore(&image);
            world.memory = Arc::new(MemoryAnchor::new(state.clone()));
        }
    }
    shown.end_vault();
}

#[test]
fn two_reads_that_differ_show_the_latest_content_or_an_error() {
    let (openings, first) = (env_number("LACUNA_LIES", 2000), env_number("LACUNA_SEED", 1));
    let mut shown = OpeningCounts::default();
    for seed in first..first + openings.div_ceil(OPENINGS) {
        open_one_vault(seed, &mut shown);
    }
    let OpeningCounts { refused, correct: good, errors, wrong, digest } = shown;
    println!(
        "{openings} openings, seed {first}, {refused} refused, {good} good, {errors} errors, {} wrong, digest {digest:016x}",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused > openings / 10 && good > openings && errors > 0, "lies hardly mattered");
}
