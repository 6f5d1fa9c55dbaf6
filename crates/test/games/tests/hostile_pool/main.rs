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

use adversary::{Act, Attack, Family, MARK, Moment, Place, Pool, VERSION_TABLE, WATCHED};
use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Result};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout};
use lacuna_sim::versions::stamp_of;
use lacuna_sim::{Rng, setting};
use std::sync::Arc;

/// The number of attacks on each kind of disk that are drawn from attacks on parts and pairs.
const ATTACKS: u64 = 150;
/// The version table at present.
const TABLE_NOW: Place = Place { family: Family::Book, object: VERSION_TABLE, snapshot: None };
/// The stamp of the write after an attack.
const AFTER: u64 = 9;

/// The present object of a segment.
fn present(object: u64) -> Place {
    Place { family: Family::Data, object, snapshot: None }
}

/// The results of reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shown {
    right: u64,
    errors: u64,
    /// Reads of other content, which the threat model permits.
    named: u64,
    /// Openings and rollbacks that were refused.
    refused: u64,
}

/// The state that is read. Snapshots are given by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    Present,
    Snapshot(usize),
    /// The disk after a rollback to a snapshot.
    RolledBack(usize),
}

impl View {
    fn snapshot(self) -> Option<usize> {
        match self {
            View::Present => None,
            View::Snapshot(nth) | View::RolledBack(nth) => Some(nth),
        }
    }
}

/// Judges the results of one attack.
struct Judge<'p> {
    pool: &'p Pool,
    attack: &'p Attack,
    shown: Shown,
    context: String,
}

