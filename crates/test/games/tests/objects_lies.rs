//! An object store that lies. Two queries of one object may get different earlier versions of it,
//! another object, a mixture, or forged data. Lists may contain removed objects and omit existing
//! ones. Snapshots may show another time, and rollbacks may restore another time. The promises for
//! each cipher and layout:
//!
//! - `gcm`: a block reads as a whole version of its own, including zeros, or fails; at a snapshot,
//!   as a version from before the snapshot. In the layout `adaptive`, where seals bind the content
//!   of the object, it reads as its latest version or fails as long as the book is honest; at a
//!   snapshot and after a rollback, as the latest version of that time.
//! - The other ciphers: as in the first case, or as noise, since blocks are not authenticated;
//!   never as the content of another block.
//!
//! `LACUNA_LIES` sets the openings for all ciphers and layouts together (default 400),
//! `LACUNA_SEED` the first seed.

#[path = "../../../formats/sealed-objects/tests/fixture/mod.rs"]
mod fixture;

use fixture::{Scene, all_kinds, options};
use lacuna_contracts::{Disk, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores};
use lacuna_sim::versions::{Model, Worked};
use lacuna_sim::{Lies, LyingObjects, Rng};
use lacuna_testkit::openings::{Openings, Promise};
use std::sync::Arc;

const BLOCKS: u64 = SEGMENT_BLOCKS + 60;
/// The number of sessions before the store lies.
const SESSIONS: u64 = 4;
/// The number of openings of one disk.
const OF_ONE_DISK: u64 = 20;
/// The number of lies in a thousand queries, used in turn.
const OFTEN: [u64; 4] = [20, 100, 300, 600];
/// The snapshot that is made in the middle of these sessions.
const SNAPSHOT: &str = "then";

/// The state that is read while the store lies.
#[derive(Clone, Copy, Debug)]
enum Look {
    Now,
    Snapshot,
    RolledBack,
}

/// A disk with stores that keep their earlier versions.
struct Kept {
    params: ObjectParams,
    data: LyingObjects,
    book: LyingObjects,
}

impl Kept {
    fn of(params: ObjectParams) -> Kept {
        let scene = Scene::of(params);
        Kept { params, data: LyingObjects::over(scene.data), book: LyingObjects::over(scene.book) }
    }

    fn fork(&self) -> Kept {
        Kept { params: self.params, data: self.data.fork(), book: self.book.fork() }
    }

    fn open(&self, read_only: bool, seed: u64) -> Result<ObjectDisk> {
        self.open_with(ObjectOptions { read_only, ..options(seed) })
    }

    fn open_with(&self, options: ObjectOptions) -> Result<ObjectDisk> {
        let stores = Stores { data: Arc::new(self.data.clone()), book: Arc::new(self.book.clone()) };
        ObjectDisk::open(stores, &self.params, &fixture::master(), &fixture::UUID, options)
    }

    /// Starts lying, also in the book if `book_lies`.
    fn lie(&self, of_a_thousand: u64, book_lies: bool, rng: &mut Rng) {
        let forges = rng.chance(1, 2);
        let lies = |rng: &mut Rng| Some(Lies { of_a_thousand, rng: Rng::new(rng.next_u64()), forges });
        self.data.lie(lies(rng));
        self.book.lie(lies(rng).filter(|_| book_lies));
    }

    fn be_honest(&self) {
        self.data.lie(None);
        self.book.lie(None);
    }

    /// The promise for a block whatever the lies.
    fn own(&self) -> Promise {
        if self.params.cipher.authenticates() { Promise::Own } else { Promise::OwnOrNoise }
    }

    /// The promise for blocks that were read while these stores lied.
    fn promise(&self, book_lies: bool) -> Promise {
        let binds = self.params.cipher.authenticates() && self.params.layout == ObjectLayout::Adaptive;
        if binds && !book_lies { Promise::Latest { but_discarded: false } } else { self.own() }
    }
}

fn work(
    disk: &dyn Disk,
    model: &mut Model,
    rng: &mut Rng,
    next_stamp: &mut u64,
    operations: u64,
) -> Result<()> {
    for _ in 0..operations {
        let choice = rng.below(20);
        let most = if rng.chance(1, 8) { 140 } else { 4 };
        let count = 1 + rng.below(most);
        let room = if rng.chance(1, 2) { 40 } else { BLOCKS - count };
        let first = rng.below(room);
        let mut worked = Worked { disk, model, rng, next_stamp };
        let done = match choice {
            0 => worked.discard_at(SEGMENT_BLOCKS, 60),
            1 | 2 => worked.discard_at(first, count),
            3..8 => disk.flush(),
            _ => worked.write_at(first, count),
        };
        done?;
    }
    disk.flush()
}

