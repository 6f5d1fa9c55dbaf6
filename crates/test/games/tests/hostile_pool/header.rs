//! The objects of a header in a hostile pool: each is removed, truncated, restored or replaced, in
//! whole and in part, alone and in pairs. While one object is unchanged, it has a copy of the
//! newest header: that header opens, and replaced passphrases open nothing. If both objects were
//! attacked, a header that opens is one that was written, with its own passphrase, as the threat
//! model says.

#[path = "../../../../parts/header/tests/fixture/mod.rs"]
mod fixture;

use fixture::{keys, make_as, secret, secrets};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::SeededRandom;
use lacuna_header::{
    COPY_A, COPY_B, FormatId, HEADER_AREA, HEADER_LEN, PublicHeader, TAIL_AREA, Unlocked, change_passphrase,
    open, open_by_key, repair,
};
use lacuna_medium::{MemoryObject, MemoryObjects, ObjectStore, Step, StripedMedium, Transaction};
use std::sync::Arc;

/// The offset of the record of the medium's length in the first object, after the data of the
/// medium.
const RECORD: u64 = 4 << 20;
/// The length of the medium of a header in a pool: its last copy lies in the second object.
const LEN: u64 = RECORD + TAIL_AREA;
/// The passphrases of the disk, in order.
const PASSPHRASES: [&str; 4] = ["first", "second", "third", "fourth"];
/// Lengths in forged records: zero, within a copy, without the last copy, and beyond all objects.
const LENGTHS: [u64; 4] = [0, 100, HEADER_AREA, u64::MAX];

/// A header as it was written, and its objects.
struct Written {
    passphrase: &'static str,
    header: PublicHeader,
    keys: Vec<[u8; 32]>,
    objects: [Option<MemoryObject>; 2],
}

impl Written {
    fn is(&self, unlocked: &Unlocked) -> bool {
        self.header == unlocked.header && self.keys == keys(unlocked)
    }
}

/// An attack on an object. Versions are given by their indices.
#[derive(Clone, Debug)]
enum Act {
    Remove,
    Cut(u64),
    PutBack(usize),
    /// Replaces it with the other object, as it is at present.
    CloneOfOther,
    /// Restores the bytes between two offsets.
    PutBackRange(u64, u64, usize),
    ZeroRange(u64, u64),
    /// Writes a record of another length of the medium.
    Record(u64),
}

/// Acts on objects by number, at most one for each object.
type Attack = Vec<(u64, Act)>;

fn is_on_both(attack: &Attack) -> bool {
    attack.len() == 2
}

/// Whether the medium may appear with another length.
fn forges_a_length(attack: &Attack) -> bool {
    attack.iter().any(|(_, act)| matches!(act, Act::Record(_)))
}

/// The objects of a header, with their earlier states.
struct HeaderPool {
    store: MemoryObjects,
    past: Vec<Written>,
}

/// Opens the medium as the program does: without the record of the length, it assumes the length
/// that all headers have.
fn reach(store: &MemoryObjects) -> Result<StripedMedium> {
    let objects = || -> Arc<dyn ObjectStore> { Arc::new(store.reopened()) };
    match StripedMedium::open(objects()) {
        Err(e) if e.kind() == Kind::NotFound => Ok(StripedMedium::with_len(objects(), LEN)),
        opened => opened,
    }
}

fn open_with(store: &MemoryObjects, passphrase: &str) -> Result<Unlocked> {
    reach(store).and_then(|medium| open(&medium, &secrets(&[passphrase])))
}

#[track_caller]
fn assert_refusal(e: &Error, context: &str) {
    let refusals = [Kind::Corrupt, Kind::Passphrase, Kind::NotFound, Kind::Other];
    assert!(refusals.contains(&e.kind()), "{context}: {e}");
}

impl HeaderPool {
    fn new() -> HeaderPool {
        let store = MemoryObjects::new(false);
        let medium = StripedMedium::create(Arc::new(store.reopened()), LEN).unwrap();
        let first: &[&str] = &PASSPHRASES[..1];
        let mut unlocked = make_as(FormatId::SEALED, &medium, &[first], 1, |_| Ok(())).unwrap();
        let mut past = vec![];
        for (passphrase, next) in
            PASSPHRASES.into_iter().zip(PASSPHRASES.into_iter().skip(1).map(Some).chain([None]))
        {
            let objects = [store.object(0), store.object(1)];
            past.push(Written {
                passphrase,
                header: unlocked.header.clone(),
                keys: keys(&unlocked),
                objects,
            });
            let Some(next) = next else { break };
            unlocked = open(&medium, &secrets(&[passphrase])).unwrap();
            let random = SeededRandom::new(past.len() as u64 + 1);
            change_passphrase(&medium, &mut unlocked, &secret(next), &random).unwrap();
        }
        HeaderPool { store, past }
    }

    fn latest(&self) -> &Written {
        self.past.last().unwrap()
    }

    /// All acts on an object.
    fn acts(&self, object: u64) -> Vec<Act> {
        let versions = || 0..self.past.len();
        let mut acts =
            vec![Act::Remove, Act::Cut(0), Act::Cut(100), Act::Cut(HEADER_LEN as u64 / 2), Act::CloneOfOther];
        acts.extend(versions().map(Act::PutBack));
        let copies = if object == 0 { &[COPY_A, COPY_B][..] } else { &[0] };
        for copy in copies {
            for len in [HEADER_LEN as u64, HEADER_LEN as u64 / 2] {
                acts.push(Act::ZeroRange(*copy, copy + len));
                acts.extend(versions().map(|version| Act::PutBackRange(*copy, copy + len, version)));
            }
        }
        if object == 0 {
            acts.extend(LENGTHS.map(Act::Record));
        }
        acts
    }

