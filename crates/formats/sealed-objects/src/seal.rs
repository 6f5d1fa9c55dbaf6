//! The seal of an object: a transaction counter under a MAC, which exposes older versions of the
//! object and its removal.

use crate::chain::{TAILS_LEN, Tails};
use crate::params::ObjectLayout;
use crate::segment::Segment;
use crate::snapshot_table::SnapshotNumber;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, Record, RecordMut, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use lacuna_medium::{Found, Keys, Query, ReadExtent, Step};

/// Bytes of a seal that binds no entries, and of the first part of one that binds them.
pub(crate) const SEAL_LEN: usize = 32;
/// The key of the seal in layouts with keys. It sorts after every metadata key.
pub(crate) const SEAL_KEY: &[u8] = b"s";
/// Bytes before the tag. The tag covers them and the number of the object.
const SIGNED: usize = 16;

/// The place of the seal in every object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SealPlace {
    /// Under [`SEAL_KEY`].
    Key,
    /// At this offset of the object, behind all data and metadata.
    At(u64),
}

impl SealPlace {
    /// The place in `layout`, with `meta_size` bytes of metadata per block.
    pub(crate) fn of(layout: ObjectLayout, meta_size: usize) -> SealPlace {
        let end = SEGMENT_BLOCKS * (BLOCK_SIZE + meta_size) as u64;
        match layout {
            ObjectLayout::Interleaved | ObjectLayout::SegmentEnd => SealPlace::At(end),
            ObjectLayout::Kv | ObjectLayout::Adaptive => SealPlace::Key,
        }
    }

    /// A query for the seal alone.
    pub(crate) fn query(self, segment: Segment, buf: &mut [u8; SEAL_LEN]) -> Query<'_> {
        let object = segment.0;
        match self {
            SealPlace::Key => {
                Query { object, extents: Vec::new(), keys: Keys::These(vec![SEAL_KEY.to_vec()]) }
            }
            SealPlace::At(offset) => {
                Query { object, extents: vec![ReadExtent { offset, buf: &mut buf[..] }], keys: Keys::None }
            }
        }
    }

    /// The seal in the answer to such a query. `None`: there is no seal. Zeros count as no seal.
    pub(crate) fn found(self, found: &Found, buf: &[u8; SEAL_LEN]) -> Option<Vec<u8>> {
        match self {
            SealPlace::Key => {
                let (_, value) = found.pairs.iter().rfind(|(key, _)| key == SEAL_KEY)?;
                Some(value.clone())
            }
            SealPlace::At(_) => (*buf != [0; SEAL_LEN]).then(|| buf.to_vec()),
        }
    }

    /// The step that writes the seal there.
    pub(crate) fn step(self, seal: &[u8]) -> Step<'_> {
        match self {
            SealPlace::Key => Step::SetKeys(vec![(SEAL_KEY.to_vec(), seal.to_vec())]),
            SealPlace::At(offset) => Step::Write { offset, data: seal },
        }
    }
}

/// The transaction counter of an object. Each transaction raises it, not always by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Counter(pub(crate) u64);

impl Counter {
    pub(crate) const fn next(self) -> Counter {
        Counter(self.0 + 1)
    }
}

/// The content of a seal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The counter of the last transaction on the object.
    pub(crate) counter: Counter,
    /// The newest snapshot at the time of the last transaction.
    pub(crate) snapshot: SnapshotNumber,
    /// The ends of the chains of the object's entries, if the seal binds them.
    pub(crate) tails: Tails,
}

/// Makes and reads the seals of one disk.
#[derive(Clone)]
pub(crate) struct SealKey {
    key: Secret<32>,
    binds: bool,
}