/// A disk after use and a close, with models of its blocks: now, and at its snapshot.
fn live(params: ObjectParams, rng: &mut Rng) -> (Kept, Model, Model) {
    let kept = Kept::of(params);
    let mut model = Model::new("the disk", BLOCKS);
    let (mut next_stamp, mut then) = (0, model.clone());
    for session in 0..SESSIONS {
        let disk = kept.open(false, rng.next_u64()).unwrap();
        let operations = 15 + rng.below(15);
        work(&disk, &mut model, rng, &mut next_stamp, operations).unwrap();
        if session == SESSIONS / 2 {
            disk.create_snapshot(SNAPSHOT).unwrap();
            then = model.clone();
        }
        disk.close().unwrap();
    }
    (kept, model, then)
}

/// Opens one disk many times. `looked` counts the openings that returned data, for each kind of
/// look.
fn play(params: ObjectParams, shown: &mut Openings, looked: &mut [u64; 3]) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let (kept, now, then) = live(params, &mut rng);
    for opening in 0..OF_ONE_DISK.min(shown.left()) {
        let (book_lies, fork) = (rng.chance(1, 2), kept.fork());
        fork.lie(OFTEN[(opening % 4) as usize], book_lies, &mut rng);
        let (look, promise) =
            (*rng.pick(&[Look::Now, Look::Now, Look::Snapshot, Look::RolledBack]), fork.promise(book_lies));
        let context = format!("seed {seed}, {look:?}, the book lies: {book_lies}");
        shown.note_opening();
        let mut writes = rng.chance(1, 3);
        let mut versions = now.clone();
        match look {
            Look::Now => match fork.open(!writes, rng.next_u64()) {
                Err(e) => shown.note_refused(&e),
                Ok(disk) => {
                    looked[look as usize] += 1;
                    shown.compare(&disk, &now, promise, &mut rng, &context);
                    if writes {
                        let mut stamp = 1 << 40;
                        let _refused = work(&disk, &mut versions, &mut rng, &mut stamp, 6);
                        let _refused = rng.chance(1, 2).then(|| disk.close());
                    }
                }
            },
            Look::Snapshot => {
                writes = false;
                // Without authentication, data may be from a later time.
                let held = if promise == Promise::OwnOrNoise { &now } else { &then };
                let options = options(rng.next_u64());
                match fork.open_with(ObjectOptions { snapshot: Some(SNAPSHOT.into()), ..options }) {
                    Err(e) => shown.note_refused(&e),
                    Ok(disk) => {
                        looked[look as usize] += 1;
                        shown.compare(&disk, held, promise, &mut rng, &context);
                    }
                }
            }
            Look::RolledBack => {
                writes = true;
                let opened = fork.open(false, rng.next_u64());
                // If seals do not bind the content, or the book lies, a lie may replace the
                // restored version with a later one.
                let held = if promise == fork.own() { &now } else { &then };
                match opened.and_then(|disk| disk.rollback(SNAPSHOT).map(|()| disk)) {
                    Err(e) => shown.note_refused(&e),
                    Ok(disk) => {
                        looked[look as usize] += 1;
                        shown.compare(&disk, held, promise, &mut rng, &context);
                    }
                }
            }
        }
        if writes {
            fork.be_honest();
            match fork.open(true, rng.next_u64()) {
                Err(e) => shown.note_refused(&e),
                Ok(disk) => {
                    let context = format!("{context}, afterwards");
                    shown.compare(&disk, &versions, fork.own(), &mut rng, &context);
                }
            }
        }
    }
}

fn nothing_is_wrong(is_meant: impl Fn(Cipher) -> bool) {
    let mut looked = [0; 3];
    for (cipher, layout) in all_kinds().into_iter().filter(|(cipher, _)| is_meant(*cipher)) {
        let params = ObjectParams::plan(cipher, layout, BLOCKS).unwrap();
        let mut shown = Openings::new(400, all_kinds().len());
        while shown.left() > 0 {
            play(params, &mut shown, &mut looked);
        }
        shown.nothing_is_wrong(&format!("objects {} {}", cipher.name(), layout.name()));
    }
    assert!(looked.iter().all(|count| *count > 0), "some looks showed nothing: {looked:?}");
}

#[test]
fn gcm() {
    nothing_is_wrong(|cipher| cipher == Cipher::Gcm);
}

#[test]
fn ciphers_that_do_not_authenticate() {
    nothing_is_wrong(|cipher| cipher != Cipher::Gcm);
}
