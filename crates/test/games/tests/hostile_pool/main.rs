//! A hostile pool: single attacks on every object and key of a disk and its snapshots, and pairs of
//! attacks, each on a closed disk and on one that is being served. Every read returns the right
//! content, an error, or content that the threat model permits. `header.rs` does the same with the
//! objects of a header. The lock object has no content that is read: the cluster keeps the lock,
//! and only a test with a cluster can show the fate of a holder that lost it (`lock` of `rados`).
//!
//! All single attacks on whole objects are played, and all ways to lose a snapshot. LACUNA_HOSTILE
//! is the number of further attacks for each kind of disk: single attacks on parts, and pairs.

mod adversary;
#[path = "../../../../formats/sealed-objects/tests/fixture/mod.rs"]
mod fixture;
mod header;

use adversary::{
    Attack, AttackedObject, AttackedPool, MARK, ObjectFamily, PastState, SNAPSHOT_TABLE, Tampering,
    VERSION_TABLE, WATCHED,
};
use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Result};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout};
use lacuna_sim::versions::stamp_of;
use lacuna_sim::{Rng, env_number};
use std::sync::Arc;

/// The number of attacks on each kind of disk that are drawn from attacks on parts and pairs.
const ATTACKS: u64 = 150;
/// The version table at present.
const PRESENT_TABLE: AttackedObject =
    AttackedObject { family: ObjectFamily::Book, object: VERSION_TABLE, snapshot: None };
/// The table of snapshots at present.
const PRESENT_SNAPSHOTS: AttackedObject =
    AttackedObject { family: ObjectFamily::Book, object: SNAPSHOT_TABLE, snapshot: None };
/// The stamp of the write after an attack.
const STAMP_AFTER_ATTACK: u64 = 9;

/// The present object of a segment.
fn present_segment(object: u64) -> AttackedObject {
    AttackedObject { family: ObjectFamily::Data, object, snapshot: None }
}

/// The results of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReadResults {
    correct: u64,
    errors: u64,
    /// Reads of other content, which the threat model permits.
    permitted: u64,
    /// Openings and rollbacks that were refused.
    refused: u64,
}

/// The state that is read. Snapshots are given by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadView {
    Present,
    Snapshot(usize),
    /// The disk after a rollback to a snapshot.
    RolledBack(usize),
}

impl ReadView {
    fn snapshot(self) -> Option<usize> {
        match self {
            ReadView::Present => None,
            ReadView::Snapshot(nth) | ReadView::RolledBack(nth) => Some(nth),
        }
    }
}

/// Judges the results of one attack.
struct AttackCheck<'p> {
    pool: &'p AttackedPool,
    attack: &'p Attack,
    results: ReadResults,
    context: String,
}

