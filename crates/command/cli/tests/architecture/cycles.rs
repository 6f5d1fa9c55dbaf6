//! Cycles of files inside a crate.

use crate::graph::cycles;
use crate::sources::Sources;
use crate::workspace::{Crate, root, texts};
use std::collections::{BTreeMap, BTreeSet};

/// The cycles of files of all crates, as `crate: file, file`.
pub(crate) fn file_cycles(crates: &[Crate]) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for one in crates {
        let sources = root().join("crates").join(&one.layer).join(&one.folder).join("src");
        let found = cycles(&Sources::of(&modules(texts(&sources, ".rs"))).graph());
        let shown = |circle: BTreeSet<String>| circle.into_iter().collect::<Vec<_>>().join(", ");
        all.extend(found.into_iter().map(|circle| format!("{}: {}", one.folder, shown(circle))));
    }
    all
}

/// The files of a crate by the names of their modules. The root's name is empty.
fn modules(files: Vec<(String, String)>) -> BTreeMap<String, String> {
    let named = files.into_iter().map(|(path, text)| {
        let name = path.trim_end_matches(".rs").replace('/', "::");
        (name.strip_suffix("::mod").unwrap_or(&name).to_owned(), text)
    });
    // No other file uses items of `main.rs`.
    let named = named.filter(|(name, _)| name != "main");
    named.map(|(name, text)| (if name == "lib" { String::new() } else { name }, text)).collect()
}

/// The cycles of a crate with these files.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let found = cycles(&Sources::of(&modules(files)).graph());
    found.into_iter().map(|circle| circle.into_iter().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn files_that_name_each_other_are_a_cycle() {
    let two = |a, b| cycles_of(&[("lib.rs", "mod a;\nmod b;\n"), ("a.rs", a), ("b.rs", b)]);
    assert_eq!(two("use crate::b::B;\nstruct A;\n", "use super::a::A;\nstruct B;\n"), ["a b"]);
    assert_eq!(two("struct A(crate::b::B);\n", "use crate::{a::{self, A}};\nstruct B;\n"), ["a b"]);
    assert_eq!(two("use crate::b::B;\nstruct A;\n", "struct B;\n"), [""; 0]);
    // Comments and tests do not count.
    assert_eq!(two("use crate::b::B;\nstruct A;\n", "struct B;\n// use crate::a::A;\n"), [""; 0]);
    let with_tests = "struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
    assert_eq!(two("use crate::b::B;\nstruct A;\n", with_tests), [""; 0]);
}

#[test]
fn a_parent_with_code_is_in_a_cycle_with_the_child_that_names_its_items() {
    let parent = "mod b;\npub(crate) struct Page;\nfn f() {\n    b::g();\n}\n";
    let child = "use super::Page;\npub(super) fn g() {}\n";
    assert_eq!(cycles_of(&[("lib.rs", "mod a;\n"), ("a/mod.rs", parent), ("a/b.rs", child)]), ["a a::b"]);
    assert_eq!(cycles_of(&[("lib.rs", "mod a;\n"), ("a.rs", parent), ("a/b.rs", child)]), ["a a::b"]);
}

#[test]
fn a_parent_that_only_reexports_is_in_no_cycle() {
    let face =
        "//! Words.\n\n#[cfg(test)]\nmod b;\nmod c;\n\npub(crate) use b::B;\npub(crate) use c::{C, D};\n";
    let files = |b, c| cycles_of(&[("lib.rs", "mod a;\n"), ("a/mod.rs", face), ("a/b.rs", b), ("a/c.rs", c)]);
    assert_eq!(files("use super::C;\nstruct B;\n", "use crate::a::B;\nstruct C;\n"), ["a::b a::c"]);
    assert_eq!(files("use super::C;\nstruct B;\n", "struct C;\n"), [""; 0]);
}
