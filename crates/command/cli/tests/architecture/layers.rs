//! The folders of `crates/` are layers: an arrow goes down their list or stays in its row.

use crate::workspace::{Crate, crates};

/// The layers from the top down.
pub(crate) const LAYERS: [&str; 7] = ["command", "front", "host", "library", "formats", "parts", "base"];
/// The folder of simulated media, games and measurements. It may use every layer; in the layers,
/// only tests may use it.
pub(crate) const TEST: &str = "test";
/// Layers that front ends do not know: they serve a `Disk` only.
const BEHIND_DISK: [&str; 3] = ["library", "formats", "parts"];
/// The exception: the front end that also serves vaults, and the crate of vaults.
const SERVES_VAULTS: (&str, &str) = ("fuse", "vault");

/// The reason why one crate may not use another, if there is one.
fn forbids(from: &Crate, to: &Crate, in_tests: bool) -> Option<&'static str> {
    let row = |one: &Crate| LAYERS.iter().position(|layer| *layer == one.layer);
    if from.layer == TEST {
        return None;
    }
    if to.layer == TEST {
        return (!in_tests).then_some("tests alone use crates of test/");
    }
    let (Some(here), Some(there)) = (row(from), row(to)) else {
        return Some("one of them is in no layer");
    };
    if there < here {
        return Some("the arrow goes up");
    }
    if from.layer == "formats" && to.layer == "formats" {
        return Some("no format knows another");
    }
    let is_vault = (from.folder.as_str(), to.folder.as_str()) == SERVES_VAULTS;
    let knows_more = from.layer == "front" && BEHIND_DISK.contains(&to.layer.as_str()) && !is_vault;
    (knows_more && !in_tests).then_some("a front end knows `Disk` alone, and that of vaults the vault")
}

/// The violations of the layers by these crates.
fn findings(crates: &[Crate]) -> Vec<String> {
    let mut found = Vec::new();
    for one in crates {
        if one.layer != TEST && !LAYERS.contains(&one.layer.as_str()) {
            found.push(format!("{} is in {}, which is no layer", one.folder, one.layer));
        }
        let uses = one.uses.iter().map(|to| (to, false));
        for (to, in_tests) in uses.chain(one.tests_use.iter().map(|to| (to, true))) {
            let other = crates.iter().find(|other| other.folder == *to);
            let why = other.map_or(Some("it is no crate of the workspace"), |to| forbids(one, to, in_tests));
            found.extend(why.map(|why| format!("{} uses {to}: {why}", one.folder)));
        }
    }
    found
}

#[test]
fn all_arrows_point_down() {
    assert_eq!(findings(&crates()), [""; 0]);
}

#[test]
fn an_arrow_that_the_layers_forbid_is_found() {
    let one = |path: &str, uses: &str, tests_use: &str| {
        let (layer, folder) = path.split_once('/').unwrap();
        let set = |names: &str| names.split_whitespace().map(str::to_owned).collect();
        let (layer, folder) = (layer.to_owned(), folder.to_owned());
        Crate { folder, layer, uses: set(uses), tests_use: set(tests_use), ..Crate::default() }
    };
    let below = || {
        let formats = [one("formats/flash", "", ""), one("formats/vault", "", "")];
        let base = [one("base/medium", "", ""), one("test/sim", "medium flash", "")];
        formats.into_iter().chain(base)
    };
    let with = |more: Crate| findings(&below().chain([more]).collect::<Vec<_>>());
    for right in [
        one("formats/sealed", "medium", "sim"),
        one("base/rados", "medium", "sim"),
        one("front/fuse", "vault medium", "flash"),
        one("library/storage", "flash vault medium", ""),
        one("test/games", "sim vault", "flash"),
    ] {
        assert_eq!(with(right), [""; 0]);
    }
    for (wrong, why) in [
        (one("base/rados", "flash", ""), "rados uses flash: the arrow goes up"),
        (one("base/rados", "", "flash"), "rados uses flash: the arrow goes up"),
        (one("formats/sealed", "flash", ""), "sealed uses flash: no format knows another"),
        (one("formats/sealed", "", "flash"), "sealed uses flash: no format knows another"),
        (one("formats/sealed", "sim", ""), "sealed uses sim: tests alone use crates of test/"),
        (
            one("front/nbd", "vault", ""),
            "nbd uses vault: a front end knows `Disk` alone, and that of vaults the vault",
        ),
        (one("library/storage", "tree", ""), "storage uses tree: it is no crate of the workspace"),
        (one("service/mount", "", ""), "mount is in service, which is no layer"),
    ] {
        assert_eq!(with(wrong), [why]);
    }
}