impl AttackCheck<'_> {
    fn authenticates(&self) -> bool {
        self.pool.scene.params.cipher.authenticates()
    }

    /// Whether an attack affects the object of a watched block in a view. In a snapshot, an object
    /// that was not written since is the present object.
    fn is_reached(&self, view: ReadView, at: usize) -> bool {
        let object = WATCHED[at] / 1024;
        let (now, then) = (
            present_segment(object),
            AttackedObject { snapshot: view.snapshot(), ..present_segment(object) },
        );
        self.attack.iter().any(|(place, _)| *place == now || *place == then)
    }

    /// Whether the mark of a snapshot was attacked. Without the mark the snapshot counts as lost,
    /// and none of its data is accepted.
    fn is_lost(&self, view: ReadView) -> bool {
        let Some(nth) = view.snapshot() else { return false };
        let mark = AttackedObject { snapshot: Some(nth), ..present_segment(MARK) };
        self.attack.iter().any(|(place, _)| *place == mark)
    }

    /// Whether the table of snapshots was put back as it was in the middle of a rollback. Without
    /// authentication, the next opening for writing then rolls the disk back once more.
    fn repeats_rollback(&self) -> bool {
        self.attack.iter().any(|(place, act)| match act {
            Tampering::Restore(number) => {
                *place == PRESENT_SNAPSHOTS && self.pool.moments[*number].is_in_rollback
            }
            _ => false,
        })
    }

    /// Whether the threat model permits that a watched block reads with this stamp.
    fn is_permitted(&self, at: usize, stamp: u64) -> bool {
        let pool = self.pool;
        let is_left = |object: u64| self.attack.iter().all(|(place, _)| *place != present_segment(object));
        let older = |number: usize| {
            // With the version table of a moment, objects of the same moment pass; if the disk was
            // open then, of any moment of that session.
            let then = &pool.moments[number];
            let session =
                |m: &&PastState| m.session == then.session || m.is_closed && m.session + 1 == then.session;
            // An unchanged object that was written later reveals the older table. It also reveals
            // missing objects under the table of a closed disk.
            let betrayed = (0..4).any(|n| is_left(n) && pool.is_written_after(n, then.session));
            if then.is_closed {
                return then.stamps[at] == stamp && (then.has_segment(WATCHED[at] / 1024) || !betrayed);
            }
            !betrayed && pool.moments.iter().filter(session).any(|m| m.stamps[at] == stamp)
        };
        self.attack.iter().any(|(place, act)| match act {
            Tampering::Restore(number) => *place == PRESENT_TABLE && older(*number),
            // A part passes under the present seal if the seal does not bind the entries.
            act if act.is_partial() && !pool.scene.params.binds_entries() => {
                let known = pool.moments.iter().any(|moment| moment.stamps[at] == stamp);
                WATCHED[at] / 1024 == place.object && (known || stamp == 0)
            }
            _ => false,
        })
    }

    /// Judges a read of a watched block in a view, where it may have the `expected` stamps.
    fn check_read(&mut self, view: ReadView, at: usize, data: &[u8], expected: &[u64]) {
        let block = WATCHED[at];
        let stamp = stamp_of(block, data);
        if stamp.is_some_and(|stamp| expected.contains(&stamp)) {
            self.results.correct += 1;
            return;
        }
        let foreign = WATCHED
            .iter()
            .filter(|other| **other != block)
            .any(|other| stamp_of(*other, data).is_some_and(|stamp| stamp != 0));
        let is_named = match (self.authenticates(), stamp) {
            (true, Some(stamp)) => self.is_permitted(at, stamp),
            (true, None) => false,
            // Without authentication, replaced or missing data is not detected. But the content of
            // another block must never appear.
            (false, _) => (self.is_reached(view, at) || self.repeats_rollback()) && !foreign,
        };
        let is_named = is_named && !self.is_lost(view);
        let context = &self.context;
        assert!(is_named, "{context}, {view:?}: block {block} reads {stamp:?}, and not {expected:?}");
        self.results.permitted += 1;
    }

    fn read(&mut self, view: ReadView, disk: &ObjectDisk, expected: &[Vec<u64>]) {
        for (at, expected) in expected.iter().enumerate() {
            match read(disk, WATCHED[at]) {
                Ok(data) => self.check_read(view, at, &data, expected),
                Err(_) => self.results.errors += 1,
            }
        }
    }

    /// A session: reads, a write, reads. Updates `expected` for later sessions.
    fn run_session(&mut self, disk: &ObjectDisk, written: usize, expected: &mut [Vec<u64>]) {
        self.read(ReadView::Present, disk, expected);
        let done = disk.write(BlockAddr(WATCHED[written]), &content(WATCHED[written], STAMP_AFTER_ATTACK));
        match done.and_then(|()| disk.flush()) {
            Ok(()) => expected[written] = vec![STAMP_AFTER_ATTACK],
            Err(_) => expected[written].push(STAMP_AFTER_ATTACK),
        }
        self.read(ReadView::Present, disk, expected);
        if disk.close().is_err() {
            self.results.refused += 1;
        }
    }

    fn count_opening(&mut self, disk: Result<ObjectDisk>) -> Option<ObjectDisk> {
        self.results.refused += u64::from(disk.is_err());
        disk.ok()
    }

    /// Opens and reads each snapshot.
    fn read_snapshots(&mut self, left: &TestDisk) {
        let pool = self.pool;
        for (nth, kept) in pool.snapshots.iter().enumerate() {
            if let Some(disk) = self.count_opening(left.try_open_at(kept.name)) {
                self.read(ReadView::Snapshot(nth), &disk, &sole_stamps(pool.stamps_at(nth)));
            }
        }
    }

    /// Rolls the disk back to a snapshot and reads it.
    fn roll_back(&mut self, disk: &ObjectDisk, nth: usize) {
        let pool = self.pool;
        if disk.rollback(pool.snapshots[nth].name).is_ok() {
            self.read(ReadView::RolledBack(nth), disk, &sole_stamps(pool.stamps_at(nth)));
        } else {
            self.results.refused += 1;
            self.read(ReadView::Present, disk, &sole_stamps(pool.stamps()));
        }
    }

    /// Opens the closed disk after the attack and rolls it back, for each snapshot.
    fn roll_back_closed(&mut self, left: &TestDisk) {
        for nth in 0..self.pool.snapshots.len() {
            if let Some(disk) = self.count_opening(try_open(&left.copied(), 70)) {
                self.roll_back(&disk, nth);
            }
        }
    }

    /// Rolls back a served disk that had read half of the watched blocks before the attack, for
    /// each snapshot.
    fn roll_back_served(&mut self) {
        let (pool, attack) = (self.pool, self.attack);
        for nth in 0..pool.snapshots.len() {
            let left = pool.scene.copied();
            let disk = open_and_read(pool, &left);
            pool.perform(&left, attack);
            self.roll_back(&disk, nth);
        }
    }
}

