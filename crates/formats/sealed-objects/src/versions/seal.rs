//! The seal of an object: a transaction counter under a MAC, which exposes older versions of the
//! object and its removal.

use crate::layouts::chain::{ChainTails, TAILS_LEN};
use crate::params::ObjectLayout;
use crate::segment::Segment;
use crate::snapshots::table::SnapshotNumber;
use lacuna_contracts::{BLOCK_SIZE, Error, Kind, LeReader, LeWriter, Result, SEGMENT_BLOCKS, Secret};
use lacuna_crypto::{constant_time_eq, derive, keyed_hash};
use lacuna_medium::{KeySelection, ObjectStep, Query, QueryAnswer, ReadExtent};

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
                Query { object, extents: Vec::new(), keys: KeySelection::These(vec![SEAL_KEY.to_vec()]) }
            }
            SealPlace::At(offset) => Query {
                object,
                extents: vec![ReadExtent { offset, buf: &mut buf[..] }],
                keys: KeySelection::None,
            },
        }
    }

    /// The seal in the answer to such a query. `None`: there is no seal. Zeros count as no seal.
    pub(crate) fn extract(self, found: &QueryAnswer, buf: &[u8; SEAL_LEN]) -> Option<Vec<u8>> {
        match self {
            SealPlace::Key => {
                let (_, value) = found.pairs.iter().rfind(|(key, _)| key == SEAL_KEY)?;
                Some(value.clone())
            }
            SealPlace::At(_) => (*buf != [0; SEAL_LEN]).then(|| buf.to_vec()),
        }
    }

    /// The step that writes the seal there.
    pub(crate) fn write_step(self, seal: &[u8]) -> ObjectStep<'_> {
        match self {
            SealPlace::Key => ObjectStep::SetKeys(vec![(SEAL_KEY.to_vec(), seal.to_vec())]),
            SealPlace::At(offset) => ObjectStep::Write { offset, data: seal },
        }
    }
}

/// The transaction counter of an object. Each transaction raises it, not always by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WriteCounter(pub(crate) u64);

impl WriteCounter {
    pub(crate) const fn next(self) -> WriteCounter {
        WriteCounter(self.0 + 1)
    }
}

/// The content of a seal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// The counter of the last transaction on the object.
    pub(crate) counter: WriteCounter,
    /// The newest snapshot at the time of the last transaction.
    pub(crate) snapshot: SnapshotNumber,
    /// The ends of the chains of the object's entries, if the seal binds them.
    pub(crate) tails: ChainTails,
}

/// Makes and reads the seals of one disk.
#[derive(Clone)]
pub(crate) struct SealKey {
    key: Secret<32>,
    binds_entries: bool,
}

impl SealKey {
    /// `binds`: whether the disk's seals bind the entries of their objects.
    pub(crate) fn new(master: &Secret<32>, uuid: &[u8; 16], binds: bool) -> SealKey {
        SealKey { key: derive(master, "sealed objects seal", uuid), binds_entries: binds }
    }

    /// Whether seals bind entries.
    pub(crate) fn binds_entries(&self) -> bool {
        self.binds_entries
    }

    fn tag(&self, segment: Segment, signed: &[u8], tails: &[u8]) -> [u8; 16] {
        let hash = keyed_hash(&self.key, &[&segment.0.to_le_bytes(), signed, tails]);
        *hash.first_chunk().expect("a hash is longer than a tag")
    }

    /// The bytes of a seal.
    pub(crate) fn encode(&self, segment: Segment, seal: &Seal) -> Vec<u8> {
        let mut bytes = [0; SIGNED];
        LeWriter(&mut bytes).u64(0, seal.counter.0).u32(8, seal.snapshot.0);
        let tails = if self.binds_entries { seal.tails.encode().to_vec() } else { vec![] };
        let tag = self.tag(segment, &bytes, &tails);
        [&bytes[..], &tag, &tails].concat()
    }

