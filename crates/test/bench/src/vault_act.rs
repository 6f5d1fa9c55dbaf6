//! The acts on the file of a vault while its schemes are measured, and the contents of the file.

use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;

/// Bytes of a sequential request.
pub(crate) const LARGE: usize = 1 << 20;
/// Bytes of a random request.
pub(crate) const SMALL: usize = 4096;
/// The schemes, and the automatic choice between them.
pub(crate) const PROTECTED: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];
/// No integrity: the baseline.
pub(crate) const BARE: Choice = Choice::Fixed(Scheme::None);

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Content {
    Text,
    Random,
}

/// An act on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Write,
    ReadCold,
    ReadCached,
    RandomWrite,
    RandomRead,
}

/// The contents, with their names.
pub(crate) const CONTENTS: [(Content, &str); 2] = [(Content::Text, "text"), (Content::Random, "random")];

impl Act {
    /// The name for display.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Act::Write => "sequential 1 MiB write, fsync at the end",
            Act::ReadCold => "sequential 1 MiB read, cold",
            Act::ReadCached => "sequential 1 MiB read, backing file cached",
            Act::RandomWrite => "random 4 KiB write, fsync at the end",
            Act::RandomRead => "random 4 KiB read, backing file cached",
        }
    }
}

/// A piece of [`LARGE`] bytes.
pub(crate) fn piece(content: Content, rng: &mut Rng) -> Vec<u8> {
    match content {
        Content::Random => (0..LARGE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect(),
        Content::Text => {
            let mut text = Vec::with_capacity(LARGE + 16);
            while text.len() < LARGE {
                text.extend(format!("{} of {} in lines; ", rng.below(10_000), rng.below(100)).bytes());
            }
            text.truncate(LARGE);
            text
        }
    }
}
