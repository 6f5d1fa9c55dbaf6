//! A directory that mixes two copies of a vault of different times, as a program that synchronises
//! an open vault leaves it, and that answers two reads of one place differently, with the place of
//! any copy. An opening shows the whole content of one state of the vault, or errors: the state
//! with the number that it reports, which is not before the anchored one. So it never joins names
//! of one state with content of another. A vault that was then used and closed shows that state
//! with the changes since, or errors.

use crate::comparison::{OpeningCounts, compare};
use crate::vault_harness::VaultHarness;
use crate::vault_harness::model::{FsModel, Node};
use crate::vault_harness::ops;
use crate::{CHOICES, start_lying, stop_lying};
use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::{FolderImage, Rng, env_number};
use lacuna_vault::store::{Anchor, AnchorState, FILES, MemoryAnchor};
use lacuna_vault::{FileKind, NewNode, ROOT, Vault};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of mixed copies of one vault.
const MIXTURES: u64 = 20;
/// The operations on a vault, between two copies of its directory, and before another machine uses
/// it once.
const STEPS: u64 = 40;
const BETWEEN_COPIES: u64 = 8;
const BEFORE_OTHER: u64 = 5;
/// A name that only a mixed copy gets.
const LATER: &[u8] = b"later";

/// The past of a vault.
struct CopiedVault {
    /// Copies of its directory.
    copies: Vec<FolderImage>,
    /// The memory of machines: of one that never used it, of another one that used it once, and of
    /// its own one at each copy.
    anchors: Vec<Option<AnchorState>>,
    /// The content by numbers of commits. Any other commit has the content of the one before it in
    /// this map.
    states: BTreeMap<u64, FsModel>,
}

impl CopiedVault {
    /// Uses a vault, and copies its directory again and again.
    fn new(seed: u64, choice: Choice, rng: &mut Rng) -> CopiedVault {
        let mut world = VaultHarness::new(seed);
        let (mut vault, mut model) = (world.create(choice), FsModel::default());
        let mut copied = CopiedVault { copies: vec![], anchors: vec![None], states: BTreeMap::new() };
        copied.note_state(&vault, &model);
        for step in 1..=STEPS {
            // A commit that comes before an operation has the content of the last sync.
            ops::step(&vault, &mut model, rng, 0);
            vault.sync().unwrap();
            copied.note_state(&vault, &model);
            if step.is_multiple_of(BETWEEN_COPIES) {
                copied.copy(&world);
            }
            if step == BEFORE_OTHER || rng.chance(1, 8) {
                vault.close().unwrap();
                drop(vault);
                if step == BEFORE_OTHER {
                    copied.anchors.push(use_on_another_machine(&mut world));
                }
                vault = world.open().unwrap();
                model = model.reopened();
            }
        }
        vault.close().unwrap();
        copied.note_state(&vault, &model);
        copied.copy(&world);
        copied
    }

    /// Notes the content of the last commit.
    fn note_state(&mut self, vault: &Vault, model: &FsModel) {
        self.states.insert(vault.last_commit().number, model.reopened());
    }

    fn copy(&mut self, world: &VaultHarness) {
        self.copies.push(world.folder.snapshot());
        self.anchors.push(world.memory.load().unwrap());
    }

    /// A directory with some files of one copy and the others of another copy.
    fn mixed(&self, rng: &mut Rng) -> FolderImage {
        let mut order: Vec<&FolderImage> = self.copies.iter().collect();
        rng.shuffle(&mut order);
        let (one, other) = (order[0], order[1]);
        // Often only files of objects are of the other copy.
        let only_objects = rng.chance(1, 2);
        let mut mixed = one.clone();
        for name in one.names().chain(other.names()).collect::<BTreeSet<&str>>() {
            if (only_objects && FILES.contains(&name)) || !rng.chance(1, 3) {
                continue;
            }
            match other.files.get(name) {
                Some(content) => drop(mixed.files.insert(name.to_owned(), content.clone())),
                None => drop(mixed.files.remove(name)),
            }
        }
        mixed
    }

    /// A machine with this memory. Its directory held each copy before this one: lies show those.
    fn machine(&self, seed: u64, image: &FolderImage, anchor: Option<AnchorState>) -> VaultHarness {
        let mut world = VaultHarness::new(seed);
        world.folder.keep_history();
        self.copies.iter().chain([image]).for_each(|held| world.folder.restore(held));
        world.memory = Arc::new(MemoryAnchor::new(anchor));
        world
    }

