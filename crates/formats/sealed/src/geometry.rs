//! The public parameters of a disk, and the layout of the medium that follows from them.
//! Byte-exact: `docs/format/sealed.md`; a test compares the two.

use crate::address::CHUNK_BLOCKS;
use lacuna_contracts::{
    BLOCK_SIZE, Error, Hint, Kind, LeWriter, ParamsReader, Result, SEGMENT_BLOCKS, Setting,
};
use lacuna_crypto::Cipher;

/// Bytes of the medium that belong to the volume header.
pub(crate) const HEADER_AREA: u64 = 1 << 20;
/// The blocks of a slot begin at a multiple of this, so that a page cache holds each chunk in one
/// piece.
const ALIGNMENT: u64 = CHUNK_BLOCKS * BLOCK;
/// Slots of a group, whose metadata lies together before their blocks. With 32 bytes for each block
/// it fills [`ALIGNMENT`], so that the blocks are aligned without a gap.
const GROUP_SLOTS: u64 = 8;
/// Bytes of the blocks of a slot.
const SLOT_LEN: u64 = SEGMENT_BLOCKS * BLOCK;
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
    /// times the size, and the journal may be smaller and the spare slots fewer than in a file,
    /// where free slots take no space.
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
        let (journal_len, spare) = journal_and_spare(blocks, room.is_some());
        let params = Params {
            cipher,
            blocks,
            journal_len,
            map_capacity: growth.min(MAX_BLOCKS / SEGMENT_BLOCKS) as u32,
            spare,
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
        let segments = g.slots_within(room).saturating_sub(u64::from(self.spare));
        let blocks = segments.min(u64::from(self.map_capacity)) * SEGMENT_BLOCKS;
        Params { blocks: blocks.max(self.blocks), ..*self }
    }

    /// The largest disk that fits a device of `room` bytes, in whole segments.
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
        let params = Params::plan(cipher, fits, Some(room))?;
        // The last segment has a whole slot in any case. A longer disk would have a longer journal,
        // for which there may be no room.
        Ok(Params { blocks: fits.next_multiple_of(SEGMENT_BLOCKS), ..params })
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

/// The length of the journal and the number of spare slots of a new disk.
///
/// A device of 1 GiB or more gives the disk at least 94 % of its length; nearly 1 % is the metadata
/// of `gcm`. A smaller device gives journal and spare slots the same shares as a file does, up to
/// the amounts on a device of 1 GiB. [`Params::largest`] needs that neither falls when the disk
/// becomes larger.
fn journal_and_spare(blocks: u64, on_device: bool) -> (u64, u32) {
    let (len, segments) = (blocks * BLOCK, blocks.div_ceil(SEGMENT_BLOCKS));
    let (mut journal, mut spare) = (len / 16, segments / 8);
    if on_device {
        journal = journal.min(20 << 20).max(len / 48);
        spare = spare.min(6).max(segments / 48);
    }
    (journal.clamp(8 << 20, 128 << 20) / BLOCK * BLOCK, spare.clamp(2, 64) as u32)
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
    /// Bytes at the start of each group of eight slots, for the metadata of their blocks.
    pub group_meta: u64,
    /// Bytes of the metadata of a slot.
    slot_meta_len: u64,
}

impl Geometry {
    fn of(p: &Params) -> Geometry {
        let segments = p.blocks.div_ceil(SEGMENT_BLOCKS) as u32;
        let slot_meta_len = SEGMENT_BLOCKS * p.cipher.meta_size() as u64;
        let map = HEADER_AREA + p.journal_len;
        let map_end = map + (u64::from(p.map_capacity) * MAP_ENTRY).next_multiple_of(BLOCK);
        Geometry {
            segments,
            slots: segments + p.spare,
            journal: HEADER_AREA,
            map,
            map_end,
            data: map_end.next_multiple_of(1 << 20),
            group_meta: (GROUP_SLOTS * slot_meta_len).next_multiple_of(ALIGNMENT),
            slot_meta_len,
        }
    }

    /// The end of the disk on its medium: the offset behind its last byte.
    pub fn end(&self) -> u64 {
        self.data_of(self.slots - 1) + SLOT_LEN
    }

    /// The offset of the first block of the slot with this number.
    pub fn data_of(&self, slot: u32) -> u64 {
        self.group_of(slot) + self.group_meta + u64::from(slot) % GROUP_SLOTS * SLOT_LEN
    }

    /// The offset of the metadata of the slot with this number.
    pub fn meta_of(&self, slot: u32) -> u64 {
        self.group_of(slot) + u64::from(slot) % GROUP_SLOTS * self.slot_meta_len
    }

