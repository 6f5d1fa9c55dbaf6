//! Each error of the system at each call of the folder, in a workload between an opening and an orderly end. A call that is refused fails
//! one request, and everything else goes on as if nothing had been. A signal that interrupts a call is not noticed at all. After an error of
//! the medium, or of a sync, the vault takes no more changes, and what was synced is there when it is opened again. Advances of the anchor
//! count as syncs of the folder; that one is refused before its sync is a test of its own.
//!
//! Two errors are tried at each call, and all with `LACUNA_SWEEP`.

mod world;

use lacuna_contracts::{Error, Result};
use lacuna_integrity::Choice;
use lacuna_sim::{CrashFolder, FolderImage, FolderOp, Rng, SWEPT, refuses};
use lacuna_vault::store::{Anchor, AnchorState, MemoryAnchor};
use lacuna_vault::{Base, Vault};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use world::dump::{assert_same, of_model, of_vault};
use world::model::Model;
use world::ops::{Step, step, work};
use world::states::States;
use world::{UUID, World};

/// Operations before the errors, and among them.
const BEFORE: u64 = 60;
const STEPS: u64 = 70;
/// Calls of an opening that look for files of objects that no commit refers to: one each, one after the other, and all alike. Some are tried.
const PROBES: u64 = 1024;
/// Other calls of the script at most.
const MOST_CALLS: u64 = 450;
const SEED: u64 = 4;

/// A closed vault with something in it.
struct Start {
    image: FolderImage,
    anchor: Option<AnchorState>,
    model: Model,
}

impl Start {
    fn new() -> Start {
        let mut world = World::new(SEED);
        let vault = world.create(Choice::Auto);
        let mut model = Model::default();
        assert_eq!(work(&vault, &mut model, &mut Rng::new(SEED), BEFORE), 0);
        vault.close().unwrap();
        drop(vault);
        Start {
            image: world.folder.snapshot(),
            anchor: world.memory.load().unwrap(),
            model: model.reopened(),
        }
    }

    fn world(&self) -> World {
        // Of another seed: no opening draws what one before it drew.
        let mut world = World::new(SEED + 1);
        world.folder = CrashFolder::from_image(&self.image);
        world.memory = Arc::new(MemoryAnchor::new(self.anchor.clone()));
        world
    }
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// Nothing was noticed.
    Unnoticed,
    /// One request failed.
    Failed,
    /// The vault took no more changes.
    Stopped,
}

/// Plays the script with an error at call `nth`. Gives what became of it, its calls, and the one that failed.
fn run(start: &Start, nth: u64, errno: i32) -> (End, u64, Option<FolderOp>) {
    let mut world = start.world();
    let mut states = States::new(start.model.clone());
    world.folder.fail_call(nth, errno);
    let mut failed: Vec<String> = Vec::new();
    let vault = world.open().or_else(|e| {
        failed.push(e.to_string());
        world.open()
    });
    let said = std::io::Error::from_raw_os_error(errno);
    let context = |hit: Option<FolderOp>| format!("call {nth}, {hit:?}: {said}");
    let vault = vault.unwrap_or_else(|e| panic!("{}, opened again: {e}", context(world.folder.called().1)));
    let mut rng = Rng::new(SEED + 2);
    for _ in 0..STEPS {
        let done = step(&vault, &mut states.model, &mut rng, 150);
        if done == Step::Failed {
            failed.push("an operation".to_owned());
        }
        states.did(&done);
    }
    match vault.sync() {
        Ok(()) => states.did(&Step::Durable),
        Err(e) => failed.push(e.to_string()),
    }
    let hit = world.folder.called().1;
    let context = context(hit);
    let may_stop = errno != libc::EINTR && (!refuses(errno) || hit.is_some_and(FolderOp::syncs));
    let end = if let Err(e) = vault.sync() {
        assert!(may_stop, "{context}: one call was refused, and then everything: {e}");
        assert!(e.to_string().contains("close"), "{context}: no advice: {e}");
        drop(vault);
        End::Stopped
    } else {
        states.did(&Step::Durable);
        // This look is no part of the script: no error comes in it.
        if hit.is_some() {
            assert_same(&of_vault(&vault), &of_model(&states.model), &context);
        }
        let end = close(&vault, &world, may_stop, &context);
        drop(vault);
        if !may_stop {
            assert!(failed.len() <= 1, "{context}: more than one request failed: {failed:?}");
        }
        if failed.is_empty() { end } else { end.max(End::Failed) }
    };
    let (calls, hit) = world.folder.called();
    world.folder.heal();
    let vault = world.open().unwrap_or_else(|e| panic!("{context}, afterwards: {e}"));
    states.recover(&vault, &context);
    let report = vault.check(&mut |_, _| ()).unwrap();
    assert!(report.bad.is_empty(), "{context}: {:?}", report.bad);
    (end, calls, hit)
}

/// Calls of an opening in which nothing fails.
fn calls_of_opening(start: &Start) -> u64 {
    let mut world = start.world();
    world.folder.fail_call(0, 0);
    drop(world.open().unwrap());
    world.folder.called().0
}

