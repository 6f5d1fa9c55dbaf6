//! Small sealed disks on objects in every cipher and layout, with a history and a snapshot, and an
//! adversary that alters the objects.

use crate::bytes::InputCursor;
use crate::lying::sim_lies_of_seed;
use crate::sealed_image::{BLOCKS, write};
use lacuna_contracts::{BLOCK_SIZE, BlockAddr, Budget, Disk, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{Cipher, SeededRandom};
use lacuna_medium::{ObjectStep, ObjectStore, ObjectTransaction};
use lacuna_sealed_objects::{
    ObjectAccess, ObjectDisk, ObjectLayout, ObjectOptions, ObjectParams, Stores, list_snapshots,
};
use lacuna_sim::{LyingObjects, MemoryObject, MemoryObjects};
use std::sync::{Arc, OnceLock};

/// The name of the snapshot of every disk, created after phase 2 of its history.
pub const SNAPSHOT: &str = "between";
/// The last phase in the snapshot.
pub const SNAPSHOT_PHASE: u8 = 2;
/// Maximum changes in one run.
const CHANGES: usize = 24;
/// Data objects of a disk, and one object without blocks of the disk.
const OBJECTS: u64 = 3;

/// The objects of a disk at one moment.
pub struct ObjectsPool {
    data: MemoryObjects,
    book: MemoryObjects,
    /// The lying view of the objects that clients get, if any.
    lying_view: Option<[LyingObjects; 2]>,
}

/// A disk with its history.
pub struct ObjectsImage {
    /// Its parameters.
    pub params: ObjectParams,
    /// The pool at several moments, oldest first; the last is the present.
    moments: Vec<ObjectsPool>,
}

impl ObjectsPool {
    fn new(keys: bool) -> ObjectsPool {
        ObjectsPool { data: MemoryObjects::new(keys), book: MemoryObjects::new(keys), lying_view: None }
    }

    fn copied(&self) -> ObjectsPool {
        ObjectsPool { data: self.data.copied(), book: self.book.copied(), lying_view: None }
    }

    /// The handles of a client.
    pub fn stores(&self) -> Stores {
        if let Some([data, book]) = &self.lying_view {
            return Stores { data: Arc::new(data.clone()), book: Arc::new(book.clone()) };
        }
        Stores { data: Arc::new(self.data.reopened()), book: Arc::new(self.book.reopened()) }
    }
}

/// The image that `selector` chooses: the cipher and layout, and whether the disk was closed or its
/// power failed.
pub fn image(selector: u8) -> &'static ObjectsImage {
    static IMAGES: OnceLock<Vec<ObjectsImage>> = OnceLock::new();
    let images = IMAGES.get_or_init(|| {
        let kinds = Cipher::ALL.into_iter().flat_map(|cipher| {
            let layouts = if cipher.meta_size() == 0 { &ObjectLayout::ALL[1..2] } else { &ObjectLayout::ALL };
            layouts.iter().map(move |layout| ObjectParams::plan(cipher, *layout, BLOCKS))
        });
        let made = kinds.flat_map(|params| {
            let params = params.expect("a size that every disk may have");
            [false, true].map(|closed| ObjectsImage::make(params, closed).expect("a store without faults"))
        });
        made.collect()
    });
    &images[usize::from(selector) % images.len()]
}

/// Opens a disk of [`image`], or its snapshot, with a small cache and without background threads.
pub fn open(pool: &ObjectsPool, params: &ObjectParams, seed: u64, snapshot: bool) -> Result<ObjectDisk> {
    let options = ObjectOptions {
        budget: Budget::bytes(1 << 20),
        access: ObjectAccess::Write,
        background: false,
        write_through: false,
        snapshot: snapshot.then(|| SNAPSHOT.into()),
        random: Arc::new(SeededRandom::new(seed)),
        kept: None,
    };
    ObjectDisk::open(pool.stores(), params, &Secret::copy_from(&[5; 32]), &[6; 16], options)
}

impl ObjectsImage {
    fn make(params: ObjectParams, closed: bool) -> Result<ObjectsImage> {
        let pool = ObjectsPool::new(params.layout.needs_keys());
        ObjectDisk::create(&pool.stores(), &params, &Secret::copy_from(&[5; 32]), &[6; 16])?;
        let mut moments = vec![pool.copied()];

        let disk = open(&pool, &params, 1, false)?;
        write(&disk, 1, 0, 30)?;
        write(&disk, 1, SEGMENT_BLOCKS, 40)?;
        disk.flush()?;
        moments.push(pool.copied());
        disk.close()?;
        moments.push(pool.copied());

        let disk = open(&pool, &params, 2, false)?;
        for first in (0..SEGMENT_BLOCKS).step_by(256) {
            write(&disk, 2, first, 256)?;
        }
        disk.create_snapshot(SNAPSHOT)?;
        moments.push(pool.copied());
        write(&disk, 3, 10, 5)?;
        disk.discard(BlockAddr(SEGMENT_BLOCKS + 3), 4)?;
        disk.flush()?;
        moments.push(pool.copied());
        write(&disk, 4, 12, 2)?;
        write(&disk, 4, SEGMENT_BLOCKS + 5, 3)?;
        disk.flush()?;
        if closed {
            disk.close()?;
        }
        moments.push(pool.copied());
        Ok(ObjectsImage { params, moments })
    }

