//! The part of a header that can be read without a passphrase.

use crate::layout::{self, FOREIGN_LABEL, FOREIGN_MAGIC, Field, HEADER_LEN, MAGIC, PARAMS_MAX, VERSION};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_crypto::Argon2Cost;
use serde::{Serialize, Serializer, ser::SerializeStruct};
use sha2::{Digest, Sha256};
use std::fmt;

/// The UUID of a disk, its name for programs: 16 bytes, shown as hex with dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// A random UUID (version 4 of RFC 9562).
    pub fn random(random: &dyn lacuna_crypto::RandomSource) -> Self {
        let mut bytes = [0u8; 16];
        random.fill(&mut bytes);
        Uuid(uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes())
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).fmt(f)
    }
}

impl Serialize for Uuid {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The number of a format. Unknown numbers are kept, so that `info` can show them. Programs that
/// add their own formats use numbers of 32768 and above, and of 49152 and above for formats with
/// levels; lacuna's own formats never get such a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FormatId(pub u16);

impl FormatId {
    /// One encrypted disk with unlinkable overwrites.
    pub const SEALED: FormatId = FormatId(1);
    /// The same on the objects of a store, displayed as `sealed on objects`.
    pub const SEALED_OBJECTS: FormatId = FormatId(2);
    /// Public and hidden levels on one medium (PD-DM).
    pub const DENIABLE: FormatId = FormatId(3);
    /// Public and hidden levels in a write-only ORAM (HIVE).
    pub const OBLIVIOUS: FormatId = FormatId(4);
    /// A disk on flash with secure deletion (DNEFS).
    pub const FLASH: FormatId = FormatId(5);
    /// A file system in an untrusted directory (MT-, RAND- and COMP-EINT).
    pub const VAULT: FormatId = FormatId(6);

    /// Whether the number is reserved for formats that programs add.
    pub const fn is_custom(self) -> bool {
        self.0 >= 0x8000
    }

    /// Whether it is the format of vaults.
    pub const fn is_vault(self) -> bool {
        matches!(self, FormatId::VAULT)
    }

    /// The noun for the owner of a header of this format, for messages.
    pub const fn noun(self) -> &'static str {
        if self.is_vault() { "vault" } else { "disk" }
    }

    /// Whether a disk of this format may have hidden levels. True for an unknown format too, unless
    /// its number is reserved for added formats without levels.
    pub const fn has_levels(self) -> bool {
        !matches!(
            self,
            FormatId::SEALED
                | FormatId::SEALED_OBJECTS
                | FormatId::FLASH
                | FormatId::VAULT
                | FormatId(0x8000..=0xbfff)
        )
    }
}

impl fmt::Display for FormatId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            FormatId::SEALED => f.write_str("sealed"),
            FormatId::SEALED_OBJECTS => f.write_str("sealed on objects"),
            FormatId::DENIABLE => f.write_str("deniable"),
            FormatId::OBLIVIOUS => f.write_str("oblivious"),
            FormatId::FLASH => f.write_str("flash"),
            FormatId::VAULT => f.write_str("vault"),
            FormatId(number) => write!(f, "unknown-{number}"),
        }
    }
}

impl Serialize for FormatId {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

/// The fields of a header that can be read without a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicHeader {
    /// Header version.
    pub version: u32,
    /// Grows by one whenever the header is rewritten.
    pub generation: u64,
    /// The UUID of the disk.
    pub uuid: Uuid,
    /// The format behind the header.
    pub format: FormatId,
    /// The cost of stretching a passphrase.
    pub cost: Argon2Cost,
    /// The Argon2id salt of all slots.
    pub salt: [u8; 32],
    /// The format's parameters, in its own encoding, at most [`PARAMS_MAX`] bytes.
    pub params: Vec<u8>,
    /// Where the format's data ends: the byte offset behind its last byte on the medium. Copy C is
    /// never written below this offset.
    pub end: u64,
}