    fn group_of(&self, slot: u32) -> u64 {
        self.data + u64::from(slot) / GROUP_SLOTS * self.group_len()
    }

    fn group_len(&self) -> u64 {
        self.group_meta + GROUP_SLOTS * SLOT_LEN
    }

    /// The number of slots that end within the first `room` bytes of a medium.
    fn slots_within(&self, room: u64) -> u64 {
        let len = room.saturating_sub(self.data);
        let (groups, rest) = (len / self.group_len(), len % self.group_len());
        groups * GROUP_SLOTS + rest.saturating_sub(self.group_meta) / SLOT_LEN
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

    /// Slots and their metadata do not overlap and leave no gap, except behind the metadata of a
    /// group and in the last group; and the number of slots that fit agrees with the end.
    #[test]
    fn slots_lie_in_groups_behind_their_metadata() {
        for cipher in Cipher::ALL {
            let meta = SEGMENT_BLOCKS * cipher.meta_size() as u64;
            for segments in [1, 6, 7, 14, 21] {
                let p = Params { spare: 2, ..Params::plan(cipher, segments * SEGMENT_BLOCKS, None).unwrap() };
                let g = p.geometry();
                let mut behind = g.data;
                for group in 0..g.slots.div_ceil(8) {
                    let slots = group * 8..g.slots.min(group * 8 + 8);
                    let begin = behind;
                    for slot in slots.clone() {
                        assert_eq!(g.meta_of(slot), begin + u64::from(slot % 8) * meta);
                    }
                    behind += (8 * meta).next_multiple_of(256 << 10);
                    for slot in slots {
                        assert_eq!(g.data_of(slot), behind);
                        assert!(behind.is_multiple_of(256 << 10));
                        behind += 4 << 20;
                    }
                }
                assert_eq!(g.end(), behind);
                assert_eq!(g.slots_within(behind), u64::from(g.slots));
                assert_eq!(g.slots_within(behind - 1), u64::from(g.slots) - 1);
                assert_eq!(p.grown_into(behind).blocks, p.blocks);
                assert_eq!(p.grown_into(behind + (4 << 20) + g.group_meta).blocks, p.blocks + SEGMENT_BLOCKS);
            }
        }
    }

    /// Each device of 1 GiB or more has at least 94 % for the disk. The lengths are those of the
    /// documents, and more of them up to 40 GiB.
    #[test]
    fn a_device_of_a_gibibyte_or_more_gives_the_disk_94_percent() {
        let gib = |tenths: u64| (tenths << 30) / 10;
        let named = [10, 15, 20, 50, 200, 1000, 10_240, 40_960, 163_840].map(gib);
        let others = (0..200).map(|n: u64| (1 << 30) + n * ((200 << 20) + (64 << 10)));
        for device in named.into_iter().chain(others) {
            for cipher in Cipher::ALL {
                let room = lacuna_header::copy_c(device).unwrap();
                let p = Params::largest(cipher, room).unwrap();
                let taken = device - p.blocks * BLOCK;
                assert!(taken * 100 <= device * 6, "{cipher:?}, {device}: {taken} bytes beside the disk");
                assert!(p.geometry().end() <= room);
                assert_eq!(Params::parse(&p.encode()).unwrap(), p);
            }
        }
    }

    /// The numbers in `docs/usage.md`, `docs/stick-without-root.md` and `README.md`.
    #[test]
    fn devices_give_what_the_documents_say() {
        let largest = |device| {
            let p = Params::largest(Cipher::Gcm, lacuna_header::copy_c(device).unwrap()).unwrap();
            ((p.blocks * BLOCK) >> 20, p.journal_len >> 20, p.spare)
        };
        assert_eq!(largest(1 << 30), (968, 20, 6));
        assert_eq!(largest(20 << 30), (19_932, 128, 64));
    }

    #[test]
    fn a_fixed_medium_is_filled_and_never_overfilled() {
        for room in [64 << 20, 300 << 20, 1 << 40] {
            let p = Params::largest(Cipher::Gcm, room).unwrap();
            assert!(p.geometry().end() <= room);
            assert!(p.blocks * BLOCK > room / 4);
            assert!(p.blocks.is_multiple_of(SEGMENT_BLOCKS));
            assert!(Params::plan(Cipher::Gcm, p.blocks + 4096, Some(room)).is_err());
        }
        assert_eq!(Params::largest(Cipher::Xts, 4096).unwrap_err().kind(), Kind::Usage);
        assert_eq!(Params::plan(Cipher::Xts, 0, None).unwrap_err().kind(), Kind::Usage);
    }
}
