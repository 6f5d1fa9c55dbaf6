//! Each crate has one name: that of its folder. The package name adds `lacuna-`, the library name
//! in code `lacuna_`.

use crate::workspace::{Crate, crates};
use std::collections::BTreeSet;

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