/// Each watched block with its only permitted stamp.
fn sole_stamps(stamps: &[u64]) -> Vec<Vec<u64>> {
    stamps.iter().map(|stamp| vec![*stamp]).collect()
}

/// An open disk that has read half of the watched blocks.
fn open_and_read(pool: &AttackedPool, left: &TestDisk) -> ObjectDisk {
    let disk = left.open_seeded(50);
    let half = WATCHED.iter().zip(pool.stamps()).step_by(2);
    half.for_each(|(block, stamp)| assert_reads(&disk, *block, *stamp));
    disk
}

fn try_open(scene: &TestDisk, seed: u64) -> Result<ObjectDisk> {
    scene.open_with(scene.stores(), |o| o.random = Arc::new(SeededRandom::new(seed)))
}

/// Attacks a closed or served disk, and judges all reads.
fn run_attack(pool: &AttackedPool, attack: &Attack, nth: usize, is_served: bool) -> ReadResults {
    let written = nth % WATCHED.len();
    let context = format!("{:?}, attack {nth}, served: {is_served}, {attack:?}", pool.scene.params);
    let mut judge = AttackCheck { pool, attack, results: ReadResults::default(), context };
    let mut expected = sole_stamps(pool.stamps());
    let left = pool.scene.copied();
    if is_served {
        let disk = open_and_read(pool, &left);
        pool.perform(&left, attack);
        judge.read_snapshots(&left);
        judge.run_session(&disk, written, &mut expected);
        // A rollback is the best test of attacks on snapshots and on the book.
        if attack.iter().any(|(place, _)| place.snapshot.is_some() || place.family == ObjectFamily::Book) {
            judge.roll_back_served();
        }
    } else {
        pool.perform(&left, attack);
        judge.read_snapshots(&left);
        judge.roll_back_closed(&left);
        if let Some(disk) = judge.count_opening(try_open(&left, 50)) {
            judge.run_session(&disk, written, &mut expected);
        }
    }
    // The same promises hold after the session.
    if let Some(disk) = judge.count_opening(try_open(&left, 60)) {
        judge.read(ReadView::Present, &disk, &expected);
        disk.check(|_| Ok(()), |_| ()).unwrap();
    }
    judge.results
}