    /// Parses a seal. Errors: [`Kind::Corrupt`] if this disk did not make it for this object.
    pub(crate) fn decode(&self, segment: Segment, bytes: &[u8]) -> Result<Seal> {
        let len = SEAL_LEN + if self.binds_entries { TAILS_LEN } else { 0 };
        let parts = bytes.split_at_checked(SEAL_LEN).filter(|_| bytes.len() == len);
        let genuine = parts.filter(|(head, tails)| {
            let (signed, tag) = head.split_at(SIGNED);
            constant_time_eq(&self.tag(segment, signed, tails), tag)
        });
        let Some((head, tails)) = genuine else {
            return Err(Error::new(Kind::Corrupt, format!("{segment}: its seal does not verify"))
                .found("a seal that was altered or that belongs to another object")
                .expected("the seal of the last write to this object")
                .hint(BAD_OBJECT_HINT));
        };
        let (counter, snapshot) =
            (WriteCounter(LeReader(head).u64(0)), SnapshotNumber(LeReader(head).u32(8)));
        let tails = tails.try_into().map_or_else(|_| ChainTails::default(), ChainTails::decode);
        Ok(Seal { counter, snapshot, tails })
    }
}

/// The advice for an object that does not verify.
pub(crate) const BAD_OBJECT_HINT: &str = "restore the object, or roll the disk back to a snapshot; or restore its blocks \
    from a backup: a block is valid again once it is written or discarded; a check of the disk lists all such objects";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layouts::chain::ChainTail;
    use lacuna_medium::{ObjectStore, ObjectTransaction};
    use lacuna_sim::MemoryObjects;

    fn key(binds: bool) -> SealKey {
        SealKey::new(&Secret::copy_from(&[1; 32]), &[2; 16], binds)
    }

    #[test]
    fn a_seal_verifies_only_unaltered_for_its_object() {
        for (key, other) in [(key(false), key(true)), (key(true), key(false))] {
            let mut seal = Seal {
                counter: WriteCounter(1 << 40),
                snapshot: SnapshotNumber(7),
                tails: ChainTails::default(),
            };
            if key.binds_entries() {
                seal.tails.set(3, ChainTail { tag: [9; 16], deltas: 4 });
            }
            let bytes = key.encode(Segment(5), &seal);
            assert_eq!(key.decode(Segment(5), &bytes).unwrap(), seal);
            assert_eq!(key.decode(Segment(6), &bytes).unwrap_err().kind(), Kind::Corrupt);
            assert!(other.decode(Segment(5), &bytes).is_err());
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(key.decode(Segment(5), &bad).is_err(), "bit {bit}");
            }
            for len in [0, 16, 31, 32, 33, bytes.len() - 1, bytes.len() + 1] {
                let mut bad = bytes.clone();
                bad.resize(len, 0);
                assert!(len == bytes.len() || key.decode(Segment(5), &bad).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_seal_is_read_from_where_it_was_written() {
        for (place, key) in [(SealPlace::Key, key(true)), (SealPlace::At(1024 * 4128), key(false))] {
            let store = MemoryObjects::new(true);
            let read_seal = || {
                let mut buf = [0; SEAL_LEN];
                let found = store.query_one(place.query(Segment(3), &mut buf)).unwrap();
                place.extract(&found, &buf)
            };
            assert_eq!(read_seal(), None);
            let bytes = key.encode(Segment(3), &Seal { counter: WriteCounter(1), ..Seal::default() });
            store.apply_one(ObjectTransaction { object: 3, steps: vec![place.write_step(&bytes)] }).unwrap();
            assert_eq!(read_seal(), Some(bytes));
            let short = ObjectStep::SetKeys(vec![(SEAL_KEY.to_vec(), vec![1, 2, 3])]);
            store.apply_one(ObjectTransaction { object: 3, steps: vec![short] }).unwrap();
            assert!(read_seal().is_some());
        }
    }
}
