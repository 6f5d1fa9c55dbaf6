//! A directory that answers two reads of one place differently, with any earlier version of the
//! place, with the content of another, or with a splice of both; and likewise two lookups of one
//! name. With every scheme, every opening shows the latest content of every name in every
//! directory, or an error; nothing is missing without an error.
//!
//! Half of the vaults have a few files with similar changes, so that their records have equal
//! lengths; the other half are trees of directories, links and attributes, made by the operations
//! of the vault's own tests.
//!
//! `LACUNA_LIES` sets the openings (default 2000), `LACUNA_SEED` the first seed.

#[path = "../../../formats/vault/tests/world/mod.rs"]
mod world;

use lacuna_games::fold;
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::{Lies, Rng, setting};
use lacuna_vault::store::{Anchor, MemoryAnchor};
use lacuna_vault::{Attr, FileKind, FsError, FsResult, INTEGRITY_XATTR, NewNode, ROOT, Vault};
use std::collections::BTreeSet;
use std::sync::Arc;
use world::World;
use world::model::{Model, Node};
use world::ops;

/// The number of openings of one vault.
const OPENINGS: u64 = 40;
/// The protection of the files of a vault, used in turn.
const CHOICES: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];

/// The results of openings.
#[derive(Default)]
struct Shown {
    refused: u64,
    good: u64,
    errors: u64,
    wrong: Vec<String>,
    /// A digest of the results of each vault.
    digest: u64,
}

impl Shown {
    /// Ends the results of one vault.
    fn end_vault(&mut self) {
        self.digest = fold(self.digest, self.refused << 42 ^ self.errors << 21 ^ self.good);
    }
}

/// Uses a vault before lies begin. Returns it with a model of its content.
type Live = fn(&mut World, Choice, &mut Rng) -> (Vault, Model);