impl Judge<'_> {
    fn authenticates(&self) -> bool {
        self.pool.scene.params.cipher.authenticates()
    }

    /// Whether an attack affects the object of a watched block in a view. In a snapshot, an object
    /// that was not written since is the present object.
    fn is_reached(&self, view: View, at: usize) -> bool {
        let object = WATCHED[at] / 1024;
        let (now, then) = (present(object), Place { snapshot: view.snapshot(), ..present(object) });
        self.attack.iter().any(|(place, _)| *place == now || *place == then)
    }

    /// Whether the mark of a snapshot was attacked. Without the mark the snapshot counts as lost,
    /// and none of its data is accepted.
    fn is_lost(&self, view: View) -> bool {
        let Some(nth) = view.snapshot() else { return false };
        let mark = Place { snapshot: Some(nth), ..present(MARK) };
        self.attack.iter().any(|(place, _)| *place == mark)
    }

    /// Whether the threat model permits that a watched block reads with this stamp.
    fn is_named(&self, at: usize, stamp: u64) -> bool {
        let pool = self.pool;
        let is_left = |object: u64| self.attack.iter().all(|(place, _)| *place != present(object));
        let older = |number: usize| {
            // With the version table of a moment, objects of the same moment pass; if the disk was
            // open then, of any moment of that session.
            let then = &pool.moments[number];
            let session =
                |m: &&Moment| m.session == then.session || m.closed && m.session + 1 == then.session;
            // An unchanged object that was written later reveals the older table. It also reveals
            // missing objects under the table of a closed disk.
            let betrayed = (0..4).any(|n| is_left(n) && pool.is_written_after(n, then.session));
            if then.closed {
                return then.stamps[at] == stamp && (then.has(WATCHED[at] / 1024) || !betrayed);
            }
            !betrayed && pool.moments.iter().filter(session).any(|m| m.stamps[at] == stamp)
        };
        self.attack.iter().any(|(place, act)| match act {
            Act::PutBack(number) => *place == TABLE_NOW && older(*number),
            // A part passes under the present seal if the seal does not bind the entries.
            act if act.is_partial() && !pool.scene.params.binds_entries() => {
                let known = pool.moments.iter().any(|moment| moment.stamps[at] == stamp);
                WATCHED[at] / 1024 == place.object && (known || stamp == 0)
            }
            _ => false,
        })
    }

    /// Judges a read of a watched block in a view, where it may have the `expected` stamps.
    fn judge(&mut self, view: View, at: usize, data: &[u8], expected: &[u64]) {
        let block = WATCHED[at];
        let stamp = stamp_of(block, data);
        if stamp.is_some_and(|stamp| expected.contains(&stamp)) {
            self.shown.right += 1;
            return;
        }
        let foreign = WATCHED
            .iter()
            .filter(|other| **other != block)
            .any(|other| stamp_of(*other, data).is_some_and(|stamp| stamp != 0));
        let is_named = match (self.authenticates(), stamp) {
            (true, Some(stamp)) => self.is_named(at, stamp),
            (true, None) => false,
            // Without authentication, replaced or missing data is not detected. But the content of
            // another block must never appear.
            (false, _) => self.is_reached(view, at) && !foreign,
        };
        let is_named = is_named && !self.is_lost(view);
        let context = &self.context;
        assert!(is_named, "{context}, {view:?}: block {block} reads {stamp:?}, and not {expected:?}");
        self.shown.named += 1;
    }

    fn read(&mut self, view: View, disk: &ObjectDisk, expected: &[Vec<u64>]) {
        for (at, expected) in expected.iter().enumerate() {
            match read(disk, WATCHED[at]) {
                Ok(data) => self.judge(view, at, &data, expected),
                Err(_) => self.shown.errors += 1,
            }
        }
    }

    /// A session: reads, a write, reads. Updates `expected` for later sessions.
    fn session(&mut self, disk: &ObjectDisk, written: usize, expected: &mut [Vec<u64>]) {
        self.read(View::Present, disk, expected);
        let done = disk.write(BlockAddr(WATCHED[written]), &content(WATCHED[written], AFTER));
        match done.and_then(|()| disk.flush()) {
            Ok(()) => expected[written] = vec![AFTER],
            Err(_) => expected[written].push(AFTER),
        }
        self.read(View::Present, disk, expected);
        if disk.close().is_err() {
            self.shown.refused += 1;
        }
    }

    fn opened(&mut self, disk: Result<ObjectDisk>) -> Option<ObjectDisk> {
        self.shown.refused += u64::from(disk.is_err());
        disk.ok()
    }

    /// Opens and reads each snapshot.
    fn read_snapshots(&mut self, left: &Scene) {
        let pool = self.pool;
        for (nth, kept) in pool.snapshots.iter().enumerate() {
            if let Some(disk) = self.opened(left.try_open_at(kept.name)) {
                self.read(View::Snapshot(nth), &disk, &alone(pool.stamps_at(nth)));
            }
        }
    }

    /// Rolls the disk back to a snapshot and reads it.
    fn roll_back(&mut self, disk: &ObjectDisk, nth: usize) {
        let pool = self.pool;
        if disk.rollback(pool.snapshots[nth].name).is_ok() {
            self.read(View::RolledBack(nth), disk, &alone(pool.stamps_at(nth)));
        } else {
            self.shown.refused += 1;
            self.read(View::Present, disk, &alone(pool.stamps()));
        }
    }

    /// Opens the closed disk after the attack and rolls it back, for each snapshot.
    fn roll_back_closed(&mut self, left: &Scene) {
        for nth in 0..self.pool.snapshots.len() {
            if let Some(disk) = self.opened(try_open(&left.copied(), 70)) {
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
            let disk = served(pool, &left);
            pool.perform(&left, attack);
            self.roll_back(&disk, nth);
        }
    }
}

/// Each watched block with its only permitted stamp.
fn alone(stamps: &[u64]) -> Vec<Vec<u64>> {
    stamps.iter().map(|stamp| vec![*stamp]).collect()
}

/// An open disk that has read half of the watched blocks.
fn served(pool: &Pool, left: &Scene) -> ObjectDisk {
    let disk = left.open_seeded(50);
    let half = WATCHED.iter().zip(pool.stamps()).step_by(2);
    half.for_each(|(block, stamp)| assert_reads(&disk, *block, *stamp));
    disk
}

fn try_open(scene: &Scene, seed: u64) -> Result<ObjectDisk> {
    scene.open_with(scene.stores(), |o| o.random = Arc::new(SeededRandom::new(seed)))
}

