//! The attacks of an adversary in the pool: each object and key of a disk and of its snapshots is
//! removed, truncated, restored from any session, or replaced by another object.

use crate::fixture::*;
use lacuna_contracts::{BlockAddr, Disk};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_medium::{ObjectKey, ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, SnapshotRecord, Stores, list_snapshots};
use lacuna_sim::{MemoryObject, MemoryObjects};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Three whole segments and a part of one.
const BLOCKS: u64 = 3 * 1024 + 200;
/// The data objects: the segments and the mark.
const DATA: [u64; 5] = [0, 1, 2, 3, 1 << 32];
/// The objects of the book: the table of snapshots, and the version table.
const BOOK: [u64; 2] = [0, 1];
/// The object of the book with the table of snapshots.
pub(crate) const SNAPSHOT_TABLE: u64 = 0;
/// The object of the book with the version table.
pub(crate) const VERSION_TABLE: u64 = 1;
/// The mark object, which proves that the store keeps a snapshot.
pub(crate) const MARK: u64 = DATA[4];
/// The blocks that are checked: blocks that some session writes, and some that none does.
pub(crate) const WATCHED: [u64; 16] =
    [0, 1, 2, 130, 131, 200, 1023, 1024, 1025, 1030, 1500, 2048, 2049, 3072, 3073, BLOCKS - 1];
/// The writes of each session, as first block and count, with the session number as the stamp. The
/// first write is flushed separately.
const SESSIONS: [&[(u64, u64)]; 5] = [
    &[(0, 2), (130, 1), (1023, 3), (2048, 1)],
    &[(0, 1), (1024, 1)],
    &[(130, 1), (1030, 1)],
    &[(0, 1), (3072, 2)],
    &[(1023, 2), (3072, 1), (200, 1)],
];
/// The sessions that end with a snapshot.
const SNAPSHOTS: [(usize, &str); 2] = [(2, "early"), (4, "late")];
/// The session that discards block 1.
const DISCARDS: usize = 3;
/// The session that begins with a rollback, and its snapshot. It changes these objects.
const ROLLBACK: (usize, &str) = (4, SNAPSHOTS[0].1);
const ROLLED_BACK: [u64; 2] = [0, 1];

/// The state of the disk at one moment.
pub(crate) struct PastState {
    pub(crate) session: usize,
    /// Whether the disk was closed.
    pub(crate) is_closed: bool,
    /// Whether a rollback had begun and not ended.
    pub(crate) is_in_rollback: bool,
    data: Vec<Option<MemoryObject>>,
    book: Vec<Option<MemoryObject>>,
    /// The stamps of the watched blocks.
    pub(crate) stamps: Vec<u64>,
}

impl PastState {
    fn of(data: &MemoryObjects, book: &MemoryObjects, session: usize, stamps: &[u64]) -> PastState {
        PastState {
            session,
            is_closed: false,
            is_in_rollback: false,
            data: DATA.iter().map(|object| data.object(*object)).collect(),
            book: BOOK.iter().map(|object| book.object(*object)).collect(),
            stamps: stamps.to_vec(),
        }
    }

    /// Whether the object of a segment existed.
    pub(crate) fn has_segment(&self, segment: u64) -> bool {
        self.data[segment as usize].is_some()
    }
}

/// A snapshot of the disk.
pub(crate) struct KeptSnapshot {
    pub(crate) name: &'static str,
    record: SnapshotRecord,
    /// The moment of the snapshot.
    moment: usize,
}

/// The two families of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectFamily {
    Data,
    Book,
}

/// An object at present, or in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttackedObject {
    pub(crate) family: ObjectFamily,
    pub(crate) object: u64,
    pub(crate) snapshot: Option<usize>,
}

/// An attack on one object. Moments are given by their indices.
#[derive(Clone, Debug)]
pub(crate) enum Tampering {
    Remove,
    Truncate(u64),
    Restore(usize),
    /// Replaces it with another object of its family, as it is at present.
    ReplaceWith(u64),
    RemoveKey(ObjectKey),
    RestoreKey(ObjectKey, usize),
    /// Restores all bytes, and no key.
    RestoreBytes(usize),
    /// Restores all keys, and no byte.
    RestoreKeys(usize),
    /// Restores the bytes between two offsets.
    RestoreRange(u64, u64, usize),
    ZeroRange(u64, u64),
}

impl Tampering {
    /// Whether a part of the object stays unchanged.
    pub(crate) fn is_partial(&self) -> bool {
        !matches!(
            self,
            Tampering::Remove | Tampering::Truncate(_) | Tampering::Restore(_) | Tampering::ReplaceWith(_)
        )
    }
}

