//! Documents name files of the code that are there.

use crate::workspace::{Crate, crates, root, texts};

/// The folders of a crate whose files documents name.
const INSIDE: [&str; 3] = ["src", "tests", "examples"];
/// What tells of earlier times.
const OLD: &str = "CHANGELOG.md";

/// The paths of files and folders in a text: those that begin with `crates/`, and those that begin with the folder of a crate.
fn paths(text: &str, crates: &[Crate]) -> Vec<String> {
    let is_of_path = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    let words = text.split(|c: char| !is_of_path(c)).map(|word| word.trim_end_matches(['.', '/']));
    let path = |word: &str| {
        let (first, rest) = word.split_once('/')?;
        if first == "crates" {
            return Some(word.to_owned());
        }
        let one = crates.iter().find(|one| one.folder == first)?;
        let inside = rest.split('/').next()?;
        INSIDE.contains(&inside).then(|| format!("crates/{}/{word}", one.layer))
    };
    words.filter_map(path).collect()
}

#[test]
fn documents_name_files_that_are_there() {
    let (root, crates) = (root(), crates());
    let documents = texts(&root, ".md");
    assert!(documents.len() > 30, "{} documents", documents.len());
    let mut found = Vec::new();
    for (document, text) in documents.iter().filter(|(document, _)| document != OLD) {
        let lost = paths(text, &crates).into_iter().filter(|path| !root.join(path).exists());
        found.extend(lost.map(|path| format!("{document}: {path}")));
    }
    assert_eq!(found, [""; 0], "in documents, and not in the tree");
}

#[test]
fn paths_are_found_in_a_text() {
    let vault = Crate { folder: "vault".into(), layer: "formats".into(), ..Crate::default() };
    let text = "See `crates/base/nand`, (vault/src/tree.rs); `vault/tests`. Not tests/a.rs, docs/vault/src, vault/levels.rs or crates/*/tests.\n";
    let expected = ["crates/base/nand", "crates/formats/vault/src/tree.rs", "crates/formats/vault/tests"];
    assert_eq!(paths(text, &[vault]), expected);
}
