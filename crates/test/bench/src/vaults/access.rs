//! The acts on the file of a vault while its schemes are measured, and the contents of the file.

use lacuna_integrity::{Choice, Scheme};
use lacuna_sim::Rng;

/// Bytes of a sequential request.
pub(crate) const LARGE: usize = 1 << 20;
/// Bytes of a random request.
pub(crate) const SMALL: usize = 4096;
/// The schemes, and the automatic choice between them.
pub(crate) const SCHEMES: [Choice; 4] =
    [Choice::Auto, Choice::Fixed(Scheme::Mt), Choice::Fixed(Scheme::Rand), Choice::Fixed(Scheme::Comp)];
/// No integrity: the baseline.
pub(crate) const UNPROTECTED: Choice = Choice::Fixed(Scheme::None);

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileContent {
    Text,
    Random,
}

/// An act on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileAccess {
    Write,
    ReadCold,
    ReadCached,
    RandomWrite,
    RandomRead,
}

/// The contents, with their names.
pub(crate) const CONTENTS: [(FileContent, &str); 2] =
    [(FileContent::Text, "text"), (FileContent::Random, "random")];

impl FileAccess {
    /// The name for display.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FileAccess::Write => "sequential 1 MiB write, fsync at the end",
            FileAccess::ReadCold => "sequential 1 MiB read, cold",
            FileAccess::ReadCached => "sequential 1 MiB read, backing file cached",
            FileAccess::RandomWrite => "random 4 KiB write, fsync at the end",
            FileAccess::RandomRead => "random 4 KiB read, backing file cached",
        }
    }
}

/// A piece of [`LARGE`] bytes.
pub(crate) fn piece(content: FileContent, rng: &mut Rng) -> Vec<u8> {
    match content {
        FileContent::Random => (0..LARGE / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect(),
        FileContent::Text => {
            let mut text = Vec::with_capacity(LARGE + 16);
            while text.len() < LARGE {
                text.extend(format!("{} of {} in lines; ", rng.below(10_000), rng.below(100)).bytes());
            }
            text.truncate(LARGE);
            text
        }
    }
}
