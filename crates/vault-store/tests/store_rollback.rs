//! What the anchor and the seals notice: older states, lost and altered files, forks; and what they let pass: a crash, another
//! machine's turn, a state that was accepted.

mod store_world;

use lacuna_core::{Error, Kind, Result};
use lacuna_sim::{CrashFolder, FolderImage, Image, Rng};
use lacuna_vault_store::{
    Anchor, Consent, FILES, MemoryAnchor, ObjectId, PAGE, Recovered, Store, StoreOptions, Superblocks,
};
use std::sync::Arc;
use store_world::{base, keys, options, page};

/// One machine that uses copies of a folder.
struct Machine {
    anchor: Arc<MemoryAnchor>,
    seed: u64,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        Machine { anchor: Arc::default(), seed }
    }

    fn create(&self, folder: &CrashFolder) -> Store {
        Store::create(base(folder, &self.anchor, self.seed), keys(), &options()).unwrap()
    }

    fn open_as(&mut self, folder: &CrashFolder, options: &StoreOptions) -> Result<(Store, Recovered)> {
        self.seed += 100;
        Store::open(base(folder, &self.anchor, self.seed), keys(), options)
    }

    fn open(&mut self, folder: &CrashFolder) -> Result<(Store, Recovered)> {
        self.open_as(folder, &options())
    }

    /// The refusal of a folder.
    fn refused(&mut self, folder: &CrashFolder) -> Error {
        self.open(folder).err().expect("a refusal")
    }

    fn number(&self) -> u64 {
        self.anchor.load().unwrap().unwrap().number
    }
}

fn copy(image: &FolderImage) -> CrashFolder {
    CrashFolder::from_image(image)
}

/// A store with some objects of which states 1 to `states` write page 0 of the first.
fn grown(states: u64) -> (Machine, CrashFolder, Store, ObjectId) {
    let (machine, folder) = (Machine::new(1), CrashFolder::new());
    let store = machine.create(&folder);
    let object = store.new_object().unwrap();
    for state in 1..=states {
        write(&store, object, state);
        commit(&store, state);
    }
    (machine, folder, store, object)
}

fn write(store: &Store, object: ObjectId, stamp: u64) {
    store.write(object, 0, &page(stamp)).unwrap();
}

fn commit(store: &Store, stamp: u64) {
    store.commit(&stamp.to_le_bytes(), None).unwrap();
}

