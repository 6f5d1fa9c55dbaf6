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

use fixture::{TestDisk, access, all_ciphers_and_layouts, options};
use lacuna_contracts::{Disk, Result, SEGMENT_BLOCKS};
use lacuna_crypto::Cipher;
use lacuna_sealed_objects::{ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores};
use lacuna_sim::versions::{DiskModel, DiskWorkload};
use lacuna_sim::{Lies, LyingObjects, Rng};
use lacuna_testkit::openings::{OpeningResults, Promise};
use std::sync::Arc;

const BLOCKS: u64 = SEGMENT_BLOCKS + 60;
/// The number of sessions before the store lies.
const SESSIONS: u64 = 4;
/// The number of openings of one disk.
const OPENINGS_PER_DISK: u64 = 20;
/// The number of lies in a thousand queries, used in turn.
const LIE_RATES: [u64; 4] = [20, 100, 300, 600];
/// The snapshot that is made in the middle of these sessions.
const SNAPSHOT: &str = "then";

/// The state that is read while the store lies.
#[derive(Clone, Copy, Debug)]
enum ReadView {
    Present,
    Snapshot,
    RolledBack,
}

/// A disk with stores that keep their earlier versions.
struct StoresWithHistory {
    params: ObjectParams,
    data: LyingObjects,
    book: LyingObjects,
}

impl StoresWithHistory {
    fn new(params: ObjectParams) -> StoresWithHistory {
        let scene = TestDisk::of(params);
        StoresWithHistory {
            params,
            data: LyingObjects::wrap(scene.data),
            book: LyingObjects::wrap(scene.book),
        }
    }

    fn fork(&self) -> StoresWithHistory {
        StoresWithHistory { params: self.params, data: self.data.fork(), book: self.book.fork() }
    }

    fn open(&self, read_only: bool, seed: u64) -> Result<ObjectDisk> {
        self.open_with(ObjectOptions { access: access(read_only), ..options(seed) })
    }

    fn open_with(&self, options: ObjectOptions) -> Result<ObjectDisk> {
        let stores = Stores { data: Arc::new(self.data.clone()), book: Arc::new(self.book.clone()) };
        ObjectDisk::open(stores, &self.params, &fixture::master(), &fixture::UUID, options)
    }

    /// Starts lying, also in the book if `book_lies`.
    fn start_lying(&self, of_a_thousand: u64, book_lies: bool, rng: &mut Rng) {
        let forges = rng.chance(1, 2);
        let lies = |rng: &mut Rng| {
            Some(Lies { per_mille: of_a_thousand, rng: Rng::new(rng.next_u64()), may_forge: forges })
        };
        self.data.set_lies(lies(rng));
        self.book.set_lies(lies(rng).filter(|_| book_lies));
    }

    fn stop_lying(&self) {
        self.data.set_lies(None);
        self.book.set_lies(None);
    }

    /// The promise for a block whatever the lies.
    fn promise_under_any_lies(&self) -> Promise {
        if self.params.cipher.authenticates() { Promise::Own } else { Promise::OwnOrNoise }
    }

    /// The promise for blocks that were read while these stores lied.
    fn promise_under(&self, book_lies: bool) -> Promise {
        let binds = self.params.cipher.authenticates() && self.params.layout == ObjectLayout::Adaptive;
        if binds && !book_lies {
            Promise::Latest { may_undo_discards: false }
        } else {
            self.promise_under_any_lies()
        }
    }
}

