//! The state of each copy of a header, as far as it can be told without a passphrase. Nothing in it
//! is authenticated.

use crate::copies::{CopyDefect, CopySurvey, HeaderCopy};
use crate::public::PublicHeader;
use lacuna_contracts::Result;

/// The state of the place of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The newest header, whole.
    Whole,
    /// A whole header that is older than the newest.
    Older,
    /// A whole header with the newest generation that differs from the first such copy.
    Differs,
    /// No header.
    Missing,
    /// A damaged header, and the kind of damage.
    Damaged(&'static str),
    /// The header of a version that this build does not know.
    UnknownVersion(u32),
    /// The place cannot be read, and why.
    Unreadable(String),
}

/// One copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// The copy.
    pub copy: HeaderCopy,
    /// Where it starts on the medium, in bytes; none if the medium has no such place.
    pub offset: Option<u64>,
    /// The state of its place.
    pub state: CopyState,
    /// The generation, if the copy is whole.
    pub generation: Option<u64>,
}

/// The state of all places of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// All three, in the order of their letters.
    pub copies: Vec<CopyReport>,
    /// The public fields of the newest whole copy.
    pub header: Option<PublicHeader>,
}

impl Diagnosis {
    /// Examines a medium of `len` bytes. `read` fills a buffer, starting at an offset.
    pub fn of(len: u64, read: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> Diagnosis {
        Diagnosis::of_survey(&CopySurvey::read_all(len, read))
    }

    pub(crate) fn of_survey(survey: &CopySurvey) -> Diagnosis {
        let newest = survey.sound.first();
        let report = |copy: &HeaderCopy| {
            let sound = survey.sound.iter().find(|sound| sound.copy == *copy);
            let state = match (sound, newest) {
                (Some(sound), Some(newest)) if sound.public.generation < newest.public.generation => {
                    CopyState::Older
                }
                (Some(sound), Some(newest)) if sound.bytes != newest.bytes => CopyState::Differs,
                (Some(_), _) => CopyState::Whole,
                (None, _) => survey
                    .unsound
                    .iter()
                    .find(|(unsound, _)| unsound == copy)
                    .map_or(CopyState::Missing, |(_, unsound)| CopyState::of(unsound)),
            };
            let generation = sound.map(|sound| sound.public.generation);
            CopyReport { copy: *copy, offset: copy.offset(survey.len), state, generation }
        };
        let copies = HeaderCopy::ALL.iter().map(report).collect();
        Diagnosis { copies, header: newest.map(|newest| newest.public.clone()) }
    }

    /// Whether only the last copy exists, and the place of an earlier one holds something else: the
    /// header may be that of a partition at the end of this medium, or the rest of a disk that was
    /// overwritten.
    pub fn has_only_last_copy(&self) -> bool {
        let earlier = || self.copies.iter().filter(|copy| copy.copy != HeaderCopy::C);
        self.has_header()
            && earlier().all(|copy| matches!(copy.state, CopyState::Missing | CopyState::Unreadable(_)))
            && earlier().any(|copy| copy.state == CopyState::Missing)
    }

    /// The noun for the owner of the header, for messages; that of a disk if no copy is whole.
    pub fn noun(&self) -> &'static str {
        self.header.as_ref().map_or("disk", |header| header.format.noun())
    }

    /// Whether anything at these places is, or was, a header.
    pub fn has_header(&self) -> bool {
        self.copies.iter().any(|copy| !matches!(copy.state, CopyState::Missing | CopyState::Unreadable(_)))
    }
}

impl CopyState {
    fn of(unsound: &CopyDefect) -> CopyState {
        match unsound {
            CopyDefect::Missing => CopyState::Missing,
            CopyDefect::Version(version) => CopyState::UnknownVersion(*version),
            CopyDefect::Damaged(how) => CopyState::Damaged(how),
            CopyDefect::Unreadable(error) => CopyState::Unreadable(error.summary()),
        }
    }
}
