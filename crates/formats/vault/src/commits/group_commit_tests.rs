//! Changes concurrent with commits, and with the last commit. Hooks and locks that a test holds
//! force each interleaving; none depends on time.

use super::*;
use crate::{NewNode, ROOT, SystemWallClock, Vault, VaultBacking, VaultOpenOptions, VaultOptions};
use lacuna_contracts::{Error, Kind, Secret};
use lacuna_crypto::SeededRandom;
use lacuna_sim::CrashFolder;
use lacuna_vault_store::{Anchor, AnchorState, MemoryAnchor};
use std::sync::Barrier;
use std::thread::{scope, spawn, yield_now};

const UUID: [u8; 16] = [5; 16];
/// Bytes of a write that fits into the space once, but not twice.
const LARGE: usize = 20 << 20;
const SPACE: u64 = 30 << 20;

/// An anchor that calls a hook, once, before it advances: then the commit is noted and not durable.
#[derive(Default)]
struct HookedAnchor {
    memory: MemoryAnchor,
    hook: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Anchor for HookedAnchor {
    fn load(&self) -> Result<Option<AnchorState>> {
        self.memory.load()
    }

    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()> {
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        self.memory.advance(expected, next)
    }
}

/// A folder, and the anchor of its vault.
#[derive(Default)]
struct TestBacking {
    folder: CrashFolder,
    anchor: Arc<HookedAnchor>,
}

impl TestBacking {
    fn base(&self, seed: u64) -> VaultBacking {
        VaultBacking {
            folder: Arc::new(self.folder.clone()),
            anchor: self.anchor.clone(),
            random: Arc::new(SeededRandom::new(seed)),
            clock: Arc::new(SystemWallClock),
        }
    }

    /// A new vault without threads.
    fn create(&self) -> Arc<Vault> {
        let options = VaultOptions { open: options(), ..VaultOptions::default() };
        Arc::new(Vault::create(self.base(1), &master(), UUID, &options).unwrap())
    }

