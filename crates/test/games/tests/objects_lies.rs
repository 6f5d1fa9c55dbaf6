//! An object store that answers two queries of one object differently, with any version that it ever had, with another object, or
//! with a mixture. What holds with each cipher and layout:
//!
//! - `gcm`: a block reads as a version of its own, whole, zeros among them, or fails. In the layout `adaptive`, whose seals bind what
//!   the object holds, it reads as its latest version or fails as long as the book is honest.
//! - The others: the same as the first, or as noise, since nothing authenticates a block; never as another block's content.
//!
//! `LACUNA_LIES` sets the openings for all ciphers and layouts together (default 400), `LACUNA_SEED` the first seed.

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
/// Sessions before the store lies.
const SESSIONS: u64 = 4;
/// Openings of one disk.
const OF_ONE_DISK: u64 = 20;
/// Of a thousand queries, how many are answered with lies, in turn.
const OFTEN: [u64; 4] = [20, 100, 300, 600];

/// A disk whose stores keep their past.
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
        let stores = Stores { data: Arc::new(self.data.clone()), book: Arc::new(self.book.clone()) };
        let options = ObjectOptions { read_only, ..options(seed) };
        ObjectDisk::open(stores, &self.params, &fixture::master(), &fixture::UUID, options)
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

fn play(params: ObjectParams, shown: &mut Openings) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let kept = Kept::of(params);
    let (mut model, mut next_stamp) = (Model::new("the disk", BLOCKS), 0);
    for _ in 0..SESSIONS {
        let disk = kept.open(false, rng.next_u64()).unwrap();
        let operations = 15 + rng.below(15);
        work(&disk, &mut model, &mut rng, &mut next_stamp, operations).unwrap();
        disk.close().unwrap();
    }
    for opening in 0..OF_ONE_DISK.min(shown.left()) {
        let book_lies = rng.chance(1, 2);
        let binds = params.cipher.authenticates() && params.layout == ObjectLayout::Adaptive;
        let own = if params.cipher.authenticates() { Promise::Own } else { Promise::OwnOrNoise };
        let promise = if binds && !book_lies { Promise::Latest { but_discarded: false } } else { own };
        let context = format!("seed {seed}, the book lies: {book_lies}");
        let fork = kept.fork();
        let of_a_thousand = OFTEN[(opening % 4) as usize];
        let lies = |rng: &mut Rng| Some(Lies { of_a_thousand, rng: Rng::new(rng.next_u64()) });
        fork.data.lie(lies(&mut rng));
        fork.book.lie(lies(&mut rng).filter(|_| book_lies));
        let writes = rng.chance(1, 3);
        let mut model = model.clone();
        shown.note_opening();
        match fork.open(!writes, rng.next_u64()) {
            Err(e) => shown.note_refused(&e),
            Ok(disk) => {
                shown.compare(&disk, &model, promise, &mut rng, &context);
                if writes {
                    let mut stamp = 1 << 40;
                    let _refused = work(&disk, &mut model, &mut rng, &mut stamp, 6);
                    let _refused = rng.chance(1, 2).then(|| disk.close());
                }
            }
        }
        if writes {
            fork.data.lie(None);
            fork.book.lie(None);
            match fork.open(true, rng.next_u64()) {
                Err(e) => shown.note_refused(&e),
                Ok(disk) => shown.compare(&disk, &model, own, &mut rng, &format!("{context}, afterwards")),
            }
        }
    }
}

fn nothing_is_wrong(is_meant: impl Fn(Cipher) -> bool) {
    for (cipher, layout) in all_kinds().into_iter().filter(|(cipher, _)| is_meant(*cipher)) {
        let params = ObjectParams::plan(cipher, layout, BLOCKS).unwrap();
        let mut shown = Openings::new(400, all_kinds().len());
        while shown.left() > 0 {
            play(params, &mut shown);
        }
        shown.nothing_is_wrong(&format!("objects {} {}", cipher.name(), layout.name()));
    }
}

#[test]
fn gcm() {
    nothing_is_wrong(|cipher| cipher == Cipher::Gcm);
}

#[test]
fn ciphers_that_do_not_authenticate() {
    nothing_is_wrong(|cipher| cipher != Cipher::Gcm);
}
