//! Content of another program: its name, and what to tell a user who takes its medium for a disk.

use lacuna_contracts::{Error, Hint, Kind, Setting};
use std::fmt;

/// Content of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its name with the article, as in "an ext4 file system".
    pub(super) words: &'static str,
    /// A part of it that may hold a disk, as in "the partition".
    part: Option<&'static str>,
}

impl Foreign {
    pub(super) const fn new(words: &'static str) -> Foreign {
        Foreign { words, part: None }
    }

    pub(super) const fn around(words: &'static str, part: &'static str) -> Foreign {
        Foreign { words, part: Some(part) }
    }

    /// The advice to a user that takes its medium for a disk.
    pub fn advice(&self) -> Hint {
        match self.part {
            Some(part) => Hint::from(format!("check the path, or name {part}")),
            None => Hint::from("check the path"),
        }
    }

    /// The error for writing to a disk with this content in the place of the first copy of its
    /// header. `last_alone`: only the last copy exists.
    pub(crate) fn refusal(&self, last_alone: bool) -> Error {
        let place = "in the place of the first copy of its header";
        let refused = Error::new(Kind::Usage, "cannot write to this disk");
        match self.part.filter(|_| last_alone) {
            Some(part) => refused
                .found(format!("{self} {place}, and the last copy alone"))
                .expected(format!("a disk, and not a medium with a disk in {part} at its end"))
                .hint(format!(
                    "name {part}; to have the disk back, take a backup of its header and restore that"
                )),
            None => refused
                .found(format!("{self} {place}"))
                .expected("a disk that no other program has written to")
                .hint(
                    Hint::from("to read the disk, give ")
                        .setting(Setting("read_only"))
                        .text("; to have it back, take a backup of its header and restore that"),
                ),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_to_be_named_only_where_the_last_copy_is_alone() {
        let table = Foreign::around("a partition table", "the partition");
        assert!(table.refusal(true).to_string().contains("; name the partition; "));
        for refused in [table.refusal(false), Foreign::new("an xfs file system").refusal(true)] {
            assert!(refused.to_string().contains("`read_only`"), "{refused}");
            assert_eq!(refused.kind(), Kind::Usage);
        }
    }
}
