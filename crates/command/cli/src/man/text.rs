//! The prose of manual pages beyond the options. The texts are in `crates/command/cli/man`: one
//! file for each page, with sections of blocks that blank lines separate. A block is a paragraph,
//! or an entry of a list in the form of Markdown's definition lists: a term, and on the next line
//! its description after a colon. `[name]` stands for the entry of the section `name` in
//! `shared.md`.

use clap_mangen::roff::{Roff, bold, roman};

/// An entry of a list: the term and its description.
pub(crate) type ManEntry = (&'static str, String);

/// Texts, each with the name of its file.
macro_rules! texts {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../man/", $name, ".md")))),+]
    };
}

const TEXTS: &[(&str, &str)] = texts![
    "environment",
    "exit-status",
    "lacuna",
    "lacuna-bench",
    "lacuna-check",
    "lacuna-close",
    "lacuna-completions",
    "lacuna-create",
    "lacuna-delete",
    "lacuna-doctor",
    "lacuna-erase",
    "lacuna-header-backup",
    "lacuna-header-check",
    "lacuna-header-repair",
    "lacuna-header-restore",
    "lacuna-info",
    "lacuna-key-add",
    "lacuna-key-change",
    "lacuna-key-refresh",
    "lacuna-key-remove",
    "lacuna-list",
    "lacuna-man",
    "lacuna-open",
    "lacuna-purge",
    "lacuna-rescue",
    "lacuna-resize",
    "lacuna-serve",
    "lacuna-snapshot-create",
    "lacuna-snapshot-list",
    "lacuna-snapshot-remove",
    "lacuna-snapshot-rollback",
    "lacuna-status",
    "lacuna-vault-accept",
    "lacuna-vault-check",
    "lacuna-vault-init",
    "lacuna-vault-rescue",
    "lacuna-vault-stat",
    "mount.lacuna",
    "shared",
];

/// The entries of a section of a text; none if the text or the section does not exist.
pub(crate) fn entries(text: &str, section: &str) -> Vec<ManEntry> {
    blocks(text, section).into_iter().map(entry).collect()
}

/// The paragraphs of a section of a text.
pub(crate) fn paragraphs(text: &str, section: &str) -> Vec<String> {
    blocks(text, section).into_iter().map(unwrapped).collect()
}

/// The entry of `shared.md` with this name.
pub(crate) fn shared(name: &str) -> ManEntry {
    let entry = entries("shared", name).pop();
    entry.unwrap_or_else(|| panic!("crates/command/cli/man/shared.md has no entry {name}"))
}

/// Writes a section with a list, unless the list is empty.
pub(crate) fn write_list(page: &mut Roff, title: &str, entries: Vec<ManEntry>) {
    if !entries.is_empty() {
        page.control("SH", [title]);
    }
    for (term, words) in entries {
        page.control("TP", []);
        page.text([bold(term)]);
        page.text([roman(words)]);
    }
}

fn blocks(text: &str, section: &str) -> Vec<&'static str> {
    let found = TEXTS.iter().find(|(name, _)| *name == text).and_then(|(_, text)| body(text, section));
    found.map_or_else(Vec::new, |body| body.split("\n\n").map(str::trim).filter(|b| !b.is_empty()).collect())
}

/// The text below the heading of a section.
fn body(text: &'static str, section: &str) -> Option<&'static str> {
    let parts = text.strip_prefix("# ")?.split("\n# ");
    let mut sections = parts.filter_map(|part| part.split_once('\n'));
    sections.find(|(heading, _)| *heading == section).map(|(_, body)| body)
}

fn entry(block: &'static str) -> ManEntry {
    if let Some(name) = block.strip_prefix('[').and_then(|block| block.strip_suffix(']')) {
        return shared(name);
    }
    let (term, words) =
        block.split_once("\n:").unwrap_or_else(|| panic!("no words on {block} in crates/command/cli/man"));
    (term, unwrapped(words))
}

/// The text on one line.
fn unwrapped(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The names of all texts.
#[cfg(test)]
pub(crate) fn names() -> std::collections::BTreeSet<&'static str> {
    TEXTS.iter().map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_folder_is_read() {
        let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/man")).unwrap();
        let files: Vec<String> = folder.map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
        let files: BTreeSet<&str> = files.iter().map(|file| file.strip_suffix(".md").unwrap()).collect();
        assert_eq!(files, names());
    }

    #[test]
    fn a_section_has_the_blocks_below_its_heading() {
        assert_eq!(
            entries("lacuna", "EXAMPLES").last().unwrap(),
            &("lacuna close /mnt", "Unmount it, and wait until everything is on the medium.".to_owned())
        );
        assert_eq!(entries("lacuna-serve", "SIGNALS"), [shared("ends"), shared("kill")]);
        assert!(entries("lacuna", "SIGNALS").is_empty() && entries("no page", "EXAMPLES").is_empty());
        assert_eq!(paragraphs("mount.lacuna", "DESCRIPTION").len(), 3);
        assert!(paragraphs("mount.lacuna", "DESCRIPTION").iter().all(|text| !text.contains('\n')));
    }
}
