//! Lost, altered and overlong files of a store: the data that they cost, and the data that they do
//! not.

mod store_harness;

use lacuna_contracts::Kind;
use lacuna_sim::{CrashFolder, FolderImage, MediumImage, Rng};
use lacuna_vault_store::{
    Anchor, FILES, MemoryAnchor, ObjectId, PAGE, RollbackPolicy, StoreOptions, SuperblockStatus,
    ToleratedDamage,
};
use std::sync::Arc;
use store_harness::machine::{Machine, commit, content, copy, lying_folder, store_with_states, write};
use store_harness::{options, page};

/// An adversary alters the files of the store itself, for all reads or for some: the result is the
/// newest state or an error, never a panic. The store does not seal objects; its users verify them.
#[test]
fn altered_files_are_refused() {
    let mut seen = std::collections::BTreeMap::<String, u64>::new();
    for seed in 0..600 {
        let mut rng = Rng::new(seed);
        let (mut machine, folder, store, object) = store_with_states(1 + rng.below(4));
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
            1 => drop(image.files.insert(name.into(), MediumImage::new(rng.below(100_000)))),
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
                // Most of a file is empty: hit the rest.
                let full: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
                for _ in 0..=rng.below(3) {
                    if !full.is_empty() {
                        bytes[*rng.pick(&full)] ^= 1 << rng.below(8);
                    }
                }
            })),
        }
        let lying = lying_folder([&folder.snapshot(), &image], &mut rng);
        let looking = StoreOptions { read_only: true, ..options() };
        if let Ok((_, found)) = machine.open_as(&lying, &looking) {
            assert_eq!(found.state.number, machine.number(), "seed {seed}, over lies");
        }
        let outcome = match machine.open(&copy(&image)) {
            // The journaled page itself may be altered.
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

/// A store with an object that was truncated, and appended to in place after the checkpoint that
/// carried the truncation out; the superblock before that checkpoint; and the content of the
/// object.
fn appended_after_a_cut() -> (Machine, CrashFolder, ObjectId, MediumImage, Vec<u8>) {
    let (machine, folder, store, object) = store_with_states(0);
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

/// Without the newest superblock the journal has everything: the checkpoint is carried out once
/// more, and removes no page that was appended since. The same holds if both files are rolled back,
/// or one is and the other is damaged.
#[test]
fn appended_pages_survive_the_loss_of_a_superblock() {
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
            let expected = if rolled_back { SuperblockStatus::Whole } else { SuperblockStatus::Damaged };
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
        assert_eq!(found.superblocks, SuperblockStatus::Whole);
    }
}

/// An adversary lengthens a file to the maximum: the store still commits nothing that it could not
/// read again.
#[test]
fn a_file_of_maximum_length_spoils_no_commit() {
    let (mut machine, folder, store, object) = store_with_states(0);
    let all: Vec<u8> = (1..41).flat_map(page).collect();
    store.write(object, 0, &all).unwrap();
    store.commit(&[], Some(b"root")).unwrap();
    // After this commit the store takes the object's length from its file.
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

/// A recreated journal file survives a power cut: its name is durable before it holds a commit.
#[test]
fn a_recreated_journal_file_survives_a_power_cut() {
    let (mut machine, folder, store, object) = store_with_states(1);
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

/// More machines use a vault than a state can list: the least recent one learns why it cannot check
/// the state.
#[test]
fn a_machine_evicted_from_the_table_learns_why() {
    let (mut first, folder, store, object) = store_with_states(1);
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
    let (store, found) = first
        .open_as(&folder, &StoreOptions { on_rollback: Some(RollbackPolicy::accept()), ..options() })
        .unwrap();
    assert!(found.accepted);
    assert_eq!(content(&store, object), 1);
    drop(store);
    assert!(!first.open(&folder).unwrap().1.accepted);
}

/// A journaled page of an anchored commit is altered: only that page is wrong, and its reader
/// detects it.
#[test]
fn one_altered_page_in_the_journal_is_one_bad_page() {
    let (mut machine, folder, store, object) = store_with_states(2);
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

/// The last page of the journal's first file with the header of a record.
fn last_record(image: &FolderImage) -> usize {
    let bytes = image.files["journal.0"].to_vec();
    bytes.chunks_exact(PAGE).rposition(|page| page.starts_with(b"lacunarc")).expect("a record")
}

/// A power cut leaves the record of a commit without its page. The next opening makes another
/// commit in its place, and happens to leave the old record where it is, before its own: the new
/// commit counts.
#[test]
fn a_record_without_its_pages_hides_no_later_record() {
    let (mut machine, folder, store, object) = store_with_states(1);
    drop(store);
    let torn = copy(&folder.snapshot());
    let anchor = Arc::new(MemoryAnchor::new(machine.anchor.load().unwrap()));
    let (store, _) = Machine { anchor, seed: 500 }.open(&torn).unwrap();
    write(&store, object, 2);
    commit(&store, 2);
    drop(store);
    let torn = torn.snapshot();
    let at = last_record(&torn);

    let (store, _) = machine.open(&folder).unwrap();
    // The last write reuses the page of the first one. That of the second one stays free, for
    // another object has a page behind it.
    let other = store.new_object().unwrap();
    (3..5).for_each(|stamp| write(&store, object, stamp));
    write(&store, other, 6);
    write(&store, object, 5);
    commit(&store, 5);
    drop(store);
    let mut image = folder.snapshot();
    assert_eq!(last_record(&image), at + 2);
    let old = torn.files["journal.0"].to_vec();
    assert!(image.alter("journal.0", |bytes| {
        let place = at * PAGE..(at + 1) * PAGE;
        assert!(bytes[place.clone()] == page(4)[..], "the free page");
        bytes[place.clone()].copy_from_slice(&old[place]);
    }));
    for mut machine in [machine, Machine::new(900)] {
        let expected = machine.anchor.load().unwrap();
        let (store, found) = machine.open(&copy(&image)).unwrap();
        assert_eq!(content(&store, object), 5);
        assert!(expected.is_none_or(|known| known.number == found.state.number));
    }
}

/// A look past the damage of a checkpoint begins at the older superblock. Without an anchor only
/// the newer superblock shows that this state is not the newest: it needs consent all the same. An
/// opening for writing never goes back.
#[test]
fn a_look_past_a_newer_superblock_needs_consent() {
    let (machine, folder, store, object) = store_with_states(1);
    store.commit(&[], Some(b"before")).unwrap();
    let (older, before) = (folder.snapshot().files["super.0"].clone(), machine.number());
    write(&store, object, 2);
    store.commit(&[], Some(b"root")).unwrap();
    drop(store);
    let mut image = folder.snapshot();
    image.files.insert("super.0".into(), older);
    // No record leads from the older superblock to the newer one.
    image.files.retain(|name, _| !name.starts_with("journal"));
    let open = |read_only, past, accept| {
        let options = StoreOptions { read_only, tolerated: past, on_rollback: accept, ..options() };
        Machine::new(1000).open_as(&copy(&image), &options).map(|(_, found)| found)
    };
    for (read_only, past) in [(true, ToleratedDamage::Records), (false, ToleratedDamage::Checkpoint)] {
        let found = open(read_only, past, None).unwrap();
        assert_eq!((found.state.number, found.accepted), (machine.number(), false), "{past:?}");
    }
    let refused = open(true, ToleratedDamage::Checkpoint, None).unwrap_err();
    assert_eq!(refused.kind(), Kind::RolledBack, "{refused}");
    let found = open(true, ToleratedDamage::Checkpoint, Some(RollbackPolicy::accept())).unwrap();
    assert_eq!((found.state.number, found.accepted, found.first_opening), (before, true, true));
}
