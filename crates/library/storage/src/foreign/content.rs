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
    /// Its place on the medium of a disk.
    place: CoveredCopies,
}

/// The copies of a header that content of another program covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CoveredCopies {
    First,
    /// The first, the second or both.
    FirstTwo,
    Last,
}

impl Foreign {
    pub(super) const fn new(words: &'static str) -> Foreign {
        Foreign { words, part: None, place: CoveredCopies::First }
    }

    pub(super) const fn around(words: &'static str, part: &'static str) -> Foreign {
        Foreign { words, part: Some(part), place: CoveredCopies::First }
    }

    /// The same content over the last copy of a header.
    pub(super) const fn over_last_copy(self) -> Foreign {
        Foreign { place: CoveredCopies::Last, ..self }
    }

    /// The same content over one or both of the first two copies of a header.
    pub(super) const fn over_first_copies(self) -> Foreign {
        Foreign { place: CoveredCopies::FirstTwo, ..self }
    }

    /// Its place on the medium of a disk, as in "in the place of the first copy of the header".
    pub(crate) fn place(&self) -> &'static str {
        match self.place {
            CoveredCopies::First => "in the place of the first copy of the header",
            CoveredCopies::FirstTwo => "where the first two copies of the header belong",
            CoveredCopies::Last => "at the end, where the last copy of the header belongs",
        }
    }

    /// The advice to a user that takes its medium for a disk.
    pub fn advice(&self) -> Hint {
        match self.part {
            Some(part) => Hint::from(format!("check the path, or name {part}")),
            None => Hint::from("check the path"),
        }
    }

    /// The error for writing to a disk or vault, by `noun`, with this content over a copy of its
    /// header. `last_alone`: only the last copy exists.
    pub(crate) fn refusal(&self, noun: &str, last_alone: bool) -> Error {
        let refused = Error::new(Kind::Usage, format!("cannot write to this {noun}"));
        if let Some(part) = self.part.filter(|_| last_alone) {
            let advice = Hint::from(format!("name {part}; to have the {noun} back, "));
            return refused
                .found(self.beside_last_copy())
                .expected(format!("a {noun}, and not a medium with a {noun} in {part} at its end"))
                .hint(then_restore(advice, last_alone));
        }
        let advice = Hint::from(format!("{}to read the {noun}, give ", self.name_part(last_alone)))
            .setting(Setting("read_only"))
            .text("; to have it back, ");
        refused
            .found(format!("{self} {}", self.place()))
            .expected(format!("a {noun} that no other program has written to"))
            .hint(then_restore(advice, last_alone))
    }

    /// The advice about a damaged copy of a header with this content over a copy, where
    /// [`refusal`](Self::refusal) is the answer to a repair. It follows the words about the damage.
    pub(crate) fn way_back(&self, noun: &str, last_alone: bool) -> Hint {
        let part = self.name_part(last_alone);
        let lies = format!("{self} lies {}: {part}to have the {noun} back, ", self.place());
        then_restore(Hint::from(lies), last_alone)
    }

    /// The first words of an advice: the part to name, where the medium may be the wrong one.
    fn name_part(&self, last_alone: bool) -> String {
        let part = self.part.filter(|_| last_alone || self.place == CoveredCopies::Last);
        part.map_or_else(String::new, |part| format!("name {part}; "))
    }

    /// The error for restoring a header over this content. `last_alone` as for
    /// [`refusal`](Self::refusal); otherwise there is no header at all.
    pub(crate) fn refusal_to_restore(&self, what: &str, last_alone: bool) -> Error {
        let found = if last_alone { self.beside_last_copy() } else { self.to_string() };
        let named = self.part.filter(|_| last_alone).unwrap_or("the right place");
        let advice = Hint::from(format!("name {named}, or give "))
            .setting(Setting("replace"))
            .text(" to overwrite it");
        Error::new(Kind::Usage, what)
            .found(found)
            .expected("a place without content of other programs")
            .hint(advice)
    }

    fn beside_last_copy(&self) -> String {
        format!("{self} {}, and the last copy alone", self.place())
    }
}

/// The advice, continued with the way back to a disk. `last_alone` as for [`Foreign::refusal`].
fn then_restore(advice: Hint, last_alone: bool) -> Hint {
    let advice = advice.text("take a backup of its header and restore ");
    if last_alone { advice.text("it with ").setting(Setting("replace")) } else { advice.text("that") }
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
        assert!(table.refusal("disk", true).to_string().contains("; name the partition; "));
        for refused in
            [table.refusal("disk", false), Foreign::new("an xfs file system").refusal("disk", true)]
        {
            assert!(refused.to_string().contains("`read_only`"), "{refused}");
            assert_eq!(refused.kind(), Kind::Usage);
        }
    }

    #[test]
    fn the_way_back_names_the_setting_that_it_needs() {
        for foreign in [Foreign::around("a partition table", "the partition"), Foreign::new("a swap area")] {
            assert!(foreign.refusal("disk", true).to_string().ends_with("restore it with `replace`"));
            assert!(foreign.refusal("disk", false).to_string().ends_with("restore that"));
            assert!(foreign.refusal_to_restore("x", true).to_string().contains("`replace`"));
            // A note about the damage gives the same advice.
            assert!(foreign.way_back("vault", true).to_string().ends_with("restore it with `replace`"));
            assert!(foreign.way_back("vault", false).to_string().ends_with("restore that"));
        }
        let member = Foreign::around("a member of an MD array", "the array").over_last_copy();
        let member = member.refusal("disk", false);
        assert!(member.to_string().contains("at the end, where the last copy"), "{member}");
        assert!(member.to_string().contains("; name the array; to read the disk"), "{member}");
        let vault = Foreign::new("a swap area").refusal("vault", false).to_string();
        assert!(vault.contains("a vault that no other program") && !vault.contains("disk"), "{vault}");
    }
}
