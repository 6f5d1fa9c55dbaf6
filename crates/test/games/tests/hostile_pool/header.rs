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
    COPY_A, COPY_B, FormatId, HEADER_AREA, HEADER_LEN, OpenHeader, PublicHeader, TAIL_AREA,
    change_passphrase, open, open_by_key, repair,
};
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction, StripedMedium};
use lacuna_sim::{MemoryObject, MemoryObjects};
use std::sync::Arc;

/// The offset of the record of the medium's length in the first object, after the data of the
/// medium.
const RECORD_OFFSET: u64 = 4 << 20;
/// The length of the medium of a header in a pool: its last copy lies in the second object.
const MEDIUM_LEN: u64 = RECORD_OFFSET + TAIL_AREA;
/// The passphrases of the disk, in order.
const PASSPHRASES: [&str; 4] = ["first", "second", "third", "fourth"];
/// Lengths in forged records: zero, within a copy, without the last copy, and beyond all objects.
const LENGTHS: [u64; 4] = [0, 100, HEADER_AREA, u64::MAX];

/// A header as it was written, and its objects.
struct PastHeader {
    passphrase: &'static str,
    header: PublicHeader,
    keys: Vec<[u8; 32]>,
    objects: [Option<MemoryObject>; 2],
}

impl PastHeader {
    fn matches(&self, unlocked: &OpenHeader) -> bool {
        self.header == unlocked.header && self.keys == keys(unlocked)
    }
}

/// An attack on an object. Versions are given by their indices.
#[derive(Clone, Debug)]
enum HeaderTampering {
    Remove,
    Truncate(u64),
    Restore(usize),
    /// Replaces it with the other object, as it is at present.
    ReplaceWithOther,
    /// Restores the bytes between two offsets.
    RestoreRange(u64, u64, usize),
    ZeroRange(u64, u64),
    /// Writes a record of another length of the medium.
    ForgeLength(u64),
}

/// Acts on objects by number, at most one for each object.
type HeaderAttack = Vec<(u64, HeaderTampering)>;

fn is_on_both(attack: &HeaderAttack) -> bool {
    attack.len() == 2
}

/// Whether the medium may appear with another length.
fn forges_a_length(attack: &HeaderAttack) -> bool {
    attack.iter().any(|(_, act)| matches!(act, HeaderTampering::ForgeLength(_)))
}

/// The objects of a header, with their earlier states.
struct HeaderPool {
    store: MemoryObjects,
    past: Vec<PastHeader>,
}

/// Opens the medium as the program does: without the record of the length, it assumes the length
/// that all headers have.
fn open_medium(store: &MemoryObjects) -> Result<StripedMedium> {
    let objects = || -> Arc<dyn ObjectStore> { Arc::new(store.reopened()) };
    match StripedMedium::open(objects()) {
        Err(e) if e.kind() == Kind::NotFound => Ok(StripedMedium::with_len(objects(), MEDIUM_LEN)),
        opened => opened,
    }
}

fn open_with(store: &MemoryObjects, passphrase: &str) -> Result<OpenHeader> {
    open_medium(store).and_then(|medium| open(&medium, &secrets(&[passphrase])))
}

#[track_caller]
fn assert_refusal(e: &Error, context: &str) {
    let refusals = [Kind::Corrupt, Kind::Passphrase, Kind::NotFound, Kind::Other];
    assert!(refusals.contains(&e.kind()), "{context}: {e}");
}

