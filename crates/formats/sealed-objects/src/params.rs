//! The public parameters of a sealed disk on objects, with the values derived from them. The
//! byte-exact page is `docs/format/sealed-objects.md`; a test compares the two.

use lacuna_contracts::{Error, Hint, Kind, LeWriter, ParamsReader, Result, SEGMENT_BLOCKS, Setting};
use lacuna_crypto::Cipher;
use lacuna_medium::ObjectStore;

/// Length of the encoded parameters.
const PARAMS_LEN: usize = 32;
/// The version of the format.
pub const VERSION: u16 = 1;
/// The largest disk: 16 TiB.
const MAX_BLOCKS: u64 = 1 << 32;
/// Every layout's object fits into this many bytes.
const MIN_OBJECT_LIMIT: u64 = 5 << 20;

/// The place of per-block metadata in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectLayout {
    /// Behind each block (the paper's *unaligned*).
    Interleaved = 0,
    /// Behind all blocks of the object (the paper's *object end*).
    SegmentEnd = 1,
    /// A key per block in the object's key-value map (the paper's *OMAP*).
    Kv = 2,
    /// Pages of entries in the key-value map, with a cache of pages in memory; a small write leaves
    /// a small addition to a page that is not cached. The default.
    Adaptive = 3,
}

impl ObjectLayout {
    /// All layouts.
    pub const ALL: [ObjectLayout; 4] =
        [ObjectLayout::Interleaved, ObjectLayout::SegmentEnd, ObjectLayout::Kv, ObjectLayout::Adaptive];

    /// The name in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            ObjectLayout::Interleaved => "interleaved",
            ObjectLayout::SegmentEnd => "segment-end",
            ObjectLayout::Kv => "kv",
            ObjectLayout::Adaptive => "adaptive",
        }
    }

    /// Whether the layout needs objects with a key-value map.
    pub const fn needs_keys(self) -> bool {
        matches!(self, ObjectLayout::Kv | ObjectLayout::Adaptive)
    }
}

/// The public parameters of a sealed disk on objects, kept in the volume header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectParams {
    /// The cipher of the blocks.
    pub cipher: Cipher,
    /// The place of per-block metadata. `SegmentEnd` for ciphers without metadata.
    pub layout: ObjectLayout,
    /// Length of the disk in blocks.
    pub blocks: u64,
}

impl ObjectParams {
    /// Plans a disk of `blocks` blocks. Errors: [`Kind::Usage`] for a size out of bounds.
    pub fn plan(cipher: Cipher, layout: ObjectLayout, blocks: u64) -> Result<ObjectParams> {
        if blocks == 0 || blocks > MAX_BLOCKS {
            return Err(Error::new(Kind::Usage, "cannot lay out a disk of this size")
                .found(format!("{blocks} blocks of 4096 bytes"))
                .expected(format!("1 to {MAX_BLOCKS} blocks (4 KiB to 16 TiB)"))
                .hint("choose a size in that range"));
        }
        let layout = if cipher.meta_size() == 0 { ObjectLayout::SegmentEnd } else { layout };
        Ok(ObjectParams { cipher, layout, blocks })
    }

    /// The same disk of another length. Errors: [`Kind::Usage`] for a size out of bounds.
    pub(crate) fn with_blocks(&self, blocks: u64) -> Result<ObjectParams> {
        ObjectParams::plan(self.cipher, self.layout, blocks)
    }

    /// Whether the seal of an object binds all entries of the object.
    pub fn binds_entries(&self) -> bool {
        self.cipher.authenticates() && self.layout == ObjectLayout::Adaptive
    }

    /// The same disk with more blocks. Errors: [`Kind::Usage`] for fewer, or more than any disk may
    /// have.
    pub fn grown(&self, blocks: u64) -> Result<ObjectParams> {
        if blocks < self.blocks {
            return Err(Error::new(Kind::Usage, "a disk cannot be made smaller")
                .found(format!("{blocks} blocks"))
                .expected(format!("{} blocks or more", self.blocks))
                .hint("make a new disk of that size and copy your data"));
        }
        self.with_blocks(blocks)
    }