fn work(
    disk: &dyn Disk,
    model: &mut DiskModel,
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
        let mut worked = DiskWorkload { disk, model, rng, next_stamp };
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
fn use_disk(params: ObjectParams, rng: &mut Rng) -> (StoresWithHistory, DiskModel, DiskModel) {
    let kept = StoresWithHistory::new(params);
    let mut model = DiskModel::new("the disk", BLOCKS);
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
fn open_one_disk(params: ObjectParams, shown: &mut OpeningResults, looked: &mut [u64; 3]) {
    let seed = shown.begin_disk();
    let mut rng = Rng::new(seed);
    let (kept, now, then) = use_disk(params, &mut rng);
    for opening in 0..OPENINGS_PER_DISK.min(shown.remaining()) {
        let (book_lies, fork) = (rng.chance(1, 2), kept.fork());
        fork.start_lying(LIE_RATES[(opening % 4) as usize], book_lies, &mut rng);
        let (look, promise) = (
            *rng.pick(&[ReadView::Present, ReadView::Present, ReadView::Snapshot, ReadView::RolledBack]),
            fork.promise_under(book_lies),
        );
        let context = format!("seed {seed}, {look:?}, the book lies: {book_lies}");
        shown.count_opening();
        let mut writes = rng.chance(1, 3);
        let mut versions = now.clone();
        match look {
            ReadView::Present => match fork.open(!writes, rng.next_u64()) {
                Err(e) => shown.count_refused(&e),
                Ok(disk) => {
                    looked[look as usize] += 1;
                    shown.check_blocks(&disk, &now, promise, &mut rng, &context);
                    if writes {
                        let mut stamp = 1 << 40;
                        let _refused = work(&disk, &mut versions, &mut rng, &mut stamp, 6);
                        let _refused = rng.chance(1, 2).then(|| disk.close());
                    }
                }
            },
            ReadView::Snapshot => {
                writes = false;
                // Without authentication, data may be from a later time.
                let held = if promise == Promise::OwnOrNoise { &now } else { &then };
                let options = options(rng.next_u64());
                match fork.open_with(ObjectOptions { snapshot: Some(SNAPSHOT.into()), ..options }) {
                    Err(e) => shown.count_refused(&e),
                    Ok(disk) => {
                        looked[look as usize] += 1;
                        shown.check_blocks(&disk, held, promise, &mut rng, &context);
                    }
                }
            }
            ReadView::RolledBack => {
                writes = true;
                let opened = fork.open(false, rng.next_u64());
                // If seals do not bind the content, or the book lies, a lie may replace the
                // restored version with a later one.
                let held = if promise == fork.promise_under_any_lies() { &now } else { &then };
                match opened.and_then(|disk| disk.rollback(SNAPSHOT).map(|()| disk)) {
                    Err(e) => shown.count_refused(&e),
                    Ok(disk) => {
                        looked[look as usize] += 1;
                        shown.check_blocks(&disk, held, promise, &mut rng, &context);
                    }
                }
            }
        }
        if writes {
            fork.stop_lying();
            match fork.open(true, rng.next_u64()) {
                Err(e) => shown.count_refused(&e),
                Ok(disk) => {
                    let context = format!("{context}, afterwards");
                    shown.check_blocks(&disk, &versions, fork.promise_under_any_lies(), &mut rng, &context);
                }
            }
        }
    }
}

fn assert_nothing_wrong(is_meant: impl Fn(Cipher) -> bool) {
    let mut looked = [0; 3];
    for (cipher, layout) in all_ciphers_and_layouts().into_iter().filter(|(cipher, _)| is_meant(*cipher)) {
        let params = ObjectParams::plan(cipher, layout, BLOCKS).unwrap();
        let mut shown = OpeningResults::new(400, all_ciphers_and_layouts().len());
        while shown.remaining() > 0 {
            open_one_disk(params, &mut shown, &mut looked);
        }
        shown.assert_nothing_wrong(&format!("objects {} {}", cipher.name(), layout.name()));
    }
    assert!(looked.iter().all(|count| *count > 0), "some looks showed nothing: {looked:?}");
}

#[test]
fn gcm_keeps_its_promises_on_lying_stores() {
    assert_nothing_wrong(|cipher| cipher == Cipher::Gcm);
}

#[test]
fn unauthenticated_ciphers_keep_their_promises_on_lying_stores() {
    assert_nothing_wrong(|cipher| cipher != Cipher::Gcm);
}
