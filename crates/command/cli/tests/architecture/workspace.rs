//! The crates of the workspace as Cargo reports them, and the files of the tree.

use crate::graph::Graph;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate, named by its folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Crate {
    pub(crate) folder: String,
    /// The parent folder.
    pub(crate) layer: String,
    pub(crate) package: String,
    /// The name of its library in code, if it has one.
    pub(crate) library: Option<String>,
    /// The crates of the workspace that it depends on.
    pub(crate) uses: BTreeSet<String>,
    /// The crates that its tests depend on.
    pub(crate) tests_use: BTreeSet<String>,
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

pub(crate) fn crates() -> Vec<Crate> {
    parse(&metadata())
}

/// Cargo's metadata of the workspace.
fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(out.status.success(), "cargo metadata, {}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The packages that Cargo builds at the root of the workspace by default.
fn default_packages(metadata: &Value) -> Vec<&str> {
    let is_default =
        |package: &&Value| metadata["workspace_default_members"].as_array().unwrap().contains(&package["id"]);
    let packages = metadata["packages"].as_array().unwrap().iter().filter(is_default);
    packages.map(|package| package["name"].as_str().unwrap()).collect()
}

/// The crates that each crate depends on, without tests.
pub(crate) fn graph(crates: &[Crate]) -> Graph {
    crates.iter().map(|one| (one.folder.clone(), one.uses.clone())).collect()
}

fn parse(metadata: &Value) -> Vec<Crate> {
    metadata["packages"].as_array().unwrap().iter().map(of_package).collect()
}

fn of_package(package: &Value) -> Crate {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let path = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
    let folder = name(path);
    // An external crate has no path. The tests of a crate may depend on the crate itself for its
    // features.
    let of_kind = |is_of_kind: fn(&Value) -> bool| -> BTreeSet<String> {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let ours = dependencies.filter(|one| is_of_kind(&one["kind"])).filter_map(|one| one["path"].as_str());
        ours.map(|path| name(Path::new(path))).filter(|other| *other != folder).collect()
    };
    let (uses, tests_use) = (of_kind(|kind| kind != "dev"), of_kind(|kind| kind == "dev"));
    let mut targets = package["targets"].as_array().unwrap().iter();
    let library = targets.find(|target| target["kind"] == json!(["lib"]));
    let library = library.map(|target| target["name"].as_str().unwrap().replace('-', "_"));
    let layer = name(path.parent().unwrap());
    Crate { folder, layer, package: package["name"].as_str().unwrap().to_owned(), library, uses, tests_use }
}

/// The files below a folder with names that end in `ending`, with their texts, by their relative
/// paths. Build folders are skipped.
pub(crate) fn texts(root: &Path, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
            // A link may lead out of the tree, and a folder may belong to a program that runs
            // concurrently.
            let kind = entry.file_type().unwrap();
            if kind.is_dir() && name != "target" && !name.starts_with('.') {
                left.push(path);
            } else if kind.is_file() && name.ends_with(ending) {
                let inside = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.push((inside, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// A build with other packages would unify features: the benchmark enables unencrypted flash disks
/// for comparison (`keys-off` of `lacuna-flash`), which no release contains.
#[test]
fn a_plain_build_is_the_command_alone() {
    assert_eq!(default_packages(&metadata()), ["lacuna-cli"]);
    let package = |name: &str| json!({ "id": format!("path+file:///{name}#0.1.0"), "name": name });
    let all = json!({
        "packages": [package("lacuna-cli"), package("lacuna-flash"), package("lacuna-bench")],
        "workspace_default_members": ["path+file:///lacuna-bench#0.1.0", "path+file:///lacuna-cli#0.1.0"],
    });
    assert_eq!(default_packages(&all), ["lacuna-cli", "lacuna-bench"]);
}

#[test]
fn cargo_metadata_is_parsed() {
    let dependency = |path: &str, kind: Value| json!({ "path": path, "kind": kind });
    let metadata = json!({ "packages": [{
        "name": "lacuna-nbd",
        "manifest_path": "/tree/crates/front/nbd/Cargo.toml",
        "targets": [{ "kind": ["test"], "name": "serve" }, { "kind": ["lib"], "name": "lacuna-nbd" }],
        "dependencies": [
            dependency("/tree/crates/base/contracts", Value::Null),
            { "kind": null, "name": "rustls" },
            dependency("/tree/crates/front/nbd", json!("dev")),
            dependency("/tree/crates/test/testkit", json!("dev")),
        ],
    }] });
    let expected = Crate {
        folder: "nbd".into(),
        layer: "front".into(),
        package: "lacuna-nbd".into(),
        library: Some("lacuna_nbd".into()),
        uses: BTreeSet::from(["contracts".into()]),
        tests_use: BTreeSet::from(["testkit".into()]),
    };
    assert_eq!(parse(&metadata), [expected]);
}