    /// All single acts, and all pairs.
    fn attacks(&self) -> Vec<Attack> {
        let (first, second) = (self.acts(0), self.acts(1));
        let pair = |one: &Act, other: &Act| vec![(0, one.clone()), (1, other.clone())];
        let pairs = first.iter().flat_map(|one| second.iter().map(move |other| pair(one, other)));
        let alone = |object| move |act: &Act| vec![(object, act.clone())];
        first.iter().map(alone(0)).chain(second.iter().map(alone(1))).chain(pairs).collect()
    }

    /// The object after an act.
    fn after(&self, object: u64, act: &Act) -> Option<MemoryObject> {
        let of = |version: usize, object: u64| self.past[version].objects[object as usize].clone();
        let newest = self.past.len() - 1;
        let bytes;
        let steps = match act {
            Act::Remove => return None,
            Act::PutBack(version) => return of(*version, object),
            Act::CloneOfOther => return of(newest, 1 - object),
            Act::Cut(len) => vec![Step::Truncate(*len)],
            Act::PutBackRange(start, end, version) => {
                let mut all = of(*version, object).map_or(vec![], |old| old.bytes());
                all.resize(all.len().max(*end as usize), 0);
                bytes = all[*start as usize..*end as usize].to_vec();
                vec![Step::Write { offset: *start, data: &bytes }]
            }
            Act::ZeroRange(start, end) => vec![Step::Zero { offset: *start, len: end - start }],
            Act::Record(len) => {
                bytes = len.to_le_bytes().to_vec();
                vec![Step::Write { offset: RECORD + 16, data: &bytes }]
            }
        };
        let bench = MemoryObjects::new(false);
        bench.replace(0, of(newest, object));
        bench.apply_one(Transaction { object: 0, steps }).unwrap();
        bench.object(0)
    }

    fn perform(&self, left: &MemoryObjects, attack: &Attack) {
        for (object, act) in attack {
            left.replace(*object, self.after(*object, act));
        }
    }
}

/// The results of openings.
#[derive(Debug, Default)]
struct Shown {
    right: u64,
    /// Openings of an older header, which the threat model permits.
    named: u64,
    refused: u64,
}

impl Shown {
    /// Judges the result of an opening, with the passphrase of `written`, or without one by the key
    /// of an open disk.
    fn judge(
        &mut self,
        pool: &HeaderPool,
        opened: &Result<Unlocked>,
        written: Option<&Written>,
        attack: &Attack,
    ) {
        let context = format!("{:?}, {attack:?}", written.map(|written| written.passphrase));
        let is_certain = !is_on_both(attack) && !forges_a_length(attack);
        let is_latest = written.is_none_or(|written| written.passphrase == pool.latest().passphrase);
        match opened {
            Ok(unlocked) if is_latest && pool.latest().is(unlocked) => self.right += 1,
            Ok(unlocked) => {
                let mut known =
                    pool.past.iter().filter(|one| written.is_none_or(|by| one.passphrase == by.passphrase));
                assert!(is_on_both(attack), "{context}: opens {:?}", unlocked.header);
                assert!(known.any(|one| one.is(unlocked)), "{context}: opens {:?}", unlocked.header);
                self.named += 1;
            }
            Err(e) => {
                assert!(!is_certain || !is_latest, "{context}: {e}");
                assert_refusal(e, &context);
                self.refused += 1;
            }
        }
    }
}

#[test]
fn a_header_is_the_newest_while_one_of_its_objects_is_left() {
    let pool = HeaderPool::new();
    let mut shown = Shown::default();
    let mut repaired = 0;
    for attack in pool.attacks() {
        let left = pool.store.copied();
        pool.perform(&left, &attack);
        for written in &pool.past {
            shown.judge(&pool, &open_with(&left, written.passphrase), Some(written), &attack);
        }
        // A repair writes the newest header to all copies, and restores no older one.
        let mended = reach(&left).and_then(|medium| {
            let mut unlocked = open(&medium, &secrets(&[pool.latest().passphrase]))?;
            repair(&medium, &mut unlocked)
        });
        if mended.is_ok() {
            repaired += 1;
            let opened = |passphrase| open_with(&left, passphrase);
            let newest = opened(pool.latest().passphrase).unwrap();
            assert!(pool.latest().is(&newest), "{attack:?}");
            let older = &pool.past[..pool.past.len() - 1];
            assert!(older.iter().all(|written| opened(written.passphrase).is_err()), "{attack:?}");
        }
    }
    println!("headers: {shown:?}, {repaired} repaired");
    assert!(
        shown.right > 0 && shown.named > 0 && shown.refused > 0 && repaired > 0,
        "{shown:?}, {repaired} repaired"
    );
}

/// An open disk reads its header again with its own key when a passphrase is added or removed.
#[test]
fn a_served_disk_takes_no_other_header_for_its_own() {
    let pool = HeaderPool::new();
    let owner = open_with(&pool.store, pool.latest().passphrase).unwrap();
    let mut shown = Shown::default();
    for attack in pool.attacks() {
        let left = pool.store.copied();
        let medium = reach(&left).unwrap();
        pool.perform(&left, &attack);
        let opened = open_by_key(&medium, owner.header.uuid, &owner.master_keys[0]);
        shown.judge(&pool, &opened, None, &attack);
    }
    println!("headers of served disks: {shown:?}");
    assert!(shown.right > 0 && shown.named > 0 && shown.refused > 0, "{shown:?}");
}
