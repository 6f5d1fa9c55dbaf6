//! Rollback detection. Detected: older states, lost and altered files, forks, a folder that answers
//! two reads of one place differently. Accepted: a crash, another machine's use, a state with
//! consent.

mod store_harness;

use lacuna_contracts::{Error, Kind};
use lacuna_sim::{CrashFolder, FolderImage, Rng};
use lacuna_vault_store::{
    Anchor, AnchorState, MemoryAnchor, ObjectId, Recovered, RollbackPolicy, Store, StoreOptions,
};
use std::sync::Arc;
use store_harness::machine::{
    Machine, be_honest, commit, content, copy, lying_folder, store_with_states, write,
};
use store_harness::{base, keys, options, page};

/// The number of lying folders in each test of them.
const LYING: u64 = 400;

/// Writes and commits a range of states, some with a root. Their records have the same length.
/// Returns the folder before them and after each.
fn commit_states(
    folder: &CrashFolder,
    store: &Store,
    object: ObjectId,
    states: std::ops::Range<u64>,
) -> Vec<FolderImage> {
    let mut kept = vec![folder.snapshot()];
    for state in states {
        write(store, object, state);
        let said = state.to_le_bytes();
        if state % 7 == 0 {
            store.commit(&[], Some(&said)).unwrap();
        } else {
            store.commit(&said, None).unwrap();
        }
        kept.push(folder.snapshot());
    }
    kept
}

/// The state that an opening found: number, root and puts.
type FoundState = (u64, Option<Vec<u8>>, Vec<Vec<u8>>);

fn state_of(found: &Recovered) -> FoundState {
    (found.state.number, found.root.clone(), found.puts.clone())
}

/// The options of a read-only opening.
fn read_only() -> StoreOptions {
    StoreOptions { read_only: true, ..options() }
}

#[test]
fn every_older_state_is_refused_with_its_number() {
    let (mut machine, folder, store, object) = store_with_states(0);
    let kept = commit_states(&folder, &store, object, 1..30);
    store.close().unwrap();
    let today = machine.number();
    for (state, image) in (0..).zip(&kept[..kept.len() - 1]) {
        let refused = machine.refused(&copy(image));
        let words = refused.to_string();
        assert_eq!(refused.kind(), Kind::RolledBack, "{state}: {words}");
        assert!(words.contains("older than this machine's last commit"), "{words}");
        assert!(words.contains(&format!("found: state {} of 2023-11-14", state + 1)), "{words}");
        assert!(words.contains(&format!("expected: state {today} of 2023-11-14")), "{words}");
    }
    let (store, found) = machine.open(&folder).unwrap();
    assert_eq!((content(&store, object), found.first_opening, found.accepted), (29, false, false));
}