impl HeaderPool {
    fn new() -> HeaderPool {
        let store = MemoryObjects::new(false);
        let medium = StripedMedium::create(Arc::new(store.reopened()), MEDIUM_LEN).unwrap();
        let first: &[&str] = &PASSPHRASES[..1];
        let mut unlocked = make_as(FormatId::SEALED, &medium, &[first], 1, |_| Ok(())).unwrap();
        let mut past = vec![];
        for (passphrase, next) in
            PASSPHRASES.into_iter().zip(PASSPHRASES.into_iter().skip(1).map(Some).chain([None]))
        {
            let objects = [store.object(0), store.object(1)];
            past.push(PastHeader {
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

    fn latest(&self) -> &PastHeader {
        self.past.last().unwrap()
    }

    /// All acts on an object.
    fn tamperings(&self, object: u64) -> Vec<HeaderTampering> {
        let versions = || 0..self.past.len();
        let mut acts = vec![
            HeaderTampering::Remove,
            HeaderTampering::Truncate(0),
            HeaderTampering::Truncate(100),
            HeaderTampering::Truncate(HEADER_LEN as u64 / 2),
            HeaderTampering::ReplaceWithOther,
        ];
        acts.extend(versions().map(HeaderTampering::Restore));
        let copies = if object == 0 { &[COPY_A, COPY_B][..] } else { &[0] };
        for copy in copies {
            for len in [HEADER_LEN as u64, HEADER_LEN as u64 / 2] {
                acts.push(HeaderTampering::ZeroRange(*copy, copy + len));
                acts.extend(
                    versions().map(|version| HeaderTampering::RestoreRange(*copy, copy + len, version)),
                );
            }
        }
        if object == 0 {
            acts.extend(LENGTHS.map(HeaderTampering::ForgeLength));
        }
        acts
    }

    /// All single acts, and all pairs.
    fn attacks(&self) -> Vec<HeaderAttack> {
        let (first, second) = (self.tamperings(0), self.tamperings(1));
        let pair =
            |one: &HeaderTampering, other: &HeaderTampering| vec![(0, one.clone()), (1, other.clone())];
        let pairs = first.iter().flat_map(|one| second.iter().map(move |other| pair(one, other)));
        let alone = |object| move |act: &HeaderTampering| vec![(object, act.clone())];
        first.iter().map(alone(0)).chain(second.iter().map(alone(1))).chain(pairs).collect()
    }

    /// The object after an act.
    fn tampered_object(&self, object: u64, act: &HeaderTampering) -> Option<MemoryObject> {
        let of = |version: usize, object: u64| self.past[version].objects[object as usize].clone();
        let newest = self.past.len() - 1;
        let bytes;
        let steps = match act {
            HeaderTampering::Remove => return None,
            HeaderTampering::Restore(version) => return of(*version, object),
            HeaderTampering::ReplaceWithOther => return of(newest, 1 - object),
            HeaderTampering::Truncate(len) => vec![ObjectStep::Truncate(*len)],
            HeaderTampering::RestoreRange(start, end, version) => {
                let mut all = of(*version, object).map_or(vec![], |old| old.bytes());
                all.resize(all.len().max(*end as usize), 0);
                bytes = all[*start as usize..*end as usize].to_vec();
                vec![ObjectStep::Write { offset: *start, data: &bytes }]
            }
            HeaderTampering::ZeroRange(start, end) => {
                vec![ObjectStep::Zero { offset: *start, len: end - start }]
            }
            HeaderTampering::ForgeLength(len) => {
                bytes = len.to_le_bytes().to_vec();
                vec![ObjectStep::Write { offset: RECORD_OFFSET + 16, data: &bytes }]
            }
        };
        let bench = MemoryObjects::new(false);
        bench.replace(0, of(newest, object));
        bench.apply_one(ObjectTransaction { object: 0, steps }).unwrap();
        bench.object(0)
    }

    fn perform(&self, left: &MemoryObjects, attack: &HeaderAttack) {
        for (object, act) in attack {
            left.replace(*object, self.tampered_object(*object, act));
        }
    }
}

/// The results of openings.
#[derive(Debug, Default)]
struct HeaderResults {
    correct: u64,
    /// Openings of an older header, which the threat model permits.
    permitted: u64,
    refused: u64,
}

impl HeaderResults {
    /// Judges the result of an opening, with the passphrase of `written`, or without one by the key
    /// of an open disk.
    fn check_opening(
        &mut self,
        pool: &HeaderPool,
        opened: &Result<OpenHeader>,
        written: Option<&PastHeader>,
        attack: &HeaderAttack,
    ) {
        let context = format!("{:?}, {attack:?}", written.map(|written| written.passphrase));
        let is_certain = !is_on_both(attack) && !forges_a_length(attack);
        let is_latest = written.is_none_or(|written| written.passphrase == pool.latest().passphrase);
        match opened {
            Ok(unlocked) if is_latest && pool.latest().matches(unlocked) => self.correct += 1,
            Ok(unlocked) => {
                let mut known =
                    pool.past.iter().filter(|one| written.is_none_or(|by| one.passphrase == by.passphrase));
                assert!(is_on_both(attack), "{context}: opens {:?}", unlocked.header);
                assert!(known.any(|one| one.matches(unlocked)), "{context}: opens {:?}", unlocked.header);
                self.permitted += 1;
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
fn the_newest_header_opens_while_one_of_its_objects_is_intact() {
    let pool = HeaderPool::new();
    let mut shown = HeaderResults::default();
    let mut repaired = 0;
    for attack in pool.attacks() {
        let left = pool.store.copied();
        pool.perform(&left, &attack);
        for written in &pool.past {
            shown.check_opening(&pool, &open_with(&left, written.passphrase), Some(written), &attack);
        }
        // A repair writes the newest header to all copies, and restores no older one.
        let mended = open_medium(&left).and_then(|medium| {
            let mut unlocked = open(&medium, &secrets(&[pool.latest().passphrase]))?;
            repair(&medium, &mut unlocked)
        });
        if mended.is_ok() {
            repaired += 1;
            let opened = |passphrase| open_with(&left, passphrase);
            let newest = opened(pool.latest().passphrase).unwrap();
            assert!(pool.latest().matches(&newest), "{attack:?}");
            let older = &pool.past[..pool.past.len() - 1];
            assert!(older.iter().all(|written| opened(written.passphrase).is_err()), "{attack:?}");
        }
    }
    println!("headers: {shown:?}, {repaired} repaired");
    assert!(
        shown.correct > 0 && shown.permitted > 0 && shown.refused > 0 && repaired > 0,
        "{shown:?}, {repaired} repaired"
    );
}

/// An open disk reads its header again with its own key when a passphrase is added or removed.
#[test]
fn a_served_disk_accepts_no_other_header() {
    let pool = HeaderPool::new();
    let owner = open_with(&pool.store, pool.latest().passphrase).unwrap();
    let mut shown = HeaderResults::default();
    for attack in pool.attacks() {
        let left = pool.store.copied();
        let medium = open_medium(&left).unwrap();
        pool.perform(&left, &attack);
        let opened = open_by_key(&medium, owner.header.uuid, &owner.master_keys[0]);
        shown.check_opening(&pool, &opened, None, &attack);
    }
    println!("headers of served disks: {shown:?}");
    assert!(shown.correct > 0 && shown.permitted > 0 && shown.refused > 0, "{shown:?}");
}