/// Attacks a closed or served disk, and judges all reads.
fn play(pool: &Pool, attack: &Attack, nth: usize, is_served: bool) -> Shown {
    let written = nth % WATCHED.len();
    let context = format!("{:?}, attack {nth}, served: {is_served}, {attack:?}", pool.scene.params);
    let mut judge = Judge { pool, attack, shown: Shown::default(), context };
    let mut expected = alone(pool.stamps());
    let left = pool.scene.copied();
    if is_served {
        let disk = served(pool, &left);
        pool.perform(&left, attack);
        judge.read_snapshots(&left);
        judge.session(&disk, written, &mut expected);
        // A rollback is the best test of attacks on snapshots and on the book.
        if attack.iter().any(|(place, _)| place.snapshot.is_some() || place.family == Family::Book) {
            judge.roll_back_served();
        }
    } else {
        pool.perform(&left, attack);
        judge.read_snapshots(&left);
        judge.roll_back_closed(&left);
        if let Some(disk) = judge.opened(try_open(&left, 50)) {
            judge.session(&disk, written, &mut expected);
        }
    }
    // The same promises hold after the session.
    if let Some(disk) = judge.opened(try_open(&left, 60)) {
        judge.read(View::Present, &disk, &expected);
        disk.check(|_| Ok(()), |_| ()).unwrap();
    }
    judge.shown
}

/// The attacks on every kind of disk: each act on a whole object, and each way to lose a snapshot.
fn certain(pool: &Pool) -> Vec<Attack> {
    let singles = pool.acts_on_objects().into_iter().map(|act| vec![act]);
    singles.chain(pool.lost_snapshots()).collect()
}

/// A random sample of `count` further attacks: acts on parts, and pairs.
fn drawn(pool: &Pool, count: usize, rng: &mut Rng) -> Vec<Attack> {
    let (objects, mut parts) = (pool.acts_on_objects(), pool.acts_on_parts());
    let tables: Vec<_> = objects.iter().filter(|(place, _)| *place == TABLE_NOW).cloned().collect();
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
fn both_ways(attacks: &[Attack]) -> impl Iterator<Item = (usize, &Attack, bool)> {
    attacks.iter().enumerate().flat_map(|(nth, attack)| [false, true].map(|served| (nth, attack, served)))
}

fn play_all(cipher: Cipher, layout: ObjectLayout) {
    let count = setting("LACUNA_HOSTILE", ATTACKS) as usize;
    let pool = Pool::new(cipher, layout);
    let attacks = [certain(&pool), drawn(&pool, count, &mut Rng::new(38))].concat();
    let mut total = Shown::default();
    for (nth, attack, is_served) in both_ways(&attacks) {
        let shown = play(&pool, attack, nth, is_served);
        total.right += shown.right;
        total.errors += shown.errors;
        total.named += shown.named;
        total.refused += shown.refused;
    }
    println!("{} {}: {} attacks, {total:?}", cipher.name(), layout.name(), attacks.len());
    assert!(total.right > 0 && total.refused > 0, "{total:?}");
    assert!(total.errors > 0 || !cipher.authenticates(), "{total:?}");
}

#[test]
fn gcm_adaptive() {
    play_all(Cipher::Gcm, ObjectLayout::Adaptive);
}

#[test]
fn gcm_segment_end() {
    play_all(Cipher::Gcm, ObjectLayout::SegmentEnd);
}

#[test]
fn gcm_interleaved() {
    play_all(Cipher::Gcm, ObjectLayout::Interleaved);
}

#[test]
fn gcm_kv() {
    play_all(Cipher::Gcm, ObjectLayout::Kv);
}

#[test]
fn xts_random_adaptive() {
    play_all(Cipher::XtsRandom, ObjectLayout::Adaptive);
}

#[test]
fn xts_random_segment_end() {
    play_all(Cipher::XtsRandom, ObjectLayout::SegmentEnd);
}

#[test]
fn xts_random_interleaved() {
    play_all(Cipher::XtsRandom, ObjectLayout::Interleaved);
}

#[test]
fn xts_random_kv() {
    play_all(Cipher::XtsRandom, ObjectLayout::Kv);
}

/// The same attacks give the same results.
#[test]
fn a_play_is_the_same_each_time() {
    let shown = || {
        let pool = Pool::new(Cipher::Gcm, ObjectLayout::Adaptive);
        let attacks = drawn(&pool, 12, &mut Rng::new(3));
        both_ways(&attacks).map(|(nth, attack, served)| play(&pool, attack, nth, served)).collect::<Vec<_>>()
    };
    assert_eq!(shown(), shown());
}