    fn open(&self) -> Vault {
        Vault::open(self.base(2), &master(), UUID, &options()).unwrap()
    }
}

fn options() -> VaultOpenOptions {
    VaultOpenOptions { commit_period: None, ..VaultOpenOptions::default() }
}

fn master() -> Secret<32> {
    Secret::copy_from(&[7; 32])
}

fn make(vault: &Vault, name: &[u8]) -> u64 {
    vault.create_node(ROOT, name, NewNode::File, 0o644, 0, 0).unwrap().ino
}

/// The reservation of a writer that has not been checked yet blocks another writer. With nothing
/// left to commit, the other one can only wait.
#[test]
fn a_writer_waits_until_another_returns_its_reservation() {
    let world = TestBacking::default();
    let vault = world.create();
    let commits = vault.commits();
    commits.checkpoint().unwrap();
    let made = commits.count();
    world.folder.set_capacity(world.folder.used() + SPACE);
    // As in the middle of `try_begin`.
    let gate = commits.gate.read();
    let reserved = commits.space_budget.reserve(SpaceRequest::Write(LARGE as u64));
    scope(|scope| {
        let writer = scope.spawn(|| commits.begin(SpaceRequest::Write(LARGE as u64)).map(drop));
        while !writer.is_finished() && !commits.gate.is_locked_exclusive() {
            yield_now();
        }
        drop(reserved);
        drop(gate);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(commits.count(), made);
}

/// Two writers in a directory with space for one: one writes everything, and the other gets ENOSPC,
/// in either order.
#[test]
fn of_two_writers_with_space_for_one_exactly_one_succeeds() {
    for round in 0..4 {
        let world = TestBacking::default();
        let vault = world.create();
        let files = [make(&vault, b"one"), make(&vault, b"two")];
        vault.sync().unwrap();
        world.folder.set_capacity(world.folder.used() + SPACE);
        let (data, start) = (vec![7; LARGE], Barrier::new(2));
        let write = |file: u64| {
            start.wait();
            vault.write(file, 0, &data)
        };
        let done = scope(|scope| {
            let writers = files.map(|file| scope.spawn(move || write(file)));
            writers.map(|writer| writer.join().unwrap())
        });
        let written = done.iter().filter(|done| matches!(done, Ok(LARGE))).count();
        let refused = done.iter().filter(|done| matches!(done, Err(FsError::Errno(libc::ENOSPC)))).count();
        assert_eq!((written, refused), (1, 1), "round {round}: {done:?}");
        vault.close().unwrap();
        drop(vault);
        let vault = world.open();
        let sizes = files.map(|file| vault.attr(file).unwrap().size);
        let expected = done.map(|done| done.map_or(0, |written| written as u64));
        assert_eq!(sizes, expected, "round {round}");
    }
}

/// If a change fails half way while a commit waits for its end, no commit includes it.
#[test]
fn a_change_that_fails_half_way_is_in_no_commit() {
    let vault = TestBacking::default().create();
    let commits = vault.commits();
    make(&vault, b"file");
    let before = vault.last_commit().number;
    let change = commits.begin(SpaceRequest::Metadata).unwrap();
    scope(|scope| {
        let commit = scope.spawn(|| commits.commit());
        while !commits.gate.is_locked_exclusive() {
            yield_now();
        }
        commits.services.health.fail(Error::new(Kind::Io, "half way"));
        drop(change);
        assert_eq!(commit.join().unwrap().unwrap_err().kind(), Kind::FailStop);
    });
    // A repair fails as well.
    assert_eq!(commits.checkpoint().unwrap_err().kind(), Kind::FailStop);
    assert_eq!(vault.last_commit().number, before);
}

/// A change between the noting of the last commit and the close would be acknowledged and in no
/// commit: none begins.
#[test]
fn no_change_begins_during_the_last_commit() {
    let world = TestBacking::default();
    let vault = world.create();
    let file = make(&vault, b"file");
    let begun = Arc::new(Mutex::new(None));
    let (others, other) = (begun.clone(), vault.clone());
    *world.anchor.hook.lock() = Some(Box::new(move || {
        let is_let_in = !other.commits().gate.is_locked_exclusive();
        let writing = other.clone();
        let writer = spawn(move || writing.write(file, 0, &[7; 4096]));
        let reclaim = spawn(move || other.commits().begin_forced().is_some());
        // An admitted thread ends before this commit is durable; a blocked one waits for this
        // thread.
        while is_let_in && !(writer.is_finished() && reclaim.is_finished()) {
            yield_now();
        }
        *others.lock() = Some((writer, reclaim));
    }));
    vault.close().unwrap();
    let (writer, reclaim) = begun.lock().take().unwrap();
    let (written, reclaims) = (writer.join().unwrap(), reclaim.join().unwrap());
    drop(vault);
    let vault = world.open();
    let is_there = vault.attr(file).unwrap().size == 4096;
    assert_eq!(written.is_ok(), is_there, "acknowledged, and lost: {written:?}");
    let refused = written.unwrap_err().to_string();
    assert!(refused.contains("closed") && !reclaims, "{refused}");
}

/// A sync that gets its turn after the close succeeds if the last commit has its changes.
#[test]
fn a_sync_covered_by_the_last_commit_succeeds() {
    let vault = TestBacking::default().create();
    make(&vault, b"file");
    // The sync began before the close.
    let enough = vault.commits().next_to_begin();
    vault.close().unwrap();
    vault.commits().commit_up_to(enough).unwrap();
    // So does a sync that began while that commit was made durable: nothing was changed since.
    vault.commits().commit_up_to(enough + 1).unwrap();
    assert_eq!(vault.sync().unwrap_err().errno(), libc::EIO);
}

/// Pages that a repair hands to the store need their root: no commit comes between.
#[test]
fn no_commit_comes_between_a_repair_and_its_root() {
    let vault = TestBacking::default().create();
    let commits = vault.commits();
    make(&vault, b"file");
    let before = vault.last_commit().number;
    let number = commits.checkpoint_after(|| {
        assert!(commits.commit_lock.is_locked());
        Ok(vault.last_commit().number)
    });
    assert_eq!((number.unwrap(), vault.last_commit().number), (before, before + 1));
}