/// Writes, removes and reopens, and makes each change durable. Records of similar changes have
/// equal lengths.
fn live_alike(world: &mut World, choice: Choice, rng: &mut Rng) -> (Vault, Model) {
    let (mut vault, mut model) = (world.create(choice), Model::default());
    for step in 0..10 + rng.below(20) {
        let name = vec![b'a' + rng.below(5) as u8];
        let known = model.lookup(ROOT, &name).ok();
        match (rng.below(10), known) {
            (0, Some(_)) => {
                vault.unlink(ROOT, &name).unwrap();
                model.unlink(ROOT, &name).unwrap();
            }
            (1, _) => {
                vault.close().unwrap();
                drop(vault);
                vault = world.open().unwrap();
            }
            _ => {
                let ino = known.unwrap_or_else(|| {
                    let made = vault.make(ROOT, &name, NewNode::File, 0o644, 0, 0).unwrap();
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
fn live_in_a_tree(world: &mut World, choice: Choice, rng: &mut Rng) -> (Vault, Model) {
    let (mut vault, mut model) = (world.create(choice), Model::default());
    for _ in 0..3 + rng.below(4) {
        ops::work(&vault, &mut model, rng, 25);
        vault.sync().unwrap();
        if rng.chance(1, 2) {
            vault.close().unwrap();
            drop(vault);
            vault = world.open().unwrap();
            model = model.reopened();
        }
    }
    (vault, model.reopened())
}

/// Compares a vault with its model.
struct Comparison<'a> {
    vault: &'a Vault,
    model: &'a Model,
    shown: &'a mut Shown,
    context: &'a str,
    /// Names that directories have, or had.
    names: BTreeSet<Vec<u8>>,
}

fn compare(vault: &Vault, model: &Model, shown: &mut Shown, context: &str) {
    let there = model.nodes.values().flat_map(|node| node.entries.keys().cloned());
    let names = there.chain((b'a'..=b'g').map(|name| vec![name])).collect();
    Comparison { vault, model, shown, context, names }.node(ROOT, "");
}

impl Comparison<'_> {
    /// A successful answer; `None` otherwise. An error of verification is always permitted; an
    /// error that something does not exist or cannot be done is not.
    fn answer<T>(&mut self, path: &str, answer: FsResult<T>) -> Option<T> {
        match answer {
            Ok(answer) => return Some(answer),
            Err(FsError::Storage(_)) => self.shown.errors += 1,
            Err(FsError::Errno(errno)) => self.is(path, false, || format!("gives the error number {errno}")),
        }
        None
    }

    /// Counts a correct result, or records a violation.
    fn is(&mut self, path: &str, right: bool, what: impl FnOnce() -> String) {
        if right {
            self.shown.good += 1;
        } else {
            self.shown.wrong.push(format!("{}: {path}/ {}", self.context, what()));
        }
    }

    /// Checks a node, and all nodes below it.
    fn node(&mut self, ino: u64, path: &str) {
        let (vault, model) = (self.vault, self.model);
        let node = &model.nodes[&ino];
        let Some(attr) = self.answer(path, vault.attr(ino)) else { return };
        self.attributes(&attr, node, path);
        self.extended_attributes(ino, node, path);
        match node.kind {
            FileKind::Directory => self.directory(ino, node, path),
            FileKind::File => self.content(ino, node, path),
            FileKind::Symlink => {
                if let Some(target) = self.answer(path, vault.read_link(ino)) {
                    self.is(path, target == node.target, || "leads elsewhere".into());
                }
            }
            _ => {}
        }
    }

    fn attributes(&mut self, attr: &Attr, node: &Node, path: &str) {
        let found = (attr.kind, attr.mode, attr.uid, attr.gid, attr.nlink);
        let expected = (node.kind, node.mode, node.uid, node.gid, node.nlink);
        let is_as_long = node.kind != FileKind::File || attr.size == node.data.len() as u64;
        self.is(path, found == expected && is_as_long, || format!("is {attr:?}"));
    }

    fn extended_attributes(&mut self, ino: u64, node: &Node, path: &str) {
        let vault = self.vault;
        if let Some(names) = self.answer(path, vault.list_xattrs(ino)) {
            let found: BTreeSet<&[u8]> = names.iter().map(Vec::as_slice).collect();
            let expected: BTreeSet<&[u8]> = node.xattrs.keys().map(Vec::as_slice).collect();
            let right = found.iter().filter(|name| **name != INTEGRITY_XATTR).eq(&expected);
            self.is(path, right, || format!("has the attributes {names:?}"));
        }
        for (name, value) in &node.xattrs {
            if let Some(found) = self.answer(path, vault.get_xattr(ino, name)) {
                self.is(path, found == *value, || format!("has another value of {name:?}"));
            }
        }
    }

    fn directory(&mut self, ino: u64, node: &Node, path: &str) {
        let vault = self.vault;
        for name in self.names.clone() {
            let below = format!("{path}/{}", String::from_utf8_lossy(&name));
            match (vault.lookup(ino, &name), node.entries.get(&name)) {
                (Err(FsError::Errno(libc::ENOENT)), None) => self.shown.good += 1,
                (Ok(attr), None) => self.is(&below, false, || format!("is back as {}", attr.ino)),
                (looked, None) => _ = self.answer(&below, looked),
                (looked, Some(child)) => {
                    let Some(attr) = self.answer(&below, looked) else { continue };
                    self.is(&below, attr.ino == *child, || format!("is {}", attr.ino));
                    self.node(*child, &below);
                }
            }
        }
        let mut listed = vec![];
        let read = vault.read_dir(ino, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                listed.push((entry.name.to_vec(), entry.ino));
            }
            true
        });
        if self.answer(path, read).is_some() {
            listed.sort();
            let expected = node.entries.iter().map(|(name, child)| (name.clone(), *child));
            self.is(path, listed.iter().cloned().eq(expected), || format!("lists {listed:?}"));
        }
    }

    fn content(&mut self, ino: u64, node: &Node, path: &str) {
        let mut bytes = vec![0; node.data.len() + 10];
        let read = self.vault.read(ino, 0, &mut bytes);
        let Some(read) = self.answer(path, read) else { return };
        if read < node.data.len() && node.data.starts_with(&bytes[..read]) {
            // A read may end before a block that does not verify.
            self.shown.errors += 1;
        } else {
            self.is(path, bytes[..read] == node.data[..], || {
                format!("reads {:?}", String::from_utf8_lossy(&bytes[..6]))
            });
        }
    }
}

/// Starts lies about some files, and sometimes about names.
fn lie(world: &World, opening: u64, rng: &mut Rng) {
    let of_a_thousand = [20, 60, 150, 300, 500][(opening % 5) as usize];
    let lies = Lies { of_a_thousand, rng: Rng::new(rng.next_u64()), forges: rng.chance(1, 2) };
    let only = *rng.pick(&["", "journal", "super", "/"]);
    // The backing files of objects lie in subfolders.
    let to = |name: &str| if only == "/" { name.contains('/') } else { name.starts_with(only) };
    world.folder.lie(Some(&lies), to);
    world.folder.lie_about_names(rng.chance(1, 4).then_some(lies));
}

fn be_honest(world: &World) {
    world.folder.lie(None, |_| true);
    world.folder.lie_about_names(None);
}

/// Opens one vault many times.
fn play(seed: u64, shown: &mut Shown) {
    let (mut world, mut rng) = (World::new(seed), Rng::new(seed));
    world.folder.keep_past();
    let choice = CHOICES[(seed % 4) as usize];
    let live: Live = if (seed / 4).is_multiple_of(2) { live_alike } else { live_in_a_tree };
    let (vault, model) = live(&mut world, choice, &mut rng);
    if rng.chance(1, 2) {
        vault.close().unwrap();
    }
    drop(vault);
    let (image, state) = (world.folder.snapshot(), world.memory.load().unwrap());
    for opening in 0..OPENINGS {
        let context = format!("seed {seed}, {}, opening {opening}", choice.name());
        lie(&world, opening, &mut rng);
        let writable = rng.chance(1, 4);
        match world.open_with(|options| options.read_only = !writable) {
            Ok(vault) => compare(&vault, &model, shown, &context),
            Err(_) => shown.refused += 1,
        }
        be_honest(&world);
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
    let (openings, first) = (setting("LACUNA_LIES", 2000), setting("LACUNA_SEED", 1));
    let mut shown = Shown::default();
    for seed in first..first + openings.div_ceil(OPENINGS) {
        play(seed, &mut shown);
    }
    let Shown { refused, good, errors, wrong, digest } = shown;
    println!(
        "{openings} openings, seed {first}, {refused} refused, {good} good, {errors} errors, {} wrong, digest {digest:016x}",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(refused > openings / 10 && good > openings && errors > 0, "lies hardly mattered");
}