fn content(store: &Store, object: ObjectId) -> u64 {
    let mut bytes = vec![0; PAGE];
    store.read(object, 0, &mut bytes).unwrap();
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

#[test]
fn every_older_state_is_named() {
    let (mut machine, folder, store, object) = grown(0);
    let mut kept = vec![folder.snapshot()];
    for state in 1..30 {
        write(&store, object, state);
        let said = state.to_le_bytes();
        if state % 7 == 0 {
            store.commit(&[], Some(&said)).unwrap();
        } else {
            store.commit(&said, None).unwrap();
        }
        kept.push(folder.snapshot());
    }
    store.close().unwrap();
    let today = machine.number();
    for (state, image) in (0..).zip(&kept[..kept.len() - 1]) {
        let refused = machine.refused(&copy(image));
        let words = refused.to_string();
        assert_eq!(refused.kind(), Kind::RolledBack, "{state}: {words}");
        assert!(words.contains("older than what this machine committed last"), "{words}");
        assert!(words.contains(&format!("found: state {} of 2023-11-14", state + 1)), "{words}");
        assert!(words.contains(&format!("expected: state {today} of 2023-11-14")), "{words}");
    }
    let (store, found) = machine.open(&folder).unwrap();
    assert_eq!((content(&store, object), found.first_opening, found.accepted), (29, false, false));
}

#[test]
fn a_crash_before_the_anchor_advanced_is_none() {
    let (_, folder, store, object) = grown(3);
    let behind = MemoryAnchor::default();
    behind.advance(None, &store_anchor(&store, &folder, 3)).unwrap();
    drop(store);
    let mut machine = Machine { anchor: Arc::new(behind), seed: 5 };
    assert_eq!(machine.number(), 3);
    let (store, found) = machine.open(&folder).unwrap();
    assert_eq!((content(&store, object), found.first_opening, machine.number()), (3, false, 4));
}

/// What the anchor was at an earlier state: found by going there.
fn store_anchor(store: &Store, folder: &CrashFolder, number: u64) -> lacuna_vault_store::AnchorState {
    assert!(store.last_commit().number > number && !folder.is_cut());
    let (machine, _folder, _store, _) = grown(number - 1);
    machine.anchor.load().unwrap().unwrap()
}

#[test]
fn without_an_anchor_the_first_opening_is_said() {
    let (_, folder, store, object) = grown(3);
    drop(store);
    let old = folder.snapshot();
    let mut fresh = Machine::new(9);
    let (store, found) = fresh.open(&folder).unwrap();
    assert!(found.first_opening && !found.accepted);
    assert_eq!(content(&store, object), 3);
    // From now on it knows.
    drop(store);
    assert!(!fresh.open(&folder).unwrap().1.first_opening);
    assert_eq!(fresh.refused(&copy(&old)).kind(), Kind::RolledBack);
}

#[test]
fn what_is_accepted_is_the_state_that_was_shown() {
    let (mut machine, folder, store, object) = grown(2);
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
    // Somebody puts an older state there while a person thinks.
    let swapped = (folder.clone(), oldest);
    let consent = Consent::asked(move |refusal| {
        assert!(refusal.to_string().contains("found: state "), "{refusal}");
        swapped.0.restore(&swapped.1);
        Ok(())
    });
    match machine.open_as(&folder, &StoreOptions { accept: Some(consent), ..options() }) {
        // What is read is verified against the state that was shown, by who uses the store; the older one never counts.
        Ok((store, found)) => {
            assert!(found.accepted && found.state.number > 8);
            drop(store);
            // The next opening finds the older state, and says so; or it finds a gap before the record of what was accepted.
            assert!(matches!(machine.refused(&folder).kind(), Kind::RolledBack | Kind::Corrupt));
        }
        Err(e) => assert_ne!(e.kind(), Kind::RolledBack),
    }
    // A refusal is that of the opening.
    let no = Consent::asked(|_| Err(Error::new(Kind::Usage, "nothing was changed")));
    folder.restore(&shown);
    let refused = machine.open_as(&folder, &StoreOptions { accept: Some(no), ..options() }).err().unwrap();
    assert_eq!(refused.kind(), Kind::Usage);
}

#[test]
fn a_look_changes_nothing_until_it_is_taken_up() {
    let (mut machine, folder, store, object) = grown(3);
    drop(store);
    let (before, anchor) = (folder.snapshot().digest(), machine.number());
    let other = Machine::new(77);
    let (store, found) = Store::look(base(&folder, &other.anchor, 77), keys(), &options()).unwrap();
    assert!(found.first_opening);
    assert_eq!(content(&store, object), 3);
    drop(store);
    assert_eq!((folder.snapshot().digest(), other.anchor.load().unwrap()), (before, None));
    assert_eq!(machine.number(), anchor);
    let (store, _) = Store::look(base(&folder, &other.anchor, 78), keys(), &options()).unwrap();
    store.take_up().unwrap();
    assert!(other.number() > anchor);
    drop(store);
    assert_eq!(content(&machine.open(&folder).unwrap().0, object), 3);
}

#[test]
fn an_older_state_that_is_accepted_goes_on() {
    let (mut machine, folder, store, object) = grown(3);
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
    let (store, found) =
        machine.open_as(&folder, &StoreOptions { accept: Some(Consent::given()), ..options() }).unwrap();
    assert!(found.accepted);
    assert_eq!((content(&store, object), found.state.number), (3, 4));
    assert!(machine.number() > before);
    write(&store, object, 50);
    commit(&store, 50);
    drop(store);
    assert_eq!(content(&machine.open(&folder).unwrap().0, object), 50);
    // What was there before it was accepted is another history now.
    let words = machine.refused(&copy(&newest)).to_string();
    assert!(words.contains("older") || words.contains("another history"), "{words}");
    assert_eq!(machine.refused(&copy(&backup)).kind(), Kind::RolledBack);
}

#[test]
fn two_machines_take_turns() {
    let (mut one, folder, store, object) = grown(2);
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
fn a_machine_that_only_looks_changes_nothing() {
    let (mut machine, folder, store, object) = grown(3);
    drop(store);
    folder.set_read_only(true);
    let (before, looking) = (folder.snapshot().digest(), StoreOptions { read_only: true, ..options() });
    let (store, _) = machine.open_as(&folder, &looking).unwrap();
    assert_eq!(content(&store, object), 3);
    assert_eq!(store.write(object, 0, &page(9)).unwrap_err().kind(), Kind::ReadOnly);
    assert_eq!(store.commit(b"x", None).unwrap_err().kind(), Kind::ReadOnly);
    store.close().unwrap();
    assert_eq!(folder.snapshot().digest(), before);
}

#[test]
fn a_fork_is_noticed_by_both() {
    let (mut one, folder, store, object) = grown(2);
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
    let (store, found) =
        two.open_as(&mine, &StoreOptions { accept: Some(Consent::given()), ..options() }).unwrap();
    assert!(found.accepted);
    commit(&store, 99);
    drop(store);
    assert!(!one.open(&mine).unwrap().1.accepted);
}

/// A third machine forks from a state that a second one has left: what the first has seen of the second is missed.
#[test]
fn what_a_machine_has_seen_of_another_is_missed() {
    let (mut one, folder, store, object) = grown(2);
    drop(store);
    let (mut two, mut three) = (Machine::new(40), Machine::new(70));
    drop(three.open(&folder).unwrap());
    let before = folder.snapshot();
    let (store, _) = two.open(&folder).unwrap();
    write(&store, object, 7);
    commit(&store, 7);
    drop(store);
    // The first only opens it, and has seen the second's write.
    drop(one.open(&folder).unwrap());
    let forked = copy(&before);
    let (store, _) = three.open(&forked).unwrap();
    for state in 0..20 {
        commit(&store, state);
    }
    drop(store);
    assert_eq!(one.refused(&forked).kind(), Kind::RolledBack);
}

/// Whatever an adversary does to the files of the store itself: the newest state or an error, and never a panic. Objects are
/// not sealed by the store; its users verify them.
#[test]
fn altered_files_are_refused() {
    let mut seen = std::collections::BTreeMap::<String, u64>::new();
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let (mut machine, folder, store, object) = grown(1 + rng.below(4));
        if rng.chance(1, 2) {
            store.commit(&[], Some(b"rootroot")).unwrap();
            write(&store, object, 77);
            commit(&store, 77);
        }
        let newest = content(&store, object);
        drop(store);
        let mut image = folder.snapshot();
        let name = *rng.pick(&FILES);
        match rng.below(5) {
            0 => drop(image.files.remove(name)),
            1 => drop(image.files.insert(name.into(), Image::new(rng.below(100_000)))),
            2 => drop(image.alter(name, |bytes| {
                let len = rng.below(bytes.len() as u64 + 1) as usize;
                bytes.truncate(len);
            })),
            3 => drop(image.alter(name, |bytes| {
                let pages = bytes.len() / PAGE;
                if pages > 1 {
                    let (from, to) = (rng.below(pages as u64) as usize, rng.below(pages as u64) as usize);
                    bytes.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
                }
            })),
            _ => drop(image.alter(name, |bytes| {
                // Most of a file is empty: what is not, is hit.
                let full: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
                for _ in 0..=rng.below(3) {
                    if !full.is_empty() {
                        bytes[*rng.pick(&full)] ^= 1 << rng.below(8);
                    }
                }
            })),
        }
        let outcome = match machine.open(&copy(&image)) {
            // The journaled page itself may be what was altered.
            Ok((store, _)) if content(&store, object) == newest => "newest".to_owned(),
            Ok((_, found)) => {
                assert_eq!(found.state.number, machine.number(), "seed {seed}");
                "altered page of the newest".to_owned()
            }
            Err(e) => {
                assert!(matches!(e.kind(), Kind::Corrupt | Kind::RolledBack), "seed {seed}: {e}");
                format!("{:?}", e.kind())
            }
        };
        *seen.entry(outcome).or_default() += 1;
    }
    println!("{seen:?}");
    assert!(
        ["newest", "Corrupt", "RolledBack"].iter().all(|outcome| seen.contains_key(*outcome)),
        "{seen:?}"
    );
}

/// A store whose object was cut, and appended to in place after the checkpoint that brought the cut to its place. Also the
/// superblock before that checkpoint, and what the object holds.
fn appended_after_a_cut() -> (Machine, CrashFolder, ObjectId, Image, Vec<u8>) {
    let (machine, folder, store, object) = grown(0);
    let stamped = |stamps: std::ops::Range<u64>| stamps.flat_map(page).collect::<Vec<u8>>();
    store.write(object, 0, &stamped(1..61)).unwrap();
    commit(&store, 1);
    store.commit(&[], Some(b"before")).unwrap();
    let older = folder.snapshot().files["super.0"].clone();
    store.truncate(object, 10).unwrap();
    commit(&store, 2);
    store.commit(&[], Some(b"root")).unwrap();
    for (nth, stamps) in (0..).zip([100..120, 120..140, 140..160]) {
        store.write(object, 10 + 20 * nth, &stamped(stamps)).unwrap();
        commit(&store, 3 + nth);
    }
    let content = [stamped(1..11), stamped(100..160)].concat();
    (machine, folder, object, older, content)
}

/// Without the newest superblock the journal has everything: the checkpoint that it ended is carried out once more, and takes
/// nothing that was appended since. So it is where both files are those of an earlier day, and where one is and the other is damaged.
#[test]
fn what_was_appended_survives_the_loss_of_a_superblock() {
    for (rolled_back, other) in [(false, "super.0"), (false, "super.1"), (true, "super.1")] {
        let (mut machine, folder, object, older, content) = appended_after_a_cut();
        let mut image = folder.snapshot();
        for name in ["super.0", "super.1"] {
            image.files.insert(name.into(), older.clone());
        }
        if !rolled_back {
            assert!(image.alter(other, |bytes| bytes[100] ^= 1));
        }
        for looking in [true, false, false] {
            let folder = copy(&image);
            let options = StoreOptions { read_only: looking, ..options() };
            let (store, found) = machine.open_as(&folder, &options).unwrap();
            let mut bytes = vec![0; content.len() + PAGE];
            store.read(object, 0, &mut bytes).unwrap();
            let (seen, behind) = bytes.split_at(content.len());
            let bad = (0..).zip(seen.chunks(PAGE).zip(content.chunks(PAGE))).find(|(_, (a, b))| a != b);
            assert!(bad.is_none(), "rolled back: {rolled_back}, page {:?}", bad.map(|(page, _)| page));
            assert!(behind.iter().all(|byte| *byte == 0));
            let expected = if rolled_back { Superblocks::Whole } else { Superblocks::Damaged };
            assert_eq!(found.superblocks, expected);
            if !looking {
                store.commit(&[], Some(b"again")).unwrap();
            }
            drop(store);
            if !looking {
                image = folder.snapshot();
                break;
            }
        }
        let (_, found) = machine.open(&copy(&image)).unwrap();
        assert_eq!(found.superblocks, Superblocks::Whole);
    }
}

/// A file that an adversary made as long as a file can be is no reason to write what nobody could read again.
#[test]
fn a_file_as_long_as_can_be_spoils_no_commit() {
    let (mut machine, folder, store, object) = grown(0);
    let all: Vec<u8> = (1..41).flat_map(page).collect();
    store.write(object, 0, &all).unwrap();
    store.commit(&[], Some(b"root")).unwrap();
    // From here on its length is what its file says.
    commit(&store, 9);
    let name = store.object_name(object);
    drop(store);
    let mut image = folder.snapshot();
    image.files.get_mut(&name).unwrap().set_len(i64::MAX as u64);
    let folder = copy(&image);
    let (store, _) = machine.open(&folder).unwrap();
    store.write(object, 40, &all).unwrap();
    commit(&store, 1);
    store.write(object, 80, &all).unwrap();
    commit(&store, 2);
    drop(store);
    let (store, _) = machine.open(&folder).unwrap();
    let mut bytes = vec![0; 3 * all.len()];
    store.read(object, 0, &mut bytes).unwrap();
    assert!(bytes.chunks(all.len()).all(|part| part == all));
    store.truncate(object, 1).unwrap();
    store.commit(&[], Some(b"root")).unwrap();
    store.close().unwrap();
    assert_eq!(folder.snapshot().files[&name].len(), PAGE as u64);
}

/// A journal file that is made anew is there after a power cut: its name is durable before a commit stands in it.
#[test]
fn a_journal_file_that_is_made_anew_stays() {
    let (mut machine, folder, store, object) = grown(1);
    store.commit(&[], Some(b"root")).unwrap();
    store.close().unwrap();
    let mut image = folder.snapshot();
    image.files.retain(|name, _| !name.starts_with("journal"));
    let folder = copy(&image);
    let (store, _) = machine.open(&folder).unwrap();
    for state in 2..5 {
        write(&store, object, state);
        commit(&store, state);
    }
    folder.cut_now();
    for seed in 0..50 {
        let left = copy(&folder.after_cut(&mut Rng::new(seed)));
        let looking = StoreOptions { read_only: true, ..options() };
        let (store, _) = machine.open_as(&left, &looking).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!(content(&store, object), 4, "seed {seed}");
    }
}

/// More machines use a vault than a state can name: the one that has not used it for longest is told why it cannot judge.
#[test]
fn the_machine_after_the_last_that_is_listed_is_told_so() {
    let (mut first, folder, store, object) = grown(1);
    drop(store);
    for seed in 0..33 {
        let mut machine = Machine::new(1000 + seed);
        drop(machine.open(&folder).unwrap());
        if seed < 31 {
            drop(first.open_as(&folder, &StoreOptions { read_only: true, ..options() }).unwrap());
        }
    }
    let refused = first.refused(&folder);
    assert_eq!(refused.kind(), Kind::RolledBack);
    assert!(refused.to_string().contains("no longer remembers this machine"), "{refused}");
    let (store, found) =
        first.open_as(&folder, &StoreOptions { accept: Some(Consent::given()), ..options() }).unwrap();
    assert!(found.accepted);
    assert_eq!(content(&store, object), 1);
    drop(store);
    assert!(!first.open(&folder).unwrap().1.accepted);
}

/// A journaled page of a commit that the anchor remembers is altered: that page alone is wrong, and its reader sees it.
#[test]
fn one_altered_page_in_the_journal_is_one_bad_page() {
    let (mut machine, folder, store, object) = grown(2);
    drop(store);
    let mut image = folder.snapshot();
    let mark = page(2);
    assert!(image.alter("journal.0", |bytes| {
        let at =
            bytes.chunks_exact(PAGE).position(|found| found == mark).expect("the page is in the journal");
        bytes[at * PAGE + 100] ^= 1;
    }));
    let (store, found) = machine.open(&copy(&image)).unwrap();
    assert_eq!(found.state.number, 3);
    let mut bytes = vec![0; PAGE];
    store.read(object, 0, &mut bytes).unwrap();
    assert!(bytes != mark && bytes[8..100] == mark[8..100]);
}