    /// Checks that a store can hold such a disk. Errors: [`Kind::Usage`] with the alternative.
    pub fn check_store(&self, store: &dyn ObjectStore) -> Result<()> {
        if self.layout.needs_keys() && !store.has_keys() {
            return Err(Error::new(
                Kind::Usage,
                format!("cannot use the layout {} in this pool", self.layout.name()),
            )
            .found("a pool with objects that have no key-value map (an erasure-coded pool)")
            .expected("a replicated pool")
            .hint(
                Hint::from("use the layout segment-end (")
                    .setting(Setting("layout"))
                    .text("), or a replicated pool"),
            ));
        }
        if store.object_limit() < MIN_OBJECT_LIMIT {
            return Err(Error::new(Kind::Usage, "the objects of this pool are too small")
                .found(format!("at most {} bytes each", store.object_limit()))
                .expected(format!("{MIN_OBJECT_LIMIT} bytes or more"))
                .hint("use another pool, or raise the largest object size of the cluster"));
        }
        Ok(())
    }

    /// Segments of the disk (one object each); the last one may be partly used.
    pub fn segments(&self) -> u64 {
        self.blocks.div_ceil(SEGMENT_BLOCKS)
    }

    /// Encodes the parameters for the header.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        let mut record = LeWriter(&mut out);
        record.u16(0, VERSION).put(2, &[self.cipher.code(), self.layout as u8]).u64(8, self.blocks);
        out
    }

    /// Parses the output of [`ObjectParams::encode`]. Errors: [`Kind::Corrupt`] for anything that
    /// this version cannot have written.
    pub fn parse(bytes: &[u8]) -> Result<ObjectParams> {
        let record = ParamsReader::new("sealed (on objects)", bytes, PARAMS_LEN)?;
        let version = record.u16(0);
        if version != VERSION {
            return Err(record.invalid(format!("version {version}"), format!("version {VERSION}")));
        }
        let params = ObjectParams {
            cipher: Cipher::from_code(bytes[2])
                .ok_or_else(|| record.invalid(format!("cipher {}", bytes[2]), Cipher::codes()))?,
            layout: ObjectLayout::ALL
                .into_iter()
                .find(|layout| *layout as u8 == bytes[3])
                .ok_or_else(|| record.invalid(format!("layout {}", bytes[3]), "0 to 3"))?,
            blocks: record.u64(8),
        };
        let planned = params.with_blocks(params.blocks);
        if planned.is_ok_and(|planned| planned.encode() == *bytes) {
            Ok(params)
        } else {
            Err(record.invalid(format!("{params:?}"), "values within the format's limits"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_survive_encoding_and_garbage_is_refused() {
        for cipher in Cipher::ALL {
            for layout in ObjectLayout::ALL {
                let p = ObjectParams::plan(cipher, layout, 5000).unwrap();
                assert_eq!(ObjectParams::parse(&p.encode()).unwrap(), p);
                for at in [0, 2, 3, 4, 12, 16, 31] {
                    let mut bytes = p.encode();
                    bytes[at] ^= 0x81;
                    assert_eq!(ObjectParams::parse(&bytes).unwrap_err().kind(), Kind::Corrupt);
                }
            }
        }
        assert!(ObjectParams::parse(b"short").is_err());
        assert!(ObjectParams::plan(Cipher::Xts, ObjectLayout::Kv, 0).is_err());
        let p = ObjectParams::plan(Cipher::Gcm, ObjectLayout::Kv, 5000).unwrap();
        assert_eq!(p.grown(6000).unwrap().blocks, 6000);
        assert_eq!(p.grown(4999).unwrap_err().kind(), Kind::Usage);
        assert_eq!(p.grown(MAX_BLOCKS + 1).unwrap_err().kind(), Kind::Usage);
    }
}