    /// The present pool with the changes that `input` encodes.
    pub fn altered(&self, input: &mut InputCursor<'_>) -> ObjectsPool {
        let pool = self.moments[self.moments.len() - 1].copied();
        for _ in 0..CHANGES {
            if input.is_empty() {
                break;
            }
            self.change(&pool, input);
        }
        pool
    }

    fn change(&self, pool: &ObjectsPool, input: &mut InputCursor<'_>) {
        let [operation, place] = input.array();
        // Three of four changes go to the data objects, which are more than those of the book.
        let (objects, is_book) = if place & 3 == 0 { (&pool.book, true) } else { (&pool.data, false) };
        let object = u64::from(place >> 2) % OBJECTS;
        match operation % 8 {
            0 | 1 => {
                let at = self.offset(objects.object(object), input);
                let mask = if operation & 1 == 0 { &[][..] } else { input.take(usize::from(operation >> 3)) };
                let old =
                    objects.object(object).map_or(0, |o| o.bytes().get(at as usize).copied().unwrap_or(0));
                let flipped = [old ^ (operation | 1)];
                let data = if mask.is_empty() { &flipped[..] } else { mask };
                apply(objects, object, ObjectStep::Write { offset: at, data });
            }
            2 => {
                let key = self.key(objects.object(object), input);
                let len = [0, 1, 16, 31, 32, 33, 1024, 2048][usize::from(input.byte() % 8)];
                let mut value = input.take(len.min(64)).to_vec();
                value.resize(len, 7);
                apply(objects, object, ObjectStep::SetKeys(vec![(key, value)]));
            }
            3 => {
                let (first, last) = (self.key(objects.object(object), input), input.take(2).to_vec());
                let step = match last.is_empty() {
                    true => ObjectStep::RemoveKeys(vec![first]),
                    false => ObjectStep::RemoveKeyRange(first, last),
                };
                apply(objects, object, step);
            }
            4 => apply(objects, object, ObjectStep::Truncate(self.offset(objects.object(object), input))),
            5 => objects.replace(object, self.past_object(is_book, input)),
            6 => objects.replace(object, None),
            _ => {
                let Ok(records) = list_snapshots(&pool.book) else { return };
                let Some(record) = records.first() else { return };
                let id = if is_book { record.book_id } else { record.data_id };
                objects.replace_at(object, id, self.past_object(is_book, input));
            }
        }
    }

    /// Lets the pool lie: clients sometimes get objects of earlier moments, or forged ones. `seed`
    /// determines the rate and the choices.
    pub fn start_lying(&self, pool: &mut ObjectsPool, seed: u32) {
        let lying_view_of = |now: &MemoryObjects, of: fn(&ObjectsPool) -> &MemoryObjects| {
            let lying = LyingObjects::wrap(Arc::new(now.reopened()));
            self.moments.iter().for_each(|moment| lying.add_history(of(moment)));
            lying.set_lies(Some(sim_lies_of_seed(seed)));
            lying
        };
        pool.lying_view = Some([
            lying_view_of(&pool.data, |pool| &pool.data),
            lying_view_of(&pool.book, |pool| &pool.book),
        ]);
    }

    /// Lets the pool answer truthfully again.
    pub fn stop_lying(pool: &mut ObjectsPool) {
        pool.lying_view = None;
    }

    /// An object at some moment, or `None`.
    fn past_object(&self, is_book: bool, input: &mut InputCursor<'_>) -> Option<MemoryObject> {
        let moment = &self.moments[usize::from(input.byte()) % self.moments.len()];
        let objects = if is_book { &moment.book } else { &moment.data };
        objects.object(u64::from(input.byte()) % OBJECTS)
    }

    /// An offset in an object, or shortly after its end.
    fn offset(&self, object: Option<MemoryObject>, input: &mut InputCursor<'_>) -> u64 {
        let number = u64::from(input.u32());
        let len = object.map_or(0, |object| object.bytes().len() as u64);
        match number % 4 {
            // The metadata after the data, and the seal.
            0 => (SEGMENT_BLOCKS * BLOCK_SIZE as u64) + (number >> 2) % 40_000,
            1 => (number >> 2) % 9000,
            _ => (number >> 2) % (len + 5000),
        }
    }

    /// A key of an object, or one that the input gives.
    fn key(&self, object: Option<MemoryObject>, input: &mut InputCursor<'_>) -> Vec<u8> {
        let number = input.byte();
        let keys = object.map(|object| object.keys().keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
        match number % 4 {
            0 if !keys.is_empty() => keys[usize::from(input.byte()) % keys.len()].clone(),
            // A page of the version table or its amendment, and a single entry.
            1 if number & 4 == 0 => vec![b'p', input.byte() % 10],
            1 => vec![b'p', input.byte() % 10, b'a'],
            2 => vec![b'p', input.byte() % 10, b'd', input.byte() % 140],
            _ => input.take(usize::from(number >> 2) % 6).to_vec(),
        }
    }
}

/// Applies a step; a refused step leaves the store unchanged.
fn apply(objects: &MemoryObjects, object: u64, step: ObjectStep<'_>) {
    let _ = objects.reopened().apply_one(ObjectTransaction { object, steps: vec![step] });
}