/// Serializes all fields except the salt, the parameters and the end. The format shows its
/// parameters itself.
impl Serialize for PublicHeader {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Kdf {
            algorithm: &'static str,
            memory_kib: u32,
            passes: u32,
            lanes: u32,
        }
        let mut out = s.serialize_struct("PublicHeader", 5)?;
        out.serialize_field("version", &self.version)?;
        out.serialize_field("uuid", &self.uuid)?;
        out.serialize_field("format", &self.format)?;
        out.serialize_field("generation", &self.generation)?;
        out.serialize_field(
            "kdf",
            &Kdf {
                algorithm: "argon2id",
                memory_kib: self.cost.memory_kib,
                passes: self.cost.passes,
                lanes: self.cost.lanes,
            },
        )?;
        out.end()
    }
}

/// Why some bytes are not a usable header.
pub(crate) enum HeaderFlaw {
    /// They do not start with the magic.
    NoMagic,
    /// The version is unknown to this build.
    Version(u32),
    /// The digest or the structure is wrong; the text says which.
    Damaged(&'static str),
}

impl PublicHeader {
    /// Reads one header copy. Safe on any bytes; bytes after the first [`HEADER_LEN`] are ignored.
    ///
    /// Checks the digest, which notices accidents. Only opening with a passphrase notices forgery.
    pub fn parse(bytes: &[u8]) -> Result<PublicHeader> {
        Self::parse_copy(bytes).map_err(|flaw| match flaw {
            HeaderFlaw::NoMagic => Error::new(Kind::NotFound, "cannot read the header")
                .found("bytes that do not start as a lacuna header does"),
            HeaderFlaw::Version(version) => unknown_version(version),
            HeaderFlaw::Damaged(found) => Error::new(Kind::Corrupt, "cannot read the header").found(found),
        })
    }

    pub(crate) fn parse_copy(bytes: &[u8]) -> std::result::Result<PublicHeader, HeaderFlaw> {
        if bytes.get(layout::MAGIC_FIELD.range()) != Some(&MAGIC[..]) {
            return Err(HeaderFlaw::NoMagic);
        }
        let version = bytes.get(layout::VERSION_FIELD.range()).map(le_u32);
        if let Some(newer) = version.filter(|v| *v > VERSION) {
            return Err(HeaderFlaw::Version(newer));
        }
        let header: &[u8; HEADER_LEN] =
            bytes.first_chunk().ok_or(HeaderFlaw::Damaged("a header cut short"))?;
        if Sha256::digest(&header[..layout::DIGEST.offset])[..] != header[layout::DIGEST.range()] {
            return Err(HeaderFlaw::Damaged("a header with a digest that does not match"));
        }
        Self::decode(header)
    }

    /// Decodes the fields of a header with a matching digest.
    fn decode(header: &[u8; HEADER_LEN]) -> std::result::Result<PublicHeader, HeaderFlaw> {
        let number = |field: Field| le_u32(&header[field.range()]);
        let version = number(layout::VERSION_FIELD);
        if version != VERSION {
            return Err(HeaderFlaw::Damaged("an impossible header version"));
        }
        if number(layout::LENGTH) as usize != HEADER_LEN {
            return Err(HeaderFlaw::Damaged("a wrong header length"));
        }
        let [memory, passes, lanes] = [layout::KDF_MEMORY, layout::KDF_PASSES, layout::KDF_LANES].map(number);
        let cost = Argon2Cost::new(memory, passes, lanes)
            .map_err(|_| HeaderFlaw::Damaged("an Argon2id cost outside the limits"))?;
        let params_len = usize::from(u16::from_le_bytes(array(header, layout::PARAMS_LEN)));
        if params_len > PARAMS_MAX {
            return Err(HeaderFlaw::Damaged("format parameters longer than their field"));
        }
        let public = PublicHeader {
            version,
            generation: u64::from_le_bytes(array(header, layout::GENERATION)),
            uuid: Uuid(array(header, layout::UUID)),
            format: FormatId(u16::from_le_bytes(array(header, layout::FORMAT))),
            cost,
            salt: array(header, layout::SALT),
            params: header[layout::PARAMS.offset..][..params_len].to_vec(),
            end: u64::from_le_bytes(array(header, layout::END)),
        };
        let mut start = [0; layout::SLOTS.offset];
        public.put(&mut start);
        if start != header[..layout::SLOTS.offset]
            || header[layout::SLOT_MAP.end()..layout::DIGEST.offset].iter().any(|b| *b != 0)
        {
            return Err(HeaderFlaw::Damaged("nonzero bytes in a reserved area"));
        }
        Ok(public)
    }

