//! The public parameters of a disk, and the layout of the medium that follows from them.
//! Byte-exact: `docs/format/sealed.md`; a test compares the two.

use crate::address::{CHUNK_BLOCKS, SlotNo};
use lacuna_contracts::{
    BLOCK_SIZE, Error, Hint, Kind, LeWriter, ParamsReader, Result, SEGMENT_BLOCKS, Setting,
};
use lacuna_crypto::Cipher;

/// Bytes of the medium that belong to the volume header.
pub(crate) const HEADER_AREA: u64 = 1 << 20;
/// Slots begin at multiples of this, so that a page cache holds each chunk in one piece. The gap
/// after the metadata takes no space in a file.
const ALIGNMENT: u64 = CHUNK_BLOCKS * BLOCK;
/// The most bytes of metadata of a chunk.
pub(crate) const CHUNK_META: usize = CHUNK_BLOCKS as usize * 32;
/// Metadata of a chunk of unwritten blocks.
pub(crate) const NO_META: [u8; CHUNK_META] = [0; CHUNK_META];
/// Bytes of a map entry.
pub(crate) const MAP_ENTRY: u64 = 16;
/// How many times its size a disk can grow to.
const GROWTH: u64 = 16;
/// Length of the encoded parameters.
pub(crate) const PARAMS_LEN: usize = 40;
/// The version of the format that this build creates and opens.
pub const VERSION: u16 = 1;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The largest disk: 16 TiB, so that a segment number with its slot fits the map in memory.
const MAX_BLOCKS: u64 = 1 << 32;

/// The public parameters of a sealed disk, kept in the volume header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The cipher of the blocks.
    pub cipher: Cipher,
    /// Length of the disk in blocks.
    pub blocks: u64,
    /// Length of the journal in bytes.
    pub journal_len: u64,
    /// The number of segments that the map has room for: the limit of growth.
    pub map_capacity: u32,
    /// Slots beyond one per segment, for copy-on-write segments.
    pub spare: u32,
}

impl Params {
    /// Plans a disk of `blocks` blocks. The map has room for 16 times that size, or for 1 TiB if
    /// that is more. On a device, which has a length of `room` bytes, it always has room for 16
    /// times the size.
    pub fn plan(cipher: Cipher, blocks: u64, room: Option<u64>) -> Result<Params> {
        if blocks == 0 || blocks > MAX_BLOCKS {
            return Err(Error::new(Kind::Usage, "cannot lay out a disk of this size")
                .found(format!("{blocks} blocks of 4096 bytes"))
                .expected(format!("1 to {MAX_BLOCKS} blocks (4 KiB to 16 TiB)"))
                .hint("choose a size in that range"));
        }
        let segments = blocks.div_ceil(SEGMENT_BLOCKS);
        let growth = segments * GROWTH;
        let growth = if room.is_some() { growth } else { growth.max(1 << 18) };
        let params = Params {
            cipher,
            blocks,
            journal_len: (blocks * BLOCK / 16).clamp(8 << 20, 128 << 20) / BLOCK * BLOCK,
            map_capacity: growth.min(MAX_BLOCKS / SEGMENT_BLOCKS) as u32,
            spare: (segments / 8).clamp(2, 64) as u32,
        };
        let needed = params.geometry().end();
        match room {
            Some(room) if needed > room => Err(Error::new(Kind::Usage, "the disk does not fit its medium")
                .found(format!("a medium of {room} bytes"))
                .expected(format!(
                    "{needed} bytes for a disk of {} bytes with its journal, map and spare",
                    blocks * BLOCK
                ))
                .hint(Hint::from("choose a smaller ").setting(Setting("size")))),
            _ => Ok(params),
        }
    }

    /// The same disk, as large as a medium of `room` bytes and its map allow.
    pub fn grown_into(&self, room: u64) -> Params {
        let g = self.geometry();
        let segments = (room.saturating_sub(g.data) / g.stride).saturating_sub(u64::from(self.spare));
        let blocks = segments.min(u64::from(self.map_capacity)) * SEGMENT_BLOCKS;
        Params { blocks: blocks.max(self.blocks), ..*self }
    }

    /// The largest disk that fits a device of `room` bytes.
    pub fn largest(cipher: Cipher, room: u64) -> Result<Params> {
        let (mut fits, mut too_large) = (0, (room / BLOCK + 1).min(MAX_BLOCKS + 1));
        while too_large - fits > 1 {
            let middle = fits + (too_large - fits) / 2;
            match Params::plan(cipher, middle, Some(room)) {
                Ok(_) => fits = middle,
                Err(_) => too_large = middle,
            }
        }
        if fits == 0 {
            return Err(Error::new(Kind::Usage, "the medium is too small for any disk")
                .found(format!("{room} bytes"))
                .expected("about 32 MiB or more"));
        }
        Params::plan(cipher, fits, Some(room))
    }

    /// Encodes the parameters for the header.
    pub fn encode(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        let mut record = LeWriter(&mut out);
        record.u16(0, VERSION).put(2, &[self.cipher.code()]);
        record.u32(4, self.spare).u64(8, self.blocks).u64(16, self.journal_len).u32(24, self.map_capacity);
        out
    }

