//! `docs/architecture.md` is true: its drawing has the crates and what they depend on, its table has them in layers from which
//! all arrows point down, and it names every circle of files inside a crate.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn section(heading: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let section = page.split("\n## ").find(|part| part.lines().next() == Some(heading));
    section.unwrap_or_else(|| panic!("no section {heading}")).to_owned()
}

/// Which crate of the workspace depends on which others, tests and benchmarks aside.
fn crates() -> Graph {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
    // Crates are called by their folders here; `core` has another name in registries.
    let folder = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    let of = |package: &Value| {
        let dependencies = package["dependencies"].as_array().unwrap();
        let normal = dependencies.iter().filter(|d| d["kind"].is_null());
        normal.filter_map(|d| Some(folder(Path::new(d["path"].as_str()?)))).collect()
    };
    let own = |p: &Value| folder(Path::new(p["manifest_path"].as_str().unwrap()).parent().unwrap());
    packages.iter().map(|p| (own(p), of(p))).collect()
}

/// Everything that can be reached from a node.
fn reached(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut left = vec![from.to_owned()];
    while let Some(node) = left.pop() {
        for next in graph.get(&node).into_iter().flatten() {
            if seen.insert(next.clone()) {
                left.push(next.clone());
            }
        }
    }
    seen
}

/// The arrows that no longer way makes superfluous.
fn reduced(graph: &Graph) -> BTreeSet<(String, String)> {
    let mut arrows = BTreeSet::new();
    for (from, to) in graph {
        for direct in to {
            let around = to.iter().any(|other| other != direct && reached(graph, other).contains(direct));
            if !around {
                arrows.insert((from.clone(), direct.clone()));
            }
        }
    }
    arrows
}

#[test]
fn the_drawing_shows_which_crate_stands_on_which() {
    let drawn: BTreeSet<(String, String)> = section("The crates")
        .lines()
        .filter_map(|line| line.trim().split_once(" --> "))
        .map(|(from, to)| (from.to_owned(), to.to_owned()))
        .collect();
    let real = reduced(&crates());
    let show = |arrows: BTreeSet<&(String, String)>| {
        let lines: Vec<String> =
            arrows.into_iter().map(|(from, to)| format!("    {from} --> {to}")).collect();
        lines.join("\n")
    };
    assert!(
        drawn == real,
        "missing in the drawing:\n{}not so:\n{}",
        show(real.difference(&drawn).collect()),
        show(drawn.difference(&real).collect())
    );
}

#[test]
fn all_arrows_point_down() {
    let rows = section("The layers");
    let mut layers: BTreeMap<String, u32> = BTreeMap::new();
    for row in rows.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let Ok(layer) = cells[0].parse() else { continue };
        for name in cells[1].split(", ") {
            assert!(layers.insert(name.trim_matches('`').to_owned(), layer).is_none(), "{name} stands twice");
        }
    }
    let graph = crates();
    assert_eq!(
        layers.keys().collect::<Vec<_>>(),
        graph.keys().collect::<Vec<_>>(),
        "the crates of the table"
    );
    for (from, to) in &graph {
        for on in to {
            assert!(layers[from] > layers[on], "{from} depends on {on}, which is not below it");
        }
    }
}

/// Which file of a crate uses which others, by the names of their modules.
fn files(sources: &Path) -> Graph {
    let mut found = vec![];
    let mut left = vec![sources.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                left.push(entry);
            } else if entry.extension().is_some_and(|e| e == "rs") {
                found.push(entry);
            }
        }
    }
    let name = |path: &Path| {
        let inside = path.strip_prefix(sources).unwrap().with_extension("");
        let name = inside.to_string_lossy().replace('/', "::");
        name.strip_suffix("::mod").unwrap_or(&name).to_owned()
    };
    let names: BTreeSet<String> = found.iter().map(|path| name(path)).collect();
    let uses = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let own = name(path);
        let above = own.rsplit_once("::").map_or("", |(above, _)| above).to_owned();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        let mut used = BTreeSet::new();
        for (word, base) in [("crate::", ""), ("super::", above.as_str())] {
            for (at, _) in text.match_indices(word) {
                for first in firsts(&text[at + word.len()..]) {
                    let full = if base.is_empty() { first } else { format!("{base}::{first}") };
                    if names.contains(&full) && full != own {
                        used.insert(full);
                    }
                }
            }
        }
        (own, used)
    };
    let whole = |path: &&PathBuf| !["lib", "main"].contains(&name(path).as_str());
    found.iter().filter(whole).map(|path| uses(path)).collect()
}

/// The first names of a path, or of each path in a list of paths.
fn firsts(text: &str) -> Vec<String> {
    let first =
        |path: &str| path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    match text.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap().split(',').map(|path| first(path.trim())).collect(),
        None => vec![first(text)],
    }
}

/// The groups of nodes that reach each other.
fn circles(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let mut circles = BTreeSet::new();
    for node in graph.keys() {
        let group: BTreeSet<String> = reached(graph, node)
            .into_iter()
            .filter(|other| reached(graph, other).contains(node))
            .chain([node.clone()])
            .collect();
        if group.len() > 1 {
            circles.insert(group);
        }
    }
    circles
}

#[test]
fn every_circle_of_files_is_named() {
    let mut named = BTreeSet::new();
    for line in section("Circles of files").lines().filter(|line| line.starts_with("- `")) {
        let (place, files) = line[2..].split_once(": ").expect("- `crate`: `file`, `file`: why");
        let (files, why) = files.split_once(": ").expect("- `crate`: `file`, `file`: why");
        assert!(why.len() > 20, "{line}");
        let files: BTreeSet<String> = files.split(", ").map(|f| f.trim_matches('`').to_owned()).collect();
        named.insert((place.trim_matches('`').to_owned(), files));
    }
    let mut real = BTreeSet::new();
    for name in crates().keys() {
        let sources = root().join("crates").join(name).join("src");
        real.extend(circles(&files(&sources)).into_iter().map(|circle| (name.clone(), circle)));
    }
    assert_eq!(named, real);
}