/// Some reads return a content that their place had in an earlier state, or another record, or
/// altered bytes; the whole folder may be an older one as well. A read-only opening gives the
/// newest state, with everything committed since its root, or an error.
#[test]
fn a_folder_that_lies_gives_the_newest_state_or_an_error() {
    let (mut machine, folder, store, object) = store_with_states(0);
    let kept = commit_states(&folder, &store, object, 1..20);
    drop(store);
    let newest = state_of(&machine.open_as(&folder, &read_only()).unwrap().1);
    let (mut refused, mut good) = (0, 0);
    for seed in 0..LYING {
        let mut rng = Rng::new(seed);
        let now = if rng.chance(1, 4) { rng.pick(&kept).clone() } else { folder.snapshot() };
        let lying = lying_folder(kept.iter().chain([&now]), &mut rng);
        match machine.open_as(&lying, &read_only()) {
            Ok((_, found)) => {
                assert_eq!(state_of(&found), newest, "seed {seed}");
                good += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > LYING / 4 && good > LYING / 50, "{refused} refused, {good} good: lies hardly mattered");
}

/// A commit to a lying folder follows the newest state or is lost: no later opening gives
/// any other state.
#[test]
fn a_commit_to_a_lying_folder_follows_the_newest_state() {
    let (mut machine, folder, store, object) = store_with_states(0);
    let kept = commit_states(&folder, &store, object, 1..20);
    drop(store);
    let (newest, anchor) =
        (state_of(&machine.open_as(&folder, &read_only()).unwrap().1), machine.anchor.load().unwrap());
    let (mut taken_up, mut again) = (0, 0);
    for seed in 0..LYING {
        let mut rng = Rng::new(seed);
        let lying = lying_folder(&kept, &mut rng);
        let anchor = Arc::new(MemoryAnchor::new(anchor.clone()));
        let mut machine = Machine { anchor, seed: 1000 * seed };
        let Ok((store, found)) = machine.open(&lying) else { continue };
        assert_eq!(state_of(&found), newest, "seed {seed}");
        taken_up += 1;
        let committed = store.commit(b"later", None).is_ok();
        drop(store);
        be_honest(&lying);
        let Ok((_, found)) = machine.open_as(&lying, &read_only()) else { continue };
        let (number, root, mut puts) = state_of(&found);
        if committed {
            assert_eq!(puts.pop().as_deref(), Some(&b"later"[..]), "seed {seed}");
        } else if number > newest.0 {
            // The commit failed, but may have happened.
            assert!(puts.pop().is_none_or(|last| last == b"later"), "seed {seed}");
        }
        assert_eq!((root, puts), (newest.1.clone(), newest.2.clone()), "seed {seed}");
        again += 1;
    }
    assert!(taken_up > LYING / 50 && again > LYING / 100, "{taken_up} taken up, {again} opened again");
}

/// A folder with two histories shows each machine its own history, or none.
#[test]
fn a_fork_in_a_lying_folder_is_detected_by_both_machines() {
    let (mut one, folder, store, object) = store_with_states(2);
    drop(store);
    let mut two = Machine::new(40);
    drop(two.open(&folder).unwrap());
    let shared = folder.snapshot();
    let mut histories = vec![];
    for (machine, states) in [(&mut one, 20..25), (&mut two, 30..38)] {
        let folder = copy(&shared);
        let (store, _) = machine.open(&folder).unwrap();
        commit_states(&folder, &store, object, states);
        drop(store);
        let own = state_of(&machine.open_as(&folder, &read_only()).unwrap().1);
        histories.push((folder.snapshot(), own));
    }
    let mut own_histories = 0;
    for seed in 0..LYING {
        let mut rng = Rng::new(seed);
        let (mine, yours) = if rng.chance(1, 2) { (0, 1) } else { (1, 0) };
        let images = [&shared, &histories[mine].0, &histories[yours].0];
        // The last image is the true content.
        let images = if rng.chance(1, 2) { images } else { [images[0], images[2], images[1]] };
        let lying = lying_folder(images, &mut rng);
        let machine = if mine == 0 { &mut one } else { &mut two };
        if let Ok((_, found)) = machine.open_as(&lying, &read_only()) {
            assert_eq!(state_of(&found), histories[mine].1, "seed {seed}");
            own_histories += 1;
        }
    }
    assert!(own_histories > 0, "lies left nothing to see");
}

#[test]
fn a_crash_before_the_anchor_advance_is_no_rollback() {
    let (_, folder, store, object) = store_with_states(3);
    let behind = MemoryAnchor::default();
    behind.advance(None, &store_anchor(&store, &folder, 3)).unwrap();
    drop(store);
    let mut machine = Machine { anchor: Arc::new(behind), seed: 5 };
    assert_eq!(machine.number(), 3);
    let (store, found) = machine.open(&folder).unwrap();
    assert_eq!((content(&store, object), found.first_opening, machine.number()), (3, false, 4));
}

/// The anchor at an earlier state, made by replaying up to that state.
fn store_anchor(store: &Store, folder: &CrashFolder, number: u64) -> AnchorState {
    assert!(store.last_commit().number > number && !folder.is_cut());
    let (machine, _folder, _store, _) = store_with_states(number - 1);
    machine.anchor.load().unwrap().unwrap()
}

#[test]
fn an_opening_without_an_anchor_is_reported_as_the_first() {
    let (_, folder, store, object) = store_with_states(3);
    drop(store);
    let old = folder.snapshot();
    let mut fresh = Machine::new(9);
    let (store, found) = fresh.open(&folder).unwrap();
    assert!(found.first_opening && !found.accepted);
    assert_eq!(content(&store, object), 3);
    // The anchor exists from here.
    drop(store);
    assert!(!fresh.open(&folder).unwrap().1.first_opening);
    assert_eq!(fresh.refused(&copy(&old)).kind(), Kind::RolledBack);
}

#[test]
fn consent_applies_only_to_the_state_that_was_shown() {
    let (mut machine, folder, store, object) = store_with_states(2);
    let oldest = folder.snapshot();
    for state in 3..9 {
        write(&store, object, state);
        commit(&store, state);
        if state == 5 {
            store.commit(&[], Some(b"root")).unwrap();
        }
    }
    let shown = folder.snapshot();
    write(&store, object, 9);
    commit(&store, 9);
    drop(store);
    folder.restore(&shown);
    // The adversary restores an older state while the user decides.
    let swapped = (folder.clone(), oldest);
    let consent = RollbackPolicy::ask(move |refusal| {
        assert!(refusal.to_string().contains("found: state "), "{refusal}");
        swapped.0.restore(&swapped.1);
        Ok(())
    });
    match machine.open_as(&folder, &StoreOptions { on_rollback: Some(consent), ..options() }) {
        // The user of the store verifies reads against the state that was shown; the older one
        // never counts.
        Ok((store, found)) => {
            assert!(found.accepted && found.state.number > 8);
            drop(store);
            // The next opening finds and refuses the older state; or it finds a gap before the
            // record of the accepted state.
            assert!(matches!(machine.refused(&folder).kind(), Kind::RolledBack | Kind::Corrupt));
        }
        Err(e) => assert_ne!(e.kind(), Kind::RolledBack),
    }
    // An error of the consent is the error of the opening.
    let no = RollbackPolicy::ask(|_| Err(Error::new(Kind::Usage, "nothing was changed")));
    folder.restore(&shown);
    let refused =
        machine.open_as(&folder, &StoreOptions { on_rollback: Some(no), ..options() }).err().unwrap();
    assert_eq!(refused.kind(), Kind::Usage);
}

#[test]
fn a_probe_changes_nothing_until_activation() {
    let (mut machine, folder, store, object) = store_with_states(3);
    drop(store);
    let (before, anchor) = (folder.snapshot().digest(), machine.number());
    let other = Machine::new(77);
    let (store, found) = Store::probe(base(&folder, &other.anchor, 77), keys(), &options()).unwrap();
    assert!(found.first_opening);
    assert_eq!(content(&store, object), 3);
    drop(store);
    assert_eq!((folder.snapshot().digest(), other.anchor.load().unwrap()), (before, None));
    assert_eq!(machine.number(), anchor);
    let (store, _) = Store::probe(base(&folder, &other.anchor, 78), keys(), &options()).unwrap();
    store.activate().unwrap();
    assert!(other.number() > anchor);
    drop(store);
    assert_eq!(content(&machine.open(&folder).unwrap().0, object), 3);
}

#[test]
fn an_accepted_older_state_can_be_continued() {
    let (mut machine, folder, store, object) = store_with_states(3);
    let backup = folder.snapshot();
    for state in 4..9 {
        write(&store, object, state);
        commit(&store, state);
    }
    drop(store);
    let (newest, before) = (folder.snapshot(), machine.number());
    folder.restore(&backup);
    assert_eq!(machine.refused(&folder).kind(), Kind::RolledBack);
    assert_eq!(machine.number(), before);
    let (store, found) = machine
        .open_as(&folder, &StoreOptions { on_rollback: Some(RollbackPolicy::accept()), ..options() })
        .unwrap();
    assert!(found.accepted);
    assert_eq!((content(&store, object), found.state.number), (3, 4));
    assert!(machine.number() > before);
    write(&store, object, 50);
    commit(&store, 50);
    drop(store);
    assert_eq!(content(&machine.open(&folder).unwrap().0, object), 50);
    // The states before the acceptance are another history now.
    let words = machine.refused(&copy(&newest)).to_string();
    assert!(words.contains("older") || words.contains("another history"), "{words}");
    assert_eq!(machine.refused(&copy(&backup)).kind(), Kind::RolledBack);
}

#[test]
fn two_machines_take_turns() {
    let (mut one, folder, store, object) = store_with_states(2);
    drop(store);
    let mut two = Machine::new(40);
    let mut shared = folder.snapshot();
    for turn in 0..8u64 {
        let machine = if turn % 2 == 0 { &mut two } else { &mut one };
        let folder = copy(&shared);
        let (store, found) = machine.open(&folder).unwrap();
        assert_eq!(found.first_opening, turn == 0);
        assert_eq!(content(&store, object), turn + 2);
        write(&store, object, turn + 3);
        let said = turn.to_le_bytes();
        if turn % 3 == 0 {
            store.commit(&[], Some(&said)).unwrap();
        } else {
            store.commit(&said, None).unwrap();
        }
        drop(store);
        shared = folder.snapshot();
    }
}

#[test]
fn a_read_only_opening_changes_nothing() {
    let (mut machine, folder, store, object) = store_with_states(3);
    drop(store);
    folder.set_read_only(true);
    let before = folder.snapshot().digest();
    let (store, _) = machine.open_as(&folder, &read_only()).unwrap();
    assert_eq!(content(&store, object), 3);
    assert_eq!(store.write(object, 0, &page(9)).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(store.commit(b"x", None).unwrap_err().kind(), Kind::ReadOnly);
    store.close().unwrap();
    assert_eq!(folder.snapshot().digest(), before);
}

#[test]
fn a_fork_is_detected_by_both_machines() {
    let (mut one, folder, store, object) = store_with_states(2);
    drop(store);
    let mut two = Machine::new(40);
    let (store, _) = two.open(&folder).unwrap();
    commit(&store, 3);
    drop(store);
    let shared = folder.snapshot();
    let (mine, yours) = (copy(&shared), copy(&shared));
    for (machine, folder, states) in [(&mut one, &mine, 3), (&mut two, &yours, 6)] {
        let (store, _) = machine.open(folder).unwrap();
        for state in 0..states {
            write(&store, object, state);
            commit(&store, state);
        }
    }
    for (machine, folder) in [(&mut one, &yours), (&mut two, &mine)] {
        let refused = machine.refused(&copy(&folder.snapshot()));
        assert_eq!(refused.kind(), Kind::RolledBack, "{refused}");
        machine.open(&copy(&shared)).err().expect("the state before the fork is older");
    }
    // One of them is kept, and the other machine accepts it.
    let (store, found) = two
        .open_as(&mine, &StoreOptions { on_rollback: Some(RollbackPolicy::accept()), ..options() })
        .unwrap();
    assert!(found.accepted);
    commit(&store, 99);
    drop(store);
    assert!(!one.open(&mine).unwrap().1.accepted);
}

/// A third machine forks from a state before a second machine's: the first machine detects the loss
/// of the state that it saw.
#[test]
fn the_loss_of_a_state_seen_from_another_machine_is_detected() {
    let (mut one, folder, store, object) = store_with_states(2);
    drop(store);
    let (mut two, mut three) = (Machine::new(40), Machine::new(70));
    drop(three.open(&folder).unwrap());
    let before = folder.snapshot();
    let (store, _) = two.open(&folder).unwrap();
    write(&store, object, 7);
    commit(&store, 7);
    drop(store);
    // The first machine only opens it, and has seen the second's write.
    drop(one.open(&folder).unwrap());
    let forked = copy(&before);
    let (store, _) = three.open(&forked).unwrap();
    for state in 0..20 {
        commit(&store, state);
    }
    drop(store);
    assert_eq!(one.refused(&forked).kind(), Kind::RolledBack);
}
