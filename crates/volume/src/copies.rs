//! The two copies on the medium: reading both, saying in words what is wrong with them, and writing them in an
//! order that survives a power cut.

use crate::layout::{COPY_A, COPY_B, HEADER_LEN};
use crate::public::{Flaw, PublicHeader, unknown_version};
use crate::seal::HeaderImage;
use lacuna_core::{Error, Kind, Result};
use lacuna_medium::Medium;
use std::fmt;

/// One of the two places of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderCopy {
    /// At byte 0.
    A,
    /// At byte 524288.
    B,
}

impl HeaderCopy {
    /// Where the copy starts on the medium.
    pub fn offset(self) -> u64 {
        match self {
            HeaderCopy::A => COPY_A,
            HeaderCopy::B => COPY_B,
        }
    }

    /// The other copy.
    pub fn other(self) -> Self {
        match self {
            HeaderCopy::A => HeaderCopy::B,
            HeaderCopy::B => HeaderCopy::A,
        }
    }
}

impl fmt::Display for HeaderCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeaderCopy::A => "header copy A",
            HeaderCopy::B => "header copy B",
        })
    }
}

/// A copy whose magic, version, digest and structure are right. Its MAC is not yet known to be.
pub(crate) struct SoundCopy {
    pub(crate) copy: HeaderCopy,
    pub(crate) bytes: Box<[u8; HEADER_LEN]>,
    pub(crate) public: PublicHeader,
}

/// What lies at the place of a copy that is not sound.
enum Unsound {
    Missing,
    Version(u32),
    Damaged(&'static str),
    Unreadable(Error),
}

/// Both copies as found: the sound ones, the one to use first in front, and notes on the others.
pub(crate) struct Survey {
    pub(crate) sound: Vec<SoundCopy>,
    pub(crate) notes: Vec<String>,
}

impl Survey {
    /// Reads both copies. Fails if neither is sound.
    pub(crate) fn read(medium: &dyn Medium) -> Result<Survey> {
        match (read_copy(medium, HeaderCopy::A), read_copy(medium, HeaderCopy::B)) {
            (Ok(a), Ok(b)) => Ok(Self::both(a, b)),
            (Ok(a), Err(unsound)) => Ok(Self::one(a, &unsound)),
            (Err(unsound), Ok(b)) => Ok(Self::one(b, &unsound)),
            (Err(a), Err(b)) => Err(neither(a, b)),
        }
    }

    fn both(a: SoundCopy, b: SoundCopy) -> Survey {
        let mut notes = Vec::new();
        let (newer, older) = if b.public.generation > a.public.generation { (b, a) } else { (a, b) };
        if newer.public.generation > older.public.generation {
            notes.push(note(older.copy, "is older", newer.copy));
        } else if newer.bytes != older.bytes {
            notes.push(note(older.copy, "differs though it has the same generation", newer.copy));
        }
        Survey { sound: vec![newer, older], notes }
    }

    fn one(sound: SoundCopy, unsound: &Unsound) -> Survey {
        let what = match unsound {
            Unsound::Missing => "is missing".to_string(),
            Unsound::Version(version) => format!("has the unknown version {version}"),
            Unsound::Damaged(_) => "is damaged".to_string(),
            Unsound::Unreadable(error) => format!("cannot be read ({error})"),
        };
        let notes = vec![note(sound.copy.other(), &what, sound.copy)];
        Survey { sound: vec![sound], notes }
    }

    /// The copy that [`store`] should write first if the header is taken from `used`.
    pub(crate) fn first_to_write(&self, used: HeaderCopy) -> HeaderCopy {
        if used == HeaderCopy::A && !self.notes.is_empty() { HeaderCopy::B } else { HeaderCopy::A }
    }
}

/// Words for a person: what is wrong with one copy, which one was used, and what helps.
pub(crate) fn note(bad: HeaderCopy, what: &str, used: HeaderCopy) -> String {
    let used = match used {
        HeaderCopy::A => "copy A",
        HeaderCopy::B => "copy B",
    };
    format!("{bad} {what}; {used} was used; `lacuna key refresh` writes both anew")
}

fn read_copy(medium: &dyn Medium, copy: HeaderCopy) -> std::result::Result<SoundCopy, Unsound> {
    let mut bytes = Box::new([0u8; HEADER_LEN]);
    // A medium may have been cut short inside the copy; what is left still tells whether it was ours.
    let left = medium.len().saturating_sub(copy.offset()).min(HEADER_LEN as u64) as usize;
    if left == 0 {
        return Err(Unsound::Missing);
    }
    medium.read_at(copy.offset(), &mut bytes[..left]).map_err(Unsound::Unreadable)?;
    match PublicHeader::parse_copy(&bytes[..left]) {
        Ok(public) => Ok(SoundCopy { copy, bytes, public }),
        Err(Flaw::NotOurs) => Err(Unsound::Missing),
        Err(Flaw::Version(version)) => Err(Unsound::Version(version)),
        Err(Flaw::Damaged(found)) => Err(Unsound::Damaged(found)),
    }
}

/// The error when no copy is sound: the one that tells most.
fn neither(a: Unsound, b: Unsound) -> Error {
    match (a, b) {
        (Unsound::Unreadable(error), _) | (_, Unsound::Unreadable(error)) => {
            error.context("cannot read the header")
        }
        (Unsound::Version(version), Unsound::Version(_) | Unsound::Missing)
        | (Unsound::Missing, Unsound::Version(version)) => unknown_version(version),
        (Unsound::Missing, Unsound::Missing) => Error::new(Kind::NotFound, "not a lacuna disk")
            .found("no lacuna header at byte 0 or at byte 524288")
            .expected("a medium made by `lacuna create`"),
        (a, b) => Error::new(Kind::Corrupt, "cannot read the header: neither copy is whole")
            .found(format!("copy A: {}; copy B: {}", a.words(), b.words()))
            .expected("at least one whole copy")
            .remedy("restore the first MiB of the medium from a backup"),
    }
}

impl Unsound {
    fn words(&self) -> &str {
        match self {
            Unsound::Damaged(found) => found,
            _ => "no header",
        }
    }
}

/// Reads what a disk says without a passphrase, with notes about its copies. For display: nothing of it is
/// authenticated before a passphrase has opened the header.
pub fn read_public(medium: &dyn Medium) -> Result<(PublicHeader, Vec<String>)> {
    let mut survey = Survey::read(medium)?;
    Ok((survey.sound.swap_remove(0).public, survey.notes))
}

/// Writes both copies, each durable before the next begins, in the order that leaves one whole copy at any
/// moment. After an error, open the medium again before anything else is stored on it.
pub fn store(medium: &dyn Medium, header: &HeaderImage) -> Result<()> {
    for copy in [header.first, header.first.other()] {
        medium
            .write_at(copy.offset(), header.bytes())
            .and_then(|()| medium.sync())
            .map_err(|e| e.context(format!("cannot write {copy}")))?;
    }
    Ok(())
}
