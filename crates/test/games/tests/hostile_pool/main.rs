//! A hostile pool: single acts on every object and key of a disk and its snapshots, and pairs of them, on a disk that is closed and on one
//! that is being served. Every read shows the right content, or an error, or what the threat model names.
//!
//! LACUNA_HOSTILE is the number of attacks on each kind of disk; those on whole objects come first, then a sample of the others.

mod adversary;
#[path = "../../../../formats/sealed-objects/tests/fixture/mod.rs"]
mod fixture;

use adversary::{Act, Attack, Family, Moment, Place, Pool, VERSION_TABLE, WATCHED};
use fixture::*;
use lacuna_contracts::{BlockAddr, Disk, Result};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout};
use lacuna_sim::versions::stamp_of;
use lacuna_sim::{Rng, setting};
use std::sync::Arc;

/// Attacks on each kind of disk.
const ATTACKS: u64 = 600;
/// The version table.
const TABLE_NOW: Place = Place { family: Family::Book, object: VERSION_TABLE, snapshot: None };
/// The stamp of what is written after an attack.
const AFTER: u64 = 9;

/// A segment's object as it is now.
fn present(object: u64) -> Place {
    Place { family: Family::Data, object, snapshot: None }
}

/// What reads showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Shown {
    right: u64,
    errors: u64,
    /// Other content, as the threat model says.
    named: u64,
    /// Openings and rollbacks that were refused.
    refused: u64,
}

/// What an attack may show.
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

    /// Whether the threat model names that a watched block reads with this stamp.
    fn is_named(&self, at: usize, stamp: u64) -> bool {
        let pool = self.pool;
        let is_left = |object: u64| self.attack.iter().all(|(place, _)| *place != present(object));
        let older = |number: usize| {
            // The version table of that time, and with it any object of that time: if it was open, of that session.
            let then = &pool.moments[number];
            let session =
                |m: &&Moment| m.session == then.session || m.closed && m.session + 1 == then.session;
            // An object that was written later and left as it is betrays the table, and absences under one that was closed.
            let betrayed = (0..4).any(|n| is_left(n) && pool.is_written_after(n, then.session));
            if then.closed {
                return then.stamps[at] == stamp && (then.has(WATCHED[at] / 1024) || !betrayed);
            }
            !betrayed && pool.moments.iter().filter(session).any(|m| m.stamps[at] == stamp)
        };
        self.attack.iter().any(|(place, act)| match act {
            Act::PutBack(number) => *place == TABLE_NOW && older(*number),
            // Under the present seal, where it binds no entries.
            act if act.is_partial() && !pool.scene.params.binds_entries() => {
                let known = pool.moments.iter().any(|moment| moment.stamps[at] == stamp);
                WATCHED[at] / 1024 == place.object && (known || stamp == 0)
            }
            _ => false,
        })
    }

    /// What a watched block reads, which may have these stamps.
    fn judge(&mut self, at: usize, data: &[u8], expected: &[u64]) {
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
            // Nothing is noticed; but what another block held never comes.
            (false, _) => !foreign,
        };
        assert!(is_named, "{}: block {block} reads {stamp:?}, and not {expected:?}", self.context);
        self.shown.named += 1;
    }

    fn read(&mut self, disk: &ObjectDisk, expected: &[Vec<u64>]) {
        for (at, expected) in expected.iter().enumerate() {
            match read(disk, WATCHED[at]) {
                Ok(data) => self.judge(at, &data, expected),
                Err(_) => self.shown.errors += 1,
            }
        }
    }

    /// A session: reads, a write, reads. `expected` is what it leaves.
    fn session(&mut self, disk: &ObjectDisk, written: usize, expected: &mut [Vec<u64>]) {
        self.read(disk, expected);
        let done = disk.write(BlockAddr(WATCHED[written]), &content(WATCHED[written], AFTER));
        match done.and_then(|()| disk.flush()) {
            Ok(()) => expected[written] = vec![AFTER],
            Err(_) => expected[written].push(AFTER),
        }
        self.read(disk, expected);
        if disk.close().is_err() {
            self.shown.refused += 1;
        }
    }

    fn opened(&mut self, disk: Result<ObjectDisk>) -> Option<ObjectDisk> {
        self.shown.refused += u64::from(disk.is_err());
        disk.ok()
    }

    /// The snapshots, each read and rolled back to.
    fn snapshots(&mut self, left: &Scene) {
        let pool = self.pool;
        for (nth, kept) in pool.snapshots.iter().enumerate() {
            let expected: Vec<Vec<u64>> = pool.stamps_at(nth).iter().map(|s| vec![*s]).collect();
            if let Some(disk) = self.opened(left.try_open_at(kept.name)) {
                self.read(&disk, &expected);
            }
            let rolled = left.copied();
            let Some(disk) = self.opened(try_open(&rolled, 70)) else { continue };
            let present: Vec<Vec<u64>> = pool.stamps().iter().map(|s| vec![*s]).collect();
            if disk.rollback(kept.name).is_ok() {
                self.read(&disk, &expected);
            } else {
                self.shown.refused += 1;
                self.read(&disk, &present);
            }
        }
    }
}