    /// Opens a mixed copy that lies, and compares it with the state that it reports. Returns the
    /// number of that state.
    fn open_mixed(
        &self,
        seed: u64,
        opening: u64,
        rng: &mut Rng,
        shown: &mut OpeningCounts,
        context: &str,
    ) -> Option<u64> {
        let (mixed, anchor) = (self.mixed(rng), rng.pick(&self.anchors).clone());
        let least = anchor.as_ref().map_or(0, |known| known.number);
        // No two machines draw the same random numbers.
        let mut world = self.machine(seed * 1000 + opening, &mixed, anchor);
        start_lying(&world, opening, rng);
        let writable = rng.chance(1, 2);
        let Ok(vault) = world.open_with(|options| options.read_only = !writable) else {
            shown.refused += 1;
            return None;
        };
        let number = vault.opening_report().state.number;
        let known = self.states.range(..=number).next_back().filter(|_| number >= least);
        let Some((_, model)) = known else {
            shown.wrong.push(format!("{context}: it shows state {number}, expected at least {least}"));
            return None;
        };
        compare(&vault, model, shown, context);
        stop_lying(&world);
        if writable {
            use_and_reopen(vault, &mut world, model.clone(), shown, context);
        }
        Some(number)
    }
}

/// Opens and closes a closed vault on another machine. Returns the memory of that machine.
fn use_on_another_machine(world: &mut VaultHarness) -> Option<AnchorState> {
    let own = std::mem::take(&mut world.memory);
    world.open().unwrap().close().unwrap();
    std::mem::replace(&mut world.memory, own).load().unwrap()
}

/// Changes a mixed copy, closes it and opens it again. A state that was sealed after lies is right,
/// or refused.
fn use_and_reopen(
    vault: Vault,
    world: &mut VaultHarness,
    mut model: FsModel,
    shown: &mut OpeningCounts,
    context: &str,
) {
    match vault.create_node(ROOT, LATER, NewNode::Directory, 0o755, 0, 0) {
        Ok(made) => model.make(made.ino, ROOT, LATER, Node::new(FileKind::Directory, 0o755, ROOT)),
        Err(_) => shown.errors += 1,
    }
    let closed = vault.close();
    drop(vault);
    let opened = closed.and_then(|()| world.open_with(|options| options.read_only = true));
    match opened {
        Ok(vault) => compare(&vault, &model, shown, &format!("{context}, afterwards")),
        Err(_) => shown.refused += 1,
    }
}

/// Opens mixed copies of one vault. Returns how many showed a state before the newest one, and how
/// many the newest.
fn open_mixed_copies(seed: u64, choice: Choice, shown: &mut OpeningCounts) -> [u64; 2] {
    let mut rng = Rng::new(seed);
    let copied = CopiedVault::new(seed, choice, &mut rng);
    let newest = copied.states.last_key_value().map(|(number, _)| *number);
    let mut opened = [0; 2];
    for opening in 0..MIXTURES {
        let context = format!("seed {seed}, {}, mixed copy {opening}", choice.name());
        let number = copied.open_mixed(seed, opening, &mut rng, shown, &context);
        if number.is_some() {
            opened[usize::from(number == newest)] += 1;
        }
    }
    shown.end_vault();
    opened
}

#[test]
fn a_mixed_copy_that_lies_shows_one_state_or_an_error() {
    let (openings, first) = (env_number("LACUNA_LIES", 1000), env_number("LACUNA_SEED", 1));
    let (mut shown, mut earlier, mut newest) = (OpeningCounts::default(), 0, 0);
    for seed in first..first + openings.div_ceil(MIXTURES) {
        let opened = open_mixed_copies(seed, CHOICES[(seed % 4) as usize], &mut shown);
        (earlier, newest) = (earlier + opened[0], newest + opened[1]);
    }
    let OpeningCounts { refused, correct: good, errors, wrong, digest } = shown;
    println!(
        "{openings} mixed copies, seed {first}, {earlier} in earlier states, {newest} in the newest, {refused} refused, \
         {good} good, {errors} errors, {} wrong, digest {digest:016x}",
        wrong.len()
    );
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(earlier > 0 && newest > 0, "{earlier} openings in earlier states, {newest} in the newest");
    assert!(refused > openings / 10 && good > openings && errors > 0, "the mixtures hardly mattered");
}

/// Without a scheme the mixtures and lies show: the game can be lost.
#[test]
fn encryption_alone_shows_content_of_several_states() {
    let loses = |seed| {
        let mut shown = OpeningCounts::default();
        open_mixed_copies(seed, Choice::Fixed(Scheme::None), &mut shown);
        !shown.wrong.is_empty()
    };
    assert!((1..=10).any(loses));
}