    /// Writes the public fields. The slots, the slot map, the digest and the MAC stay.
    pub(crate) fn encode(&self, header: &mut [u8; HEADER_LEN]) -> Result<()> {
        if self.params.len() > PARAMS_MAX {
            return Err(Error::new(Kind::Usage, "cannot store the format parameters")
                .found(format!("{} bytes", self.params.len()))
                .expected(format!("at most {PARAMS_MAX} bytes")));
        }
        let start = header.first_chunk_mut().expect("slots lie within the header");
        self.put(start);
        Ok(())
    }

    fn put(&self, start: &mut [u8; layout::SLOTS.offset]) {
        start.fill(0);
        let mut put = |field: Field, bytes: &[u8]| {
            start[field.offset..field.offset + bytes.len()].copy_from_slice(bytes);
        };
        put(layout::MAGIC_FIELD, &MAGIC);
        put(layout::VERSION_FIELD, &self.version.to_le_bytes());
        put(layout::LENGTH, &(HEADER_LEN as u32).to_le_bytes());
        put(layout::GENERATION, &self.generation.to_le_bytes());
        put(layout::FORMAT, &self.format.0.to_le_bytes());
        let mut signature = FOREIGN_MAGIC.to_vec();
        signature.extend(FOREIGN_LABEL);
        put(layout::FOREIGN, &signature);
        put(layout::UUID, &self.uuid.0);
        put(layout::KDF_MEMORY, &self.cost.memory_kib.to_le_bytes());
        put(layout::KDF_PASSES, &self.cost.passes.to_le_bytes());
        put(layout::KDF_LANES, &self.cost.lanes.to_le_bytes());
        put(layout::SALT, &self.salt);
        put(layout::PARAMS_LEN, &(self.params.len() as u16).to_le_bytes());
        put(layout::PARAMS, &self.params);
        put(layout::END, &self.end.to_le_bytes());
    }

    /// The place of the slot map, if the header has one. Formats with levels have none, because it
    /// would tell how many levels there are (deniability contract).
    pub(crate) fn slot_map(&self) -> Option<Field> {
        (!self.format.has_levels()).then_some(layout::SLOT_MAP)
    }

    /// The generation of the next rewrite.
    pub(crate) fn next_generation(&self) -> Result<u64> {
        self.generation.checked_add(1).ok_or_else(|| {
            Error::new(Kind::Corrupt, "cannot rewrite the header")
                .found(format!("generation {}", self.generation))
                .expected("a generation that can grow")
        })
    }
}

/// The error for a header of a later version.
pub(crate) fn unknown_version(version: u32) -> Error {
    Error::new(Kind::Other, "cannot read the header")
        .found(format!("header version {version}"))
        .expected(format!("version {VERSION}, the newest that this lacuna knows"))
        .hint("use a newer lacuna")
}

fn array<const N: usize>(header: &[u8; HEADER_LEN], field: Field) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&header[field.range()]);
    out
}

