//! The layout of a header: offsets and lengths of its fields. A test compares them with
//! `docs/format/header.md`.

use std::ops::Range;

/// Bytes in one header copy.
pub const HEADER_LEN: usize = 16384;
/// Byte offset of copy A on the medium.
pub const COPY_A: u64 = 0;
/// Byte offset of copy B on the medium.
pub const COPY_B: u64 = 524_288;
/// Bytes at the start of every medium that belong to the header. Bytes between the copies are zero.
pub const HEADER_AREA: u64 = 1 << 20;
/// Bytes at the end of a medium that belong to copy C. They begin at a multiple of their length.
pub const TAIL_AREA: u64 = 1 << 16;
/// The header version.
pub const VERSION: u32 = 1;
/// The first bytes of every header. The bytes 0 and 1 keep programs from taking it for text.
pub const MAGIC: [u8; 8] = *b"LACUNA\x00\x01";
/// The signature of an Oracle ASM volume, known to libblkid and `file`: programs that look before
/// they overwrite a device see that it is in use, under the name [`FOREIGN_LABEL`].
pub const FOREIGN_MAGIC: [u8; 8] = *b"ORCLDISK";
/// The volume name that these programs show.
pub const FOREIGN_LABEL: &[u8; 6] = b"lacuna";
/// Key slots in a header.
pub const KEY_SLOTS: usize = 8;
/// Bytes in a key slot.
pub const SLOT_LEN: usize = 1024;
/// Levels that a slot has room for.
pub const MAX_LEVELS: usize = 8;
/// The most bytes of format parameters.
pub const PARAMS_MAX: usize = 1024;

/// Where copy C lies on a medium of `len` bytes, and so where the space of the format ends. None if
/// the medium has no room for it.
pub fn copy_c(len: u64) -> Option<u64> {
    let at = (len / TAIL_AREA).checked_sub(1)? * TAIL_AREA;
    (at >= HEADER_AREA).then_some(at)
}

/// Length of the shortest medium on which everything before `end` lies before copy C.
pub fn medium_len(end: u64) -> u64 {
    end.max(HEADER_AREA).next_multiple_of(TAIL_AREA) + TAIL_AREA
}

/// A field of the header or of a key slot: its name in the documentation, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as in the documentation.
    pub name: &'static str,
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Field {
    const fn new(name: &'static str, offset: usize, len: usize) -> Self {
        Field { name, offset, len }
    }

    /// The range of the field in its header or slot.
    pub const fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// The first byte after the field.
    pub const fn end(self) -> usize {
        self.offset + self.len
    }
}

pub(crate) const MAGIC_FIELD: Field = Field::new("magic", 0, 8);
pub(crate) const VERSION_FIELD: Field = Field::new("version", 8, 4);
pub(crate) const LENGTH: Field = Field::new("header length", 12, 4);
pub(crate) const GENERATION: Field = Field::new("generation", 16, 8);
pub(crate) const FORMAT: Field = Field::new("format", 24, 2);
/// The bytes for programs that look for foreign signatures.
pub(crate) const FOREIGN: Field = Field::new("foreign signature", 32, 32);
pub(crate) const UUID: Field = Field::new("uuid", 64, 16);
pub(crate) const KDF_MEMORY: Field = Field::new("argon2 memory", 80, 4);
pub(crate) const KDF_PASSES: Field = Field::new("argon2 passes", 84, 4);
pub(crate) const KDF_LANES: Field = Field::new("argon2 lanes", 88, 4);
pub(crate) const SALT: Field = Field::new("salt", 92, 32);
pub(crate) const PARAMS_LEN: Field = Field::new("parameter length", 124, 2);
pub(crate) const PARAMS: Field = Field::new("parameters", 126, PARAMS_MAX);
/// Where the format's data ends on the medium.
pub(crate) const END: Field = Field::new("end of data", 1150, 8);
pub(crate) const SLOTS: Field = Field::new("key slots", 2048, KEY_SLOTS * SLOT_LEN);
/// The used slots, for formats without levels.
pub(crate) const SLOT_MAP: Field = Field::new("slot map", 10240, SLOT_MAP_LEN);
pub(crate) const DIGEST: Field = Field::new("digest", 16320, 32);
pub(crate) const MAC: Field = Field::new("mac", 16352, 32);

/// Bytes of the slot map: nonce, a byte for each slot under AES-256-GCM, tag.
pub(crate) const SLOT_MAP_LEN: usize = 12 + KEY_SLOTS + 16;

/// The fields of a header, in order and without gaps.
pub const HEADER_FIELDS: [Field; 21] = [
    MAGIC_FIELD,
    VERSION_FIELD,
    LENGTH,
    GENERATION,
    FORMAT,
    Field::new("zero", 26, 6),
    FOREIGN,
    UUID,
    KDF_MEMORY,
    KDF_PASSES,
    KDF_LANES,
    SALT,
    PARAMS_LEN,
    PARAMS,
    END,
    Field::new("zero", 1158, 890),
    SLOTS,
    SLOT_MAP,
    Field::new("zero", 10276, 6044),
    DIGEST,
    MAC,
];

pub(crate) const SLOT_NONCE: Field = Field::new("nonce", 0, 12);
pub(crate) const SLOT_SEALED: Field = Field::new("ciphertext", 12, PAYLOAD_LEN);
pub(crate) const SLOT_TAG: Field = Field::new("tag", 12 + PAYLOAD_LEN, 16);
pub(crate) const SLOT_RANDOM: Field = Field::new("random", 28 + PAYLOAD_LEN, SLOT_LEN - 28 - PAYLOAD_LEN);

/// The fields of a used key slot, in order and without gaps.
pub const SLOT_FIELDS: [Field; 4] = [SLOT_NONCE, SLOT_SEALED, SLOT_TAG, SLOT_RANDOM];

/// Bytes in a master key.
pub const KEY_LEN: usize = 32;
/// Bytes that a slot wraps: the level, then a master key for each level.
pub const PAYLOAD_LEN: usize = 1 + MAX_LEVELS * KEY_LEN;

const fn contiguous(fields: &[Field], total: usize) -> bool {
    let (mut i, mut at) = (0, 0);
    while i < fields.len() {
        if fields[i].offset != at {
            return false;
        }
        at = fields[i].end();
        i += 1;
    }
    at == total
}

const _: () = assert!(contiguous(&HEADER_FIELDS, HEADER_LEN));
const _: () = assert!(contiguous(&SLOT_FIELDS, SLOT_LEN));
const _: () = assert!(COPY_A + HEADER_LEN as u64 <= COPY_B && COPY_B + HEADER_LEN as u64 <= HEADER_AREA);
