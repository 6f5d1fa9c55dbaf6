//! The seal of an object: a counter of its transactions under a MAC, so that an older version of the object, or
//! none, is told from the newest.

use super::ObjectLayout;
use lacuna_core::{Error, Kind, Result, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use lacuna_medium::{Found, Keys, Query, ReadExtent, Step};

/// Bytes of a seal.
pub(crate) const SEAL_LEN: usize = 32;
/// The key under which the layouts with keys hold it. It sorts behind every key of metadata.
pub(crate) const SEAL_KEY: &[u8] = b"s";
/// Bytes before the tag: what the tag covers, beside the number of the object.
const SIGNED: usize = 16;

/// Where the seal of every object rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealPlace {
    /// Under [`SEAL_KEY`].
    Key,
    /// At this byte of the object, behind all data and metadata.
    At(u64),
}

impl SealPlace {
    /// Where `layout` keeps it, with so many bytes of metadata per block.
    pub(crate) fn of(layout: ObjectLayout, meta_size: usize) -> SealPlace {
        let end = crate::SEGMENT_BLOCKS * (lacuna_core::BLOCK_SIZE + meta_size) as u64;
        match layout {
            ObjectLayout::Interleaved | ObjectLayout::SegmentEnd => SealPlace::At(end),
            ObjectLayout::Kv | ObjectLayout::Adaptive => SealPlace::Key,
        }
    }

    /// Asks for the seal alone.
    pub(crate) fn query(self, object: u64, buf: &mut [u8; SEAL_LEN]) -> Query<'_> {
        match self {
            SealPlace::Key => {
                Query { object, extents: Vec::new(), keys: Keys::These(vec![SEAL_KEY.to_vec()]) }
            }
            SealPlace::At(offset) => {
                Query { object, extents: vec![ReadExtent { offset, buf: &mut buf[..] }], keys: Keys::None }
            }
        }
    }

    /// The seal in the answer to such a query. `None`: there is none. A seal of zeros is none.
    pub(crate) fn found(self, found: &Found, buf: &[u8; SEAL_LEN]) -> Option<[u8; SEAL_LEN]> {
        match self {
            SealPlace::Key => {
                let (_, value) = found.pairs.iter().find(|(key, _)| key == SEAL_KEY)?;
                // A value of another length is a seal that cannot verify, not a missing one.
                Some(value.as_slice().try_into().unwrap_or([0xff; SEAL_LEN]))
            }
            SealPlace::At(_) => (*buf != [0; SEAL_LEN]).then_some(*buf),
        }
    }

    /// The step that puts it there.
    pub(crate) fn step(self, seal: &[u8; SEAL_LEN]) -> Step<'_> {
        match self {
            SealPlace::Key => Step::SetKeys(vec![(SEAL_KEY.to_vec(), seal.to_vec())]),
            SealPlace::At(offset) => Step::Write { offset, data: seal },
        }
    }
}

/// What a seal says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Transactions on the object so far.
    pub(crate) counter: u64,
    /// The newest snapshot at the time of the last one.
    pub(crate) snapshot: u32,
}

/// Makes and reads the seals of one disk.
#[derive(Clone)]
pub(crate) struct SealKey(Secret<32>);

impl SealKey {
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16]) -> SealKey {
        SealKey(derive(master, "sealed objects seal", uuid))
    }

    fn tag(&self, object: u64, signed: &[u8]) -> [u8; 16] {
        let hash = keyed_hash(&self.0, &[&object.to_le_bytes(), signed]);
        *hash.first_chunk().expect("a hash is longer than a tag")
    }

    /// The bytes of a seal.
    pub(crate) fn make(&self, object: u64, seal: Seal) -> [u8; SEAL_LEN] {
        let mut bytes = [0; SEAL_LEN];
        bytes[..8].copy_from_slice(&seal.counter.to_le_bytes());
        bytes[8..12].copy_from_slice(&seal.snapshot.to_le_bytes());
        let tag = self.tag(object, &bytes[..SIGNED]);
        bytes[SIGNED..].copy_from_slice(&tag);
        bytes
    }

    /// What the bytes say. Errors: [`Kind::Corrupt`] if this disk did not make them for this object.
    pub(crate) fn read(&self, object: u64, bytes: &[u8; SEAL_LEN]) -> Result<Seal> {
        let (signed, tag) = bytes.split_at(SIGNED);
        if !constant_time_eq(&self.tag(object, signed), tag) {
            return Err(Error::new(Kind::Corrupt, format!("object {object:016x}: its seal does not verify"))
                .found("a seal that was altered or that belongs to another object")
                .expected("the seal of the last write to this object")
                .remedy(REMEDY));
        }
        let counter = u64::from_le_bytes(*bytes.first_chunk().expect("8 of 32 bytes"));
        let snapshot = u32::from_le_bytes(bytes[8..12].try_into().expect("4 bytes"));
        Ok(Seal { counter, snapshot })
    }
}

/// What to do about an object that is not what it should be.
pub(crate) const REMEDY: &str = "put the object back as it was, or roll the disk back to a snapshot; or restore its blocks \
    from a backup: each is good again once it is written or discarded; `lacuna check` lists all such objects";

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_medium::{MemoryObjects, ObjectStore, Transaction};

    #[test]
    fn a_seal_is_good_for_its_object_and_in_every_bit() {
        let key = SealKey::new(&Secret::copy_from(&[1; 32]), &[2; 16]);
        let seal = Seal { counter: 1 << 40, snapshot: 7 };
        let bytes = key.make(5, seal);
        assert_eq!(key.read(5, &bytes).unwrap(), seal);
        assert_eq!(key.read(6, &bytes).unwrap_err().kind(), Kind::Corrupt);
        for bit in 0..SEAL_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(key.read(5, &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_seal_is_found_where_it_was_put() {
        let key = SealKey::new(&Secret::copy_from(&[1; 32]), &[2; 16]);
        for place in [SealPlace::Key, SealPlace::At(1024 * 4128)] {
            let store = MemoryObjects::new(true);
            let look = || {
                let mut buf = [0; SEAL_LEN];
                let found = store.query_one(place.query(3, &mut buf)).unwrap();
                place.found(&found, &buf)
            };
            assert_eq!(look(), None);
            let bytes = key.make(3, Seal { counter: 1, snapshot: 0 });
            store.apply_one(Transaction { object: 3, steps: vec![place.step(&bytes)] }).unwrap();
            assert_eq!(look(), Some(bytes));
            let short = Step::SetKeys(vec![(SEAL_KEY.to_vec(), vec![1, 2, 3])]);
            store.apply_one(Transaction { object: 3, steps: vec![short] }).unwrap();
            assert!(look().is_some());
        }
    }
}
