//! Where everything in a header lies. `docs/format/header.md` says the same for readers, and a test compares
//! the two.

use std::ops::Range;

/// Bytes in one header copy.
pub const HEADER_LEN: usize = 16384;
/// Byte offset of copy A on the medium.
pub const COPY_A: u64 = 0;
/// Byte offset of copy B on the medium.
pub const COPY_B: u64 = 524_288;
/// Bytes at the start of every medium that belong to the header. What the copies leave free is zero.
pub const HEADER_AREA: u64 = 1 << 20;
/// The header version that this build writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// The first bytes of every header. The zero and the one keep it from being taken for text.
pub const MAGIC: [u8; 8] = *b"LACUNA\x00\x01";
/// Key slots in a header.
pub const KEY_SLOTS: usize = 8;
/// Bytes in a key slot.
pub const SLOT_LEN: usize = 1024;
/// Levels that a slot has room for.
pub const MAX_LEVELS: usize = 8;
/// The most bytes of format parameters.
pub const PARAMS_MAX: usize = 1024;

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

    /// The bytes of the field.
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
pub(crate) const UUID: Field = Field::new("uuid", 24, 16);
pub(crate) const FORMAT: Field = Field::new("format", 40, 2);
pub(crate) const KDF_MEMORY: Field = Field::new("argon2 memory", 42, 4);
pub(crate) const KDF_PASSES: Field = Field::new("argon2 passes", 46, 4);
pub(crate) const KDF_LANES: Field = Field::new("argon2 lanes", 50, 4);
pub(crate) const SALT: Field = Field::new("salt", 54, 32);
pub(crate) const PARAMS_LEN: Field = Field::new("parameter length", 86, 2);
pub(crate) const PARAMS: Field = Field::new("parameters", 88, PARAMS_MAX);
pub(crate) const PUBLIC_ZERO: Field = Field::new("zero", 1112, 936);
pub(crate) const SLOTS: Field = Field::new("key slots", 2048, KEY_SLOTS * SLOT_LEN);
pub(crate) const TAIL_ZERO: Field = Field::new("zero", 10240, 6080);
pub(crate) const DIGEST: Field = Field::new("digest", 16320, 32);
pub(crate) const MAC: Field = Field::new("mac", 16352, 32);

/// The fields of a header, in order and without gaps.
pub const HEADER_FIELDS: [Field; 17] = [
    MAGIC_FIELD,
    VERSION_FIELD,
    LENGTH,
    GENERATION,
    UUID,
    FORMAT,
    KDF_MEMORY,
    KDF_PASSES,
    KDF_LANES,
    SALT,
    PARAMS_LEN,
    PARAMS,
    PUBLIC_ZERO,
    SLOTS,
    TAIL_ZERO,
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