/// The attacks on every kind of disk: each act on a whole object, and each way to lose a snapshot.
fn object_attacks(pool: &AttackedPool) -> Vec<Attack> {
    let singles = pool.object_attacks().into_iter().map(|act| vec![act]);
    singles.chain(pool.lost_snapshots()).collect()
}

/// A random sample of `count` further attacks: acts on parts, and pairs.
fn sampled_attacks(pool: &AttackedPool, count: usize, rng: &mut Rng) -> Vec<Attack> {
    let (objects, mut parts) = (pool.object_attacks(), pool.part_attacks());
    let tables: Vec<_> = objects.iter().filter(|(place, _)| *place == PRESENT_TABLE).cloned().collect();
    rng.shuffle(&mut parts);
    let all: Vec<_> = objects.iter().chain(&parts).cloned().collect();
    let mut attacks: Vec<Attack> = parts.into_iter().take(count / 2).map(|act| vec![act]).collect();
    while attacks.len() < count {
        // Half of the pairs include the version table.
        let first = if rng.chance(1, 2) { rng.pick(&tables) } else { rng.pick(&all) };
        let second = rng.pick(&all);
        if first.0 != second.0 {
            attacks.push(vec![first.clone(), second.clone()]);
        }
    }
    attacks
}

/// Each attack, on the closed and on the served disk.
fn closed_and_served(attacks: &[Attack]) -> impl Iterator<Item = (usize, &Attack, bool)> {
    attacks.iter().enumerate().flat_map(|(nth, attack)| [false, true].map(|served| (nth, attack, served)))
}

fn run_attacks(cipher: Cipher, layout: ObjectLayout) {
    let count = env_number("LACUNA_HOSTILE", ATTACKS) as usize;
    let pool = AttackedPool::new(cipher, layout);
    let attacks = [object_attacks(&pool), sampled_attacks(&pool, count, &mut Rng::new(38))].concat();
    let mut total = ReadResults::default();
    for (nth, attack, is_served) in closed_and_served(&attacks) {
        let shown = run_attack(&pool, attack, nth, is_served);
        total.correct += shown.correct;
        total.errors += shown.errors;
        total.permitted += shown.permitted;
        total.refused += shown.refused;
    }
    println!("{} {}: {} attacks, {total:?}", cipher.name(), layout.name(), attacks.len());
    assert!(total.correct > 0 && total.refused > 0, "{total:?}");
    assert!(total.errors > 0 || !cipher.authenticates(), "{total:?}");
}

#[test]
fn gcm_adaptive() {
    run_attacks(Cipher::Gcm, ObjectLayout::Adaptive);
}

#[test]
fn gcm_segment_end() {
    run_attacks(Cipher::Gcm, ObjectLayout::SegmentEnd);
}

#[test]
fn gcm_interleaved() {
    run_attacks(Cipher::Gcm, ObjectLayout::Interleaved);
}

#[test]
fn gcm_kv() {
    run_attacks(Cipher::Gcm, ObjectLayout::Kv);
}

#[test]
fn xts_random_adaptive() {
    run_attacks(Cipher::XtsRandom, ObjectLayout::Adaptive);
}

#[test]
fn xts_random_segment_end() {
    run_attacks(Cipher::XtsRandom, ObjectLayout::SegmentEnd);
}

#[test]
fn xts_random_interleaved() {
    run_attacks(Cipher::XtsRandom, ObjectLayout::Interleaved);
}

#[test]
fn xts_random_kv() {
    run_attacks(Cipher::XtsRandom, ObjectLayout::Kv);
}

/// The same attacks give the same results.
#[test]
fn the_same_attacks_give_the_same_results() {
    let shown = || {
        let pool = AttackedPool::new(Cipher::Gcm, ObjectLayout::Adaptive);
        let attacks = sampled_attacks(&pool, 12, &mut Rng::new(3));
        closed_and_served(&attacks)
            .map(|(nth, attack, served)| run_attack(&pool, attack, nth, served))
            .collect::<Vec<_>>()
    };
    assert_eq!(shown(), shown());
}