fn le_u32(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lacuna_crypto::{RandomSource, SeededRandom};

    fn sample() -> (PublicHeader, Box<[u8; HEADER_LEN]>) {
        let public = PublicHeader {
            version: VERSION,
            generation: 0x0102_0304_0506_0708,
            uuid: Uuid(*b"0123456789abcdef"),
            format: FormatId(0x1234),
            cost: Argon2Cost::new(64, 3, 2).unwrap(),
            salt: [9; 32],
            params: b"parameters".to_vec(),
            end: 0x1122_3344_5566,
        };
        let mut bytes = Box::new([0u8; HEADER_LEN]);
        public.encode(&mut bytes).unwrap();
        redigest(&mut bytes);
        (public, bytes)
    }

    fn redigest(bytes: &mut [u8; HEADER_LEN]) {
        let digest = Sha256::digest(&bytes[..layout::DIGEST.offset]);
        bytes[layout::DIGEST.range()].copy_from_slice(&digest);
    }

    #[test]
    fn public_fields_round_trip() {
        let (public, bytes) = sample();
        assert_eq!(PublicHeader::parse(&bytes[..]).unwrap(), public);
        assert_eq!(bytes[16], 8, "little-endian");
        let longest = PublicHeader { params: vec![7; PARAMS_MAX], ..public.clone() };
        let mut header = bytes.clone();
        longest.encode(&mut header).unwrap();
        redigest(&mut header);
        assert_eq!(PublicHeader::parse(&header[..]).unwrap(), longest);
        let too_long = PublicHeader { params: vec![7; PARAMS_MAX + 1], ..public };
        assert_eq!(too_long.encode(&mut header).unwrap_err().kind(), Kind::Usage);
    }

    #[test]
    fn wrong_fields_under_a_right_digest_are_refused() {
        let (_, good) = sample();
        let refused = |field: Field, bytes: &[u8]| {
            let mut header = good.clone();
            header[field.offset..field.offset + bytes.len()].copy_from_slice(bytes);
            redigest(&mut header);
            PublicHeader::parse(&header[..]).unwrap_err()
        };
        let mut kinds = Vec::new();
        for (field, bytes) in [
            (layout::MAGIC_FIELD, &b"l"[..]),
            (layout::VERSION_FIELD, &[2, 0, 0, 0]),
            (layout::VERSION_FIELD, &[0, 0, 0, 0]),
            (layout::LENGTH, &[1, 0, 0, 0]),
            (layout::KDF_MEMORY, &[0xff; 4]),
            (layout::KDF_MEMORY, &[0; 4]),
            (layout::KDF_PASSES, &[0; 4]),
            (layout::KDF_PASSES, &[0xff; 4]),
            (layout::KDF_LANES, &[0; 4]),
            (layout::KDF_LANES, &[0xff; 4]),
            (layout::PARAMS_LEN, &[1, 4]),
            (layout::PARAMS_LEN, &[9, 0]),
            (layout::FOREIGN, b"o"),
            (layout::HEADER_FIELDS[5], &[1]),
            (layout::HEADER_FIELDS[15], &[1]),
            (layout::HEADER_FIELDS[18], &[1]),
        ] {
            kinds.push(refused(field, bytes).kind());
        }
        assert_eq!(kinds[..2], [Kind::NotFound, Kind::Other]);
        assert!(kinds[2..].iter().all(|k| *k == Kind::Corrupt), "{kinds:?}");
    }

    #[test]
    fn parsed_headers_encode_to_the_same_bytes() {
        let (_, good) = sample();
        let random = SeededRandom::new(2);
        let mut parsed = 0;
        for round in 0..2000 {
            let mut header = good.clone();
            for _ in 0..=(round % 3) {
                let mut dice = [0u8; 3];
                random.fill(&mut dice);
                header[usize::from(u16::from_le_bytes([dice[0], dice[1]])) % 160] ^= dice[2];
            }
            redigest(&mut header);
            if let Ok(public) = PublicHeader::parse(&header[..]) {
                parsed += 1;
                let mut again = header.clone();
                public.encode(&mut again).unwrap();
                assert!(again == header, "round {round}");
            }
        }
        assert!(parsed > 200, "{parsed}");
    }

    #[test]
    fn short_or_random_bytes_never_panic() {
        let (_, good) = sample();
        for len in (0..200).chain((200..HEADER_LEN).step_by(611)) {
            assert!(PublicHeader::parse(&good[..len]).is_err());
        }
        let mut longer = good.to_vec();
        longer.push(1);
        assert!(PublicHeader::parse(&longer).is_ok());
        assert!(PublicHeader::parse(&[0xff; 3 * HEADER_LEN]).is_err());
    }
}
