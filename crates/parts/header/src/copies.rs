//! The header copies on the medium: reads them, describes their defects, and writes them in an
//! order that survives a power cut.

use crate::header_image::HeaderImage;
use crate::layout::{self, COPY_A, COPY_B, HEADER_AREA, HEADER_LEN, TAIL_AREA, copy_c};
use crate::public::{HeaderFlaw, PublicHeader, Uuid, unknown_version};
use lacuna_contracts::{Error, Kind, Result};
use lacuna_medium::Medium;
use std::fmt;

/// The words of a note about copy C on a medium that is longer than the disk: the medium has grown
/// since the copy was written, or its end was overwritten.
pub const MISSING_AFTER_GROWTH: &str = "is missing at the end of the medium, which is longer than the disk";
/// The same for the file with the header of a vault, which has no other content.
const MISSING_IN_LONG_FILE: &str = "is missing at the end of the file, which is longer than a header needs";

/// One of the places of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HeaderCopy {
    /// At byte 0.
    A,
    /// At byte 524288.
    B,
    /// At the end of the medium.
    C,
}

impl HeaderCopy {
    /// All copies, in the order of a rewrite if all are sound and equal.
    pub(crate) const ALL: [HeaderCopy; 3] = [HeaderCopy::A, HeaderCopy::B, HeaderCopy::C];

    /// Where the copy starts on a medium of `len` bytes. None if the medium has no such place.
    pub(crate) fn offset(self, len: u64) -> Option<u64> {
        match self {
            HeaderCopy::A => Some(COPY_A),
            HeaderCopy::B => Some(COPY_B),
            HeaderCopy::C => copy_c(len),
        }
    }

    fn letter(self) -> char {
        match self {
            HeaderCopy::A => 'A',
            HeaderCopy::B => 'B',
            HeaderCopy::C => 'C',
        }
    }
}

impl fmt::Display for HeaderCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "header copy {}", self.letter())
    }
}

/// A copy with the right magic, version, digest and structure. Its MAC is not verified yet.
pub(crate) struct SoundCopy {
    pub(crate) copy: HeaderCopy,
    pub(crate) bytes: Box<[u8; HEADER_LEN]>,
    pub(crate) public: PublicHeader,
}

/// The content of a place without a sound copy.
pub(crate) enum CopyDefect {
    Missing,
    Version(u32),
    Damaged(&'static str),
    Unreadable(Error),
}

/// All copies as found: the sound ones, best first, and the unsound ones.
pub(crate) struct CopySurvey {
    /// Length of the medium.
    pub(crate) len: u64,
    pub(crate) sound: Vec<SoundCopy>,
    pub(crate) unsound: Vec<(HeaderCopy, CopyDefect)>,
}

/// The defects of the copies, and the order of a rewrite that mends them.
pub(crate) struct SurveyFindings {
    /// In words, for the user.
    pub(crate) notes: Vec<String>,
    /// The order of the copies in a rewrite: unusable ones first.
    pub(crate) order: Vec<HeaderCopy>,
}

impl CopySurvey {
    /// Reads all copies. Fails if none is sound.
    pub(crate) fn read(medium: &dyn Medium) -> Result<CopySurvey> {
        let len = medium.len();
        Self::read_with(len, &|offset, buf| medium.read_at(offset, buf))
    }