pub(crate) type Attack = Vec<(AttackedObject, Tampering)>;

/// A disk with its earlier states.
pub(crate) struct AttackedPool {
    pub(crate) scene: TestDisk,
    pub(crate) moments: Vec<PastState>,
    pub(crate) snapshots: Vec<KeptSnapshot>,
}

fn watched_indices(first: u64, count: u64) -> impl Iterator<Item = usize> {
    (0..WATCHED.len()).filter(move |at| (first..first + count).contains(&WATCHED[*at]))
}

impl AttackedPool {
    pub(crate) fn new(cipher: Cipher, layout: ObjectLayout) -> AttackedPool {
        let scene = TestDisk::new(cipher, layout, BLOCKS);
        let mut pool = AttackedPool { scene, moments: vec![], snapshots: vec![] };
        let mut stamps = vec![0; WATCHED.len()];
        pool.save_state(0, true, &stamps);
        for (session, writes) in (1..).zip(SESSIONS) {
            let disk = if session == ROLLBACK.0 {
                pool.roll_back(session, &mut stamps)
            } else {
                pool.scene.open_seeded(session as u64)
            };
            for (nth, (first, count)) in writes.iter().enumerate() {
                write(&disk, *first, *count, session as u64);
                disk.flush().unwrap();
                watched_indices(*first, *count).for_each(|at| stamps[at] = session as u64);
                if nth == 0 {
                    pool.save_state(session, false, &stamps);
                }
            }
            if session == DISCARDS {
                disk.discard(BlockAddr(1), 1).unwrap();
                disk.flush().unwrap();
                watched_indices(1, 1).for_each(|at| stamps[at] = 0);
            }
            if let Some((_, name)) = SNAPSHOTS.into_iter().find(|(at, _)| *at == session) {
                disk.create_snapshot(name).unwrap();
                let record = list_snapshots(&*pool.scene.book).unwrap().pop().unwrap();
                pool.snapshots.push(KeptSnapshot { name, record, moment: pool.moments.len() });
            }
            pool.save_state(session, false, &stamps);
            disk.close().unwrap();
            pool.save_state(session, true, &stamps);
        }
        pool
    }

    fn save_state(&mut self, session: usize, is_closed: bool, stamps: &[u64]) {
        let state = PastState::of(&self.scene.data, &self.scene.book, session, stamps);
        self.moments.push(PastState { is_closed, ..state });
    }

    /// Opens the disk and rolls it back. Saves the state as soon as the rollback has begun.
    fn roll_back(&mut self, session: usize, stamps: &mut Vec<u64>) -> ObjectDisk {
        let (data, book) = (self.scene.data.clone(), self.scene.book.clone());
        let (begun, before) = (Arc::new(Mutex::new(None)), stamps.clone());
        let save = {
            let begun = begun.clone();
            move || *begun.lock() = Some(PastState::of(&data, &book, session, &before))
        };
        let book = Arc::new(RollbackHook::wrap(self.scene.book.reopened(), save));
        let stores = Stores { data: Arc::new(self.scene.data.reopened()), book };
        let random = Arc::new(SeededRandom::new(session as u64));
        let disk = self.scene.open_with(stores, |options| options.random = random).unwrap();
        disk.rollback(ROLLBACK.1).unwrap();
        let state = begun.lock().take().unwrap();
        self.moments.push(PastState { is_in_rollback: true, ..state });
        *stamps = self.stamps_at(0).to_vec();
        disk
    }

    /// The stamps of the watched blocks at present.
    pub(crate) fn stamps(&self) -> &[u64] {
        &self.moments.last().unwrap().stamps
    }

    /// The stamps of the watched blocks in a snapshot.
    pub(crate) fn stamps_at(&self, snapshot: usize) -> &[u64] {
        &self.moments[self.snapshots[snapshot].moment].stamps
    }

    fn object_at(&self, moment: usize, family: ObjectFamily, object: u64) -> Option<&MemoryObject> {
        let moment = &self.moments[moment];
        let (objects, states) = match family {
            ObjectFamily::Data => (&DATA[..], &moment.data),
            ObjectFamily::Book => (&BOOK[..], &moment.book),
        };
        states[objects.iter().position(|o| *o == object).unwrap()].as_ref()
    }

    fn present_object(&self, place: AttackedObject) -> Option<&MemoryObject> {
        let moment = place.snapshot.map_or(self.moments.len() - 1, |nth| self.snapshots[nth].moment);
        self.object_at(moment, place.family, place.object)
    }