    /// Decodes the parameters. Errors: [`Kind::Corrupt`] for bytes that this version could not have
    /// written.
    pub fn parse(bytes: &[u8]) -> Result<Params> {
        let record = ParamsReader::new("sealed", bytes, PARAMS_LEN)?;
        let version = record.u16(0);
        if version != VERSION {
            return Err(record.invalid(format!("version {version}"), format!("version {VERSION}")));
        }
        let params = Params {
            cipher: Cipher::from_code(bytes[2])
                .ok_or_else(|| record.invalid(format!("cipher {}", bytes[2]), Cipher::codes()))?,
            spare: record.u32(4),
            blocks: record.u64(8),
            journal_len: record.u64(16),
            map_capacity: record.u32(24),
        };
        let segments = params.blocks.div_ceil(SEGMENT_BLOCKS);
        let sane = (1..=MAX_BLOCKS).contains(&params.blocks)
            && params.journal_len.is_multiple_of(BLOCK)
            && (8 << 20..=1 << 30).contains(&params.journal_len)
            && (2..=4096).contains(&params.spare)
            && segments <= u64::from(params.map_capacity)
            && u64::from(params.map_capacity) <= MAX_BLOCKS / SEGMENT_BLOCKS
            && record.is_zero(3..4)
            && record.is_zero(28..);
        if sane {
            Ok(params)
        } else {
            Err(record.invalid(format!("{params:?}"), "values within the format's limits"))
        }
    }

    /// The layout that follows from the parameters.
    pub fn geometry(&self) -> Geometry {
        Geometry::of(self)
    }
}

/// Byte offsets on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Segments of the disk; the last one may be partly used.
    pub segments: u32,
    /// Slots on the medium: `segments` plus the spare.
    pub slots: u32,
    /// Start of the journal.
    pub journal: u64,
    /// Start of the map.
    pub map: u64,
    /// End of the map.
    pub map_end: u64,
    /// Start of the slots.
    pub data: u64,
    /// Bytes from one slot to the next.
    pub stride: u64,
}

impl Geometry {
    fn of(p: &Params) -> Geometry {
        let segments = p.blocks.div_ceil(SEGMENT_BLOCKS) as u32;
        let meta = p.cipher.meta_size() as u64;
        let map = HEADER_AREA + p.journal_len;
        let map_end = map + (u64::from(p.map_capacity) * MAP_ENTRY).next_multiple_of(BLOCK);
        Geometry {
            segments,
            slots: segments + p.spare,
            journal: HEADER_AREA,
            map,
            map_end,
            data: map_end.next_multiple_of(1 << 20),
            stride: (SEGMENT_BLOCKS * (BLOCK + meta)).next_multiple_of(ALIGNMENT),
        }
    }

    /// The end of the disk on its medium: the offset behind its last byte.
    pub fn end(&self) -> u64 {
        self.data + u64::from(self.slots) * self.stride
    }

    pub(crate) fn slot(&self, slot: SlotNo) -> u64 {
        self.data + u64::from(slot.get()) * self.stride
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip_and_garbage_is_rejected() {
        for cipher in Cipher::ALL {
            let p = Params::plan(cipher, 5000, None).unwrap();
            assert_eq!(Params::parse(&p.encode()).unwrap(), p);
            for at in [0, 2, 3, 16, 30] {
                let mut bytes = p.encode();
                bytes[at] ^= 0x81;
                assert_eq!(Params::parse(&bytes).unwrap_err().kind(), Kind::Corrupt);
            }
        }
        assert!(Params::parse(b"short").is_err());
    }

    #[test]
    fn a_disk_grows_with_its_device() {
        for cipher in [Cipher::Gcm, Cipher::XtsRandom] {
            for room in [64 << 20, 300 << 20, 1 << 40] {
                let p = Params::largest(cipher, room).unwrap();
                assert_eq!(p.grown_into(room).blocks, p.blocks, "{room}");
                let grown = p.grown_into(room * 3);
                assert_eq!(Params::parse(&grown.encode()).unwrap(), grown);
                assert!(grown.geometry().end() <= room * 3);
                assert!(grown.blocks > p.blocks * 5 / 2, "{room} {grown:?}");
                assert_eq!(p.grown_into(room * 100).blocks, p.blocks * GROWTH);
                assert_eq!(p.grown_into(0).blocks, p.blocks);
                let (before, after) = (p.geometry(), grown.geometry());
                assert_eq!((before.map, before.map_end), (after.map, after.map_end));
                assert_eq!(before.data, after.data);
            }
        }
    }

    #[test]
    fn a_fixed_medium_is_filled_and_never_overfilled() {
        for room in [64 << 20, 300 << 20, 1 << 40] {
            let p = Params::largest(Cipher::Gcm, room).unwrap();
            assert!(p.geometry().end() <= room);
            assert!(p.blocks * BLOCK > room / 4);
            assert!(Params::plan(Cipher::Gcm, p.blocks + 4096, Some(room)).is_err());
        }
        assert_eq!(Params::largest(Cipher::Xts, 4096).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Params::plan(Cipher::Xts, 0, None).unwrap_err().kind(), Kind::Usage);
    }
}
