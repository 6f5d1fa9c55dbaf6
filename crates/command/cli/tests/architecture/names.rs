//! Names. Each crate has one name: that of its folder. The package name adds `lacuna-`, the library
//! name in code `lacuna_`. Few names of types are defined more than twice.

use crate::workspace::{Crate, crates, root, texts};
use std::collections::{BTreeMap, BTreeSet};

/// The most names that more than two files give to a type. The number only falls: if there are
/// fewer, it is lowered.
const SHARED_NAMES: usize = 14;

/// The name of the type that a line defines, if it defines one. An indented `type` is an associated
/// type, whose name belongs to its trait.
fn defined_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => code,
    };
    let (keyword, rest) = code.split_once(' ')?;
    let is_associated = keyword == "type" && line.starts_with(' ');
    let is_type = ["struct", "enum", "trait", "type"].contains(&keyword) && !is_associated;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or("");
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// The names that more than two of these files give to a type, with the number of files.
fn shared_names(files: &[(String, String)]) -> Vec<(String, usize)> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in files {
        for name in text.lines().filter_map(defined_type) {
            found.entry(name).or_default().insert(path);
        }
    }
    let shared = found.into_iter().filter(|(_, files)| files.len() > 2);
    shared.map(|(name, files)| (name.to_owned(), files.len())).collect()
}

#[test]
fn few_names_of_types_are_shared() {
    let shared = shared_names(&texts(&root().join("crates"), ".rs"));
    assert_eq!(shared.len(), SHARED_NAMES, "{shared:?}");
}

#[test]
fn names_of_types_are_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("a.rs", "pub(crate) struct Page(u8);\n    type Err = Page;\nfn page() {}\n"),
        file("b.rs", "    enum Page<'a> {\n    type Err = u8;\n// struct Head\n"),
        file("c.rs", "pub trait Page: Sized {\n    type Err;\nstruct Head;\nstruct Head;\n"),
    ];
    assert_eq!(shared_names(&files), [("Page".to_owned(), 3)]);
    assert_eq!(shared_names(&files[..2]), []);
}

/// The violations of the naming rule by these crates.
fn findings(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for Crate { folder, layer, package, library, .. } in crates {
        if *package != format!("lacuna-{folder}") {
            found.push(format!("{layer}/{folder} is the package {package}"));
        }
        if let Some(library) = library.as_ref().filter(|library| **library != package.replace('-', "_")) {
            found.push(format!("the package {package} is called {library} in code"));
        }
        if !seen.insert(folder) {
            found.push(format!("{folder} is the folder of two crates"));
        }
    }
    found
}

#[test]
fn each_crate_has_one_name() {
    assert_eq!(findings(&crates()), [""; 0]);
}

#[test]
fn a_second_name_is_found() {
    let one = |folder: &str, package: &str, library: Option<&str>| Crate {
        folder: folder.into(),
        layer: "base".into(),
        package: package.into(),
        library: library.map(str::to_owned),
        ..Crate::default()
    };
    let right = [
        one("cli", "lacuna-cli", None),
        one("sealed-objects", "lacuna-sealed-objects", Some("lacuna_sealed_objects")),
    ];
    assert_eq!(findings(&right), [""; 0]);
    assert_eq!(
        findings(&[one("core", "lacuna-contracts", None)]),
        ["base/core is the package lacuna-contracts"]
    );
    let in_code = one("contracts", "lacuna-contracts", Some("lacuna_core"));
    assert_eq!(findings(&[in_code]), ["the package lacuna-contracts is called lacuna_core in code"]);
    let twice = one("nand", "lacuna-nand", None);
    assert_eq!(findings(&[twice.clone(), twice]), ["nand is the folder of two crates"]);
}