fn try_open(scene: &Scene, seed: u64) -> Result<ObjectDisk> {
    scene.open_with(scene.stores(), |o| o.random = Arc::new(SeededRandom::new(seed)))
}

/// Attacks a disk, and looks at all that it shows.
fn play(pool: &Pool, attack: &Attack, nth: usize) -> Shown {
    let (served, written) = (nth % 2 == 1, nth % WATCHED.len());
    let context = format!("{:?}, attack {nth}, served: {served}, {attack:?}", pool.scene.params);
    let mut judge = Judge { pool, attack, shown: Shown::default(), context };
    let mut expected: Vec<Vec<u64>> = pool.stamps().iter().map(|stamp| vec![*stamp]).collect();
    let left = pool.scene.copied();
    if served {
        let disk = left.open_seeded(50);
        WATCHED
            .iter()
            .zip(pool.stamps())
            .step_by(2)
            .for_each(|(block, stamp)| assert_reads(&disk, *block, *stamp));
        pool.perform(&left, attack);
        judge.session(&disk, written, &mut expected);
    } else {
        pool.perform(&left, attack);
        judge.snapshots(&left);
        if let Some(disk) = judge.opened(try_open(&left, 50)) {
            judge.session(&disk, written, &mut expected);
        }
    }
    // What a session after it left is no better than what it found.
    if let Some(disk) = judge.opened(try_open(&left, 60)) {
        judge.read(&disk, &expected);
        disk.check(|_| Ok(()), |_| ()).unwrap();
    }
    judge.shown
}

/// All single acts on objects, and a sample of those on parts and of pairs.
fn attacks(pool: &Pool, most: usize, rng: &mut Rng) -> Vec<Attack> {
    let (mut objects, mut parts) = (pool.acts_on_objects(), pool.acts_on_parts());
    let tables: Vec<_> = objects.iter().filter(|(place, _)| *place == TABLE_NOW).cloned().collect();
    rng.shuffle(&mut objects);
    rng.shuffle(&mut parts);
    let all: Vec<_> = objects.iter().chain(&parts).cloned().collect();
    let pair = || {
        // Half of them with the version table.
        let first = if rng.chance(1, 2) { rng.pick(&tables) } else { rng.pick(&all) };
        vec![first.clone(), rng.pick(&all).clone()]
    };
    let pairs: Vec<Attack> =
        std::iter::repeat_with(pair).filter(|pair| pair[0].0 != pair[1].0).take(most).collect();
    let singles = |acts: Vec<(Place, Act)>| acts.into_iter().map(|act| vec![act]).collect::<Vec<_>>();
    let mut attacks: Vec<Attack> = singles(objects).into_iter().take(most / 3).collect();
    attacks.extend(singles(parts).into_iter().take(most / 3));
    let rest = most.saturating_sub(attacks.len());
    attacks.extend(pairs.into_iter().take(rest));
    attacks
}

fn play_all(cipher: Cipher, layout: ObjectLayout) {
    let most = setting("LACUNA_HOSTILE", ATTACKS) as usize;
    let pool = Pool::new(cipher, layout);
    let mut total = Shown::default();
    for (nth, attack) in attacks(&pool, most, &mut Rng::new(38)).iter().enumerate() {
        let shown = play(&pool, attack, nth);
        total.right += shown.right;
        total.errors += shown.errors;
        total.named += shown.named;
        total.refused += shown.refused;
    }
    println!("{} {}: {total:?}", cipher.name(), layout.name());
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

/// The same attacks show the same.
#[test]
fn a_play_is_the_same_each_time() {
    let shown = || {
        let pool = Pool::new(Cipher::Gcm, ObjectLayout::Adaptive);
        let attacks = attacks(&pool, 12, &mut Rng::new(3));
        attacks.iter().enumerate().map(|(nth, attack)| play(&pool, attack, nth)).collect::<Vec<_>>()
    };
    assert_eq!(shown(), shown());
}