impl SealKey {
    /// `binds`: whether the disk's seals bind the entries of their objects.
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16], binds: bool) -> SealKey {
        SealKey { key: derive(master, "sealed objects seal", uuid), binds }
    }

    /// Whether seals bind entries.
    pub(crate) fn binds(&self) -> bool {
        self.binds
    }

    fn tag(&self, segment: Segment, signed: &[u8], tails: &[u8]) -> [u8; 16] {
        let hash = keyed_hash(&self.key, &[&segment.0.to_le_bytes(), signed, tails]);
        *hash.first_chunk().expect("a hash is longer than a tag")
    }

    /// The bytes of a seal.
    pub(crate) fn make(&self, segment: Segment, seal: &Seal) -> Vec<u8> {
        let mut bytes = [0; SIGNED];
        RecordMut(&mut bytes).u64(0, seal.counter.0).u32(8, seal.snapshot.0);
        let tails = if self.binds { seal.tails.encode().to_vec() } else { vec![] };
        let tag = self.tag(segment, &bytes, &tails);
        [&bytes[..], &tag, &tails].concat()
    }

    /// Parses a seal. Errors: [`Kind::Corrupt`] if this disk did not make it for this object.
    pub(crate) fn read(&self, segment: Segment, bytes: &[u8]) -> Result<Seal> {
        let len = SEAL_LEN + if self.binds { TAILS_LEN } else { 0 };
        let parts = bytes.split_at_checked(SEAL_LEN).filter(|_| bytes.len() == len);
        let genuine = parts.filter(|(head, tails)| {
            let (signed, tag) = head.split_at(SIGNED);
            constant_time_eq(&self.tag(segment, signed, tails), tag)
        });
        let Some((head, tails)) = genuine else {
            return Err(Error::new(Kind::Corrupt, format!("{segment}: its seal does not verify"))
                .found("a seal that was altered or that belongs to another object")
                .expected("the seal of the last write to this object")
                .remedy(REMEDY));
        };
        let (counter, snapshot) = (Counter(Record(head).u64(0)), SnapshotNumber(Record(head).u32(8)));
        let tails = tails.try_into().map_or_else(|_| Tails::default(), Tails::decode);
        Ok(Seal { counter, snapshot, tails })
    }
}

/// The advice for an object that does not verify.
pub(crate) const REMEDY: &str = "put the object back as it was, or roll the disk back to a snapshot; or restore its blocks \
    from a backup: each is good again once it is written or discarded; a check of the disk lists all such objects";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Tail;
    use lacuna_medium::{MemoryObjects, ObjectStore, Transaction};

    fn key(binds: bool) -> SealKey {
        SealKey::new(&Secret::copy_from(&[1; 32]), &[2; 16], binds)
    }

    #[test]
    fn a_seal_is_good_for_its_object_and_in_every_bit() {
        for (key, other) in [(key(false), key(true)), (key(true), key(false))] {
            let mut seal =
                Seal { counter: Counter(1 << 40), snapshot: SnapshotNumber(7), tails: Tails::default() };
            if key.binds() {
                seal.tails.set(3, Tail { tag: [9; 16], deltas: 4 });
            }
            let bytes = key.make(Segment(5), &seal);
            assert_eq!(key.read(Segment(5), &bytes).unwrap(), seal);
            assert_eq!(key.read(Segment(6), &bytes).unwrap_err().kind(), Kind::Corrupt);
            assert!(other.read(Segment(5), &bytes).is_err());
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(key.read(Segment(5), &bad).is_err(), "bit {bit}");
            }
            for len in [0, 16, 31, 32, 33, bytes.len() - 1, bytes.len() + 1] {
                let mut bad = bytes.clone();
                bad.resize(len, 0);
                assert!(len == bytes.len() || key.read(Segment(5), &bad).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_seal_is_found_where_it_was_put() {
        for (place, key) in [(SealPlace::Key, key(true)), (SealPlace::At(1024 * 4128), key(false))] {
            let store = MemoryObjects::new(true);
            let look = || {
                let mut buf = [0; SEAL_LEN];
                let found = store.query_one(place.query(Segment(3), &mut buf)).unwrap();
                place.found(&found, &buf)
            };
            assert_eq!(look(), None);
            let bytes = key.make(Segment(3), &Seal { counter: Counter(1), ..Seal::default() });
            store.apply_one(Transaction { object: 3, steps: vec![place.step(&bytes)] }).unwrap();
            assert_eq!(look(), Some(bytes));
            let short = Step::SetKeys(vec![(SEAL_KEY.to_vec(), vec![1, 2, 3])]);
            store.apply_one(Transaction { object: 3, steps: vec![short] }).unwrap();
            assert!(look().is_some());
        }
    }
}
