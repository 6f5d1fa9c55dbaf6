//! The trusted storage (TS) of one file, at most 200 bytes.

use crate::counters::counter::{Counter, Session};
use crate::file_profile::FileProfile;
use crate::scheme::{Choice, Scheme};
use crate::schemes::block_ciphers::{LEAST_BLOCK_SIZE, MOST_BLOCK_SIZE};
use crate::schemes::scheme_layer::MOST_BLOCKS;
use crate::section::{Section, malformed};
use lacuna_contracts::{LeReader, LeWriter, Result};

/// The version of the format.
const VERSION: u8 = 1;
/// The code of `auto` in the byte for the choice of scheme.
const AUTO: u8 = 0xf;
/// Bytes before the first section.
pub(crate) const HEAD: usize = 32;

/// The trusted storage of one file. It authenticates nothing by itself: its owner must keep it
/// where the adversary can neither alter it nor roll it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted(Vec<u8>);

/// The header of TS, before the sections of the schemes.
pub(crate) struct TrustedHeader {
    pub(crate) scheme: Scheme,
    /// The scheme that the file is being converted from, if any.
    pub(crate) converting_from: Option<Scheme>,
    pub(crate) choice: Choice,
    pub(crate) block_size: usize,
    pub(crate) blocks: u64,
    pub(crate) last: Counter,
    pub(crate) profile: FileProfile,
}

impl Trusted {
    /// The most bytes of TS.
    pub const MAX: usize = 200;

    /// The bytes of TS, at most [`Trusted::MAX`].
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.clone()
    }

    /// Parses bytes from [`Trusted::to_bytes`]. The sections of schemes are parsed when the file is
    /// opened. Errors: [`lacuna_contracts::Kind::Corrupt`].
    pub fn parse(bytes: &[u8]) -> Result<Trusted> {
        if bytes.len() > Self::MAX {
            return Err(malformed(&format!("{} bytes", bytes.len())));
        }
        let trusted = Trusted(bytes.to_vec());
        trusted.head()?;
        Ok(trusted)
    }

    /// The length of the file in blocks.
    pub fn blocks(&self) -> u64 {
        LeReader(&self.0).u64(4)
    }

    pub(crate) fn new(head: &TrustedHeader, sections: &[u8]) -> Self {
        let mut bytes = vec![0; HEAD];
        bytes[0] = VERSION;
        bytes[1] = head.scheme.code() | head.converting_from.map_or(0, |other| other.code() + 1) << 4;
        bytes[2] = match head.choice {
            Choice::Fixed(scheme) => scheme.code(),
            Choice::Auto => AUTO,
        };
        bytes[3] = head.block_size.trailing_zeros() as u8;
        LeWriter(&mut bytes)
            .u64(4, head.blocks)
            .u64(12, head.last.session.0)
            .u32(20, head.last.pass)
            .put(24, &head.profile.to_bytes());
        bytes.extend(sections);
        debug_assert!(bytes.len() <= Self::MAX, "TS of {} bytes", bytes.len());
        Trusted(bytes)
    }

    /// The head, and a reader of the sections after it.
    pub(crate) fn head(&self) -> Result<(TrustedHeader, Section<'_>)> {
        let (head, rest) = self.0.split_at_checked(HEAD).ok_or_else(|| malformed("too few bytes"))?;
        if head[0] != VERSION {
            return Err(malformed(&format!("version {}", head[0])));
        }
        let scheme = |code| Scheme::from_code(code).ok_or_else(|| malformed(&format!("scheme {code}")));
        let other = (head[1] >> 4).checked_sub(1).map(scheme).transpose()?;
        let choice = if head[2] == AUTO { Choice::Auto } else { Choice::Fixed(scheme(head[2])?) };
        let block_size = 1usize.checked_shl(head[3].into()).unwrap_or(0);
        let record = LeReader(head);
        let blocks = record.u64(4);
        if !(LEAST_BLOCK_SIZE..=MOST_BLOCK_SIZE).contains(&block_size) || blocks > MOST_BLOCKS {
            return Err(malformed(&format!("{blocks} blocks of {block_size} bytes")));
        }
        let last = Counter { session: Session(record.u64(12)), pass: record.u32(20) };
        let nature = FileProfile::from_bytes(record.array(24));
        let scheme = scheme(head[1] & 0xf)?;
        Ok((
            TrustedHeader {
                scheme,
                converting_from: other,
                choice,
                block_size,
                blocks,
                last,
                profile: nature,
            },
            Section(rest),
        ))
    }
}