    /// [`CopySurvey::read`] of a medium of `len` bytes through `read`.
    pub(crate) fn read_with(len: u64, read: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> Result<CopySurvey> {
        Self::read_all(len, read).require_sound()
    }

    /// This survey. Fails if no copy is sound.
    pub(crate) fn require_sound(mut self) -> Result<CopySurvey> {
        match self.sound.first() {
            Some(_) => Ok(self),
            None => Err(no_sound_copy(&mut self.unsound)),
        }
    }

    /// [`CopySurvey::read_with`], without an error if no copy is sound.
    pub(crate) fn read_all(len: u64, read: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> CopySurvey {
        let mut survey = CopySurvey { len, sound: Vec::new(), unsound: Vec::new() };
        for copy in HeaderCopy::ALL {
            match read_copy(len, read, copy) {
                Ok(sound) => survey.sound.push(sound),
                Err(unsound) => survey.unsound.push((copy, unsound)),
            }
        }
        survey.drop_foreign_copy(len);
        // The sort is stable: copies with the same generation stay in the order A, B, C.
        survey.sound.sort_by_key(|sound| std::cmp::Reverse(sound.public.generation));
        survey
    }

    /// Drops a copy C that belongs to no disk or to another disk. A medium that held another or a
    /// longer disk before may end in its copy C, whole and with a higher generation.
    fn drop_foreign_copy(&mut self, len: u64) {
        let own = self.sound.iter().filter(|sound| sound.copy != HeaderCopy::C);
        let own: Vec<Uuid> = own.map(|sound| sound.public.uuid).collect();
        let place = copy_c(len).unwrap_or(0);
        let foreign = |last: &SoundCopy| {
            last.copy == HeaderCopy::C
                && (place < last.public.end || own.iter().any(|uuid| *uuid != last.public.uuid))
        };
        if let Some(at) = self.sound.iter().position(foreign) {
            self.sound.remove(at);
            self.unsound.push((HeaderCopy::C, CopyDefect::Missing));
        }
    }

    /// The notes about the other copies, and the order of a rewrite, if the header is taken from
    /// `used`. `altered` lists sound copies that did not open.
    pub(crate) fn findings(&self, used: &SoundCopy, altered: &[HeaderCopy]) -> SurveyFindings {
        let note = |copy: HeaderCopy, unsound: &CopyDefect| match (copy, unsound) {
            (HeaderCopy::C, CopyDefect::Missing) => missing_last(self.len, &used.public).to_owned(),
            _ => unsound.note(),
        };
        let mut bad: Vec<(HeaderCopy, String)> =
            self.unsound.iter().map(|(copy, unsound)| (*copy, note(*copy, unsound))).collect();
        for other in &self.sound {
            let what = if altered.contains(&other.copy) {
                "was altered"
            } else if other.public.generation < used.public.generation {
                "is older"
            } else if other.bytes != used.bytes {
                "differs though it has the same generation"
            } else {
                continue;
            };
            bad.push((other.copy, what.to_owned()));
        }
        bad.sort_by_key(|(copy, _)| *copy);
        let rest = HeaderCopy::ALL.iter().filter(|copy| bad.iter().all(|(bad, _)| bad != *copy));
        let order = bad.iter().map(|(copy, _)| copy).chain(rest).copied().collect();
        let notes = bad.iter().map(|(copy, what)| {
            let used = used.copy.letter();
            format!("{copy} {what}; copy {used} was used")
        });
        SurveyFindings { notes: notes.collect(), order }
    }
}

fn read_copy(
    len: u64,
    read: &dyn Fn(u64, &mut [u8]) -> Result<()>,
    copy: HeaderCopy,
) -> std::result::Result<SoundCopy, CopyDefect> {
    let mut bytes = Box::new([0u8; HEADER_LEN]);
    let at = copy.offset(len).ok_or(CopyDefect::Missing)?;
    // A medium may end inside the copy. The remaining bytes still tell whether it was a lacuna
    // header.
    let left = len.saturating_sub(at).min(HEADER_LEN as u64) as usize;
    if left == 0 {
        return Err(CopyDefect::Missing);
    }
    read(at, &mut bytes[..left]).map_err(CopyDefect::Unreadable)?;
    match PublicHeader::parse_copy(&bytes[..left]) {
        Ok(public) => Ok(SoundCopy { copy, bytes, public }),
        Err(HeaderFlaw::NoMagic) => Err(CopyDefect::Missing),
        Err(HeaderFlaw::Version(version)) => Err(CopyDefect::Version(version)),
        Err(HeaderFlaw::Damaged(found)) => Err(CopyDefect::Damaged(found)),
    }
}

/// The most informative error if no copy is sound.
fn no_sound_copy(found: &mut Vec<(HeaderCopy, CopyDefect)>) -> Error {
    if let Some(at) = found.iter().position(|(_, unsound)| matches!(unsound, CopyDefect::Unreadable(_)))
        && let (_, CopyDefect::Unreadable(error)) = found.swap_remove(at)
    {
        return error.context("cannot read the header");
    }
    if found.iter().all(|(_, unsound)| matches!(unsound, CopyDefect::Missing)) {
        return Error::new(Kind::NotFound, "not a lacuna disk")
            .found(format!("no lacuna header at byte 0, at byte {COPY_B} or at the end"))
            .expected("a medium on which a disk was created")
            .hint("if it was one, restore its header from a backup");
    }
    let newer = found.iter().find_map(|(_, unsound)| match unsound {
        CopyDefect::Version(version) => Some(*version),
        _ => None,
    });
    match newer {
        Some(version) if found.iter().all(|(_, u)| !matches!(u, CopyDefect::Damaged(_))) => {
            unknown_version(version)
        }
        _ => {
            let words = found
                .iter()
                .map(|(copy, unsound)| format!("copy {}: {}", copy.letter(), unsound.description()));
            Error::new(Kind::Corrupt, "cannot read the header: no copy is whole")
                .found(words.collect::<Vec<_>>().join("; "))
                .expected("at least one whole copy")
                .hint("restore it from a backup of the header")
        }
    }
}

impl CopyDefect {
    fn description(&self) -> &str {
        match self {
            CopyDefect::Damaged(found) => found,
            _ => "no header",
        }
    }

    fn note(&self) -> String {
        match self {
            CopyDefect::Missing => "is missing".to_owned(),
            CopyDefect::Version(version) => format!("has the unknown version {version}"),
            CopyDefect::Damaged(_) => "is damaged".to_owned(),
            CopyDefect::Unreadable(error) => format!("cannot be read ({})", error.summary()),
        }
    }
}

/// The note about a missing copy C on a medium of `len` bytes, if another copy has these public
/// fields.
fn missing_last(len: u64, public: &PublicHeader) -> &'static str {
    // The end is not authenticated yet.
    match copy_c(len).and_then(|place| place.checked_sub(public.end.max(HEADER_AREA))) {
        None => "is missing at the end of the medium, which was cut short",
        Some(0..TAIL_AREA) => "is missing at the end of the medium",
        Some(_) if public.format.is_vault() => MISSING_IN_LONG_FILE,
        Some(_) => MISSING_AFTER_GROWTH,
    }
}

/// Reads the public fields of a disk, with notes about its copies. For display only: nothing is
/// authenticated before a passphrase has opened the header.
pub fn read_public(medium: &dyn Medium) -> Result<(PublicHeader, Vec<String>)> {
    CopySurvey::read(medium).map(public_part)
}

fn public_part(mut survey: CopySurvey) -> (PublicHeader, Vec<String>) {
    let notes = survey.findings(&survey.sound[0], &[]).notes;
    (survey.sound.swap_remove(0).public, notes)
}

/// Writes all copies, each durable before the next begins, in the order that leaves one whole copy
/// at any moment. After an error, open the medium again before anything else is stored on it.
pub fn store(medium: &dyn Medium, header: &HeaderImage) -> Result<()> {
    store_bytes(medium, header.bytes(), header.public().end, &header.order)
}

/// Writes the bytes of a header to these copies. `end` is where the format's data ends.
pub(crate) fn store_bytes(
    medium: &dyn Medium,
    bytes: &[u8; HEADER_LEN],
    end: u64,
    order: &[HeaderCopy],
) -> Result<()> {
    for copy in order {
        let place = copy.offset(medium.len());
        // On a medium that was cut short the place of copy C may lie inside the format's data.
        let Some(at) = place.filter(|at| *copy != HeaderCopy::C || *at >= end) else { continue };
        medium
            .write_at(at, bytes)
            .and_then(|()| medium.sync())
            .map_err(|e| e.context(format!("cannot write {copy}")))?;
    }
    Ok(())
}

/// The error for a medium without room for the copies.
pub(crate) fn too_short(len: u64, end: u64) -> Error {
    Error::new(Kind::Usage, "cannot write the header to this medium").found(format!("{len} bytes")).expected(
        format!("at least {} bytes: the data and the copies of its header", layout::medium_len(end)),
    )
}
