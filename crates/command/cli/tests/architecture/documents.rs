//! Documents name only existing files of the code, and two pages name the file of a type or a
//! function correctly.

use crate::workspace::{Crate, crates, root, texts};
use std::path::Path;

/// The folders of a crate with files that documents name.
const INSIDE: [&str; 3] = ["src", "tests", "examples"];
/// The document about earlier versions.
const OLD: &str = "CHANGELOG.md";
/// Pages that name files by the ends of their paths, and items in these files.
const PAGES: [&str; 2] = ["docs/architecture.md", "docs/papers.md"];

/// The words of a text that may be paths.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |c: char| c.is_alphanumeric() || "_-./".contains(c);
    text.split(move |c: char| !is_of_path(c)).map(|word| word.trim_end_matches(['.', '/']))
}

/// The paths of files and folders in a text: paths that begin with `crates/`, and paths that begin
/// with the folder of a crate.
fn paths(text: &str, crates: &[Crate]) -> Vec<String> {
    let path = |word: &str| {
        let (first, rest) = word.split_once('/')?;
        if first == "crates" {
            return Some(word.to_owned());
        }
        let one = crates.iter().find(|one| one.folder == first)?;
        let inside = rest.split('/').next()?;
        INSIDE.contains(&inside).then(|| format!("crates/{}/{word}", one.layer))
    };
    words(text).filter_map(path).collect()
}

fn is_of_code(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|ending| ending == "rs")
}

/// The names of code files in a text.
fn files_in(text: &str) -> Vec<&str> {
    words(text).map(|word| word.trim_start_matches("../")).filter(|word| is_of_code(word)).collect()
}

/// The code files that a name may mean: it must be the end of the path, where `src` may be left
/// out.
fn matching_files<'f>(name: &str, files: &'f [(String, String)]) -> Vec<&'f (String, String)> {
    let is_whole = |before: &str| before.is_empty() || before.ends_with('/');
    let is_end = |path: &str| path.strip_suffix(name).is_some_and(is_whole);
    files.iter().filter(|(path, _)| is_end(path) || is_end(&path.replacen("/src/", "/", 1))).collect()
}

/// Whether a word is the name of a type or a function, or both as in `Type::function`.
fn is_item(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "_:".contains(c))
}

/// The items that rows of tables locate in a file, with the name of that file: "`wait` and
/// `Queue::put` in `queue.rs`".
fn items_in_tables(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for cell in text.lines().filter(|line| line.starts_with('|')).flat_map(|row| row.split('|')) {
        let mut parts = cell.split('`');
        let mut items: Vec<&str> = Vec::new();
        while let (Some(before), Some(quoted)) = (parts.next(), parts.next()) {
            if is_of_code(quoted) && [" in ", " of "].contains(&before) {
                found.extend(items.iter().map(|item| (*item, quoted)));
            }
            if !is_item(quoted) || ![", ", " and "].contains(&before) {
                items.clear();
            }
            if is_item(quoted) {
                items.push(quoted);
            }
        }
    }
    found
}

/// The items that lines of a trace locate in a file, with the name of that file: `Queue::put
/// queue.rs in memory`.
fn items_in_traces<'t>(text: &'t str) -> Vec<(&'t str, &'t str)> {
    let step = |line: &'t str| {
        let mut words = line.split_whitespace();
        let (item, file) = (words.next()?, words.next()?);
        (is_item(item) && item.contains("::") && is_of_code(file)).then_some((item, file))
    };
    text.lines().filter_map(step).collect()
}

/// Whether a text contains all names of an item.
fn has(text: &str, item: &str) -> bool {
    let mut names = item.split("::");
    names.all(|name| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name))
}

