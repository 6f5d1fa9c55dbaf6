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

/// The code of a crate by the names of its modules: without comments and tests. The root's name is empty.
fn modules(sources: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![sources.to_owned()];
    while let Some(dir) = left.pop() {
        for path in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let inside = path.strip_prefix(sources).unwrap().with_extension("");
                let name = inside.to_string_lossy().replace('/', "::");
                let name = name.strip_suffix("::mod").unwrap_or(&name);
                // What `main.rs` has, no other file uses.
                if name != "main" {
                    let name = if name == "lib" { "" } else { name };
                    found.insert(name.to_owned(), code(&std::fs::read_to_string(&path).unwrap()));
                }
            }
        }
    }
    found
}

/// The code of a file. Of a module that stands inside of it `super` is the file itself.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let (mut code, mut inside) = (String::new(), false);
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let is_module = |line: &str| line.starts_with("mod ") || line.starts_with("pub(crate) mod ");
        inside = (inside || is_module(line) && line.ends_with('{')) && line != "}";
        if inside {
            code += &line.replacen("super::", "", 1);
        } else {
            code += line;
        }
        code.push('\n');
    }
    code
}

/// The paths at the start of a text, each by its names: that of `a::{b, c::d}` are two. Gives what follows them.
fn paths<'t>(text: &'t str, above: &[String], found: &mut Vec<Vec<String>>) -> &'t str {
    let is_of_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut path = above.to_vec();
    let mut rest = text.trim_start();
    loop {
        if let Some(list) = rest.strip_prefix('{') {
            let mut rest = list.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                let after =
                    paths(rest, &path, found).trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                // Not a list of paths, but a block of code.
                if after.len() == rest.len() {
                    return after;
                }
                rest = after;
            }
            return rest.strip_prefix('}').unwrap_or(rest);
        }
        let end = rest.find(|c: char| !is_of_name(c)).unwrap_or(rest.len());
        if end > 0 {
            path.push(rest[..end].to_owned());
        }
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) if end > 0 => rest = more,
            _ => break,
        }
    }
    // `as` and a star end a path.
    let rest = rest.strip_prefix('*').unwrap_or(rest);
    let rest = match rest.strip_prefix(" as ") {
        Some(alias) => alias.trim_start_matches(is_of_name),
        None => rest,
    };
    found.push(path);
    rest
}

/// Whether a file has no code of its own: it declares modules and hands their items on.
fn is_face(code: &str) -> bool {
    let mut bare = String::new();
    let mut depth = 0_u32;
    for (at, c) in code.char_indices() {
        match c {
            '[' if depth > 0 || code[..at].ends_with('#') || code[..at].ends_with("#!") => depth += 1,
            ']' if depth > 0 => depth -= 1,
            '#' | '!' => {}
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    bare.split(';').map(str::trim).all(|item| {
        let item = item.strip_prefix("pub(crate) ").or(item.strip_prefix("pub(super) ")).unwrap_or(item);
        let item = item.strip_prefix("pub ").unwrap_or(item);
        item.is_empty() || ["mod ", "use ", "extern crate "].iter().any(|word| item.starts_with(word))
    })
}

/// The code of a crate by the names of its modules, and which items they hand on.
struct Sources {
    /// Without comments and tests. The root's name is empty.
    code: BTreeMap<String, String>,
    /// Of a module and the name of an item: the module from which its path begins, and the path.
    handed_on: BTreeMap<(String, String), (String, Vec<String>)>,
}

fn parent(module: &str) -> &str {
    module.rsplit_once("::").map_or("", |(above, _)| above)
}

fn join(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") }
}

/// The module from which a path begins that stands in a module, and the rest of the path.
fn begin(module: &str, path: &[String]) -> (String, Vec<String>) {
    let (mut from, mut rest) = (module, path);
    while let Some((first, more)) = rest.split_first() {
        from = match first.as_str() {
            "crate" => "",
            "self" => from,
            "super" => parent(from),
            _ => break,
        };
        rest = more;
    }
    (from.to_owned(), rest.to_vec())
}

impl Sources {
    fn read(sources: &Path) -> Sources {
        let mut handed_on = BTreeMap::new();
        let code = modules(sources);
        for (module, code) in &code {
            for (at, _) in code.match_indices("use ") {
                let mut found = Vec::new();
                if code[..at].rsplit('\n').next().unwrap().trim_start().starts_with("pub") {
                    paths(&code[at + 4..], &[], &mut found);
                }
                for path in found {
                    if let Some(name) = path.last() {
                        handed_on.insert((module.clone(), name.clone()), begin(module, &path));
                    }
                }
            }
        }
        Sources { code, handed_on }
    }

    /// The module that has the item of a path, whichever modules hand it on; none if it is of another crate.
    fn home(&self, (mut at, mut rest): (String, Vec<String>)) -> Option<String> {
        // An item is handed on a few times at most.
        for _ in 0..8 {
            while let Some(below) = rest.first().map(|first| join(&at, first)) {
                if !self.code.contains_key(&below) {
                    break;
                }
                at = below;
                rest.remove(0);
            }
            let Some(first) = rest.first() else { return Some(at) };
            let Some((next, path)) = self.handed_on.get(&(at.clone(), first.clone())) else {
                return Some(at);
            };
            let first = path.first()?;
            let is_ours = self.code.contains_key(&join(next, first))
                || self.handed_on.contains_key(&(next.clone(), first.clone()));
            if !is_ours {
                return None;
            }
            (at, rest) = (next.clone(), path.clone());
        }
        Some(at)
    }

    /// The modules whose items a module names: by paths from the root, from its parent and from its children.
    fn used_by(&self, module: &str) -> BTreeSet<String> {
        let code = &self.code[module];
        let is_child = |other: &&String| !other.is_empty() && parent(other) == module;
        let children = self.code.keys().filter(is_child).map(|child| child.rsplit("::").next().unwrap());
        let mut used = BTreeSet::new();
        for word in children.chain(["crate", "super"]).map(|word| format!("{word}::")) {
            for (at, _) in code.match_indices(&word) {
                if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let mut found = Vec::new();
                paths(&code[at..], &[], &mut found);
                used.extend(found.iter().filter_map(|path| self.home(begin(module, path))));
            }
        }
        used
    }

    /// Which file uses which others. A parent with code of its own uses the children whose items it names, also those that it hands on. A
    /// parent that only declares modules and hands items on is no node: a file that names such an item uses the file that has it.
    fn graph(&self) -> Graph {
        let files: BTreeSet<&String> =
            self.code.iter().filter(|(_, code)| !is_face(code)).map(|(module, _)| module).collect();
        let shown = |module: &str| if module.is_empty() { "lib".to_owned() } else { module.to_owned() };
        let of = |module: &str| {
            let used = self.used_by(module).into_iter();
            used.filter(|other| other != module && files.contains(other))
                .map(|other| shown(&other))
                .collect::<BTreeSet<String>>()
        };
        files.iter().map(|module| (shown(module), of(module))).collect()
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
        real.extend(
            circles(&Sources::read(&sources).graph()).into_iter().map(|circle| (name.clone(), circle)),
        );
    }
    assert_eq!(named, real);
}