/// The orderly end, in which the call may fail as well.
fn close(vault: &Vault, world: &World, may_stop: bool, context: &str) -> End {
    let Err(e) = vault.close() else { return End::Unnoticed };
    let (_, hit) = world.folder.called();
    assert!(hit.is_some(), "{context}: {e}");
    // It says so, and the next opening has everything.
    let syncs = hit.is_some_and(FolderOp::syncs);
    if may_stop || syncs { End::Stopped } else { End::Failed }
}

#[test]
fn an_error_of_any_call_fails_a_request_or_stops_and_loses_nothing_that_was_synced() {
    let start = Start::new();
    let (_, calls, _) = run(&start, 0, 0);
    let opened = calls_of_opening(&start);
    let others = opened - PROBES;
    // Wherever the probes are among the calls of the opening: all but probes lie outside of these.
    let is_probe = |nth: u64| nth > others && nth <= opened - others;
    assert!((100..=MOST_CALLS).contains(&(calls - PROBES)), "{calls} calls");
    let all = std::env::var_os("LACUNA_SWEEP").is_some();
    let (mut ends, mut runs) = ([0u64; 3], 0u64);
    for nth in (1..=calls).filter(|nth| !is_probe(*nth) || nth % 32 == 0) {
        for (at, errno) in (0..).zip(SWEPT) {
            if all || matches!((nth + at) % 9, 0 | 4) {
                let (end, _, hit) = run(&start, nth, errno);
                assert!(hit.is_some(), "call {nth} never came");
                assert!(
                    errno != libc::EINTR || end == End::Unnoticed,
                    "call {nth}, {hit:?}: a signal was noticed"
                );
                ends[end as usize] += 1;
                runs += 1;
            }
        }
    }
    let [unnoticed, failed, stopped] = ends;
    println!("{calls} calls, {runs} runs: {unnoticed} unnoticed, {failed} failed, {stopped} stopped");
    assert!(failed > runs / 20 && stopped > runs / 20, "{ends:?}");
}

/// An anchor one of whose advances fails, and remembers nothing.
struct FaultyAnchor {
    memory: Arc<MemoryAnchor>,
    advances: AtomicU64,
    fails: u64,
    errno: i32,
}

impl Anchor for FaultyAnchor {
    fn load(&self) -> Result<Option<AnchorState>> {
        self.memory.load()
    }

    fn advance(&self, expected: Option<&AnchorState>, next: &AnchorState) -> Result<()> {
        if self.advances.fetch_add(1, Ordering::Relaxed) + 1 == self.fails {
            let number = std::io::Error::from_raw_os_error(self.errno);
            return Err(Error::io("cannot write the anchor", &number));
        }
        self.memory.advance(expected, next)
    }
}

/// Works with an anchor whose advance `nth` fails. With `crashes` nothing comes after the request that failed, not even a close. The next
/// opening finds one of the states.
fn work_with_faulty_anchor(start: &Start, nth: u64, errno: i32, crashes: bool) {
    let context = format!("advance {nth}: {}", std::io::Error::from_raw_os_error(errno));
    let mut world = start.world();
    let mut states = States::new(start.model.clone());
    let (memory, advances) = (world.memory.clone(), AtomicU64::new(0));
    let anchor = Arc::new(FaultyAnchor { memory, advances, fails: nth, errno });
    let base = Base { anchor: anchor.clone(), ..world.base() };
    let vault = Vault::open(base, &World::master(), UUID, &world.options())
        .unwrap_or_else(|e| panic!("{context}: {e}"));
    let (mut rng, mut failed) = (Rng::new(SEED + 3), 0);
    for _ in 0..40 {
        let done = step(&vault, &mut states.model, &mut rng, 200);
        states.did(&done);
        if done == Step::Failed {
            failed += 1;
            if crashes {
                break;
            }
        }
    }
    if !crashes {
        assert!(anchor.advances.load(Ordering::Relaxed) >= nth, "{context}: it never came");
        let synced = vault.sync();
        if refuses(errno) {
            assert!(failed <= 1, "{context}: more than one request failed");
            synced.unwrap_or_else(|e| panic!("{context}: one call was refused, and then everything: {e}"));
            states.did(&Step::Durable);
            assert_same(&of_vault(&vault), &of_model(&states.model), &context);
            vault.close().unwrap_or_else(|e| panic!("{context}: {e}"));
        } else {
            assert!(synced.is_err(), "{context}: it goes on after an error of the medium");
        }
    }
    drop(vault);
    let vault = world.open().unwrap_or_else(|e| panic!("{context}, afterwards: {e}"));
    states.recover(&vault, &context);
    assert!(vault.check(&mut |_, _| ()).unwrap().bad.is_empty(), "{context}");
}

#[test]
fn an_anchor_that_is_refused_fails_a_commit_alone() {
    let start = Start::new();
    for errno in SWEPT.into_iter().filter(|errno| *errno != libc::EINTR) {
        for nth in 1..=3 {
            for crashes in [false, true] {
                work_with_faulty_anchor(&start, nth, errno, crashes);
            }
        }
    }
}