    /// The object after an attack.
    fn tampered_object(&self, place: AttackedObject, act: &Tampering) -> Option<MemoryObject> {
        let then = |moment| self.object_at(moment, place.family, place.object);
        let whole = |moment| then(moment).map_or(vec![], MemoryObject::bytes);
        let bytes;
        let steps = match act {
            Tampering::Remove => return None,
            Tampering::Restore(moment) => return then(*moment).cloned(),
            Tampering::ReplaceWith(object) => {
                return self
                    .present_object(AttackedObject { object: *object, snapshot: None, ..place })
                    .cloned();
            }
            Tampering::Truncate(len) => vec![ObjectStep::Truncate(*len)],
            Tampering::RemoveKey(key) => vec![ObjectStep::RemoveKeys(vec![key.clone()])],
            Tampering::RestoreKey(key, moment) => match then(*moment).and_then(|old| old.keys().get(key)) {
                Some(value) => vec![ObjectStep::SetKeys(vec![(key.clone(), value.clone())])],
                None => vec![ObjectStep::RemoveKeys(vec![key.clone()])],
            },
            Tampering::RestoreBytes(moment) => {
                bytes = whole(*moment);
                vec![ObjectStep::Truncate(0), ObjectStep::Write { offset: 0, data: &bytes }]
            }
            Tampering::RestoreKeys(moment) => {
                let keys = then(*moment).map(|old| old.keys().clone()).unwrap_or_default();
                let all = ObjectStep::RemoveKeyRange(vec![], vec![0xff]);
                vec![all, ObjectStep::SetKeys(keys.into_iter().collect())]
            }
            Tampering::RestoreRange(start, end, moment) => {
                let mut all = whole(*moment);
                all.resize(all.len().max(*end as usize), 0);
                bytes = all[*start as usize..*end as usize].to_vec();
                vec![ObjectStep::Write { offset: *start, data: &bytes }]
            }
            Tampering::ZeroRange(start, end) => vec![ObjectStep::Zero { offset: *start, len: end - start }],
        };
        let bench = MemoryObjects::new(true);
        bench.replace(0, self.present_object(place).cloned());
        bench.apply_one(ObjectTransaction { object: 0, steps }).unwrap();
        bench.object(0)
    }

    /// Performs an attack on a copy of the disk.
    pub(crate) fn perform(&self, left: &TestDisk, attack: &Attack) {
        for (place, act) in attack {
            let state = self.tampered_object(*place, act);
            let store = if place.family == ObjectFamily::Data { &left.data } else { &left.book };
            match place.snapshot.map(|nth| &self.snapshots[nth].record) {
                None => store.replace(place.object, state),
                Some(record) if place.family == ObjectFamily::Data => {
                    store.replace_at(place.object, record.data_id, state);
                }
                Some(record) => store.replace_at(place.object, record.book_id, state),
            }
        }
    }

    /// The moments with a changed version of an object.
    fn changed_moments(&self, family: ObjectFamily, object: u64) -> Vec<usize> {
        let numbers = 0..self.moments.len();
        if family == ObjectFamily::Book {
            return numbers.collect();
        }
        let touched = |session: usize| {
            let writes = session.checked_sub(1).map_or(&[][..], |at| SESSIONS[at]);
            let of_mark = SNAPSHOTS.iter().any(|(at, _)| *at == session) && object == MARK;
            let discards = session == DISCARDS && object == 0;
            let rolled_back = session == ROLLBACK.0 && ROLLED_BACK.contains(&object);
            session == 0
                || of_mark
                || discards
                || rolled_back
                || writes
                    .iter()
                    .any(|(first, count)| (first / 1024..=(first + count - 1) / 1024).contains(&object))
        };
        numbers.filter(|number| touched(self.moments[*number].session)).collect()
    }

    /// Whether a segment was written after a session.
    pub(crate) fn is_written_after(&self, segment: u64, session: usize) -> bool {
        self.changed_moments(ObjectFamily::Data, segment)
            .iter()
            .any(|number| self.moments[*number].session > session)
    }