/// The code files that a name may mean: the files in some folders, or all if there are none.
fn matching_files_in<'f>(
    folders: &[String],
    name: &str,
    files: &'f [(String, String)],
) -> Vec<&'f (String, String)> {
    let all = matching_files(name, files);
    let is_inside = |path: &str| folders.iter().any(|folder| Path::new(path).starts_with(folder));
    let inside: Vec<_> = all.iter().copied().filter(|(path, _)| is_inside(path)).collect();
    if inside.is_empty() { all } else { inside }
}

/// The wrong statements of a page about code files. A table means first the files in the folders of
/// `crates/` that its section names before it.
fn wrong_references(page: &str, files: &[(String, String)]) -> Vec<String> {
    let missing = files_in(page).into_iter().filter(|name| matching_files(name, files).is_empty());
    let mut found: Vec<String> = missing.map(|name| format!("no file {name}")).collect();
    let anywhere: &[String] = &[];
    for section in page.split("\n## ") {
        let above = paths(section.split("\n|").next().unwrap_or(""), &[]);
        let tables = items_in_tables(section).into_iter().map(|(item, name)| (item, name, &above[..]));
        let traces = items_in_traces(section).into_iter().map(|(item, name)| (item, name, anywhere));
        for (item, name, folders) in tables.chain(traces) {
            let looked_at = matching_files_in(folders, name, files);
            if !looked_at.is_empty() && !looked_at.iter().any(|(_, text)| has(text, item)) {
                found.push(format!("no {item} in {name}"));
            }
        }
    }
    found
}

#[test]
fn documents_name_existing_files() {
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
fn pages_name_the_right_file_of_an_item() {
    let root = root();
    let files = texts(&root, ".rs");
    for page in PAGES {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let (names, items) =
            (files_in(&text).len(), items_in_tables(&text).len() + items_in_traces(&text).len());
        assert!(names > 100 && items > 40, "{page}: {names} files, {items} items");
        assert_eq!(wrong_references(&text, &files), [""; 0], "in {page}, and not in the code");
    }
}

#[test]
fn paths_are_found_in_a_text() {
    let vault = Crate { folder: "vault".into(), layer: "formats".into(), ..Crate::default() };
    let text = "See `crates/base/nand`, (vault/src/tree.rs); `vault/tests`. Not tests/a.rs, docs/vault/src, vault/levels.rs or crates/*/tests.\n";
    let expected = ["crates/base/nand", "crates/formats/vault/src/tree.rs", "crates/formats/vault/tests"];
    assert_eq!(paths(text, &[vault]), expected);
}

#[test]
fn a_wrong_reference_is_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("crates/formats/deniable/src/queue.rs", "impl Queue { fn put() {} }"),
        file("crates/parts/levels/src/queue.rs", "fn wait() {}"),
    ];
    let lost = |page: &str| wrong_references(page, &files);
    let there = "`queue.rs`, `levels/queue.rs`, crates/parts/levels/src/queue.rs, `trace_*.rs`.";
    assert_eq!(lost(there), [""; 0]);
    assert_eq!(lost("`vault/queue.rs`, `ueue.rs`"), ["no file vault/queue.rs", "no file ueue.rs"]);
    assert_eq!(lost("| §1 | `wait` in `queue.rs` | `Queue::put` in `queue.rs` |\n"), [""; 0]);
    let row = "| `x`; `put`, `gone` and `Queue::wait` in `levels/queue.rs` |\n";
    let expected = ["put", "gone", "Queue::wait"].map(|item| format!("no {item} in levels/queue.rs"));
    assert_eq!(lost(row), expected);
    // A section applies to the crate that it names.
    let page = "# Page\n\n## A\nIn `crates/formats/deniable`.\n\n| `wait` in `queue.rs` |\n## B\n| `wait` in `queue.rs` |\n";
    assert_eq!(lost(page), ["no wait in queue.rs"]);
    let trace = "  Queue::put   queue.rs   in memory\n  Queue::get   queue.rs\n";
    assert_eq!(lost(trace), ["no Queue::get in queue.rs"]);
}