    /// All attacks on parts of an object.
    fn tamperings_of_parts(&self, object: u64) -> Vec<Tampering> {
        let versions = self.changed_moments(ObjectFamily::Data, object);
        let present = AttackedObject { family: ObjectFamily::Data, object, snapshot: None };
        let mut acts = vec![];
        if self.scene.params.layout.needs_keys() {
            let states = versions.iter().map(|at| self.object_at(*at, ObjectFamily::Data, object));
            let all =
                states.chain([self.present_object(present)]).flatten().flat_map(|state| state.keys().keys());
            for key in all.cloned().collect::<BTreeSet<ObjectKey>>() {
                acts.push(Tampering::RemoveKey(key.clone()));
                acts.extend(versions.iter().map(|at| Tampering::RestoreKey(key.clone(), *at)));
            }
            acts.extend(versions.iter().map(|at| Tampering::RestoreKeys(*at)));
            acts.extend(versions.iter().map(|at| Tampering::RestoreBytes(*at)));
            return acts;
        }
        let m = self.scene.meta();
        let seal = 1024 * (4096 + m);
        for block in WATCHED.iter().filter(|block| **block / 1024 == object) {
            let (at, x) = (self.scene.data_at(*block), block % 1024);
            let meta = match self.scene.params.layout {
                ObjectLayout::Interleaved => at + 4096,
                _ => 1024 * 4096 + m * x,
            };
            acts.push(Tampering::ZeroRange(meta, meta + m));
            for version in &versions {
                acts.push(Tampering::RestoreRange(meta, meta + m, *version));
                acts.push(Tampering::RestoreRange(at, at + 4096, *version));
            }
        }
        for version in versions {
            acts.push(Tampering::RestoreRange(0, seal, version));
            acts.push(Tampering::RestoreRange(seal, seal + 32, version));
        }
        acts
    }

    /// All attacks on whole objects, at present and in snapshots.
    pub(crate) fn object_attacks(&self) -> Vec<(AttackedObject, Tampering)> {
        let mut acts = vec![];
        for (family, objects) in [(ObjectFamily::Data, &DATA[..]), (ObjectFamily::Book, &BOOK[..])] {
            for &object in objects {
                let present = AttackedObject { family, object, snapshot: None };
                let versions = self.changed_moments(family, object);
                let others = || {
                    objects
                        .iter()
                        .filter(move |other| **other != object)
                        .map(|other| Tampering::ReplaceWith(*other))
                };
                let mut add = |place, act| acts.push((place, act));
                for act in [
                    Tampering::Remove,
                    Tampering::Truncate(0),
                    Tampering::Truncate(100),
                    Tampering::Truncate(5000),
                ] {
                    add(present, act);
                }
                versions.iter().for_each(|at| add(present, Tampering::Restore(*at)));
                others().for_each(|act| add(present, act));
                for nth in 0..self.snapshots.len() {
                    let place = AttackedObject { snapshot: Some(nth), ..present };
                    add(place, Tampering::Remove);
                    add(place, Tampering::Truncate(100));
                    versions.iter().for_each(|at| add(place, Tampering::Restore(*at)));
                    others().for_each(|act| add(place, act));
                }
            }
        }
        acts
    }

    /// Attacks that simulate a pool without a snapshot: it returns no object, or the present
    /// objects, for the data, for the book, or for both.
    pub(crate) fn lost_snapshots(&self) -> Vec<Attack> {
        let families: [&[(ObjectFamily, &[u64])]; 3] = [
            &[(ObjectFamily::Data, &DATA), (ObjectFamily::Book, &BOOK)],
            &[(ObjectFamily::Data, &DATA)],
            &[(ObjectFamily::Book, &BOOK)],
        ];
        let mut attacks = vec![];
        for snapshot in (0..self.snapshots.len()).map(Some) {
            for answer in [Tampering::Remove, Tampering::Restore(self.moments.len() - 1)] {
                for lost in families {
                    let places = lost.iter().flat_map(|(family, objects)| {
                        objects.iter().map(move |object| AttackedObject {
                            family: *family,
                            object: *object,
                            snapshot,
                        })
                    });
                    attacks.push(places.map(|place| (place, answer.clone())).collect());
                }
            }
        }
        attacks
    }

    /// All attacks on parts of the segments' objects.
    pub(crate) fn part_attacks(&self) -> Vec<(AttackedObject, Tampering)> {
        let place = |object, snapshot| AttackedObject { family: ObjectFamily::Data, object, snapshot };
        let of_object = |object: u64| {
            let acts = self.tamperings_of_parts(object);
            let snapshots = [None, Some(0), Some(1)];
            snapshots
                .into_iter()
                .flat_map(|at| {
                    acts.iter().map(move |act| (place(object, at), act.clone())).collect::<Vec<_>>()
                })
                .collect::<Vec<_>>()
        };
        (0..4).flat_map(of_object).collect()
    }
}
